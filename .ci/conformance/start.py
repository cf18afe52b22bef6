"""The whole system on a laptop: start time, memory at rest, a prompt's way
from an engine to a hint, a clean stop."""
import time

from process import Run, fetch, free_ports, wait

# Ports one after the other are wanted; take them high and hope for the best.
first = free_ports(20)

with Run("--role=all", f"--sim-listen=127.0.0.1:{first}") as run:
    print(f"ready after {run.start_seconds * 1000:.0f} ms")
    time.sleep(3)
    rss = run.rss_mib()
    print(f"{rss:.1f} MiB resident at rest")
    assert rss < 40, rss

    prompt = "The quick brown fox jumps over the lazy dog, and then it explains at length why it did so. " * 4
    size = fetch(f"http://127.0.0.1:{first + 1}/tokenize", {"model": "sim", "prompt": prompt})["count"]
    fetch(f"http://127.0.0.1:{first + 1}/v1/completions", {"model": "sim", "prompt": prompt, "max_tokens": 1})

    def matched():
        answer = run.lookup(tenantId="demo", modelId="sim", hashScheme="vllm", promptText=prompt)
        return answer if answer["reasonCode"] == "PREFIX_MATCH" else None

    answer = wait("a PREFIX_MATCH for the prompt just sent", matched)
    best = answer["replicaScores"][0]
    assert best["replicaId"] == "sim-2", answer
    assert best["matchedTokens"] == size // 16 * 16, (answer, size)

    other = run.lookup(tenantId="demo", modelId="sim", hashScheme="vllm", promptText="never seen before " * 20)
    assert other["reasonCode"] in ("AFFINITY_HINT", "NO_HINT"), other

    fetch(f"http://127.0.0.1:{first + 1}/sim/fault?kind=clear", {})
    wait("the match to be gone after ALL_CLEARED", lambda: matched() is None)
print(f"stopped within {run.stop_seconds:.2f} s")

# A second interrupt must not wait: it ends the process at once.
import signal
import subprocess

with open("/dev/null", "w") as null:
    impatient = Run("--role=server", "--insecure-disable-auth", "--drain-delay=60s")
    process = subprocess.Popen(impatient.args, stdout=null, stderr=null)
    impatient.process = process
    wait("the server to be ready", impatient.ready)
    process.send_signal(signal.SIGINT)
    wait("it to say that it is draining", lambda: not impatient.ready())
    process.send_signal(signal.SIGINT)
    wait("the second interrupt to end it", lambda: process.poll() is not None, 2)
print("a second interrupt ends it at once")
