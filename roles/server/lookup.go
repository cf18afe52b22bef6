package server

import (
	"context"
	"math"
	"time"

	"go.opentelemetry.io/otel/trace"

	"inferencecache.io/inferencecache/index"
	"inferencecache.io/inferencecache/internal/kv"
	"inferencecache.io/inferencecache/internal/policy"
	"inferencecache.io/inferencecache/internal/rank"
	pb "inferencecache.io/inferencecache/proto/inferencecache/v1alpha1"
)

// Reason codes of LookupRoute.
const (
	prefixMatch   = "PREFIX_MATCH"
	tenantHot     = "TENANT_HOT"
	affinityHint  = "AFFINITY_HINT"
	loadHint      = "LOAD_HINT" // chosen for its load, though others may hold more
	shadowed      = "SHADOW"    // ranked and recorded, but the policy names nobody
	noHint        = "NO_HINT"
	requiresChain = "POLICY_REQUIRES_CHAIN"
	timedOut      = "TIMEOUT"
	unknownTenant = "UNKNOWN_TENANT"
	unknownModel  = "UNKNOWN_MODEL"
	unknownScheme = "UNKNOWN_HASH_SCHEME"
)

// lookup is one question on its way through the server, with the buffers it
// needs. It is pooled: nothing of it may outlive the answer.
type lookup struct {
	server  *Server
	request *pb.LookupRouteRequest
	now     time.Time
	policy  policy.Policy
	at      kv.Partition
	input   input

	keys    []kv.Hash
	scratch index.Scratch
	runs    []index.Run
	holds   []rank.Hold
	scored  []rank.Scored

	home *fleet // of the request's scope; nil: nobody is known

	// Of profile Cost.
	dry        bool // leave no trace: for Explain
	salt       uint64
	asked      rank.Rates
	soon       []expected
	candidates []rank.Candidate
	sides      []side // beside candidates
	ranking    rank.Scratch
	ranked     []rank.Ranked
	fleet      rank.Fleet
}

// LookupRoute answers from the index. It never returns an error: whatever goes
// wrong is an empty answer with a reason code.
func (s *Server) LookupRoute(ctx context.Context, request *pb.LookupRouteRequest) (*pb.LookupRouteResponse, error) {
	start := time.Now()
	if request.GetTenantId() == kv.ProbeTenant {
		answer := &pb.LookupRouteResponse{ReasonCode: noHint}
		s.meters.lookup(request.GetModelId(), noHint, false, time.Since(start))
		return answer, nil
	}
	var span trace.Span // nil: not traced
	if s.tracer != nil && !request.GetSelfCheck() {
		ctx, span = s.startSpan(ctx, start)
	}
	l := s.begin(start, request)
	answer := l.answer(ctx)
	if s.journal != nil && !request.GetSelfCheck() {
		l.write(answer)
	}
	if span != nil {
		l.describe(span, answer)
		span.End()
	}
	l.release()

	took := time.Since(start)
	answer.LookupLatencyUs = took.Microseconds()
	if request.GetSelfCheck() {
		return answer, nil
	}
	s.meters.lookup(request.GetModelId(), answer.GetReasonCode(), len(answer.GetReplicaScores()) > 0, took)
	return answer, nil
}

// begin takes a lookup from the pool.
func (s *Server) begin(now time.Time, request *pb.LookupRouteRequest) *lookup {
	l := s.lookups.Get().(*lookup)
	l.server, l.request, l.now = s, request, now
	l.policy = s.policies.Load().For(request.GetTenantId())
	l.at = kv.Partition{
		Scope:   kv.Scope{Tenant: request.GetTenantId(), Model: request.GetModelId(), Scheme: request.GetHashScheme()},
		Adapter: request.GetAdapterId(),
	}
	return l
}

// release gives the lookup back to the pool without what belongs to the caller.
func (l *lookup) release() {
	pool := &l.server.lookups
	l.request, l.input, l.runs = nil, input{}, nil
	l.keys, l.holds, l.scored = l.keys[:0], l.holds[:0], l.scored[:0]
	clear(l.sides)
	l.candidates, l.sides, l.soon = l.candidates[:0], l.sides[:0], l.soon[:0]
	l.home, l.ranked, l.fleet, l.asked, l.salt, l.dry = nil, nil, rank.Fleet{}, rank.Rates{}, 0, false
	if cap(l.keys) <= 1<<16 { // let the garbage collector have giants
		pool.Put(l)
	}
}

