"""The status page in a real browser: it follows a simulated fleet, explains an
answer, takes no name for markup, works below a path, says when the server is
away. Pictures of it are left in bin/page."""
import http.client
import http.server
import json
import os
import struct
import threading
import urllib.request

from devtools import Browser
from process import ROOT, Run, fetch, free_ports, wait

PICTURES = os.path.join(ROOT, "bin", "page")
EVIL = "<img src=x onerror=alert(1)>"


def report(run, **update):
    """Sends one update as a Connect stream of one message."""
    body = json.dumps(update).encode()
    request = urllib.request.Request(
        run.url + "/inferencecache.v1alpha1.InferenceCache/ReportCacheState", data=struct.pack(">BI", 0, len(body)) + body,
        headers={"Content-Type": "application/connect+json", "Connect-Protocol-Version": "1"})
    with urllib.request.urlopen(request, timeout=10) as response:
        assert b'"accepted":true' in response.read().replace(b" ", b"")


def below_a_path(port):
    """A proxy that serves the server at port below /cache/ and nothing else."""

    class Proxy(http.server.BaseHTTPRequestHandler):
        def answer(self):
            if not self.path.startswith("/cache/"):
                self.send_error(404)
                return
            body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            upstream = http.client.HTTPConnection("127.0.0.1", port, timeout=600)
            upstream.request(self.command, self.path.removeprefix("/cache"), body, {k: v for k, v in self.headers.items() if k.lower() != "host"})
            response = upstream.getresponse()
            self.send_response(response.status)
            for name in ("Content-Type", "Content-Encoding", "Connect-Content-Encoding", "Content-Security-Policy"):
                if response.getheader(name):
                    self.send_header(name, response.getheader(name))
            self.end_headers()
            try:
                while piece := response.read1(65536):
                    self.wfile.write(piece)
                    self.wfile.flush()
            except OSError:
                pass  # the browser has left
            upstream.close()

        do_GET = do_POST = answer

        def log_message(self, *_):
            pass

    proxy = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Proxy)
    proxy.daemon_threads = True
    threading.Thread(target=proxy.serve_forever, daemon=True).start()
    return f"http://127.0.0.1:{proxy.server_port}/cache/"


def row(name):
    """A JavaScript expression: the text of a replica's row, or ''."""
    return f"([...document.querySelectorAll('#fleet-table tbody tr')].find(r => r.cells[0].innerText.includes({json.dumps(name)}))?.innerText ?? '')"


def fill(script):
    return "(() => { const f = document.getElementById('why').elements; " + script + "; document.getElementById('why').requestSubmit(); return true })()"


first = free_ports(20)
os.makedirs(PICTURES, exist_ok=True)

