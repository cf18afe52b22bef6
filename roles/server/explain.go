package server

import (
	"cmp"
	"context"
	"slices"
	"time"

	"inferencecache.io/inferencecache/index"
	"inferencecache.io/inferencecache/internal/kv"
	"inferencecache.io/inferencecache/internal/policy"
	"inferencecache.io/inferencecache/internal/rank"
	pb "inferencecache.io/inferencecache/proto/inferencecache/v1alpha1"
)

// Explain implements the RPC. Like LookupRoute it never returns an error.
func (s *Server) Explain(ctx context.Context, r *pb.ExplainRequest) (*pb.ExplainResponse, error) {
	if r.GetLookup() == nil {
		return s.explainPast(r.GetRequestId()), nil
	}
	if r.GetLookup().GetTenantId() == kv.ProbeTenant {
		return &pb.ExplainResponse{Answer: early(noHint, nil), Error: "the tenant is reserved for the server's own test"}, nil
	}
	l := s.begin(time.Now(), r.GetLookup())
	defer l.release()
	l.dry = true
	return l.explain(ctx), nil
}

// explain takes the way of a lookup and keeps what it saw.
func (l *lookup) explain(ctx context.Context) *pb.ExplainResponse {
	e := &pb.ExplainResponse{
		Profile: l.policy.Profile.String(), TenantId: l.at.Tenant, ModelId: l.at.Model, HashScheme: l.at.Scheme, AdapterId: l.at.Adapter,
		DecidedAtUs: l.now.UnixMicro(),
	}
	if l.policy.RequireChain && !l.hasWireChain() {
		e.Answer, e.Error = early(requiresChain, nil), "the tenant's policy wants block hashes, and the request carries none that are well formed"
		return e
	}
	ctx, cancel := l.deadline(ctx)
	defer cancel()
	if refused := l.resolve(ctx); refused != "" {
		e.Answer, e.Error = early(noHint, l.input.echo), refusedText[refused]
		return e
	}
	e.PromptTokens, e.PromptBlocks = clampInt32(l.input.tokens), int32(len(l.input.keys))
	reason := l.decide()
	e.Answer = l.respond(reason)
	if l.policy.Shadow && named(reason) {
		e.Answer = l.respond(shadowed)
	}
	if l.policy.Profile == policy.Compat {
		l.explainCompat(e)
	} else {
		l.explainCost(e)
	}
	l.explainRest(e)
	e.Summary, e.WouldChange = summarize(e)
	return e
}

// refusedText says what to do about an input that cannot be used.
var refusedText = map[string]string{
	refusedMismatch:  "the chain is malformed: block_hashes and block_token_counts must be of equal length, packed_hashes a multiple of 8 bytes with a packed_block_size, and not both forms",
	refusedEmptyKey:  "a block hash is empty",
	refusedOversized: "the prompt is longer than the server takes: see --max-tokens, --max-blocks-per-chain and --max-prompt-bytes",
	refusedSubBlock:  "the prompt is shorter than one block of the engine (--engine-block-size)",
	refusedChainOff:  "the tenant's policy turns chain matching off, and the request carries nothing but a chain",
	refusedTokenizer: "prompt_text could not be tokenized: the server needs --tokenize-from-engines and a live engine of the model, or ask with token ids",
}

// explainCost ranks all candidates.
func (l *lookup) explainCost(e *pb.ExplainResponse) {
	if len(l.candidates) == 0 {
		return
	}
	inAnswer := map[string]bool{}
	for _, row := range e.Answer.GetReplicaScores() {
		inAnswer[row.GetReplicaId()] = true
	}
	q := l.query()
	q.Top = 0
	ranked, fleet := l.server.config.Cost.Rank(&l.ranking, l.candidates, q)
	e.MissPrice = fleet.U
	for i := range ranked {
		s := &l.sides[ranked[i].Number]
		c := considered(&ranked[i], s.blocks, s.held, s.quarantined)
		c.Named = inAnswer[c.ReplicaId]
		c.BelowFloor = s.held > 0 && s.held < l.policy.MinMatchedTokens
		e.Considered = append(e.Considered, c)
	}
}

// considered is a ranked candidate on the wire.
func considered(r *rank.Ranked, blocks int, held int32, quarantined bool) *pb.Considered {
	ms := func(seconds float64) float64 { return seconds * 1000 }
	return &pb.Considered{
		ReplicaId: r.Replica, Score: r.Score(), HeldTokens: held, HeldBlocks: int32(blocks),
		T1Tokens: r.Tokens[0], T2Tokens: r.Tokens[1], T3Tokens: r.Tokens[2], SoonTokens: r.Soon, ReusableTokens: r.Reusable,
		BacklogMs: ms(r.Terms.Backlog), PrefillMs: ms(r.Prefill), MissMs: ms(r.Miss), LoadMs: ms(r.Load),
		PenaltyMs: ms(r.Penalty), GainMs: ms(r.Gain), FinishMs: ms(r.Finish),
		LoadKnown: r.Loaded, Late: r.Late, OverShare: r.Over, Suspect: r.Suspect, Quarantined: quarantined,
		PrefillTokensPerSecond: r.Rate, LoadAgeMs: -1, Truth: 1,
	}
}

