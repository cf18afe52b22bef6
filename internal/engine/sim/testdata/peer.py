"""The far side of the simulated engine: libzmq and msgpack, as an engine's
real consumers use them. Prints one JSON object.

  peer.py live ENDPOINT TOPIC COUNT   two subscribers, one of which never reads
  peer.py replay ENDPOINT START
"""

import json
import sys
import time

import msgpack
import zmq

IDLE_MS = 20000  # without a message for so long, the run is over


def live(context, endpoint, topic, count):
    stalled = context.socket(zmq.SUB)
    stalled.setsockopt(zmq.RCVHWM, 1)
    stalled.setsockopt(zmq.RCVBUF, 4096)
    healthy = context.socket(zmq.SUB)
    healthy.setsockopt(zmq.RCVHWM, 0)
    healthy.setsockopt(zmq.HEARTBEAT_IVL, 50)  # a peer that does not answer PING is dropped
    healthy.setsockopt(zmq.HEARTBEAT_TIMEOUT, 1000)
    monitor = healthy.get_monitor_socket(zmq.EVENT_DISCONNECTED)
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
        "disconnects": 1 if monitor.poll(0) else 0,
        "batches": [msgpack.unpackb(p, strict_map_key=False) for p in payloads[:20]],
    }


def replay(context, endpoint, start):
    dealer = context.socket(zmq.DEALER)
    dealer.setsockopt(zmq.RCVHWM, 10)  # what it has not read waits at the engine
    dealer.connect(endpoint)
    dealer.send_multipart([b"", start.to_bytes(8, "big")])
    sequences, frames, topics, payloads, end = [], set(), set(), [], None
    while dealer.poll(IDLE_MS):
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
        "batches": [msgpack.unpackb(p, strict_map_key=False) for p in payloads[:20]],
    }


def main():
    context = zmq.Context()
    if sys.argv[1] == "live":
        report = live(context, sys.argv[2], sys.argv[3], int(sys.argv[4]))
    else:
        report = replay(context, sys.argv[2], int(sys.argv[3]))
    report["libzmq"] = zmq.zmq_version()
    print(json.dumps(report))
    context.destroy(linger=0)


main()
