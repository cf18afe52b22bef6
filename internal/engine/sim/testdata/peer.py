"""The far side of the simulated engine: libzmq and msgpack, as an engine's
real consumers use them. Prints one JSON object.

  peer.py live ENDPOINT TOPIC COUNT   two subscribers, one of which never reads
  peer.py replay ENDPOINT START
  peer.py slow ENDPOINT START         reads nothing before a line on stdin, then
                                      what there is
  peer.py snapshot ENDPOINT LIVE      asks after a line on stdin
"""

import json
import sys
import time

import msgpack
import zmq

IDLE_MS = 20000  # without a message for so long, the run is over
PAUSE_MS = 1000  # likewise, where an end is not expected
BEAT_MS = 50  # between heartbeats; a peer that does not answer is dropped


def unpack(payload):
    return msgpack.unpackb(payload, strict_map_key=False)


def beating(socket):
    """Makes a socket drop peers without a PONG; returns how often it did."""
    socket.setsockopt(zmq.HEARTBEAT_IVL, BEAT_MS)
    socket.setsockopt(zmq.HEARTBEAT_TIMEOUT, 1000)
    monitor = socket.get_monitor_socket(zmq.EVENT_DISCONNECTED)
    return lambda: 1 if monitor.poll(0) else 0


def live(context, endpoint, topic, count):
    stalled = context.socket(zmq.SUB)
    stalled.setsockopt(zmq.RCVHWM, 1)
    stalled.setsockopt(zmq.RCVBUF, 4096)
    healthy = context.socket(zmq.SUB)
    healthy.setsockopt(zmq.RCVHWM, 0)
    disconnects = beating(healthy)
    for socket in (stalled, healthy):
        socket.setsockopt(zmq.SUBSCRIBE, topic.encode())
        socket.connect(endpoint)
    sequences, frames, topics, payloads = [], set(), set(), []
    while len(sequences) < count and healthy.poll(IDLE_MS):
        message = healthy.recv_multipart()
        frames.add(len(message))
        topics.add(message[0].decode())
        sequences.append(int.from_bytes(message[-2], "big"))
        payloads.append(message[-1])
    time.sleep(1.5)  # longer than the heartbeat timeout
    return {
        "received": len(sequences),
        "contiguous": sequences == list(range(len(sequences))),
        "frames": sorted(frames),
        "topics": sorted(topics),
        "disconnects": disconnects(),
        "batches": [unpack(p) for p in payloads[:20] if len(p) < 10000],
    }


def replay(context, endpoint, start, slow=False):
    dealer = context.socket(zmq.DEALER)
    dealer.setsockopt(zmq.RCVHWM, 10)  # what it has not read waits at the engine
    dealer.connect(endpoint)
    dealer.send_multipart([b"", start.to_bytes(8, "big")])
    if slow:
        sys.stdin.readline()
    sequences, frames, topics, payloads, end = [], set(), set(), [], None
    while dealer.poll(PAUSE_MS if slow else IDLE_MS):
        message = dealer.recv_multipart()
        if message[-1] == b"":
            end = [frame.hex() for frame in message]
            break
        frames.add(len(message))
        topics.update(frame.decode() for frame in message[1:-2])
        sequences.append(int.from_bytes(message[-2], "big"))
        payloads.append(message[-1])
    return {
        "received": len(sequences),
        "contiguous": sequences == list(range(start, start + len(sequences))),
        "frames": sorted(frames),
        "topics": sorted(topics),
        "end": end,
        "batches": [unpack(p) for p in payloads[:20] if len(p) < 10000],
    }


def snapshot(context, endpoint, events):
    sub = context.socket(zmq.SUB)
    sub.setsockopt(zmq.SUBSCRIBE, b"kv")
    sub.connect(events)
    sys.stdin.readline()
    dealer = context.socket(zmq.DEALER)
    disconnects = beating(dealer)
    dealer.connect(endpoint)
    dealer.send_multipart([b"", b"snapshot-v1"])
    header, records, end, barrier = None, [], None, None
    while end is None and dealer.poll(IDLE_MS):
        empty, kind, payload = dealer.recv_multipart()
        if kind == b"header":
            header = unpack(payload)
        elif kind == b"chunk":
            records += unpack(payload)
        else:
            end = [empty.hex(), kind.decode(), payload.decode()]
    while barrier is None and sub.poll(IDLE_MS):
        topic, sequence, payload = sub.recv_multipart()
        if b"\0sgl-kv-snapshot=" in topic:
            barrier = [topic.decode(), int.from_bytes(sequence, "big"), unpack(payload)[1:]]
    time.sleep(1.5)  # longer than the heartbeat timeout
    return {
        "disconnects": disconnects(),
        "header": header,
        "records": [[str(parent), [str(h) for h in hashes]] for parent, hashes in records],
        "end": end,
        "barrier": barrier,
    }


def main():
    context = zmq.Context()
    kind, endpoint, rest = sys.argv[1], sys.argv[2], sys.argv[3:]
    if kind == "live":
        report = live(context, endpoint, rest[0], int(rest[1]))
    elif kind == "snapshot":
        report = snapshot(context, endpoint, rest[0])
    else:
        report = replay(context, endpoint, int(rest[0]), slow=kind == "slow")
    report["libzmq"] = zmq.zmq_version()
    print(json.dumps(report))
    context.destroy(linger=0)


main()
