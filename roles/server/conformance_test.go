package server

import (
	"context"
	"math"
	"testing"
	"time"

	"inferencecache.io/inferencecache/internal/kv"
	"inferencecache.io/inferencecache/internal/policy"
	pb "inferencecache.io/inferencecache/proto/inferencecache/v1alpha1"
)

// The tests of this file are the contract's appendix B, checklist and combined
// outcomes, in its order.

func TestIsolationOfEqualKeys(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.holds("r-1", 0, 64)
	with := func(change func(*pb.LookupRouteRequest)) *pb.LookupRouteResponse { return r.ask(chain(0, 64), change) }
	r.want(with(func(q *pb.LookupRouteRequest) {}), prefixMatch, "r-1:64")
	r.want(with(func(q *pb.LookupRouteRequest) { q.HashScheme = "sglang" }), unknownScheme)
	r.want(with(func(q *pb.LookupRouteRequest) { q.TenantId = "other" }), unknownTenant)
	r.want(with(func(q *pb.LookupRouteRequest) { q.ModelId = "other" }), unknownModel)
	r.want(with(func(q *pb.LookupRouteRequest) { q.AdapterId = "lora" }), affinityHint, "r-1:0")
}

func TestUnknownNamesFromOuterToInner(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.want(r.ask(chain(0, 64)), noHint) // cold start
	r.report(&pb.CacheStateUpdate{ReplicaId: "r", TenantId: "", ModelId: "", HashScheme: "vllm", Prefixes: []*pb.PrefixEntry{chainEntry(0, 64)}})
	r.want(r.ask(chain(0, 64)), unknownTenant)
	r.holds("r-1", 0, 64)
	for name, incomplete := range map[string]func(*pb.LookupRouteRequest){
		"tenant": func(q *pb.LookupRouteRequest) { q.TenantId = "" },
		"model":  func(q *pb.LookupRouteRequest) { q.ModelId = "" },
		"scheme": func(q *pb.LookupRouteRequest) { q.HashScheme = "" },
	} {
		if answer := r.ask(chain(0, 64), incomplete); answer.GetReasonCode() != noHint {
			t.Errorf("without %s: %s", name, answer.GetReasonCode())
		}
	}
}

func TestChainWithWholePrefixKeyServesBothLookups(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	entry := chainEntry(0, 64)
	entry.PrefixHash, entry.TokenCount = []byte("whole"), 70
	r.report(update("r-1", entry))
	r.want(r.ask(chain(0, 64)), prefixMatch, "r-1:64")
	r.want(r.ask(exactKey([]byte("whole"))), prefixMatch, "r-1:70")
}

func TestMalformedChainsAreNeverRead(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	short := chainEntry(0, 64)
	short.BlockTokenCounts = short.BlockTokenCounts[:3]
	short.PrefixHash, short.TokenCount = []byte("whole"), 64
	oneSided := &pb.PrefixEntry{BlockTokenCounts: counts(4, 16), PrefixHash: []byte("whole"), TokenCount: 64}
	odd := &pb.PrefixEntry{PackedHashes: make([]byte, 9), PackedBlockSize: 16, PrefixHash: []byte("whole"), TokenCount: 64}
	both := chainEntry(0, 64)
	both.PackedHashes, both.PackedBlockSize = make([]byte, 8), 16
	r.report(update("r-1", short, oneSided, odd, both))
	if n := r.index.Counts().Keys; n != 0 {
		t.Errorf("%d keys of malformed entries", n)
	}
	if got := r.metric(`inferencecache_ingest_dropped_total{reason="mismatched_chain"}`); got != 4 {
		t.Errorf("counted %v drops, want 4", got)
	}

	r.holds("r-1", 0, 64)
	warm := update("r-1")
	warm.Stats = &pb.ReplicaStats{HitRate: .9}
	r.report(warm)
	for name, malformed := range map[string]func(*pb.LookupRouteRequest){
		"counts short":      func(q *pb.LookupRouteRequest) { q.BlockTokenCounts = q.BlockTokenCounts[:3] },
		"counts only":       func(q *pb.LookupRouteRequest) { q.BlockHashes = nil },
		"hashes only":       func(q *pb.LookupRouteRequest) { q.BlockTokenCounts = nil },
		"and a prefix hash": func(q *pb.LookupRouteRequest) { q.BlockTokenCounts = nil; q.PrefixHash = wire(chainOf(span(0, 16)))[0] },
		"both forms":        packed(0, 64),
		"an empty key":      func(q *pb.LookupRouteRequest) { q.BlockHashes[2] = nil },
		"packed, odd length": func(q *pb.LookupRouteRequest) {
			*q = *request()
			q.PackedHashes, q.PackedBlockSize = make([]byte, 15), 16
		},
		"packed, no block size": func(q *pb.LookupRouteRequest) { *q = *request(); q.PackedHashes = make([]byte, 16) },
		"packed, negative sizes": func(q *pb.LookupRouteRequest) {
			*q = *request()
			q.PackedHashes, q.PackedBlockSize = make([]byte, 16), -16
		},
	} {
		if answer := r.ask(chain(0, 64), malformed); answer.GetReasonCode() != noHint || len(answer.GetReplicaScores()) != 0 {
			t.Errorf("%s: %v", name, answer)
		}
	}
}

