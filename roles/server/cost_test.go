package server

import (
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/VictoriaMetrics/metrics"

	"inferencecache.io/inferencecache/internal/kv"
	"inferencecache.io/inferencecache/internal/policy"
	pb "inferencecache.io/inferencecache/proto/inferencecache/v1alpha1"
)

// newFleet is a server of profile Cost with n idle replicas that say how busy
// they are.
func newFleet(t *testing.T, n int, change ...func(*Config)) *rig {
	r := newRig(t, append([]func(*Config){func(c *Config) { c.Policy.Profile = policy.Cost }}, change...)...)
	for i := range n {
		r.busy(fmt.Sprint("r-", i+1), 0, 0)
	}
	return r
}

// busy reports a replica's load.
func (r *rig) busy(replica string, running, waiting float64) {
	u := update(replica)
	u.Stats = &pb.ReplicaStats{RunningRequests: &running, WaitingRequests: &waiting}
	r.report(u)
}

// first is the replica that a question's answer names first.
func (r *rig) first(change ...func(*pb.LookupRouteRequest)) string {
	r.t.Helper()
	answer := r.ask(change...)
	if len(answer.GetReplicaScores()) == 0 {
		r.t.Fatalf("%s names nobody", answer.GetReasonCode())
	}
	return answer.GetReplicaScores()[0].GetReplicaId()
}

func TestCostWeighsHoldingAgainstWaiting(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) { // so that no load drains
		r := newFleet(t, 3)
		r.holds("r-2", 0, 1600)
		r.want(r.ask(packed(0, 1600), top(1)), prefixMatch, "r-2:1600")
		r.busy("r-2", 20, 0) // a tenth of a second; the prefix takes two
		r.want(r.ask(packed(0, 1600), top(1)), prefixMatch, "r-2:1600")
		r.busy("r-2", 60, 12)
		if answer := r.ask(packed(0, 1600), top(2)); answer.GetReasonCode() != loadHint || answer.GetReplicaScores()[0].GetReplicaId() == "r-2" {
			t.Errorf("a busy holder: %v", answer)
		}
		r.busy("r-1", 60, 12)
		r.busy("r-3", 60, 12)
		r.busy("r-2", 60, 12)
		r.want(r.ask(packed(0, 1600), top(1)), prefixMatch, "r-2:1600")
	})
}

func top(k int32) func(*pb.LookupRouteRequest) {
	return func(q *pb.LookupRouteRequest) { q.TopK = k }
}

func TestAnswerKeepsTheBestReplicaThatHoldsNothing(t *testing.T) {
	t.Parallel()
	r := newFleet(t, 6)
	for i := range 4 {
		r.holds(fmt.Sprint("r-", i+1), 0, 640)
	}
	answer := r.ask(packed(0, 640), top(3))
	rows := answer.GetReplicaScores()
	if len(rows) != 3 || rows[0].GetMatchedTokens() != 640 || rows[2].GetMatchedTokens() != 0 {
		t.Errorf("%v", answer)
	}
	for i := range rows[1:] {
		if rows[i+1].GetScore() > rows[i].GetScore() {
			t.Errorf("scores rise: %v", rows)
		}
	}
}

func TestFloorsOfTheCostProfile(t *testing.T) {
	t.Parallel()
	r := newFleet(t, 1)
	r.holds("r-1", 0, 48) // below the floor of 64
	if got := r.ask(packed(0, 640)).GetReasonCode(); got != affinityHint {
		t.Errorf("below the floor: %s", got)
	}
	p := policy.Defaults()
	p.Affinity = false
	r.adopt("t", p)
	r.want(r.ask(packed(0, 640)), noHint)
	p.MinMatchedTokens = 0
	r.adopt("t", p)
	r.want(r.ask(packed(0, 640)), prefixMatch, "r-1:48")
	p.MinPrefixTokens, p.Affinity = 1000, true
	r.adopt("t", p)
	r.want(r.ask(packed(0, 640)), affinityHint, "r-1:0")
}

