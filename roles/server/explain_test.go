package server

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"inferencecache.io/inferencecache/internal/kv"
	"inferencecache.io/inferencecache/internal/policy"
	pb "inferencecache.io/inferencecache/proto/inferencecache/v1alpha1"
)

var updateGolden = flag.Bool("update", false, "rewrite golden files")

// store reports that a replica holds the blocks [from, to) of the usual prompt.
func (r *rig) store(replica string, from, to int, change ...func(*pb.CacheStateUpdate)) {
	keys := chainOf(span(0, 640))
	o := &pb.CacheOperation{Kind: pb.CacheOperation_STORE, PackedHashes: kv.Pack(keys[from:to]), BlockSize: 16, ParentTokens: int32(16 * from)}
	if from > 0 {
		o.ParentHash = keys[from-1].Bytes()
	}
	u := update(replica)
	u.Operations = append(u.Operations, o)
	for _, f := range change {
		f(u)
	}
	r.report(u)
}

func (r *rig) operate(replica string, kind pb.CacheOperation_Kind, keys ...kv.Hash) {
	u := update(replica)
	u.Operations = []*pb.CacheOperation{{Kind: kind, PackedHashes: kv.Pack(keys)}}
	r.report(u)
}

// TestExplanations has a golden file for each reason for which a run can end,
// and for what else can be said of a choice.
func TestExplanations(t *testing.T) {
	keys := chainOf(span(0, 640))
	question := packed(0, 640)
	for name, tc := range map[string]struct {
		set func(r *rig)
		ask func(*pb.LookupRouteRequest)
	}{
		"complete":     {set: func(r *rig) { r.store("r-1", 0, 40) }},
		"never-stored": {set: func(r *rig) { r.store("r-1", 0, 10) }},
		"evicted": {set: func(r *rig) {
			r.store("r-1", 0, 40)
			time.Sleep(3 * time.Second)
			r.operate("r-1", pb.CacheOperation_REMOVE, keys[20:]...)
			time.Sleep(2 * time.Second)
		}},
		"expired": {set: func(r *rig) {
			r.store("r-1", 0, 40)
			time.Sleep(29 * time.Minute)
			r.store("r-1", 0, 12)
			r.busy("r-2", 0, 0)
			time.Sleep(time.Minute)
			r.busy("r-1", 0, 0)
		}},
		"cleared": {set: func(r *rig) {
			r.store("r-1", 0, 40)
			time.Sleep(3 * time.Second)
			r.operate("r-1", pb.CacheOperation_CLEAR)
			time.Sleep(2 * time.Second)
		}},
		"dead-by-silence": {set: func(r *rig) {
			r.store("r-1", 0, 40)
			time.Sleep(2 * time.Minute)
			r.busy("r-2", 0, 0)
		}},
		"dead-by-goodbye": {set: func(r *rig) {
			numbered := func(sequence uint64) func(*pb.CacheStateUpdate) {
				return func(u *pb.CacheStateUpdate) { u.SourceEpoch, u.Sequence, u.HeartbeatMs = 1, sequence, 10_000 }
			}
			r.store("r-1", 0, 40, numbered(1))
			time.Sleep(time.Second)
			end := update("r-1")
			numbered(2)(end)
			end.Goodbye = true
			r.report(end)
			time.Sleep(time.Second)
		}},
		"other-adapter": {set: func(r *rig) {
			r.store("r-1", 0, 40, func(u *pb.CacheStateUpdate) { u.Operations[0].AdapterId = "lora" })
		}},
		"other-scheme":     {set: func(r *rig) { r.store("r-1", 0, 40, func(u *pb.CacheStateUpdate) { u.HashScheme = "sglang" }) }},
		"other-model":      {set: func(r *rig) { r.store("r-1", 0, 40, func(u *pb.CacheStateUpdate) { u.ModelId = "org/m" }) }},
		"other-block-size": {set: func(r *rig) { r.holds32("r-1") }},
		"below-floor":      {set: func(r *rig) { r.store("r-1", 0, 3) }},
		"tiers": {set: func(r *rig) {
			r.store("r-1", 0, 10)
			r.store("r-1", 10, 25, func(u *pb.CacheStateUpdate) { u.Operations[0].Tier = pb.CacheTier_CACHE_TIER_T2 })
			r.store("r-1", 25, 40, func(u *pb.CacheStateUpdate) { u.Operations[0].Tier = pb.CacheTier_CACHE_TIER_T3 })
		}},
		"busy-holder": {set: func(r *rig) { r.store("r-1", 0, 40); r.busy("r-1", 30, 4) }},
		"suspect": {set: func(r *rig) {
			r.store("r-1", 0, 40)
			time.Sleep(40 * time.Second)
			r.busy("r-2", 0, 0)
		}},
		"soon":  {set: func(r *rig) { r.ask(question) }},
		"wish":  {set: func(r *rig) { r.store("r-1", 0, 40); r.busy("r-1", 0, 1) }, ask: func(q *pb.LookupRouteRequest) { q.Slo = &pb.SLO{TtftMs: 400} }},
		"liar":  {set: func(r *rig) { r.store("r-1", 0, 40); r.lies("r-1", 12) }},
		"short": {set: func(r *rig) { r.store("r-1", 0, 40) }, ask: func(q *pb.LookupRouteRequest) { *q = *request(tokens(0, 15)) }},
		"compat": {set: func(r *rig) {
			r.store("r-1", 0, 40)
			r.store("r-2", 0, 10)
			r.holds("r-3", 5000, 64)
			r.adopt("t", published())
		}},
		"nobody": {ask: func(q *pb.LookupRouteRequest) { q.ModelId = "unheard-of" }},
		"shadow": {set: func(r *rig) { r.store("r-1", 0, 40); p := policy.Defaults(); p.Shadow = true; r.adopt("t", p) }},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r := newFleet(t, 2)
				if tc.set != nil {
					tc.set(r)
				}
				q := request(question)
				if tc.ask != nil {
					tc.ask(q)
				}
				remembered := len(r.decisions.by)
				e, err := r.Explain(t.Context(), &pb.ExplainRequest{Lookup: q})
				if err != nil {
					t.Fatal(err)
				}
				again, _ := r.Explain(t.Context(), &pb.ExplainRequest{Lookup: q})
				if diff := cmp.Diff(describe(e), describe(again)); diff != "" || len(r.decisions.by) != remembered {
					t.Errorf("explaining left a trace: %s", diff)
				}
				golden(t, name, describe(e))
			})
		})
	}
}