func TestEveryProducerFormMeetsEveryQuestion(t *testing.T) {
	t.Parallel()
	hashes := chainOf(span(0, 64))
	single := func() (entries []*pb.PrefixEntry) {
		for i, h := range hashes {
			entries = append(entries, &pb.PrefixEntry{PrefixHash: h.Bytes(), TokenCount: int32(16 * (i + 1))})
		}
		return entries
	}
	ordered := update("r-1")
	ordered.Operations = []*pb.CacheOperation{
		{Kind: pb.CacheOperation_STORE, PackedHashes: kv.Pack(hashes[:1]), BlockSize: 16},
		{Kind: pb.CacheOperation_STORE, PackedHashes: kv.Pack(hashes[1:]), BlockSize: 16, ParentHash: hashes[0].Bytes(), ParentTokens: 16},
	}
	for producer, u := range map[string]*pb.CacheStateUpdate{
		"chain":         update("r-1", chainEntry(0, 64)),
		"single keys":   update("r-1", single()...),
		"packed":        update("r-1", &pb.PrefixEntry{PackedHashes: kv.Pack(hashes), PackedBlockSize: 16}),
		"operations":    ordered,
		"default lora?": {ReplicaId: "r-1", TenantId: "t", ModelId: "m", HashScheme: "vllm", Prefixes: []*pb.PrefixEntry{chainEntry(0, 64)}},
	} {
		r := newRig(t)
		r.report(u)
		for question, change := range map[string]func(*pb.LookupRouteRequest){
			"chain": chain(0, 64), "packed": packed(0, 64), "tokens": tokens(0, 64), "exact": exactKey(hashes[3].Bytes()),
		} {
			answer := r.ask(change)
			if answer.GetReasonCode() != prefixMatch || answer.GetReplicaScores()[0].GetMatchedTokens() != 64 {
				t.Errorf("%s asked as %s: %v", producer, question, answer)
			}
		}
	}
}

func TestLegacyEntryCountsAsBlockZeroWithTheRequestsTokens(t *testing.T) {
	t.Parallel()
	r := newRig(t, noFloors)
	r.report(update("r-1", &pb.PrefixEntry{PrefixHash: []byte("k"), TokenCount: 999}))
	r.want(r.ask(func(q *pb.LookupRouteRequest) {
		q.BlockHashes, q.BlockTokenCounts = [][]byte{[]byte("k"), []byte("l")}, []int32{48, 48}
	}), prefixMatch, "r-1:48")
}

