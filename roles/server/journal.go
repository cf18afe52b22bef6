package server

import (
	"time"

	"inferencecache.io/inferencecache/index"
	"inferencecache.io/inferencecache/internal/journal"
	pb "inferencecache.io/inferencecache/proto/inferencecache/v1alpha1"
)

// write puts the lookup into the journal.
func (l *lookup) write(answer *pb.LookupRouteResponse) {
	r := journal.Lookup{
		At: l.now, Partition: l.at, Keys: l.input.keys, BlockTokens: l.input.blockTokens(), Tokens: clampInt32(l.input.tokens),
		RequestID: answer.GetRequestId(), Reason: answer.GetReasonCode(),
	}
	if rows := answer.GetReplicaScores(); len(rows) > 0 {
		r.Chosen = rows[0].GetReplicaId()
	}
	l.server.journal.Lookup(r)
}

// blockTokens of a chain, or 0 if its blocks differ or there is none.
func (in *input) blockTokens() int32 {
	if !in.chain {
		return 0
	}
	for _, c := range in.counts {
		if c != in.counts[0] {
			return 0
		}
	}
	if in.counts != nil {
		return in.counts[0]
	}
	return in.step
}

// writeBatch puts what a replica reported into the journal.
func (s *Server) writeBatch(now time.Time, b *index.Batch) {
	if s.journal == nil {
		return
	}
	for i := range b.Ops {
		switch op := &b.Ops[i]; op.Kind {
		case index.Store:
			step := op.Step
			if op.Counts != nil {
				step = 0
			}
			s.journal.Store(journal.Store{
				At: now, Scope: b.Scope, Adapter: op.Adapter, Replica: b.Replica,
				Parent: op.Parent, HasParent: op.HasParent, Keys: op.Keys, Tier: op.Tier, Step: step,
			})
		case index.Remove:
			s.journal.Remove(journal.Remove{At: now, Scope: b.Scope, Adapter: op.Adapter, Replica: b.Replica, Keys: op.Keys})
		case index.Clear:
			s.journal.Clear(journal.Clear{At: now, Scope: b.Scope, Replica: b.Replica})
		}
	}
}