with Browser() as browser:
    with Run("--role=all", f"--sim-listen=127.0.0.1:{first}") as run:
        browser.look(1280, False)
        browser.go(run.url + "/")
        browser.wait("the rows of three engines", "document.querySelectorAll('#fleet-table tbody tr').length === 3")
        browser.wait("all to be alive", "document.getElementById('tiles').innerText.includes('3 of 3')")
        assert browser.run("document.getElementById('hot-empty').innerText").startswith("No lookup has named a replica yet")
        print("the fleet is shown")

        shared = "You are a helpful assistant of a travel agency. Answer in one sentence and name a price. "
        for i in range(24):
            prompt = shared * (1 + i % 3) + f"Question {i}: where is it warm in November, and how do I get there?"
            fetch(f"http://127.0.0.1:{first + i % 2}/v1/completions", {"model": "sim", "prompt": prompt, "max_tokens": 1})
        question = dict(tenantId="demo", modelId="sim", hashScheme="vllm", promptText=shared * 2 + "And now?")
        wait("a match", lambda: run.lookup(**question)["reasonCode"] == "PREFIX_MATCH")
        for i in range(30):
            answer = run.lookup(**question, requestId=f"request-{i}")
            fetch(run.url + "/inferencecache.v1alpha1.InferenceCache/ReportOutcome",
                  {"requestId": f"request-{i}", "replicaId": answer["replicaScores"][0]["replicaId"], "cachedTokens": answer["replicaScores"][0].get("matchedTokens", 0)})
            run.lookup(tenantId="demo", modelId="sim", hashScheme="vllm", promptText=f"{i} never asked before, by anybody " * 5)
        browser.wait("the hottest prefixes", "document.querySelectorAll('#hot-table tbody tr').length > 0")
        browser.wait("live events", "document.querySelectorAll('#events-table tbody tr').length > 3")
        browser.wait("the legend to count", "document.querySelector('#reasons path.g0').getAttribute('d').length > 20")
        print("prefixes, events and rates are shown")

        report(run, replicaId=EVIL, tenantId=EVIL, modelId="sim", hashScheme="vllm", streamState="STREAM_STALE",
               stats={"runningRequests": 3, "waitingRequests": 12})
        text = browser.wait("a replica with a name like markup", row(EVIL))
        assert "suspect" in text and "12" in text, text
        assert browser.run("document.querySelector('img[src=x]') === null"), "a name became markup"
        print("names stay text")

        browser.run(fill("f.input.value = 'request-3'"))
        browser.wait("the explanation of an answer", "/holds \\d+ of/.test(document.querySelector('#why-answer .verdict')?.innerText ?? '')")
        browser.run("document.querySelector('input[name=by][value=text]').click()")
        browser.run(fill(f"f.tenant.value = 'demo'; f.model.value = 'sim'; f.scheme.value = 'vllm'; f.input.value = {json.dumps(question['promptText'])}"))
        browser.wait("the explanation of a prompt", "document.querySelectorAll('#why-answer tbody tr').length === 3")
        assert browser.run("document.querySelector('#why-answer .verdict').innerText").startswith("PREFIX_MATCH")
        browser.run("document.querySelector('input[name=by][value=hashes]').click()")
        browser.run(fill("f.input.value = 'xyz'"))
        browser.wait("what is wrong with a hash", "document.querySelector('#why-answer').innerText.includes('\"xyz\" is not a hash')")
        browser.run("document.querySelector('input[name=by][value=request]').click()")
        browser.run(fill("f.input.value = 'request-3'"))
        browser.wait("the explanation again", "document.querySelectorAll('#why-answer tbody tr').length > 1")
        print("answers are explained")

        unnamed = browser.run("[...document.querySelectorAll('input, select, textarea, button')].filter(e => !(e.labels?.length || e.innerText)).map(e => e.outerHTML)")
        assert unnamed == [], f"controls without a name: {unnamed}"
        assert browser.run("['header', 'main', 'footer', 'h1'].every(t => document.querySelectorAll(t).length === 1)")
        assert browser.run("[...document.querySelectorAll('table')].every(t => t.querySelector('thead th[scope=col]'))")
        for width in (1280, 360):
            for dark in (False, True):
                browser.look(width, dark)
                wide = browser.run("document.documentElement.scrollWidth")
                assert wide <= width, f"{wide} pixels of content on a screen of {width}"
                browser.picture(os.path.join(PICTURES, f"{width}-{'dark' if dark else 'light'}.png"))
        print(f"pictures are in {PICTURES}")

        browser.look(1280, False)
        browser.go(below_a_path(run.port))
        browser.wait("the fleet below a path", "location.pathname === '/cache/' && document.querySelectorAll('#fleet-table tbody tr').length === 4")
        fetch(f"http://127.0.0.1:{first}/v1/completions", {"model": "sim", "prompt": "something else, long enough for several blocks of tokens " * 3, "max_tokens": 1})
        browser.wait("an event below a path", "document.querySelectorAll('#events-table tbody tr').length > 0")
        print("it works below a path")

        assert browser.complaints == [], browser.complaints
        browser.go(run.url + "/")
        browser.wait("the fleet again", "document.querySelectorAll('#fleet-table tbody tr').length === 4")
    browser.wait("the page to say that the server is away", "!document.getElementById('away').hidden && document.getElementById('link').innerText === 'away'")
    assert browser.run("document.querySelectorAll('#fleet-table tbody tr').length") == 4, "what was known is gone"
    browser.picture(os.path.join(PICTURES, "away.png"))
print("it says when the server is away")