func TestCombinedOutcomes(t *testing.T) {
	t.Parallel()
	t.Run("one replica, 64 matched", func(t *testing.T) {
		r := newRig(t)
		r.holds("r-1", 0, 64)
		r.want(r.ask(chain(0, 128)), prefixMatch, "r-1:64")
	})
	t.Run("one replica, 48 matched", func(t *testing.T) {
		r := newRig(t)
		r.holds("r-1", 0, 48)
		r.want(r.ask(chain(0, 128)), affinityHint, "r-1:0")
	})
	t.Run("every replica holds the run", func(t *testing.T) {
		r := newRig(t)
		r.holds("r-1", 0, 64)
		r.holds("r-2", 0, 64)
		if answer := r.ask(chain(0, 64)); answer.GetReasonCode() != affinityHint || len(answer.GetReplicaScores()) != 1 {
			t.Errorf("got %v", answer)
		}
	})
	t.Run("chain miss in a known scope", func(t *testing.T) {
		r := newRig(t)
		r.holds("r-1", 0, 64)
		r.want(r.ask(chain(5000, 64)), affinityHint, "r-1:0")
	})
	t.Run("exact miss with a warm replica", func(t *testing.T) {
		r := newRig(t)
		r.holds("r-1", 0, 64)
		u := update("r-1")
		u.Stats = &pb.ReplicaStats{HitRate: .8, Pressure: .1}
		r.report(u)
		answer := r.ask(exactKey([]byte("unseen")))
		r.want(answer, tenantHot, "r-1:0")
		if s := answer.GetReplicaScores()[0]; math.Abs(float64(s.GetScore())-.72) > .01 || s.GetEstimatedCacheHitProb() != .8 || s.GetTier() != 0 {
			t.Errorf("row %v", s)
		}
		r.want(r.ask(tokens(0, 5)), noHint)                                                        // shorter than a block
		r.want(r.ask(), noHint)                                                                    // no prefix at all
		r.want(r.ask(func(q *pb.LookupRouteRequest) { q.BlockTokenCounts = []int32{16} }), noHint) // counts without hashes
		r.want(r.ask(chain(5000, 64)), affinityHint, "r-1:0")                                      // a chain is never TENANT_HOT
		p := published()
		p.TenantHot = false
		r.adopt("t", p)
		r.want(r.ask(exactKey([]byte("unseen"))), affinityHint, "r-1:0")
	})
}

func TestScoresOfTheContract(t *testing.T) {
	t.Parallel()
	r := newRig(t, noFloors)
	r.holds("r-1", 0, 256)
	r.holds("r-2", 0, 128)
	r.holds("r-3", 0, 64)
	answer := r.ask(chain(0, 256))
	r.want(answer, prefixMatch, "r-1:256", "r-2:128", "r-3:64")
	for i, want := range []float64{170.667, 42.667, 0} {
		if got := float64(answer.GetReplicaScores()[i].GetScore()); math.Abs(got-want) > .01 {
			t.Errorf("row %d: score %v, want %v", i, got, want)
		}
	}

	old := newRig(t, noFloors)
	u := update("r-1", &pb.PrefixEntry{PrefixHash: []byte("k"), TokenCount: 100})
	u.TimestampUs = time.Now().Add(-15 * time.Minute).UnixMicro()
	old.report(u)
	row := old.ask(exactKey([]byte("k"))).GetReplicaScores()[0]
	if math.Abs(float64(row.GetScore())-50) > .1 || math.Abs(float64(row.GetEstimatedCacheHitProb())-.5) > .001 {
		t.Errorf("half-aged row %v", row)
	}
}

