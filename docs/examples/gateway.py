"""How a gateway in Python uses hints, with the standard library alone. It sends
one prompt to the engine that the server names, or to any, and tells the server
what became of it. docs/gateway.md explains it."""
import json
import random
import sys
import urllib.request

SERVER = "http://127.0.0.1:9090"
ENGINES = {f"sim-{i}": f"http://127.0.0.1:{8100 + i}" for i in (1, 2, 3)}  # base URL by replica id
HINT_SECONDS = 0.01  # what a request waits for a hint at most; then it goes without


def post(url, body, timeout):
    request = urllib.request.Request(url, json.dumps(body).encode(), {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=timeout) as response:
        return json.load(response)


def call(method, body, timeout):
    return post(f"{SERVER}/inferencecache.v1alpha1.InferenceCache/{method}", body, timeout)


def choose(tokens):
    """The replica for a prompt, and what ReportOutcome knows the prompt by."""
    request_id = ""
    try:
        answer = call("LookupRoute", {"tenantId": "demo", "modelId": "sim", "hashScheme": "vllm", "tokenIds": tokens}, HINT_SECONDS)
        request_id = answer.get("requestId", "")
        for named in answer.get("replicaScores", []):  # best first
            if named["replicaId"] in ENGINES:
                return named["replicaId"], request_id
    except (OSError, ValueError):
        pass  # late, away or odd: as if there were no hints
    return random.choice(list(ENGINES)), request_id


def report(request_id, replica, usage):
    """Tells what the engine found in its cache. Nobody waits for it."""
    if not request_id:
        return  # nothing was ranked
    cached = (usage.get("prompt_tokens_details") or {}).get("cached_tokens")
    if cached is None:
        return  # the engine does not say: zero would count against the replica
    call("ReportOutcome", {"requestId": request_id, "replicaId": replica, "promptTokens": usage["prompt_tokens"], "cachedTokens": cached}, 1)


def tokenize(prompt):
    """The model's own tokenizer; that of simulated engines makes each byte a token."""
    return list(prompt.encode())


def serve(prompt):
    replica, request_id = choose(tokenize(prompt))
    usage = post(ENGINES[replica] + "/v1/completions", {"model": "sim", "prompt": prompt, "max_tokens": 8}, 60)["usage"]
    print(f"{replica} had {usage['prompt_tokens_details']['cached_tokens']} of {usage['prompt_tokens']} tokens")
    report(request_id, replica, usage)


if __name__ == "__main__":
    serve(" ".join(sys.argv[1:]))