func TestWantedTimeToFirstToken(t *testing.T) {
	t.Parallel()
	r := newFleet(t, 2)
	r.holds("r-1", 0, 8000)
	r.busy("r-1", 0, 3) // .75 s of waiting, but hardly any work
	if got := r.first(packed(0, 8000)); got != "r-1" {
		t.Errorf("without a wish: %s", got)
	}
	r.busy("r-1", 0, 8) // 2 s; the other one needs 1 s and half as much again
	if got := r.first(packed(0, 8000)); got != "r-2" {
		t.Errorf("a busy holder: %s", got)
	}
	r = newFleet(t, 2)
	r.holds("r-1", 0, 8000)
	r.busy("r-1", 0, 8)
	if got := r.first(packed(0, 8000), func(q *pb.LookupRouteRequest) { q.Slo = &pb.SLO{TtftMs: 3000} }); got != "r-1" {
		t.Errorf("in time and cheapest is r-1, not %s", got)
	}
	r = newFleet(t, 2)
	r.holds("r-1", 0, 8000)
	r.busy("r-1", 0, 8)
	if got := r.first(packed(0, 8000), func(q *pb.LookupRouteRequest) { q.Slo = &pb.SLO{TtftMs: 1500} }); got != "r-2" {
		t.Errorf("only r-2 is in time, not %s", got)
	}
}

// TestBurstOfOneColdPrompt asks 64 times before any event can tell what became
// of the first ones.
func TestBurstOfOneColdPrompt(t *testing.T) {
	t.Parallel()
	for _, blocks := range []int{24, 32, 64, 128, 512, 2048} {
		synctest.Test(t, func(t *testing.T) {
			r := newFleet(t, 8)
			sent := map[string]int{}
			for range 64 {
				sent[r.first(packed(0, 16*blocks))]++
			}
			most := 0
			for _, n := range sent {
				most = max(most, n)
			}
			if len(sent) > 3 || float64(most) > 1.5*64/float64(len(sent)) {
				t.Errorf("%d blocks: %v", blocks, sent)
			}
		})
	}
}

func TestColdPromptsSpread(t *testing.T) {
	t.Parallel()
	for name, r := range map[string]*rig{"loads known": newFleet(t, 8), "no load known": newRig(t, func(c *Config) { c.Policy.Profile = policy.Cost })} {
		for i := range 8 {
			r.holds(fmt.Sprint("r-", i+1), 100_000+1000*i, 160) // of other prompts
		}
		sent := map[string]int{}
		for i := range 400 {
			sent[r.first(packed(1000*i, 640))]++
		}
		for replica, n := range sent {
			if n > 63 { // a quarter above the mean
				t.Errorf("%s: %s gets %d of 400", name, replica, n)
			}
		}
	}
}

func TestEqualPromptsMeetWithoutLoads(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, func(c *Config) { c.Policy.Profile = policy.Cost })
		for i := range 8 {
			r.holds(fmt.Sprint("r-", i+1), 100_000+1000*i, 160)
		}
		want := r.first(packed(0, 640))
		for range 10 {
			time.Sleep(6 * time.Second) // beyond what is remembered of the last one
			if got := r.first(packed(0, 640)); got != want {
				t.Errorf("%s, then %s", want, got)
			}
		}
	})
}

func TestUnconfirmedForecastEnds(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r := newFleet(t, 3)
		chosen := r.first(packed(0, 640))
		other := "r-1"
		if chosen == other {
			other = "r-2"
		}
		r.holds(other, 0, 640) // the gateway sent it elsewhere
		if got := r.first(packed(0, 640)); got != other {
			t.Errorf("%s goes before %s, which holds it", got, other)
		}
	})
}

func TestDeadReplicasAreNotNamed(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r := newFleet(t, 2)
		r.holds("r-1", 0, 640)
		if got := r.first(packed(0, 640)); got != "r-1" {
			t.Fatalf("got %s", got)
		}
		time.Sleep(89 * time.Second)
		r.busy("r-2", 0, 0)
		if got := r.first(packed(0, 640)); got != "r-2" { // suspect: five seconds
			t.Errorf("a silent holder of 80 ms goes first: %s", got)
		}
		time.Sleep(time.Second)
		for _, row := range r.ask(packed(0, 640)).GetReplicaScores() {
			if row.GetReplicaId() == "r-1" {
				t.Error("named after 90 seconds of silence")
			}
		}
		r.busy("r-1", 0, 0)
		if got := r.first(packed(0, 640)); got != "r-1" {
			t.Errorf("back again: %s", got)
		}
	})
}

