package server

import (
	"context"
	"io"
	"math"
	"slices"
	"time"

	"connectrpc.com/connect"

	"inferencecache.io/inferencecache/index"
	"inferencecache.io/inferencecache/internal/kv"
	pb "inferencecache.io/inferencecache/proto/inferencecache/v1alpha1"
)

// maxName is the longest tenant, model, scheme, adapter or replica id, in
// bytes.
const maxName = 512

// Why something reported was dropped: the label of a metric, so a fixed set.
const (
	dropProbeTenant   = "reserved_tenant"
	dropNoReplica     = "empty_replica"
	dropLongName      = "oversized_name"
	dropNoScheme      = "empty_scheme"
	dropEmptyKey      = "empty_key"
	dropMismatch      = "mismatched_chain"
	dropOversized     = "oversized_chain"
	dropBadOperation  = "malformed_operation"
	dropUnknownKind   = "unknown_kind"
	dropUnknownRemove = "unknown_removal"
	dropStale         = "stale"
	dropNoRoom        = "no_room"
	dropDuplicate     = "duplicate_sequence"
	dropTooMany       = "too_many_replicas"
)

var drops = []string{dropProbeTenant, dropNoReplica, dropLongName, dropNoScheme, dropEmptyKey, dropMismatch, dropOversized,
	dropBadOperation, dropUnknownKind, dropUnknownRemove, dropStale, dropNoRoom, dropDuplicate, dropTooMany}

// ReportCacheState applies each update as it arrives. Bad content is dropped
// and counted, never an error; only a broken stream is one.
func (s *Server) ReportCacheState(_ context.Context, stream *connect.ClientStream[pb.CacheStateUpdate]) (*pb.Ack, error) {
	ack := s.ack()
	for stream.Receive() {
		ack = s.ingest(time.Now(), stream.Msg())
	}
	if err := stream.Err(); err != nil && err != io.EOF {
		return nil, err
	}
	return ack, nil
}

// ingest applies one update and acknowledges it: with the last sequence applied
// for its source, 0 for an unordered one.
func (s *Server) ingest(now time.Time, u *pb.CacheStateUpdate) *pb.Ack {
	s.meters.updates.Inc()
	ack := s.ack()
	if reason := refuseUpdate(u); reason != "" {
		s.meters.drop(reason, 1)
		return ack
	}
	scope := kv.Scope{Tenant: u.GetTenantId(), Model: u.GetModelId(), Scheme: u.GetHashScheme()}
	from := source{scope, u.GetReplicaId()}
	seen := stamp(now, u.GetTimestampUs())
	s.meters.age.Update(now.Sub(seen).Seconds())
	if u.GetSequence() == 0 {
		s.applyUpdate(now, seen, from, u, false)
	} else {
		at := placeOf(from, seen, s.policies.Load().For(from.scope.Tenant).TTL, u)
		ack.Sequence, ack.Resync = s.sources.inOrder(now, &at, func(fresh, sound bool) {
			if fresh {
				s.applyUpdate(now, at.seen, from, u, sound)
			} else {
				s.meters.drop(dropDuplicate, 1)
			}
		})
		seen = at.seen
	}
	if !u.GetGoodbye() {
		room := s.takeStats(seen, u)
		if !s.fleets.hear(now, seen, u) || !room {
			s.meters.drop(dropTooMany, 1)
		}
	}
	return ack
}

func (s *Server) ack() *pb.Ack { return &pb.Ack{Accepted: true, ServerEpoch: s.epoch} }

func placeOf(from source, seen time.Time, ttl time.Duration, u *pb.CacheStateUpdate) step {
	return step{
		from: from, epoch: u.GetSourceEpoch(), sequence: u.GetSequence(), seen: seen,
		vouches: vouches(u), ttl: ttl, goodbye: u.GetGoodbye(), promise: time.Duration(u.GetHeartbeatMs()) * time.Millisecond,
		clears: slices.ContainsFunc(u.GetOperations(), func(o *pb.CacheOperation) bool {
			return o.GetKind() == pb.CacheOperation_CLEAR
		}),
	}
}

// applyUpdate puts an update that is new into the index; sound says that it is
// one of an ordered stream without a hole.
func (s *Server) applyUpdate(now, seen time.Time, from source, u *pb.CacheStateUpdate, sound bool) {
	s.applyHolds(now, seen, from.scope, u)
	switch {
	case u.GetGoodbye():
		s.bury(now, from, seen, causeGoodbye)
	case sound && vouches(u):
		s.index.Vouch(now, from.scope, from.replica, seen)
	}
}

func refuseUpdate(u *pb.CacheStateUpdate) string {
	switch {
	case u.GetTenantId() == kv.ProbeTenant:
		return dropProbeTenant
	case u.GetReplicaId() == "":
		return dropNoReplica
	case max(len(u.GetTenantId()), len(u.GetModelId()), len(u.GetHashScheme()), len(u.GetReplicaId()), len(u.GetAdapterId())) > maxName:
		return dropLongName
	}
	return ""
}

// stamp reads a producer's clock: 0 is now, and so is the future.
func stamp(now time.Time, us int64) time.Time {
	if us == 0 {
		return now
	}
	if t := time.UnixMicro(us); t.Before(now) {
		return t
	}
	return now
}

