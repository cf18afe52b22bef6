"""Doctor names each fault, made for real: those that a simulated engine can have
and those of a server, a gateway and a way between; that one alone, and nothing
on a healthy system. All systems run side by side."""

import contextlib
import http.server
import json
import os
import re
import subprocess
import sys
import tempfile
import threading

from process import BINARY, fetch, free_ports, wait

SETTLE = "45s"  # the slowest fault shows after 30 s on an idle machine


class System:
    """`run --role=all` with ports of its own, and a doctor that looks at it."""

    def __init__(self, stack, log, name, *flags, want=None, scheme="http", env=None, subject="demo/sim-1"):
        self.name, self.want, self.subject = name, [want or name] if name else [], subject
        first = free_ports(5)  # and the engines' HTTP ports
        self.base, self.control, self.engine = f"{scheme}://127.0.0.1:{first}", f"http://127.0.0.1:{first + 1}", f"http://127.0.0.1:{first + 2}"
        self.flags, self.env = [], dict(os.environ, **(env or {}))
        process = subprocess.Popen(
            [BINARY, "run", "--role=all", "--sim=2", f"--sim-listen=127.0.0.1:{first + 2}", f"--listen=127.0.0.1:{first}",
             f"--control-listen=127.0.0.1:{first + 1}", "--log-level=error", *flags], stdout=log, stderr=log)
        stack.callback(process.wait, 10)
        stack.callback(process.terminate)
        wait(f"the system for {name or 'nothing'}", self.up, 60)

    def up(self):
        with contextlib.suppress(OSError):
            return fetch(self.control + "/snapshot")

    def examine(self):
        command = [BINARY, "doctor", "--local", f"--server={self.base}", f"--control={self.control}", f"--settle={SETTLE}", "--timeout=5m", "-o", "json", *self.flags]
        self.doctor = subprocess.Popen(command, env=self.env, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)

    def judged_rightly(self):
        out, _ = self.doctor.communicate(timeout=360)
        found = [f for f in json.loads(out)["findings"] if f["status"] in ("WARN", "FAIL")]
        ids = sorted({f["id"] for f in found})
        where = {f["resource"] for f in found if "resource" in f}
        fine = ids == self.want and (self.doctor.returncode != 0) == bool(self.want) and where <= {self.subject}
        print(f"{'ok' if fine else 'WRONG':5} {self.name or 'healthy':40} exit {self.doctor.returncode} {ids}")
        if not fine:
            print(json.dumps(found, indent=1))
        return fine


def engine_faults():
    said = subprocess.run([BINARY, "run", "--sim-fault", "?"], capture_output=True, text=True).stderr
    return re.search(r"want one of (.*)", said).group(1).strip().split(", ")


def certificate(folder):
    """One that ends in five days, and its key."""
    files = os.path.join(folder, "tls.crt"), os.path.join(folder, "tls.key")
    subprocess.run(["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "5", "-out", files[0],
                    "-keyout", files[1], "-subj", "/CN=localhost", "-addext", "subjectAltName=IP:127.0.0.1"], check=True, capture_output=True)
    return files


class Tokenizer(http.server.BaseHTTPRequestHandler):
    """A gateway that makes tokens of bytes as the engine does, behind a special
    one of its own."""

    def do_POST(self):
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        text = asked.get("prompt") or "".join(m["content"] for m in asked["messages"])
        body = json.dumps({"tokens": [1, *text.encode()]}).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        pass


def gateway(stack):
    server = stack.enter_context(http.server.ThreadingHTTPServer(("127.0.0.1", 0), Tokenizer))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    stack.callback(server.shutdown)
    return f"http://127.0.0.1:{server.server_port}"


def main():
    with contextlib.ExitStack() as stack:
        log = stack.enter_context(tempfile.TemporaryFile("w+"))
        crt, key = certificate(stack.enter_context(tempfile.TemporaryDirectory()))
        healthy = System(stack, log, "")
        healthy.flags = [f"--gateway-url={healthy.engine}", f"--engine-url={healthy.engine}"]
        systems = [healthy] + [System(stack, log, fault, f"--sim-fault={fault}") for fault in engine_faults()]
        assert len(systems) > 12, systems

        # An engine that listens at one address alone, for want of a * in its endpoint.
        source = fetch(healthy.engine + "/kv_event_sources")[0]
        events, replay = source["endpoint"], source["replay_endpoint"]
        systems.append(System(stack, log, "endpoint without wildcard", "--sim=0", "--engine=odd=" + events.replace("127.0.0.1", "127.0.0.2") + ",tenant=demo,model=sim", want="events-off", subject="demo/odd"))
        systems.append(System(stack, log, "api-silent", "--sim=0", f"--engine=odd={events},replay={replay},url=http://127.0.0.1:9,tenant=demo,model=sim", subject="demo/odd"))
        systems.append(System(stack, log, "index-near-budget", "--index-memory=60000", "--sim-load=50"))
        systems.append(System(stack, log, "certificate-expires", f"--tls-cert-file={crt}", f"--tls-key-file={key}", scheme="https", env={"SSL_CERT_FILE": crt}))
        parity = System(stack, log, "token-parity")
        parity.flags = [f"--gateway-url={gateway(stack)}", f"--engine-url={parity.engine}"]
        gone = System(stack, log, "server-unreachable")
        gone.base = "http://127.0.0.1:9"
        systems += [parity, gone]

        for system in systems:
            system.examine()
        wrong = len(systems) - sum([system.judged_rightly() for system in systems])
        if wrong:
            log.seek(0)
            sys.stdout.write(log.read()[-4000:])
    print(f"doctor: {len(systems) - wrong} of {len(systems)} systems judged rightly")
    return wrong != 0


if __name__ == "__main__":
    sys.exit(main())