func TestGoodbyeEndsAtOnce(t *testing.T) {
	t.Parallel()
	r := newFleet(t, 2)
	u := update("r-1", &pb.PrefixEntry{PackedHashes: kv.Pack(chainOf(span(0, 640))), PackedBlockSize: 16})
	u.SourceEpoch, u.Sequence, u.HeartbeatMs = 1, 1, 10_000
	r.report(u)
	if got := r.first(packed(0, 640)); got != "r-1" {
		t.Fatalf("got %s", got)
	}
	end := update("r-1")
	end.SourceEpoch, end.Sequence, end.Goodbye = 1, 2, true
	r.report(end)
	for range 20 {
		for _, row := range r.ask(packed(0, 640)).GetReplicaScores() {
			if row.GetReplicaId() == "r-1" {
				t.Fatal("named after its goodbye")
			}
		}
	}
}

func TestSleepersGetNoPrompts(t *testing.T) {
	t.Parallel()
	r := newFleet(t, 2)
	r.holds("r-1", 0, 640)
	asleep := true
	u := update("r-1")
	u.Stats = &pb.ReplicaStats{Asleep: &asleep}
	r.report(u)
	for _, row := range r.ask(packed(0, 640)).GetReplicaScores() {
		if row.GetReplicaId() == "r-1" {
			t.Error("named while it sleeps")
		}
	}
	r.busy("r-1", 0, 0)
	if got := r.first(packed(0, 640)); got != "r-1" {
		t.Errorf("awake again: %s", got)
	}
}

// TestNewReplicaCarriesItsShare: a replica joins a fleet whose others hold what
// everybody asks for, four fifths of what it can do.
func TestNewReplicaCarriesItsShare(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		const seconds, perSecond, prefix, prefixes = 60, 20, 4000, 7
		r := newFleet(t, 4)
		names := []string{"r-1", "r-2", "r-3", "r-4"}
		held := map[string]bool{} // replica and prefix
		hold := func(name string, which int) {
			r.holds(name, 1_000_000*which, prefix)
			held[fmt.Sprint(name, which)] = true
		}
		for i := range prefixes {
			for _, name := range names {
				hold(name, i)
			}
		}
		names = append(names, "new")
		work, all := map[string]int{}, 0 // tokens of the second half minute
		free := map[string]time.Time{}   // when each has computed all it got
		for i := range seconds * perSecond {
			now := time.Now()
			if i%perSecond == 0 {
				for _, name := range names {
					r.busy(name, 4, max(0, free[name].Sub(now).Seconds())/.2)
				}
			}
			which, tail := i%prefixes, 16*(i*37%200)
			name := r.first(packed(1_000_000*which, prefix+tail))
			if !held[fmt.Sprint(name, which)] {
				tail += prefix
				hold(name, which)
			}
			if i >= seconds*perSecond/2 {
				work[name] += tail
				all += tail
			}
			if free[name].Before(now) {
				free[name] = now
			}
			free[name] = free[name].Add(time.Duration(tail) * time.Second / 8000)
			time.Sleep(time.Second / perSecond)
		}
		if share := float64(work["new"]) / float64(all); share < .16 || share > .25 {
			t.Errorf("the new replica has %.2f of the work: %v", share, work)
		}
	})
}

func TestShadowNamesNobody(t *testing.T) {
	t.Parallel()
	r := newFleet(t, 2, func(c *Config) { c.Policy.Shadow = true })
	r.holds("r-1", 0, 640)
	for range 30 {
		answer := r.ask(packed(0, 640))
		r.want(answer, shadowed)
		// Without hints the gateway takes whom it likes, who finds nothing.
		ack := r.takeOutcome(time.Now(), &pb.Outcome{RequestId: answer.GetRequestId(), ReplicaId: "r-2", PromptTokens: 640})
		if !ack.GetAccepted() || ack.GetExpectedCachedTokens() != 0 {
			t.Fatalf("%v", ack)
		}
	}
	gains, _ := r.GetGain(t.Context(), &pb.GetGainRequest{})
	if len(gains.GetGains()) != 1 {
		t.Fatalf("%v", gains)
	}
	g := gains.GetGains()[0]
	if !g.GetShadow() || g.GetLookups() != 30 || g.GetOutcomes() != 30 || g.GetSavedTokens() != 30*624 || g.GetSavedTokensMargin() != 0 {
		t.Errorf("%v", g)
	}
	if want := 30 * 624 / 8000.0; g.GetSavedSeconds() < want-1e-6 || g.GetSavedSeconds() > want+1e-6 {
		t.Errorf("saved %v s, want %v", g.GetSavedSeconds(), want)
	}
}