// applyHolds puts the prefixes and operations of an update into the index.
func (s *Server) applyHolds(now, seen time.Time, scope kv.Scope, u *pb.CacheStateUpdate) {
	if len(u.GetPrefixes()) == 0 && len(u.GetOperations()) == 0 {
		return
	}
	if scope.Scheme == "" {
		s.meters.drop(dropNoScheme, len(u.GetPrefixes())+len(u.GetOperations()))
		return
	}
	batch := index.Batch{Scope: scope, Replica: u.GetReplicaId(), Seen: seen,
		Ops: make([]index.Op, 0, len(u.GetPrefixes())+len(u.GetOperations()))}
	for _, entry := range u.GetPrefixes() {
		batch.Ops = s.appendEntry(batch.Ops, entry, u.GetAdapterId())
	}
	for _, operation := range u.GetOperations() {
		op, reason := toOp(operation, s.config.MaxBlocks)
		if reason != "" {
			s.meters.drop(reason, 1)
			continue
		}
		batch.Ops = append(batch.Ops, op)
	}
	if len(batch.Ops) == 0 {
		return
	}
	s.meters.applied(s.index.Apply(now, &batch))
	for i := range batch.Ops {
		if op := &batch.Ops[i]; op.Kind == index.Remove {
			s.removals.add(seen, source{scope, batch.Replica}, op.Adapter, op.Keys)
		}
	}
	s.writeBatch(now, &batch)
	s.events.publishBatch(&batch)
}

// appendEntry reads one PrefixEntry: a chain in either form, a single key, or
// a chain with its whole-prefix key beside it.
func (s *Server) appendEntry(ops []index.Op, e *pb.PrefixEntry, adapter string) []index.Op {
	if e.GetAdapterId() != "" {
		adapter = e.GetAdapterId()
	}
	if len(adapter) > maxName {
		s.meters.drop(dropLongName, 1)
		return ops
	}
	store := index.Op{Kind: index.Store, Adapter: adapter, Tier: tierFromWire(e.GetTier())}
	chain, reason := s.entryChain(store, e)
	if reason != "" {
		s.meters.drop(reason, 1)
		return ops
	}
	if len(chain.Keys) > 0 {
		ops = append(ops, chain)
	}
	switch key := e.GetPrefixHash(); {
	case len(key) > 0:
		store.Keys = []kv.Hash{s.index.Key(key)}
		store.Step = max(0, e.GetTokenCount())
		ops = append(ops, store)
	case len(chain.Keys) == 0:
		s.meters.drop(dropEmptyKey, 1)
	}
	return ops
}

func (s *Server) entryChain(op index.Op, e *pb.PrefixEntry) (index.Op, string) {
	hashes, counts, packed := e.GetBlockHashes(), e.GetBlockTokenCounts(), e.GetPackedHashes()
	if len(packed) > 0 {
		var ok bool
		if op.Keys, ok = kv.Unpack(nil, packed); !ok || e.GetPackedBlockSize() <= 0 || len(hashes)+len(counts) > 0 {
			return op, dropMismatch
		}
		op.Step = e.GetPackedBlockSize()
	} else {
		if len(hashes) != len(counts) {
			return op, dropMismatch
		}
		for _, hash := range hashes {
			if len(hash) == 0 {
				return op, dropEmptyKey
			}
			op.Keys = append(op.Keys, s.index.Key(hash))
		}
		op.Counts = counts
	}
	if len(op.Keys) > s.config.MaxBlocks {
		return op, dropOversized
	}
	return op, ""
}

// toOp reads one ordered operation.
func toOp(o *pb.CacheOperation, maxBlocks int) (op index.Op, reason string) {
	if len(o.GetAdapterId()) > maxName {
		return op, dropLongName
	}
	op = index.Op{Adapter: o.GetAdapterId()}
	switch o.GetKind() {
	case pb.CacheOperation_CLEAR:
		op.Kind = index.Clear
		return op, ""
	case pb.CacheOperation_STORE:
		op.Kind, op.Tier = index.Store, tierFromWire(o.GetTier())
		op.Tokens, op.Step = o.GetParentTokens(), o.GetBlockSize()
		if op.Tokens < 0 || op.Step <= 0 {
			return op, dropBadOperation
		}
		if parent := o.GetParentHash(); len(parent) > 0 {
			if op.Parent, op.HasParent = kv.ParseHash(parent); !op.HasParent {
				return op, dropBadOperation
			}
		}
	case pb.CacheOperation_REMOVE:
		op.Kind = index.Remove
	default:
		return op, dropUnknownKind
	}
	var ok bool
	if op.Keys, ok = kv.Unpack(nil, o.GetPackedHashes()); !ok || len(op.Keys) == 0 {
		return op, dropBadOperation
	}
	if len(op.Keys) > maxBlocks {
		return op, dropOversized
	}
	return op, ""
}

// tierFromWire keeps unknown tiers apart from T1: a newer tier is colder than
// T3, a negative one is unintelligible.
func tierFromWire(t pb.CacheTier) kv.Tier {
	switch {
	case t == pb.CacheTier_CACHE_TIER_UNSPECIFIED:
		return kv.T1
	case t < 0:
		return kv.Coldest
	}
	return kv.Tier(min(int32(t), math.MaxUint8-1))
}
