"""Starts bin/inferencecache for the checks beside this file."""
import contextlib
import json
import os
import random
import signal
import socket
import subprocess
import time
import urllib.request

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
BINARY = os.path.join(ROOT, "bin", "inferencecache")


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def free_ports(count):
    """The first of count ports in a row that nobody listens on, below those
    that the system gives to outgoing connections (from 32768): one of those
    would be taken again before the program binds it."""
    while True:
        first = random.randrange(10000, 32000)
        with contextlib.ExitStack() as stack:
            try:
                for port in range(first, first + count):
                    stack.enter_context(socket.socket()).bind(("127.0.0.1", port))
                return first
            except OSError:
                continue


def wait(what, condition, seconds=10.0):
    """Polls condition until it is true; says what was awaited if it never is."""
    deadline = time.monotonic() + seconds
    while True:
        value = condition()
        if value:
            return value
        if time.monotonic() > deadline:
            raise SystemExit(f"FAIL: waited {seconds} s for {what}")
        time.sleep(0.02)


def fetch(url, body=None):
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url, data=data, headers={"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=5) as response:
        text = response.read()
        return json.loads(text) if text[:1] in (b"{", b"[") else text.decode()


class Run:
    """`inferencecache run` with ports of its own; a context manager."""

    def __init__(self, *args):
        self.port = free_ports(2)
        self.control = self.port + 1
        self.url = f"http://127.0.0.1:{self.port}"
        self.control_url = f"http://127.0.0.1:{self.control}"
        self.args = [BINARY, "run", f"--listen=127.0.0.1:{self.port}", f"--control-listen=127.0.0.1:{self.control}", *args]

    def __enter__(self):
        self.started = time.monotonic()
        self.process = subprocess.Popen(self.args, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        wait("the server to be ready", self.ready)
        self.start_seconds = time.monotonic() - self.started
        return self

    def ready(self):
        if self.process.poll() is not None:
            raise SystemExit("FAIL: ended at start: " + self.process.stdout.read())
        try:
            return fetch(self.url + "/readyz") == "ok"
        except OSError:
            return False

    def __exit__(self, *_):
        stopping = time.monotonic()
        self.process.send_signal(signal.SIGINT)
        try:
            output, _ = self.process.communicate(timeout=10)
        except subprocess.TimeoutExpired:
            self.process.kill()
            raise SystemExit("FAIL: did not stop within 10 s of an interrupt")
        self.stop_seconds = time.monotonic() - stopping
        if self.process.returncode != 0:
            raise SystemExit(f"FAIL: exit code {self.process.returncode}: {output}")
        if self.stop_seconds > 5:
            raise SystemExit(f"FAIL: took {self.stop_seconds:.1f} s to stop")

    def lookup(self, **request):
        return fetch(self.url + "/inferencecache.v1alpha1.InferenceCache/LookupRoute", request)

    def rss_mib(self):
        with open(f"/proc/{self.process.pid}/status") as status:
            return next(int(line.split()[1]) for line in status if line.startswith("VmRSS")) / 1024
