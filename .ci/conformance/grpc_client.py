"""A gRPC client that protoc generated for Python: the contract's appendix B
over the wire, and the same answers over plain JSON."""
import struct
import time

import grpc
from google.protobuf import json_format

from process import Run, fetch
from inferencecache.v1alpha1 import inferencecache_pb2 as pb
from inferencecache.v1alpha1 import inferencecache_pb2_grpc as rpc

GOLDEN = ["d47a8f41c833328a", "bf15dffb16447f38", "a4dda066f3c1e1a0", "35f7c0d119848950"]  # tokens 0..63
KEYS = [bytes.fromhex(h) for h in GOLDEN]


def chain(prefix, n):
    return [struct.pack(">Q", prefix + i) for i in range(n)]


def update(replica, hashes=(), counts=None, **more):
    entries = []
    if hashes:
        entries = [pb.PrefixEntry(block_hashes=hashes, block_token_counts=counts or [16] * len(hashes))]
    scope = dict(tenant_id="t", model_id="m", hash_scheme="vllm")
    scope.update(more)
    return pb.CacheStateUpdate(replica_id=replica, prefixes=entries, **scope)


def ask(**more):
    scope = dict(tenant_id="t", model_id="m", hash_scheme="vllm")
    scope.update(more)
    return pb.LookupRouteRequest(**scope)


def near(got, want):
    """Scores age, 0.02 % a second: a busy machine may take a while to ask."""
    return abs(got - want) < 0.01 + 0.01 * abs(want)


