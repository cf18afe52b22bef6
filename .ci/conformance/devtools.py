"""A small client of Chromium's DevTools protocol: standard library only."""
import base64
import json
import os
import socket
import struct
import subprocess
import tempfile
import time
import urllib.request

from process import wait


class Socket:
    """A WebSocket to a server that is trusted: text frames, no extensions."""

    def __init__(self, url):
        host, path = url.removeprefix("ws://").split("/", 1)
        name, port = host.split(":")
        self.socket = socket.create_connection((name, int(port)), timeout=60)
        key = base64.b64encode(os.urandom(16)).decode()
        self.socket.sendall((f"GET /{path} HTTP/1.1\r\nHost: {host}\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
                             f"Sec-WebSocket-Key: {key}\r\nSec-WebSocket-Version: 13\r\n\r\n").encode())
        self.file = self.socket.makefile("rb")
        if b" 101 " not in self.file.readline():
            raise SystemExit("FAIL: the browser refused the WebSocket")
        while self.file.readline().strip():
            pass

    def send(self, text):
        data, mask = text.encode(), os.urandom(4)
        size = len(data)
        head = bytes([0x81]) + (bytes([0x80 | size]) if size < 126 else
                                struct.pack(">BH", 0xFE, size) if size < 1 << 16 else struct.pack(">BQ", 0xFF, size))
        self.socket.sendall(head + mask + bytes(b ^ mask[i % 4] for i, b in enumerate(data)))

    def receive(self):
        text = b""
        while True:
            first, second = self.file.read(2)
            size = second & 0x7F
            if size == 126:
                size, = struct.unpack(">H", self.file.read(2))
            elif size == 127:
                size, = struct.unpack(">Q", self.file.read(8))
            data = self.file.read(size)
            if first & 0x0F > 2:
                continue  # a ping, or the end, which the next read shows
            text += data
            if first & 0x80:
                return json.loads(text)


class Browser:
    """Headless Chromium with one page; a context manager."""

    def __enter__(self):
        self.folder = tempfile.TemporaryDirectory(prefix="chromium-", ignore_cleanup_errors=True)
        self.process = subprocess.Popen(
            ["chromium", "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run", "--hide-scrollbars",
             "--disable-background-networking", "--disable-component-update", "--remote-debugging-port=0", f"--user-data-dir={self.folder.name}", "about:blank"],
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        port_file = os.path.join(self.folder.name, "DevToolsActivePort")

        def port():
            try:
                with open(port_file) as f:
                    return f.readline().strip()
            except OSError:
                return None

        address = f"http://127.0.0.1:{wait('the browser to start', port, 120)}/json"

        def page():
            with urllib.request.urlopen(address, timeout=30) as response:
                return next((t for t in json.load(response) if t["type"] == "page"), None)

        self.socket = Socket(wait("the browser's page", page, 60)["webSocketDebuggerUrl"])
        self.number = 0
        self.complaints = []
        for domain in ("Page", "Runtime", "Log"):
            self.call(domain + ".enable")
        return self

    def __exit__(self, *_):
        self.process.terminate()
        try:
            self.process.wait(10)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self.folder.cleanup()

    def call(self, method, **params):
        self.number += 1
        self.socket.send(json.dumps({"id": self.number, "method": method, "params": params}))
        while True:
            message = self.socket.receive()
            if message.get("id") == self.number:
                if "error" in message:
                    raise SystemExit(f"FAIL: {method}: {message['error']}")
                return message["result"]
            self.note(message.get("method"), message.get("params", {}))

    def note(self, event, params):
        """Keeps what a developer would see in red or yellow."""
        if event == "Runtime.exceptionThrown":
            details = params["exceptionDetails"]
            self.complaints.append(details.get("exception", {}).get("description") or details["text"])
        elif event == "Runtime.consoleAPICalled" and params["type"] in ("error", "warning", "assert"):
            self.complaints.append(str([a.get("value", a.get("description")) for a in params["args"]]))
        elif event == "Log.entryAdded" and params["entry"]["level"] in ("error", "warning"):
            self.complaints.append(params["entry"]["text"] + " " + params["entry"].get("url", ""))

    def go(self, url):
        self.call("Page.navigate", url=url)

    def run(self, script):
        """The value of a JavaScript expression in the page."""
        answer = self.call("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in answer:
            raise SystemExit(f"FAIL: {script}: {answer['exceptionDetails']}")
        return answer["result"].get("value")

    def wait(self, what, script, seconds=60):
        deadline = time.monotonic() + seconds
        while not (value := self.run(script)):
            if time.monotonic() > deadline:
                raise SystemExit(f"FAIL: waited {seconds} s for {what}; the page complains: {self.complaints}; it shows:\n{self.run('document.body?.innerText')}")
            time.sleep(0.1)
        return value

    def look(self, width, dark):
        """Makes the page so wide, and light or dark."""
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=900, deviceScaleFactor=1, mobile=width < 500)
        self.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}])

    def picture(self, path):
        data = self.call("Page.captureScreenshot", captureBeyondViewport=True)["data"]
        with open(path, "wb") as f:
            f.write(base64.b64decode(data))