func TestPolicyGates(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.holds("r-1", 0, 64)
	set := func(change func(*policy.Policy)) {
		p := published()
		change(&p)
		r.adopt("t", p)
	}
	set(func(p *policy.Policy) { p.MinPrefixTokens = 100 })
	r.want(r.ask(chain(0, 64)), affinityHint, "r-1:0")
	r.want(r.ask(chain(0, 64), func(q *pb.LookupRouteRequest) { q.HashScheme = "sglang" }), unknownScheme)
	set(func(p *policy.Policy) { p.MinPrefixTokens = 100; p.Affinity = false })
	r.want(r.ask(chain(0, 64)), noHint)
	r.want(r.ask(chain(0, 64), func(q *pb.LookupRouteRequest) { q.HashScheme = "sglang" }), noHint) // the index is not asked
	set(func(p *policy.Policy) { p.Affinity = false })
	r.want(r.ask(chain(5000, 64)), noHint)
	set(func(p *policy.Policy) { p.FloorScore = 1000 })
	r.want(r.ask(chain(0, 64)), affinityHint, "r-1:0")

	set(func(p *policy.Policy) { p.RequireChain = true })
	r.want(r.ask(tokens(0, 64)), requiresChain)
	r.want(r.ask(func(q *pb.LookupRouteRequest) { q.PromptText = "x" }), requiresChain)
	r.want(r.ask(exactKey([]byte("k"))), requiresChain)
	r.want(r.ask(chain(0, 64)), prefixMatch, "r-1:64")
	r.want(r.ask(packed(0, 64)), prefixMatch, "r-1:64")

	set(func(p *policy.Policy) { p.ChainMatching = false })
	r.want(r.ask(chain(0, 64)), noHint)
	r.want(r.ask(tokens(0, 64)), prefixMatch, "r-1:64")
	r.want(r.ask(tokens(0, 80)), affinityHint, "r-1:0") // only the last full block is asked for
	r.want(r.ask(exactKey(chainOf(span(0, 64))[3].Bytes()), func(q *pb.LookupRouteRequest) { q.BlockTokenCounts = []int32{1} }), prefixMatch, "r-1:64")

	other := request(chain(0, 64))
	other.TenantId = "u"
	r.report(&pb.CacheStateUpdate{ReplicaId: "r-9", TenantId: "u", ModelId: "m", HashScheme: "vllm", Prefixes: []*pb.PrefixEntry{chainEntry(0, 64)}})
	answer, _ := r.LookupRoute(t.Context(), other)
	r.want(answer, prefixMatch, "r-9:64")
}

func TestTimeoutIsAnAnswer(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.holds("r-1", 0, 64)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	answer, err := r.LookupRoute(ctx, request(chain(0, 64)))
	if err != nil {
		t.Fatal(err)
	}
	r.want(answer, timedOut)
	p := published()
	p.Timeout = time.Nanosecond
	r.adopt("t", p)
	r.want(r.ask(chain(0, 64)), timedOut)
}

func TestProbeTenantIsNotServed(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	u := update("r-1", chainEntry(0, 64))
	u.TenantId = kv.ProbeTenant
	u.Stats = &pb.ReplicaStats{HitRate: 1}
	r.report(u)
	if n := r.index.Counts().Keys; n != 0 || r.replicas.len() != 0 {
		t.Errorf("%d keys, %d rows under the reserved tenant", n, r.replicas.len())
	}
	if got := r.metric(`inferencecache_ingest_dropped_total{reason="reserved_tenant"}`); got != 1 {
		t.Errorf("counted %v", got)
	}
	answer := r.ask(chain(0, 64), func(q *pb.LookupRouteRequest) { q.TenantId = kv.ProbeTenant })
	if answer.GetReasonCode() != noHint || answer.GetLookupLatencyUs() != 0 {
		t.Errorf("got %v", answer)
	}
	state, _ := r.GetCacheState(t.Context(), &pb.GetCacheStateRequest{TenantId: kv.ProbeTenant, ModelId: "m"})
	if len(state.GetReplicas()) != 0 || state.GetSummary().GetTotalPrefixes() != 0 {
		t.Errorf("state %v", state)
	}
}

func TestTiersNeverBecomeT1ByAccident(t *testing.T) {
	t.Parallel()
	for sent, want := range map[pb.CacheTier]pb.CacheTier{0: 1, 1: 1, 2: 2, 3: 3, 4: 0, 250: 0, math.MaxInt32: 0, -1: 0, math.MinInt32: 0} {
		r := newRig(t, noFloors)
		r.report(update("r-1", &pb.PrefixEntry{PrefixHash: []byte("k"), TokenCount: 16, Tier: sent}))
		if got := r.ask(exactKey([]byte("k"))).GetReplicaScores()[0].GetTier(); got != want {
			t.Errorf("tier %d is shown as %v, want %v", sent, got, want)
		}
	}
	r := newRig(t, noFloors)
	hashes := chainOf(span(0, 48))
	for i, tier := range []pb.CacheTier{1, 2, 1} {
		r.report(update("r-1", &pb.PrefixEntry{PrefixHash: hashes[i].Bytes(), TokenCount: int32(16 * (i + 1)), Tier: tier}))
	}
	if got := r.ask(chain(0, 48)).GetReplicaScores()[0].GetTier(); got != pb.CacheTier_CACHE_TIER_T2 {
		t.Errorf("a run through T2 is shown as %v", got)
	}
}

