# Holds an engine back until the LMCache server of its node is the one that
# the engine was wired for, then tells SGLang where that server is.
import json
import os
import sys
import time
import urllib.request

env = os.environ
host = env["INFERENCECACHE_NODE_IP"]
base = "http://%s:%s" % ("[%s]" % host if ":" in host else host, env["EXPECTED_HTTP_PORT"])


def get(path):
    with urllib.request.urlopen(base + path, timeout=2) as answer:
        return json.load(answer)


def difference():
    config = get("/config")
    mp = config["mp"]
    memory = config["storage_manager"]["l1_manager_config"]["memory_config"]
    # The revision behind "#" may differ: an older server that fits serves on.
    pairs = [
        ("instance_id", str(mp["instance_id"]).split("#")[0], env["EXPECTED_INSTANCE_ID"]),
        ("shm_name", mp["shm_name"], env["EXPECTED_SHM_NAME"]),
        ("memory shm_name", memory["shm_name"], env["EXPECTED_SHM_NAME"]),
        ("port", mp["port"], env["EXPECTED_MP_PORT"]),
        ("http_port", config["http"]["http_port"], env["EXPECTED_HTTP_PORT"]),
        ("chunk_size", mp["chunk_size"], env["EXPECTED_CHUNK_SIZE"]),
        ("max_gpu_workers", mp["max_gpu_workers"], env["EXPECTED_MAX_GPU_WORKERS"]),
        ("max_cpu_workers", mp["max_cpu_workers"], env["EXPECTED_MAX_CPU_WORKERS"]),
    ]
    for name, have, want in pairs:
        if str(have) != want:
            return "%s is %s, want %s" % (name, have, want)
    health = get("/healthcheck").get("status")
    return "" if health == "healthy" else "status is %s" % health


said = None
while True:
    try:
        wait = difference()
    except Exception as problem:
        wait = "%s: %s" % (type(problem).__name__, problem)
    if not wait:
        break
    if wait != said:
        print("waiting for %s: %s" % (base, wait), file=sys.stderr, flush=True)
        said = wait
    time.sleep(2)

path = env.get("CLIENT_CONFIG_PATH")
if path:
    with open(path + ".new", "w") as file:
        file.write('chunk_size: %s\nmp_host: "%s"\nmp_port: %s\n' % (env["EXPECTED_CHUNK_SIZE"], host, env["EXPECTED_MP_PORT"]))
    os.replace(path + ".new", path)
