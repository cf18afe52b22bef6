"""A subscriber that holds 500,000 blocks, each a chain of its own, published
by libzmq: it stays below 128 MiB, also when its server is killed and wants
everything anew."""
import random
import signal
import struct
import subprocess
import time

import msgpack
import zmq

from process import BINARY, fetch, free_ports, wait

BLOCKS = 500_000
BATCH = 64
LIMIT_MIB = 128


def payload(source, blocks):
    return msgpack.packb([time.time(), [
        ["BlockStored", [source.getrandbits(64)], None, [source.randrange(150_000) for _ in range(16)], 16, None] for _ in range(blocks)
    ]])


def start(*args):
    return subprocess.Popen([BINARY, "run", *args], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def most_resident(process):
    with open(f"/proc/{process.pid}/status") as status:
        return next(int(line.split()[1]) for line in status if line.startswith("VmHWM")) / 1024


def main():
    first = free_ports(3)
    serve = ["--role=server", f"--listen=127.0.0.1:{first}", f"--control-listen=127.0.0.1:{first + 1}", "--insecure-disable-auth"]
    context = zmq.Context()
    publisher = context.socket(zmq.PUB)
    publisher.set_hwm(0)
    port = publisher.bind_to_random_port("tcp://127.0.0.1")
    server = start(*serve)
    subscriber = start("--role=subscriber", "--model-id=m", "--tenant-id=t", "--replica-id=engine", f"--server=127.0.0.1:{first}",
                       f"--listen=127.0.0.1:{first + 2}", f"--engine-endpoint=tcp://127.0.0.1:{port}", "--engine-replay-endpoint=",
                       "--engine-metrics-url=", "--discover-ranks=false")

    def held():
        try:
            return fetch(f"http://127.0.0.1:{first + 1}/snapshot")["totalPrefixes"]
        except OSError:
            return 0

    try:
        source, sequence = random.Random(1), 0

        def publish(blocks):
            nonlocal sequence
            publisher.send_multipart([b"", struct.pack(">Q", sequence), payload(source, blocks)])
            sequence += 1

        def connected():  # what is published before is lost
            publish(1)
            time.sleep(0.2)
            return held()

        left = BLOCKS - wait("the first block", connected, 30)
        while left > 0:
            publish(min(BATCH, left))
            left -= BATCH
        wait(f"{BLOCKS} blocks in the index", lambda: held() == BLOCKS, 120)
        full = most_resident(subscriber)
        server.send_signal(signal.SIGKILL)
        server.wait()
        killed = time.monotonic()
        server = start(*serve)
        wait("all of them in the new server's", lambda: held() == BLOCKS, 120)
        anew = time.monotonic() - killed
        most = most_resident(subscriber)
        assert subscriber.poll() is None, "the subscriber ended"
        assert most < LIMIT_MIB, f"{most:.0f} MiB resident"
    finally:
        for process in (subscriber, server):
            process.kill()
            process.wait()
        publisher.close(0)
        context.term()
    print(f"{BLOCKS} blocks: at most {full:.0f} MiB resident, {most:.0f} MiB with a server that was killed and had all again after {anew:.1f} s")


main()