func TestAdapterIsEchoedOnceTheIndexWasAsked(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	lora := func(q *pb.LookupRouteRequest) { q.AdapterId = "lora" }
	if got := r.ask(chain(0, 64), lora).GetAdapterId(); got != "lora" {
		t.Errorf("echoed %q", got)
	}
	if got := r.ask(tokens(0, 5), lora).GetAdapterId(); got != "" {
		t.Errorf("echoed %q before the index was asked", got)
	}
}

func TestBlockSizeMustBeTheEngines(t *testing.T) {
	t.Parallel()
	r := newRig(t, noFloors, func(c *Config) { c.EngineBlockSize = 32 })
	r.holds("r-1", 0, 64) // blocks of 16
	r.want(r.ask(tokens(0, 64)), affinityHint, "r-1:0")
	r.want(r.ask(chain(0, 64)), prefixMatch, "r-1:64")
}

func TestExplicitChainBeatsTokens(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.holds("r-1", 0, 64)
	r.want(r.ask(chain(0, 64), tokens(9000, 64)), prefixMatch, "r-1:64")
}

func TestOversizedInputsFailOpen(t *testing.T) {
	t.Parallel()
	r := newRig(t, func(c *Config) { c.MaxTokens, c.MaxBlocks, c.MaxPromptBytes = 100, 5, 10 })
	r.holds("r-1", 0, 64)
	r.want(r.ask(tokens(0, 101)), noHint)
	r.want(r.ask(chain(0, 96)), noHint)
	r.want(r.ask(packed(0, 96)), noHint)
	r.want(r.ask(func(q *pb.LookupRouteRequest) { q.PromptText = "eleven bytes" }), noHint)
	if got := r.metric(`inferencecache_lookup_refused_inputs_total{reason="oversized"}`); got != 4 {
		t.Errorf("counted %v, want 4", got)
	}
	r.report(update("r-1", chainEntry(0, 96)))
	if got := r.metric(`inferencecache_ingest_dropped_total{reason="oversized_chain"}`); got != 1 {
		t.Errorf("counted %v, want 1", got)
	}
}

func TestChainOfAMillionBlocks(t *testing.T) {
	t.Parallel()
	r := newRig(t, func(c *Config) { c.MemoryBytes = 64 << 20 })
	hashes := make([]kv.Hash, 1_000_000)
	for i := range hashes {
		hashes[i] = kv.Hash(i)
	}
	r.holds("r-1", 0, 64)
	r.report(update("r-2", &pb.PrefixEntry{PackedHashes: kv.Pack(hashes), PackedBlockSize: 16}))
	if got := r.index.Counts().Bytes; got > 64<<20 {
		t.Errorf("%d bytes, over the budget", got)
	}
	answer := r.ask(func(q *pb.LookupRouteRequest) { q.PackedHashes, q.PackedBlockSize = kv.Pack(hashes), 16 })
	if answer.GetReasonCode() == timedOut {
		t.Errorf("got %v", answer)
	}
	r.want(r.ask(tokens(0, 1<<20+1)), noHint)
}

func TestTopK(t *testing.T) {
	t.Parallel()
	r := newRig(t, noFloors)
	r.holds("r-1", 0, 256)
	r.holds("r-2", 0, 128)
	r.holds("r-3", 0, 64)
	r.want(r.ask(chain(0, 256), func(q *pb.LookupRouteRequest) { q.TopK = 2 }), prefixMatch, "r-1:256", "r-2:128")
	r.want(r.ask(chain(0, 256), func(q *pb.LookupRouteRequest) { q.TopK = -1 }), prefixMatch, "r-1:256", "r-2:128", "r-3:64")
}
