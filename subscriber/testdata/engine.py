"""An engine's event publisher on libzmq, for the tests: a PUB and a ROUTER that
replays, served by one thread as in vLLM. Driven by lines on standard input.

  burst COUNT BLOCKS   send COUNT batches; batch n stores a chain of BLOCKS new
                       blocks and removes those of the batch 8 before, but for each fourth
  quit

Block b of batch n has the hash n << 20 | b + 1, and 16 times the token
(n << 8 | b) % 1000003 + seed, so that a reader can work out what is held.

It answers on standard output: "endpoint ADDRESS", "replay ADDRESS", and
"sent N" with the number of batches after each burst.
"""

import argparse
import collections
import os
import sys
import time

import msgpack
import zmq


def main():
    flags = argparse.ArgumentParser()
    flags.add_argument("--bind", default="tcp://127.0.0.1:0")
    flags.add_argument("--replay", default="tcp://127.0.0.1:0")
    flags.add_argument("--topic", default="")
    flags.add_argument("--hwm", type=int, default=1000)
    flags.add_argument("--buffer", type=int, default=10000)
    flags.add_argument("--seed", type=int, default=1)
    flags.add_argument("--encoding", choices=["array", "map"], default="map")
    flags.add_argument("--layout", choices=["old", "new"], default="new")
    args = flags.parse_args()

    context = zmq.Context()
    publisher = context.socket(zmq.PUB)
    publisher.setsockopt(zmq.LINGER, 0)
    publisher.setsockopt(zmq.SNDHWM, args.hwm)
    publisher.bind(args.bind)
    replay = context.socket(zmq.ROUTER)
    replay.setsockopt(zmq.LINGER, 0)
    replay.bind(args.replay)
    say("endpoint " + address(publisher))
    say("replay " + address(replay))

    topic = args.topic.encode()
    buffer = collections.deque(maxlen=args.buffer)
    todo = collections.deque()
    rest = b""
    poller = zmq.Poller()
    poller.register(replay, zmq.POLLIN)
    poller.register(sys.stdin.fileno(), zmq.POLLIN)
    sent = 0
    while True:
        ready = dict(poller.poll(0 if todo else 100))
        if replay in ready:
            answer(replay, buffer, topic, args.layout)
        if sys.stdin.fileno() in ready:
            read = os.read(sys.stdin.fileno(), 1 << 16)
            if not read:
                return
            *lines, rest = (rest + read).split(b"\n")
            for line in lines:
                words = line.decode().split()
                if words[0] == "quit":
                    return
                todo.append([int(words[1]), int(words[2])])
        if todo:
            payload = batch(sent, todo[0][1], args.seed, args.encoding)
            publisher.send_multipart([topic, sent.to_bytes(8, "big"), payload])
            buffer.append((sent, payload))
            sent += 1
            todo[0][0] -= 1
            if todo[0][0] == 0:
                todo.popleft()
                say("sent %d" % sent)


def answer(replay, buffer, topic, layout):
    frames = replay.recv_multipart()
    if len(frames) != 3:
        return
    client, empty, start = frames
    middle = [topic] if layout == "new" else []
    for sequence, payload in buffer:
        if sequence >= int.from_bytes(start, "big"):
            replay.send_multipart([client, b"", *middle, sequence.to_bytes(8, "big"), payload])
    middle = [b""] if layout == "new" else []
    replay.send_multipart([client, b"", *middle, b"\xff" * 8, b""])


def batch(n, blocks, seed, encoding):
    tokens = []
    for b in range(blocks):
        tokens += [((n << 8) | b) % 1000003 + seed] * 16
    hashes = [n << 20 | b + 1 for b in range(blocks)]
    gone = [n - 8 << 20 | b + 1 for b in range(blocks) if b % 4] if n >= 8 else []
    if encoding == "array":
        events = [["BlockStored", hashes, None, tokens, 16, None, "GPU", None]]
        if gone:
            events.append(["BlockRemoved", gone, "GPU"])
    else:
        events = [{"type": "BlockStored", "block_hashes": hashes, "parent_block_hash": None, "token_ids": tokens,
                   "block_size": 16, "lora_id": None, "medium": "GPU", "lora_name": None}]
        if gone:
            events.append({"type": "BlockRemoved", "block_hashes": gone, "medium": "GPU"})
    return msgpack.packb([time.time(), events, 0])


def address(socket):
    return socket.getsockopt(zmq.LAST_ENDPOINT).rstrip(b"\0").decode()


def say(line):
    print(line, flush=True)


main()