// holds32 reports the usual prompt in blocks of 32 tokens.
func (r *rig) holds32(replica string) {
	u := update(replica)
	u.Operations = []*pb.CacheOperation{{Kind: pb.CacheOperation_STORE, PackedHashes: make([]byte, 160), BlockSize: 32}}
	r.report(u)
}

// lies lets engines find nothing of what a replica promised.
func (r *rig) lies(replica string, times int) {
	for range times {
		id := r.ask(packed(0, 640)).GetRequestId()
		r.takeOutcome(time.Now(), &pb.Outcome{RequestId: id, ReplicaId: replica})
	}
	time.Sleep(6 * time.Second)
	r.busy("r-1", 0, 0)
	r.busy("r-2", 0, 0)
}

func describe(e *pb.ExplainResponse) string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s, profile %s, %d tokens in %d blocks, miss price %.3f\n", e.GetAnswer().GetReasonCode(), e.GetProfile(), e.GetPromptTokens(), e.GetPromptBlocks(), e.GetMissPrice())
	for _, line := range append([]string{e.GetError(), e.GetSummary()}, e.GetWouldChange()...) {
		if line != "" {
			fmt.Fprintln(&b, line)
		}
	}
	for _, c := range e.GetConsidered() {
		fmt.Fprintf(&b, "\n%s named=%t excluded=%q score=%.4f held=%d (%d+%d+%d) soon=%d reusable=%d\n", c.GetReplicaId(), c.GetNamed(), c.GetExcludedReason(), c.GetScore(),
			c.GetHeldTokens(), c.GetT1Tokens(), c.GetT2Tokens(), c.GetT3Tokens(), c.GetSoonTokens(), c.GetReusableTokens())
		fmt.Fprintf(&b, "  ms: waiting %.2f prefill %.2f miss %.2f load %.2f penalty %.2f gain %.2f finish %.2f\n", c.GetBacklogMs(), c.GetPrefillMs(), c.GetMissMs(),
			c.GetLoadMs(), c.GetPenaltyMs(), c.GetGainMs(), c.GetFinishMs())
		fmt.Fprintf(&b, "  run ends after %d blocks, %s: %s\n", c.GetHeldBlocks(), c.GetRunEnd(), c.GetRunDetail())
		if at := c.GetEndedAtUs(); at != 0 {
			fmt.Fprintf(&b, "  at %s\n", time.UnixMicro(at).UTC().Format(time.RFC3339))
		}
		fmt.Fprintf(&b, "  load known %t, age %d ms; below floor %t, late %t, suspect %t, quarantined %t, truth %.2f\n", c.GetLoadKnown(), c.GetLoadAgeMs(),
			c.GetBelowFloor(), c.GetLate(), c.GetSuspect(), c.GetQuarantined(), c.GetTruth())
	}
	return b.String()
}

func golden(t *testing.T, name, got string) {
	t.Helper()
	file := filepath.Join("testdata", "explain", name+".txt")
	if *updateGolden {
		if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), got); diff != "" {
		t.Errorf("(-want +got; rewrite with -update)\n%s", diff)
	}
}

func TestExplainRemembersAnswers(t *testing.T) {
	t.Parallel()
	r := newFleet(t, 3)
	r.store("r-2", 0, 40)
	answer := r.ask(packed(0, 640))
	r.operate("r-2", pb.CacheOperation_CLEAR)
	e, _ := r.Explain(t.Context(), &pb.ExplainRequest{RequestId: answer.GetRequestId()})
	if e.GetError() != "" || len(e.GetConsidered()) != 3 || e.GetConsidered()[0].GetReplicaId() != "r-2" || e.GetConsidered()[0].GetHeldTokens() != 640 {
		t.Errorf("%v", e)
	}
	answer.LookupLatencyUs = 0
	if diff := cmp.Diff(fmt.Sprint(answer), fmt.Sprint(e.GetAnswer())); diff != "" {
		t.Errorf("another answer: %s", diff)
	}
	if e, _ := r.Explain(t.Context(), &pb.ExplainRequest{RequestId: "unknown"}); e.GetError() == "" {
		t.Error("an unknown request is explained")
	}
}