// answer runs the contract's handler sequence.
func (l *lookup) answer(ctx context.Context) *pb.LookupRouteResponse {
	ctx, cancel := l.deadline(ctx)
	defer cancel()
	if ctx.Err() != nil {
		return early(timedOut, nil)
	}
	if l.request.GetSelfCheck() {
		return l.selfCheck(ctx)
	}
	if l.policy.RequireChain && !l.hasWireChain() {
		return early(requiresChain, nil)
	}
	failed := l.resolve(ctx)
	if ctx.Err() != nil {
		return early(timedOut, l.input.echo)
	}
	if failed != "" {
		l.server.meters.refusedInput(failed)
		return early(noHint, l.input.echo)
	}
	reason := l.decide()
	if ctx.Err() != nil {
		return early(timedOut, l.input.echo)
	}
	return l.deliver(reason)
}

// decide ranks by the policy's profile.
func (l *lookup) decide() string {
	short := l.policy.MinPrefixTokens > 0 && l.input.tokens < int64(l.policy.MinPrefixTokens)
	l.home = l.server.fleets.of(l.at.Scope)
	if l.policy.Profile == policy.Cost {
		return l.rankByCost(short)
	}
	if short && !l.policy.Affinity {
		return noHint
	}
	reason := l.gate(l.match(), short)
	if reason == noHint {
		reason = l.affinity()
	}
	l.scored = l.topK()
	return reason
}

// deliver answers, and lets later lookups know.
func (l *lookup) deliver(reason string) *pb.LookupRouteResponse {
	if !named(reason) {
		return l.respond(reason)
	}
	id := l.request.GetRequestId()
	if id == "" || len(id) > maxRequestID {
		id = drawID()
	}
	if l.policy.Shadow {
		reason = shadowed
	}
	l.record(id, reason)
	l.follow()
	if reason == prefixMatch && l.policy.LFU {
		l.credit()
	}
	answer := l.respond(reason)
	answer.RequestId = id
	return answer
}

// named says whether a reason comes with replicas.
func named(reason string) bool {
	return reason == prefixMatch || reason == tenantHot || reason == affinityHint || reason == loadHint
}

// selfCheck answers a producer with what the index finds, whatever the policy
// would make of it.
func (l *lookup) selfCheck(ctx context.Context) *pb.LookupRouteResponse {
	if failed := l.resolve(ctx); failed != "" || !l.at.Complete() || len(l.input.keys) == 0 {
		return early(noHint, nil)
	}
	l.runs = l.server.index.Lookup(&l.scratch, l.now, l.at, l.input.keys)
	l.weigh()
	for _, hold := range l.holds {
		l.scored = append(l.scored, rank.Scored{Replica: hold.Replica, Tokens: hold.Tokens, Tier: hold.Tier})
	}
	if len(l.scored) == 0 {
		return early(noHint, nil)
	}
	l.scored = l.topK()
	return l.respond(prefixMatch)
}

func early(reason string, echo []uint32) *pb.LookupRouteResponse {
	return &pb.LookupRouteResponse{ReasonCode: reason, TokenIds: echo}
}

// deadline applies the policy's budget, and a safety net where an engine will
// be asked and nobody set a limit.
func (l *lookup) deadline(ctx context.Context) (context.Context, context.CancelFunc) {
	if l.policy.Timeout > 0 {
		return context.WithDeadline(ctx, l.now.Add(l.policy.Timeout))
	}
	if _, limited := ctx.Deadline(); !limited && l.wantsTokenizing() {
		return context.WithTimeout(ctx, l.server.config.TokenizeTimeout)
	}
	return ctx, func() {}
}

// match asks the index and ranks what it found; l.scored is set for
// prefixMatch and tenantHot.
func (l *lookup) match() string {
	if !l.at.Complete() {
		return noHint
	}
	idx := l.server.index
	loads := l.server.replicas.loads(l.at.Tenant, l.at.Model)
	question := rank.Question{Now: l.now, TTL: l.policy.TTL, TTFTMs: l.request.GetSlo().GetTtftMs(), Chain: l.input.chain}
	if len(l.input.keys) > 0 {
		l.runs = idx.Lookup(&l.scratch, l.now, l.at, l.input.keys)
		l.weigh()
		question.Total = len(idx.Members(l.at.Scope))
		l.scored = l.server.config.Rank.Prefix(l.scored[:0], question, l.holds, loads)
		if len(l.scored) > 0 {
			return prefixMatch
		}
		if !l.input.chain {
			l.scored = l.server.config.Rank.TenantHot(l.scored[:0], question, idx.Members(l.at.Scope), loads)
			if len(l.scored) > 0 {
				return tenantHot
			}
		}
	}
	return l.miss()
}

