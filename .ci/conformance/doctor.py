"""Doctor names each fault that a simulated engine can have, that one alone, and
finds nothing wrong with a healthy system. All systems run side by side."""

import json
import re
import subprocess
import sys
import tempfile
import time

BINARY = "bin/inferencecache"
SETTLE = "45s"  # the slowest fault shows after 30 s on an idle machine


def faults():
    said = subprocess.run([BINARY, "run", "--sim-fault", "?"], capture_output=True, text=True).stderr
    return re.search(r"want one of (.*)", said).group(1).strip().split(", ")


def start(fault, port, log):
    command = [BINARY, "run", "--role=all", "--sim=2", "--sim-listen=127.0.0.1:0", f"--listen=127.0.0.1:{port}",
               f"--control-listen=127.0.0.1:{port + 1}", "--log-level=error"]
    if fault:
        command.append(f"--sim-fault={fault}")
    return subprocess.Popen(command, stdout=log, stderr=log)


def examine(port):
    command = [BINARY, "doctor", "--local", f"--server=http://127.0.0.1:{port}", f"--control=http://127.0.0.1:{port + 1}",
               f"--settle={SETTLE}", "--timeout=5m", "-o", "json"]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)


def main():
    systems = [(fault, 19500 + 2 * i) for i, fault in enumerate([""] + faults())]
    assert len(systems) > 10, systems
    wrong = 0
    with tempfile.TemporaryFile("w+") as log:
        running = [start(fault, port, log) for fault, port in systems]
        try:
            time.sleep(3)
            doctors = [examine(port) for _, port in systems]
            for (fault, _), doctor in zip(systems, doctors):
                out, _ = doctor.communicate(timeout=360)
                found = [f for f in json.loads(out)["findings"] if f["status"] in ("WARN", "FAIL")]
                ids = sorted({f["id"] for f in found})
                want = [fault] if fault else []
                where = {f["resource"] for f in found if "resource" in f}
                fine = ids == want and (doctor.returncode != 0) == bool(fault) and where <= {"demo/sim-1"}
                wrong += not fine
                print(f"{'ok' if fine else 'WRONG':5} {fault or 'healthy':20} exit {doctor.returncode} {ids}")
                if not fine:
                    print(json.dumps(found, indent=1))
        finally:
            for process in running:
                process.terminate()
            for process in running:
                process.wait(10)
        log.seek(0)
        if wrong:
            sys.stdout.write(log.read()[-4000:])
    print(f"doctor: {len(systems) - wrong} of {len(systems)} systems judged rightly")
    return wrong != 0


if __name__ == "__main__":
    sys.exit(main())