func TestLiarsAreQuarantined(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r := newFleet(t, 2)
		r.holds("r-1", 0, 640)
		outcome := func(found int32) *pb.OutcomeAck {
			answer := r.ask(packed(0, 640))
			time.Sleep(time.Second)
			return r.takeOutcome(time.Now(), &pb.Outcome{RequestId: answer.GetRequestId(), ReplicaId: "r-1", CachedTokens: found, PromptTokens: 640})
		}
		probability := func() float32 { return r.ask(packed(0, 640)).GetReplicaScores()[0].GetEstimatedCacheHitProb() }
		for range 5 {
			if ack := outcome(624); ack.GetExpectedCachedTokens() != 624 {
				t.Fatalf("%v", ack)
			}
		}
		if p := probability(); p != 1 {
			t.Errorf("probability %v after true promises", p)
		}
		for range 20 {
			outcome(0)
		}
		if r.metric(`inferencecache_replicas_quarantined`) != 1 {
			t.Fatal("not in quarantine")
		}
		if answer := r.ask(packed(0, 640)); answer.GetReasonCode() == prefixMatch {
			t.Errorf("a liar's blocks count: %v", answer)
		}
		for range 60 { // the gateway sends prompts there for other reasons, which find what was promised
			outcome(624)
		}
		if r.metric(`inferencecache_replicas_quarantined`) != 0 {
			t.Error("not believed again")
		}
		for range 100 {
			outcome(0)
		}
		r.busy("r-1", 0, 0)
		time.Sleep(quarantineEnd)
		r.sweep(time.Now())
		if r.metric(`inferencecache_replicas_quarantined`) != 0 {
			t.Error("no other chance")
		}
	})
}

func TestBadOutcomesAreRefused(t *testing.T) {
	t.Parallel()
	r := newFleet(t, 1)
	id := r.ask(packed(0, 640)).GetRequestId()
	for _, v := range []struct {
		o    *pb.Outcome
		want string
	}{
		{&pb.Outcome{RequestId: id}, outcomeInvalid},
		{&pb.Outcome{RequestId: id, ReplicaId: "r-1", CachedTokens: -1}, outcomeInvalid},
		{&pb.Outcome{RequestId: id, ReplicaId: "r-1", CachedTokens: 2, PromptTokens: 1}, outcomeInvalid},
		{&pb.Outcome{RequestId: "x", ReplicaId: "r-1"}, outcomeRequest},
		{&pb.Outcome{RequestId: id, ReplicaId: "r-1"}, outcomeOK},
		{&pb.Outcome{RequestId: id, ReplicaId: "r-1"}, outcomeDuplicate},
	} {
		if ack, _ := r.ReportOutcome(t.Context(), v.o); ack.GetReasonCode() != v.want {
			t.Errorf("%v: %s, want %s", v.o, ack.GetReasonCode(), v.want)
		}
	}
	second := r.ask(packed(0, 640), func(q *pb.LookupRouteRequest) { q.RequestId = "mine" })
	if second.GetRequestId() != "mine" {
		t.Errorf("request id %q", second.GetRequestId())
	}
	if ack, _ := r.ReportOutcome(t.Context(), &pb.Outcome{RequestId: "mine", ReplicaId: "stranger"}); ack.GetReasonCode() != outcomeReplica {
		t.Errorf("a replica that nobody knows: %v", ack)
	}
	if got := r.metric(`inferencecache_outcomes_total{result="INVALID"}`); got != 3 {
		t.Errorf("counted %v", got)
	}
}

func TestDecisionsAreBounded(t *testing.T) {
	t.Parallel()
	r := newFleet(t, 1, func(c *Config) { c.Decisions = 3 })
	for i := range 5 {
		r.ask(packed(0, 640), func(q *pb.LookupRouteRequest) { q.RequestId = fmt.Sprint("q-", i%4) })
	}
	var known []string
	for i := range 4 {
		if e := r.explainPast(fmt.Sprint("q-", i)); e.GetError() == "" {
			known = append(known, fmt.Sprint("q-", i))
		}
	}
	if got := strings.Join(known, " "); got != "q-0 q-2 q-3" {
		t.Errorf("remembered %s", got)
	}
	if len(r.decisions.by) != 3 {
		t.Errorf("%d ids", len(r.decisions.by))
	}
}