// miss says how much of what was asked for is known.
func (l *lookup) miss() string {
	switch l.server.index.Miss(l.at.Scope) {
	case index.UnknownTenant:
		return unknownTenant
	case index.UnknownModel:
		return unknownModel
	case index.UnknownScheme:
		return unknownScheme
	}
	return noHint
}

// weigh turns runs of blocks into matched tokens: a chain counts the request's
// own blocks, an exact key what was stored with it.
func (l *lookup) weigh() {
	l.holds = l.holds[:0]
	for _, run := range l.runs {
		tokens := run.Tokens
		if l.input.chain {
			tokens = l.input.covered(run.Blocks)
		}
		l.holds = append(l.holds, rank.Hold{Replica: run.Replica, Tokens: tokens, Seen: run.Seen, Tier: run.Tier})
	}
}

// gate takes back what the policy does not let through.
func (l *lookup) gate(reason string, short bool) string {
	switch reason {
	case tenantHot:
		if !l.policy.TenantHot || short {
			return noHint
		}
	case prefixMatch:
		if short {
			return noHint
		}
		if floor := l.policy.MinMatchedTokens; floor > 0 {
			kept := l.scored[:0]
			for _, s := range l.scored {
				if s.Tokens >= floor {
					kept = append(kept, s)
				}
			}
			l.scored = kept
		}
	default:
		return reason
	}
	if len(l.scored) == 0 || l.policy.FloorScore > 0 && l.scored[0].Score < l.policy.FloorScore {
		return noHint
	}
	return reason
}

// affinity picks one replica by the prompt alone, so that equal prompts meet.
func (l *lookup) affinity() string {
	if !l.policy.Affinity || !l.at.Complete() || len(l.input.keys) == 0 {
		return noHint
	}
	members := l.server.index.Members(l.at.Scope)
	if len(members) == 0 {
		return noHint
	}
	l.scored = append(l.scored[:0], rank.Scored{Replica: l.input.seed().Pick(members)})
	return affinityHint
}

// credit counts the use of what is delivered, for LFU eviction.
func (l *lookup) credit() {
	for _, scored := range l.scored {
		for _, run := range l.runs {
			if run.Replica == scored.Replica {
				l.server.index.Credit(l.at, run.Replica, l.input.keys[:run.Blocks])
			}
		}
	}
}

func (l *lookup) topK() []rank.Scored {
	if k := int(l.request.GetTopK()); k > 0 && k < len(l.scored) {
		return l.scored[:k]
	}
	return l.scored
}

func (l *lookup) respond(reason string) *pb.LookupRouteResponse {
	answer := &pb.LookupRouteResponse{ReasonCode: reason, TokenIds: l.input.echo, AdapterId: l.at.Adapter}
	if !named(reason) {
		return answer
	}
	top := l.scored
	rows := make([]pb.ReplicaScore, len(top)) // one allocation for all rows
	answer.ReplicaScores = make([]*pb.ReplicaScore, len(top))
	for i := range top {
		fillRow(&rows[i], &top[i])
		answer.ReplicaScores[i] = &rows[i]
	}
	return answer
}

func fillRow(row *pb.ReplicaScore, s *rank.Scored) {
	row.ReplicaId, row.Score, row.MatchedTokens, row.EstimatedCacheHitProb = s.Replica, s.Score, s.Tokens, s.Prob
	if s.Tier.Known() {
		row.Tier = pb.CacheTier(s.Tier)
	}
}

func scoreRow(s *rank.Scored) *pb.ReplicaScore {
	row := &pb.ReplicaScore{}
	fillRow(row, s)
	return row
}

// clampInt32 keeps sums of clients' numbers inside the wire's range.
func clampInt32(v int64) int32 { return int32(max(math.MinInt32, min(math.MaxInt32, v))) }
