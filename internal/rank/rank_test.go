package rank

import (
	"encoding/hex"
	"math"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"inferencecache.io/inferencecache/internal/kv"
)

var now = time.Unix(1_800_000_000, 0)

func noLoads(string) (Load, bool) { return Load{}, false }

func hold(replica string, tokens int32, freshness float64) Hold {
	age := time.Duration((1 - freshness) * float64(30*time.Minute))
	return Hold{Replica: replica, Tokens: tokens, Seen: now.Add(-age), Tier: kv.T1}
}

// TestPublishedScores holds the score vectors of the contract's appendix B.
func TestPublishedScores(t *testing.T) {
	t.Parallel()
	busyA := func(replica string) (Load, bool) {
		return Load{Pressure: 0.9, Reported: now}, replica == "a"
	}
	for _, v := range []struct {
		name  string
		total int
		chain bool
		ttft  int32
		loads Loads
		holds []Hold
		want  map[string]float64
	}{
		{"one of three holds 64", 3, true, 0, noLoads, []Hold{hold("a", 64, 1)}, map[string]float64{"a": 42.667}},
		{"two of three", 3, true, 0, noLoads, []Hold{hold("a", 100, 1), hold("b", 50, 1)}, map[string]float64{"a": 66.667, "b": 16.667}},
		{"two of three, one exact key", 3, false, 0, noLoads, []Hold{hold("a", 100, 1), hold("b", 50, 1)}, map[string]float64{"a": 33.333, "b": 16.667}},
		{"pressure flips the order", 3, false, 0, busyA, []Hold{hold("a", 100, 1), hold("b", 50, 1)}, map[string]float64{"a": 3.333, "b": 16.667}},
		{"three of three", 3, true, 0, noLoads, []Hold{hold("a", 64, 1), hold("b", 64, 1), hold("c", 64, 1)}, map[string]float64{"a": 0, "b": 0, "c": 0}},
		{"freshness without an SLO", 3, false, 0, noLoads, []Hold{hold("a", 100, .6), hold("b", 50, 1)}, map[string]float64{"a": 20, "b": 16.667}},
		{"a tight SLO flips the order", 3, false, 50, noLoads, []Hold{hold("a", 100, .6), hold("b", 50, 1)}, map[string]float64{"a": 32, "b": 33.333}},
		{"200 ms is not tight", 3, false, 200, noLoads, []Hold{hold("a", 100, .6), hold("b", 50, 1)}, map[string]float64{"a": 20, "b": 16.667}},
		{"chain depths", 3, true, 0, noLoads, []Hold{hold("a", 256, 1), hold("b", 128, 1), hold("c", 64, 1)}, map[string]float64{"a": 170.667, "b": 42.667, "c": 0}},
		{"one replica in scope", 1, true, 0, noLoads, []Hold{hold("a", 100, .5)}, map[string]float64{"a": 50}},
		{"a stamp of the future is fresh", 1, true, 0, noLoads, []Hold{hold("a", 100, 2)}, map[string]float64{"a": 100}},
		{"a chain hold without tokens is left out", 1, true, 0, noLoads, []Hold{hold("a", 0, 1)}, map[string]float64{}},
		{"an exact hold without tokens is scored 0", 1, false, 0, noLoads, []Hold{hold("a", 0, 1)}, map[string]float64{"a": 0}},
	} {
		t.Run(v.name, func(t *testing.T) {
			t.Parallel()
			q := Question{Now: now, TTL: 30 * time.Minute, TTFTMs: v.ttft, Total: v.total, Chain: v.chain}
			got := map[string]float64{}
			last := math.Inf(1)
			for _, s := range CompatDefaults().Prefix(nil, q, v.holds, v.loads) {
				got[s.Replica] = math.Round(float64(s.Score)*1000) / 1000
				if float64(s.Score) > last {
					t.Errorf("%s stands below a lower score", s.Replica)
				}
				last = float64(s.Score)
			}
			if diff := cmp.Diff(v.want, got); diff != "" {
				t.Error(diff)
			}
		})
	}
}