func TestFleetsAreForgotten(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r := newFleet(t, 3)
		time.Sleep(graveTime)
		r.sweep(time.Now())
		if r.fleets.count != 0 || len(r.fleets.by) != 0 {
			t.Errorf("%d members, %d fleets", r.fleets.count, len(r.fleets.by))
		}
	})
}

func TestUnknownLoadIsTheMedian(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r := newFleet(t, 3)
		r.busy("r-1", 0, 4)
		time.Sleep(31 * time.Second) // three times the interval of reports
		r.busy("r-2", 0, 0)
		r.busy("r-3", 0, 8)
		r.report(&pb.CacheStateUpdate{ReplicaId: "r-1", TenantId: "t", ModelId: "m", HashScheme: "vllm", HeartbeatMs: 10_000})
		e, _ := r.Explain(t.Context(), &pb.ExplainRequest{Lookup: request(packed(0, 640))})
		for _, c := range e.GetConsidered() {
			if c.GetReplicaId() == "r-1" && (c.GetLoadKnown() || c.GetBacklogMs() != 2000) {
				t.Errorf("%v", c)
			}
		}
	})
}

// TestRankingAllocatesOnlyTheAnswer: the answer, its rows and their list, and the
// request id. Tracing is off here, as it is by default: it must not show.
func TestRankingAllocatesOnlyTheAnswer(t *testing.T) {
	if raced {
		t.Skip("the race detector lets pools forget: run without -race")
	}
	r := newFleet(t, 64, func(c *Config) { c.Decisions = 8 })
	for i := range 40 {
		r.holds(fmt.Sprint("r-", i+1), 0, 160*(i%8+1))
	}
	q := request(packed(0, 8192))
	ask := func() { _, _ = r.LookupRoute(t.Context(), q) }
	for range 20 {
		ask()
	}
	if n := testing.AllocsPerRun(200, ask); n > 4 {
		t.Errorf("%v allocations", n)
	}
}

// BenchmarkRankByCost is LookupRoute without a network for 64 candidates, of
// which 40 hold something of 512 blocks; and what of it is the look into the
// index.
func BenchmarkRankByCost(b *testing.B) {
	var c Config
	configure(&c)
	s := New(c, slog.New(slog.DiscardHandler), metrics.NewSet())
	idle := 0.0
	for i := range 64 {
		u := update(fmt.Sprint("r-", i), chainEntry(0, 16*8*(i%40+1)))
		if i >= 40 {
			u.Prefixes = nil
		}
		u.Stats = &pb.ReplicaStats{RunningRequests: &idle, WaitingRequests: &idle}
		s.ingest(time.Now(), u)
	}
	q := request(packed(0, 16*512))
	b.Run("all", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			_, _ = s.LookupRoute(b.Context(), q)
		}
	})
	b.Run("index", func(b *testing.B) {
		l := s.begin(time.Now(), q)
		l.resolve(b.Context())
		for b.Loop() {
			l.runs = s.index.Lookup(&l.scratch, l.now, l.at, l.input.keys)
		}
	})
}

func TestClockOfAProducerDoesNotKill(t *testing.T) {
	t.Parallel()
	r := newFleet(t, 1)
	u := update("slow-clock", chainEntry(0, 640))
	u.TimestampUs = time.Now().Add(-5 * time.Minute).UnixMicro()
	r.report(u)
	if got := r.first(packed(0, 640)); got != "slow-clock" {
		t.Errorf("%s goes before a holder whose clock is slow", got)
	}
}

// TestReasonDoesNotDependOnHowManyAreNamed: two equal replicas hold nothing, so
// the lot decides.
func TestReasonDoesNotDependOnHowManyAreNamed(t *testing.T) {
	t.Parallel()
	for k := range int32(3) {
		r := newFleet(t, 2)
		answer := r.ask(packed(0, 640), top(k))
		if answer.GetReasonCode() != affinityHint || k > 0 && len(answer.GetReplicaScores()) != int(k) {
			t.Errorf("top %d: %v", k, answer)
		}
	}
}
