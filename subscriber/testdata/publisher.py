"""A libzmq publisher for the tests, driven by lines on standard input.

  send HEX HEX ...   publish one message of these frames ("-" is an empty one)
  flood COUNT SIZE   publish COUNT messages of SIZE payload bytes, sequence from 0

It answers on standard output: "endpoint ADDRESS" once it is bound and
"subscribed HEX" for each new subscription. It ends with its input.
"""

import argparse
import os
import sys

import zmq


def main():
    flags = argparse.ArgumentParser()
    flags.add_argument("--bind", default="tcp://127.0.0.1:0")
    flags.add_argument("--heartbeat", type=int, default=0, help="interval of heartbeats in ms")
    flags.add_argument("--heartbeat-timeout", type=int, default=0, help="in ms")
    args = flags.parse_args()

    context = zmq.Context()
    # XPUB is PUB that shows its subscriptions.
    publisher = context.socket(zmq.XPUB)
    publisher.setsockopt(zmq.XPUB_VERBOSE, 1)
    publisher.setsockopt(zmq.LINGER, 0)
    publisher.setsockopt(zmq.SNDHWM, 0)
    if args.heartbeat:
        publisher.setsockopt(zmq.HEARTBEAT_IVL, args.heartbeat)
        publisher.setsockopt(zmq.HEARTBEAT_TIMEOUT, args.heartbeat_timeout)
    publisher.bind(args.bind)
    say("endpoint " + publisher.getsockopt(zmq.LAST_ENDPOINT).rstrip(b"\0").decode())

    poller = zmq.Poller()
    poller.register(publisher, zmq.POLLIN)
    poller.register(sys.stdin.fileno(), zmq.POLLIN)
    rest = b""
    while True:
        ready = dict(poller.poll())
        if publisher in ready:
            message = publisher.recv()
            if message[:1] == b"\1":
                say("subscribed " + message[1:].hex())
        if sys.stdin.fileno() in ready:
            read = os.read(sys.stdin.fileno(), 1 << 20)
            if not read:
                return
            *lines, rest = (rest + read).split(b"\n")
            for line in lines:
                obey(publisher, line.decode().split())


def obey(publisher, words):
    if words[0] == "send":
        publisher.send_multipart([b"" if w == "-" else bytes.fromhex(w) for w in words[1:]])
    elif words[0] == "flood":
        payload = bytes(int(words[2]))
        for sequence in range(int(words[1])):
            publisher.send_multipart([b"", sequence.to_bytes(8, "big"), payload])
    else:
        sys.exit("unknown command: %r" % words)


def say(line):
    print(line, flush=True)


main()
