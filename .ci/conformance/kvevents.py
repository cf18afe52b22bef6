"""A publisher that nobody here wrote (libzmq) sends every payload sample, array
and map; the index must then hold exactly the manifest's prefix hashes."""
import json
import os
import struct
import time

import zmq

from process import ROOT, Run, fetch, free_port, wait

SAMPLES = os.path.join(ROOT, "testdata", "kvevents")

# What is resident after a sample, from its index_effect: (hash, adapter).
P = ["1ac9d45fb5b734f5", "33fe5d4b05b3ccd5", "b06d5595cd565588"]
GONE_AGAIN = {
    "02_vllm_array_v2_dp_rank_chain.bin": {P[2]},
    "03_vllm_array_v3_medium.bin": {P[1]},
    "08_vllm_array_v6_group_idx.bin": {P[0]},
    "10_vllm_map_v1.bin": {P[0]},
    "15_vllm_all_blocks_cleared_array.bin": {P[0]},
    "19_sglang_array_v1.bin": {P[0]},
    "23_sglang_map_v1.bin": {P[0]},
}
ADAPTER = {"06_vllm_array_v4_lora_name.bin": "sql-lora"}
TIER = {
    "11_vllm_map_v2_map16_header.bin": {P[0]: "CACHE_TIER_T3"},
    "14_vllm_cpu_then_gpu_eviction.bin": {P[0]: "CACHE_TIER_T2"},
    "20_sglang_array_v2_medium_attn_dp_rank.bin": {P[0]: "CACHE_TIER_T2"},
}
SENTINEL = "sentinel.bin"


def expected(sample):
    hashes = [h for event in (sample.get("prefix_hashes_be_hex") or {}).values() for h in event]
    return set(hashes) - GONE_AGAIN.get(sample["file"], set())


def check(run, publisher, sample, sequence):
    with open(os.path.join(SAMPLES, sample["file"]), "rb") as f:
        payload = f.read()
    publisher.send_multipart([sample["topic"].encode(), struct.pack(">Q", sequence), payload])
    want = expected(sample)
    total = None

    def settled():
        nonlocal total
        total = fetch(run.control_url + "/snapshot")["totalPrefixes"]
        return total == count

    # Sample 31 lists only its first and last hash.
    count = 4375 if "summary" in sample.get("decoded", {}) else len(want)
    wait(f"{sample['file']}: {count} prefixes in the index", settled)
    for prefix in want:
        if "summary" in sample.get("decoded", {}) and prefix != sample["prefix_hashes_be_hex"]["first"][0]:
            continue
        answer = run.lookup(
            tenantId="demo", modelId="sim", hashScheme="vllm", adapterId=ADAPTER.get(sample["file"], ""),
            prefixHash=__import__("base64").b64encode(bytes.fromhex(prefix)).decode())
        assert answer["reasonCode"] == "PREFIX_MATCH", (sample["file"], prefix, answer)
        tier = TIER.get(sample["file"], {}).get(prefix, "CACHE_TIER_T1")
        assert answer["replicaScores"][0]["tier"] == tier, (sample["file"], prefix, answer)


def main():
    with open(os.path.join(SAMPLES, "manifest.json")) as f:
        samples = [s for s in json.load(f)["samples"] if s["kind"] == "payload"]
    done = 0
    for scheme in ("vllm", "sglang"):
        context = zmq.Context()
        publisher = context.socket(zmq.PUB)
        port = publisher.bind_to_random_port("tcp://127.0.0.1")
        with Run("--role=all", f"--engine=peer=tcp://127.0.0.1:{port},scheme=vllm", f"--engine-dialect={scheme}",
                 "--minimum-matched-tokens=0", "--routing-floor-score=0") as run:
            wait("the subscriber to connect", lambda: 'inferencecache_subscriber' in fetch(run.url + "/metrics"))
            clear = b"\x92\xcb" + struct.pack(">d", time.time()) + b"\x91\x91\xb0AllBlocksCleared"
            probe = open(os.path.join(SAMPLES, "01_vllm_array_v1_base.bin"), "rb").read()
            sequence = 0

            def connected():
                nonlocal sequence
                publisher.send_multipart([b"", struct.pack(">Q", sequence), probe])
                sequence += 1
                return fetch(run.control_url + "/snapshot")["totalPrefixes"] == 1

            wait("a first event to arrive", connected)
            for sample in samples:
                if sample["engine"] not in (scheme, "any") and scheme == "sglang":
                    continue
                if sample["engine"] == "sglang" and scheme == "vllm":
                    continue
                for rank in range(4):  # samples differ in rank: clear each
                    publisher.send_multipart([b"", struct.pack(">Q", sequence),
                                              b"\x93\xcb" + struct.pack(">d", time.time()) + b"\x91\x91\xb0AllBlocksCleared" + bytes([rank])])
                    sequence += 1
                publisher.send_multipart([b"", struct.pack(">Q", sequence), clear])
                sequence += 1
                wait("an empty index", lambda: fetch(run.control_url + "/snapshot")["totalPrefixes"] == 0)
                check(run, publisher, sample, sequence)
                sequence += 1
                done += 1
        publisher.close(0)
        context.term()
    print(f"{done} samples published by libzmq {zmq.zmq_version()}: the index held exactly what the manifest says")


main()