// explainCompat shows the holders by score.
func (l *lookup) explainCompat(e *pb.ExplainResponse) {
	scores := map[string]float32{}
	for _, row := range e.Answer.GetReplicaScores() {
		scores[row.GetReplicaId()] = row.GetScore()
	}
	for i := range l.runs {
		run := &l.runs[i]
		score, isNamed := scores[run.Replica]
		tokens := l.tokens(run, run.Blocks)
		e.Considered = append(e.Considered, &pb.Considered{
			ReplicaId: run.Replica, Score: score, Named: isNamed, HeldTokens: tokens, HeldBlocks: int32(run.Blocks),
			BelowFloor: tokens < l.policy.MinMatchedTokens, LoadAgeMs: -1, Truth: 1,
		})
	}
	slices.SortFunc(e.Considered, func(a, b *pb.Considered) int {
		return cmp.Or(cmp.Compare(b.Score, a.Score), cmp.Compare(b.HeldTokens, a.HeldTokens), cmp.Compare(a.ReplicaId, b.ReplicaId))
	})
}

// explainRest adds what the fleet knows of each, where runs ended, and the
// replicas that were no candidates.
func (l *lookup) explainRest(e *pb.ExplainResponse) {
	if l.home == nil || len(l.input.keys) == 0 {
		return
	}
	shown := map[string]*pb.Considered{}
	for _, c := range e.Considered {
		shown[c.ReplicaId] = c
	}
	known := l.server.fleets.known(l.now, l.home)
	blocks := stored{lookup: l, others: l.server.index.Partitions(l.at.Tenant), by: map[place][]index.Entry{}}
	slices.SortFunc(blocks.others, comparePartitions)
	for i := range known {
		k := &known[i]
		c := shown[k.name]
		if c == nil {
			c = &pb.Considered{ReplicaId: k.name, Excluded: k.excluded != "", ExcludedReason: k.excluded, LoadAgeMs: -1}
			e.Considered = append(e.Considered, c)
		}
		c.LoadAgeMs, c.Truth, c.Quarantined = k.loadAge, float64(k.truth), k.liar
		blocks.ended(c, k)
	}
}

// acquaintance is what a fleet knows of a member, read at once.
type acquaintance struct {
	name          string
	excluded      string
	gone, cleared time.Time
	blockSize     int32
	loadAge       int64 // milliseconds; -1: no load known
	truth         float32
	liar          bool
}

func (f *fleets) known(now time.Time, fl *fleet) (all []acquaintance) {
	fl.mu.Lock()
	defer fl.mu.Unlock()
	for _, m := range fl.members {
		a := acquaintance{name: m.name, excluded: f.excluded(now, m), gone: m.gone, cleared: m.cleared, blockSize: m.blockSize,
			loadAge: -1, truth: m.truth.share(), liar: m.truth.liar}
		if m.load.at != 0 {
			a.loadAge = int64(1000 * (f.seconds(now) - m.load.at))
		}
		if a.excluded == causeSilence && a.gone.IsZero() {
			a.gone = m.heard
		}
		all = append(all, a)
	}
	return all
}

// explainPast shows what was decided, as far as it is remembered.
func (s *Server) explainPast(id string) *pb.ExplainResponse {
	e := &pb.ExplainResponse{}
	known := s.decisions.with(id, func(d *decision) {
		e.Answer = &pb.LookupRouteResponse{ReasonCode: d.reason, AdapterId: d.where.Adapter, RequestId: d.id}
		e.Profile, e.TenantId, e.ModelId, e.HashScheme, e.AdapterId = d.profile.String(), d.where.Tenant, d.where.Model, d.where.Scheme, d.where.Adapter
		e.PromptTokens, e.PromptBlocks, e.DecidedAtUs, e.MissPrice = d.tokens, d.blocks, d.at.UnixMicro(), d.fleet.U
		for i := range d.ranked {
			r := &d.ranked[i]
			c := considered(&r.Ranked, r.blocks, r.Tokens, r.quarantined)
			c.ReplicaId, c.Score, c.Named = r.Scored.Replica, r.Scored.Score, !d.shadow
			e.Considered = append(e.Considered, c)
			if !d.shadow {
				e.Answer.ReplicaScores = append(e.Answer.ReplicaScores, scoreRow(&r.Scored))
			}
		}
	})
	if !known {
		e.Error = "the server remembers no request of this id: it keeps the latest --decisions of those that named a replica, and none over a restart"
		return e
	}
	e.Summary, e.WouldChange = summarize(e)
	return e
}