def main():
    checks = 0
    with Run("--role=server", "--insecure-disable-auth", "--ranking-profile=Compat") as run:
        channel = grpc.insecure_channel(f"127.0.0.1:{run.port}")
        stub = rpc.InferenceCacheStub(channel)

        def report(*updates):
            ack = stub.ReportCacheState(iter(updates))
            assert ack.accepted and ack.reason_code == "" and ack.server_epoch, ack

        def expect(request, reason, *rows):
            """rows: (replica, matched tokens, score or None)."""
            nonlocal checks
            answer = stub.LookupRoute(request)
            got = [(s.replica_id, s.matched_tokens) for s in answer.replica_scores]
            assert answer.reason_code == reason and got == [r[:2] for r in rows], (request, answer)
            for row, score in zip(rows, answer.replica_scores):
                if len(row) == 3:
                    assert near(score.score, row[2]), (row, score)
            body = json_format.MessageToDict(request)
            plain = json_format.ParseDict(fetch(run.url + "/inferencecache.v1alpha1.InferenceCache/LookupRoute", body), pb.LookupRouteResponse())
            plain.lookup_latency_us = answer.lookup_latency_us = 0
            assert bool(plain.request_id) == bool(answer.request_id) == bool(rows), (plain, answer)
            plain.request_id = answer.request_id = ""
            for a, b in zip(plain.replica_scores, answer.replica_scores):
                assert near(a.score, b.score) and near(a.estimated_cache_hit_prob, b.estimated_cache_hit_prob), (plain, answer)
                a.score, a.estimated_cache_hit_prob = b.score, b.estimated_cache_hit_prob
            assert plain == answer, (plain, answer)
            checks += 1

        expect(ask(token_ids=range(64)), "NO_HINT")  # cold start
        report(update("r-1", KEYS))
        expect(ask(tenant_id="u", token_ids=range(64)), "UNKNOWN_TENANT")
        expect(ask(model_id="n", token_ids=range(64)), "UNKNOWN_MODEL")
        expect(ask(hash_scheme="sglang", token_ids=range(64)), "UNKNOWN_HASH_SCHEME")
        expect(ask(token_ids=range(64)), "PREFIX_MATCH", ("r-1", 64, 64))
        expect(ask(block_hashes=KEYS, block_token_counts=[16] * 4), "PREFIX_MATCH", ("r-1", 64, 64))
        expect(ask(packed_hashes=b"".join(KEYS), packed_block_size=16), "PREFIX_MATCH", ("r-1", 64, 64))
        expect(ask(block_hashes=KEYS[:3], block_token_counts=[16] * 3), "AFFINITY_HINT", ("r-1", 0, 0))  # 48 < 64
        expect(ask(block_hashes=KEYS, block_token_counts=[16] * 3), "NO_HINT")
        expect(ask(block_token_counts=[16]), "NO_HINT")
        expect(ask(token_ids=range(5)), "NO_HINT")
        expect(ask(adapter_id="lora", token_ids=range(64)), "AFFINITY_HINT", ("r-1", 0, 0))
        expect(ask(tenant_id="inferencecache.io/probe", token_ids=range(64)), "NO_HINT")

        # Chain depths 256, 128, 64 over three replicas.
        depth = dict(tenant_id="depths")
        whole = chain(1 << 32, 16)
        report(update("a", whole, **depth), update("b", whole[:8], **depth), update("c", whole[:4], **depth))
        expect(ask(block_hashes=whole, block_token_counts=[16] * 16, **depth), "PREFIX_MATCH", ("a", 256, 170.667), ("b", 128, 42.667), ("c", 64, 0))
        expect(ask(block_hashes=whole, block_token_counts=[16] * 16, top_k=1, **depth), "PREFIX_MATCH", ("a", 256, 170.667))
        # Every replica holds it: nothing to tell apart.
        expect(ask(block_hashes=whole[:4], block_token_counts=[16] * 4, **depth), "AFFINITY_HINT",
               (stub.LookupRoute(ask(block_hashes=whole[:4], block_token_counts=[16] * 4, **depth)).replica_scores[0].replica_id, 0, 0))
        # Affinity over pod-a, pod-b, pod-c with the golden chain.
        pods = dict(tenant_id="pods")
        report(*(update(f"pod-{x}", chain(i << 40, 1), **pods) for i, x in enumerate("abc", 1)))
        expect(ask(block_hashes=KEYS, block_token_counts=[16] * 4, **pods), "AFFINITY_HINT", ("pod-b", 0, 0))
        # Exact keys of any length, pressure that flips the order.
        exact = dict(tenant_id="exact")
        for replica, tokens, pressure in (("a", 100, 0.9), ("b", 65, 0.0), ("other", 0, 0.0)):
            u = update(replica, **exact)
            if tokens:
                u.prefixes.add(prefix_hash=b"a key of another length", token_count=tokens)
            else:
                u.prefixes.add(prefix_hash=b"something else", token_count=16)
            u.stats.pressure = pressure
            report(u)
        expect(ask(prefix_hash=b"a key of another length", **exact), "PREFIX_MATCH", ("b", 65, 21.667), ("a", 100, 3.333))
        # TENANT_HOT needs an exact miss and a warm replica.
        u = update("a", **exact)
        u.stats.hit_rate, u.stats.pressure = 0.8, 0.1
        report(u)
        expect(ask(prefix_hash=b"never seen", **exact), "TENANT_HOT", ("a", 0, 0.72))
        expect(ask(prefix_hash=b"", **exact), "NO_HINT")

        # Ordered operations: a hole, a repeated update, a clear.
        ordered = dict(tenant_id="ordered")
        op = pb.CacheOperation

        def step(sequence, *operations):
            u = update("r", **ordered)
            u.source_epoch, u.sequence = 9, sequence
            u.operations.extend(operations)
            ack = stub.ReportCacheState(iter([u]))
            assert ack.accepted, ack
            return ack.sequence

        store = op(kind=op.STORE, packed_hashes=b"".join(whole), block_size=16)
        assert step(1, store) == 1
        assert step(2, op(kind=op.REMOVE, packed_hashes=whole[8])) == 2
        expect(ask(block_hashes=whole, block_token_counts=[16] * 16, **ordered), "PREFIX_MATCH", ("r", 128, 128))
        assert step(1, store) == 2
        expect(ask(block_hashes=whole, block_token_counts=[16] * 16, **ordered), "PREFIX_MATCH", ("r", 128, 128))
        step(3, op(kind=op.CLEAR))
        expect(ask(block_hashes=whole, block_token_counts=[16] * 16, **ordered), "UNKNOWN_TENANT")

        # The events of the published contract.
        stub.PublishEvent(pb.CacheEvent(type=pb.CacheEvent.PREFIX_EVICTED, replica_id="r-1", model_id="m", tenant_id="t", prefix_hash=KEYS[0]))
        expect(ask(token_ids=range(64)), "AFFINITY_HINT", ("r-1", 0, 0))
        stub.PublishEvent(pb.CacheEvent(type=pb.CacheEvent.ALL_CLEARED, replica_id="r-1", model_id="m", tenant_id="t"))
        expect(ask(token_ids=range(64)), "UNKNOWN_TENANT")

        state = stub.GetCacheState(pb.GetCacheStateRequest(tenant_id="exact", model_id="m"))
        assert [r.replica_id for r in state.replicas] == ["a", "b", "other"] and state.summary.total_prefixes == 2, state

        # A stream of events, a deadline that has passed, health.
        events = stub.StreamCacheEvents(pb.StreamEventsRequest(tenant_id="t"))
        events.initial_metadata()
        report(update("r-2", KEYS))
        assert next(events).replica_id == "r-2"
        events.cancel()
        check = channel.unary_unary("/grpc.health.v1.Health/Check")
        assert check(b"") == b"\x08\x01", "not SERVING"
        channel.close()
    print(f"{checks} lookups answered alike over gRPC and JSON, as the contract says")


main()