func TestStalePressureDoesNotCount(t *testing.T) {
	t.Parallel()
	loads := func(string) (Load, bool) { return Load{Pressure: 1, Reported: now.Add(-31 * time.Minute)}, true }
	got := CompatDefaults().Prefix(nil, Question{Now: now, TTL: 30 * time.Minute, Total: 1, Chain: true}, []Hold{hold("a", 100, 1)}, loads)
	if got[0].Score != 100 {
		t.Errorf("score %v, want 100", got[0].Score)
	}
}

func TestEqualScoresGoByReplicaID(t *testing.T) {
	t.Parallel()
	got := CompatDefaults().Prefix(nil, Question{Now: now, TTL: time.Hour, Total: 3}, []Hold{hold("b", 64, 1), hold("a", 64, 1)}, noLoads)
	if got[0].Replica != "a" || got[1].Replica != "b" {
		t.Errorf("order %v", got)
	}
}

func TestTenantHot(t *testing.T) {
	t.Parallel()
	loads := map[string]Load{
		"warm":  {HitRate: .8, Pressure: .1, Reported: now.Add(-30 * time.Second)},
		"cold":  {HitRate: .05, Reported: now},
		"stale": {HitRate: .9, Reported: now.Add(-5 * time.Minute)},
		"alive": {HitRate: .9}, // heard of, but never with stats
	}
	lookup := func(replica string) (Load, bool) { l, ok := loads[replica]; return l, ok }
	members := []string{"alive", "cold", "stale", "unknown", "warm"}
	got := CompatDefaults().TenantHot(nil, Question{Now: now}, members, lookup)
	if len(got) != 1 || got[0].Replica != "warm" || math.Abs(float64(got[0].Score)-0.648) > 1e-6 || got[0].Prob != .8 {
		t.Errorf("got %+v, want warm at 0.648", got)
	}
	off := CompatDefaults()
	off.TenantHotMaxAge = 0
	if got := off.TenantHot(nil, Question{Now: now}, members, lookup); len(got) != 0 {
		t.Errorf("switched off, still %+v", got)
	}
}

// TestPublishedAffinityPicks holds the affinity vectors of appendix B.
func TestPublishedAffinityPicks(t *testing.T) {
	t.Parallel()
	raw := func(s string) Seed { seed := NewSeed(); seed.Raw([]byte(s)); return seed }
	chain := func(keys ...string) Seed {
		seed := NewSeed()
		for _, k := range keys {
			seed.Key([]byte(k))
		}
		return seed
	}
	unhex := func(s string) string { b, _ := hex.DecodeString(s); return string(b) }
	four := []string{"r-1", "r-2", "r-3", "r-4"}
	for _, v := range []struct {
		seed    Seed
		members []string
		want    string
	}{
		{raw("seed"), four, "r-3"},
		{raw("prompt-fingerprint"), four, "r-2"},
		{chain("prompt-block-1", "prompt-block-2"), four[:3], "r-1"},
		{chain(unhex("d47a8f41c833328a"), unhex("bf15dffb16447f38"), unhex("a4dda066f3c1e1a0"), unhex("35f7c0d119848950")), []string{"pod-a", "pod-b", "pod-c"}, "pod-b"},
	} {
		if got := v.seed.Pick(v.members); got != v.want {
			t.Errorf("picked %s, want %s", got, v.want)
		}
	}
}

func TestFiniteDropsWhatCannotBeCompared(t *testing.T) {
	t.Parallel()
	for _, v := range []float32{float32(math.NaN()), float32(math.Inf(1)), float32(math.Inf(-1))} {
		if Finite(v) != 0 {
			t.Errorf("%v became %v", v, Finite(v))
		}
	}
	if Finite(.5) != .5 {
		t.Error("a finite value changed")
	}
}
