package server

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"slices"
	"time"

	"inferencecache.io/inferencecache/index"
	"inferencecache.io/inferencecache/internal/kv"
	"inferencecache.io/inferencecache/internal/rank"
	"inferencecache.io/inferencecache/internal/status"
	pb "inferencecache.io/inferencecache/proto/inferencecache/v1alpha1"
)

const probeTokens = 16

// Probe implements bridge.Prober: it sends one block through the code that
// ingests and routes, in an index of its own. Live state is neither read nor
// written, so probes run side by side and work under a full index.
func (s *Server) Probe(_ context.Context, request status.ProbeRequest) status.ProbeResult {
	result := status.ProbeResult{Backend: request.Backend, Ingest: status.OK, Routing: status.OK, T2: status.Skipped}
	fail := func(stage, message string) {
		result.Errors = append(result.Errors, status.ProbeError{Stage: stage, Message: message})
	}
	now := time.Now()
	replica := "__probe-" + request.Backend
	at := kv.Partition{Scope: kv.Scope{Tenant: kv.ProbeTenant, Model: request.Model, Scheme: request.HashScheme}}
	own := index.New(index.Config{Defaults: limits(s.config.Policy, -1)})
	keys := []kv.Hash{own.Key(probeKey(request))}

	op, reason := toOp(&pb.CacheOperation{
		Kind: pb.CacheOperation_STORE, PackedHashes: kv.Pack(keys), BlockSize: probeTokens,
	}, s.config.MaxBlocks)
	if reason != "" {
		result.Ingest, result.Routing = status.Failed, status.Skipped
		fail("ingest", "the probe block was refused: "+reason)
		return result
	}
	own.Apply(now, &index.Batch{Scope: at.Scope, Replica: replica, Seen: now, Ops: []index.Op{op}})
	var scratch index.Scratch
	runs := own.Lookup(&scratch, now, at, keys)
	if !slices.ContainsFunc(runs, func(r index.Run) bool { return r.Replica == replica && r.Blocks == 1 }) {
		result.Ingest, result.Routing = status.Failed, status.Skipped
		fail("ingest", "the probe block was stored and not found again")
		return result
	}

	holds := []rank.Hold{{Replica: replica, Tokens: probeTokens, Seen: runs[0].Seen, Tier: runs[0].Tier}}
	question := rank.Question{Now: now, TTL: s.config.Policy.TTL, Total: len(own.Members(at.Scope)), Chain: true}
	warm := func(string) (rank.Load, bool) { return rank.Load{HitRate: 1, Reported: now}, true }
	ranked := s.config.Rank.Prefix(nil, question, holds, warm)
	if len(ranked) != 1 || ranked[0].Replica != replica || ranked[0].Score <= 0 {
		result.Routing = status.Failed
		fail("routing", fmt.Sprintf("the probe replica was not ranked first: %d replicas in the answer", len(ranked)))
	}
	return result
}

// probeKey is the published probe key: SHA-256 over a line of its own and
// scheme, model and backend, each behind its length as 4 bytes big-endian.
func probeKey(request status.ProbeRequest) []byte {
	hash := sha256.New()
	hash.Write([]byte("inferencecache.io/probe/v1\n"))
	for _, part := range []string{request.HashScheme, request.Model, request.Backend} {
		var length [4]byte
		binary.BigEndian.PutUint32(length[:], uint32(len(part)))
		hash.Write(length[:])
		hash.Write([]byte(part))
	}
	return hash.Sum(nil)
}
