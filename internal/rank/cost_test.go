package rank

import (
	"fmt"
	"math"
	"testing"

	"inferencecache.io/inferencecache/internal/kv"
)

func names(ranked []Ranked) (all string) {
	for _, r := range ranked {
		all += r.Replica
	}
	return all
}

func TestCostRanksByExpectedFinish(t *testing.T) {
	t.Parallel()
	holds := func(t1 int32) [3]int32 { return [3]int32{t1} }
	for _, tc := range []struct {
		name       string
		candidates []Candidate
		want       string
	}{
		{"idle fleet: the longest prefix", []Candidate{
			{Replica: "a", Loaded: true}, {Replica: "b", Loaded: true, Tokens: holds(4000)}, {Replica: "c", Loaded: true, Tokens: holds(8000)},
		}, "cba"},
		{"the holder is too busy", []Candidate{
			{Replica: "a", Loaded: true}, {Replica: "b", Loaded: true, Backlog: 3, Tokens: holds(8000)},
		}, "ab"},
		{"a miss costs more on a loaded fleet", []Candidate{
			{Replica: "a", Loaded: true, Backlog: 2}, {Replica: "b", Loaded: true, Backlog: 3.5, Tokens: holds(8000)},
		}, "ba"},
		{"unknown load is the median, not zero", []Candidate{
			{Replica: "a", Loaded: true, Backlog: 1}, {Replica: "b"}, {Replica: "c", Loaded: true, Backlog: 2}, {Replica: "d", Loaded: true, Backlog: 3},
		}, "abcd"},
		{"a slow tier is as good as absent", []Candidate{
			{Replica: "a", Loaded: true, Rate: 50_000, Tokens: [3]int32{0, 8000}}, {Replica: "b", Loaded: true, Rate: 50_000, Tokens: holds(100)},
		}, "ba"},
		{"a fast one is not", []Candidate{
			{Replica: "a", Loaded: true, Tokens: [3]int32{0, 8000}}, {Replica: "b", Loaded: true, Tokens: holds(100)},
		}, "ab"},
		{"silence costs", []Candidate{
			{Replica: "a", Loaded: true, Suspect: true, Tokens: holds(8000)}, {Replica: "b", Loaded: true},
		}, "ba"},
		{"a prefix that many ask for gets a further copy", []Candidate{
			{Replica: "a", Loaded: true, Backlog: .5, Tokens: holds(8000)}, {Replica: "b", Loaded: true, Asked: 5},
		}, "ba"},
		{"one that nobody asks for does not", []Candidate{
			{Replica: "a", Loaded: true, Backlog: .5, Tokens: holds(8000)}, {Replica: "b", Loaded: true},
		}, "ab"},
		{"equal ones by name", []Candidate{{Replica: "b"}, {Replica: "a"}}, "ab"},
	} {
		ranked, _ := CostDefaults().Rank(new(Scratch), tc.candidates, Query{Prompt: 8000})
		if got := names(ranked); got != tc.want {
			t.Errorf("%s: %s, want %s: %+v", tc.name, got, tc.want, ranked)
		}
		for _, r := range ranked {
			sum := r.Terms.Backlog + r.Prefill + r.Miss + r.Load + r.Penalty - r.Gain
			if math.Abs(sum-r.Finish) > 1e-9 || r.Gain > r.Prefill || r.Score() <= 0 || r.Score() > 1 {
				t.Errorf("%s: terms %+v do not add up", tc.name, r.Terms)
			}
		}
	}
}

func TestPopularityFades(t *testing.T) {
	t.Parallel()
	p := NewPopularity(10, 10)
	keys := []kv.Hash{1, 2, 3, 4, 5}
	for i := range 100 {
		p.Ask(float64(i)/10, 7, keys)
	}
	rates := func(now float64, salt uint64, keys ...kv.Hash) *Rates { r := p.Rates(now, salt, keys); return &r }
	if rate := rates(10, 7, keys...).Behind(0); rate < 5 || rate > 10 {
		t.Errorf("%.1f a second, asked for 10 times a second for one fade", rate)
	}
	if rate := rates(10, 7, keys...).Behind(2); rate < 5 { // by the block at depth 4
		t.Errorf("%.1f a second for the third block", rate)
	}
	if rate := rates(10, 7, keys...).Behind(4); rate != 0 { // none counted behind it
		t.Errorf("%.1f a second for the last block", rate)
	}
	if rate := rates(100, 7, keys...).Behind(0); rate > .01 {
		t.Errorf("%.3f a second after nine fades", rate)
	}
	if rate := rates(10, 7, 9).Behind(0); rate != 0 {
		t.Errorf("%.1f a second for what nobody asked for", rate)
	}
	if rate := rates(10, 8, keys...).Behind(0); rate != 0 {
		t.Errorf("%.1f a second under another salt", rate)
	}
}

func BenchmarkCost(b *testing.B) {
	for _, n := range []int{8, 64} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			candidates := make([]Candidate, n)
			for i := range candidates {
				candidates[i] = Candidate{
					Replica: fmt.Sprintf("replica-%d", i), Loaded: i%5 != 0, Backlog: float64(i*7919%31) / 10,
					Tokens: [3]int32{int32(i * 104729 % 9 * 512)}, Rate: 8000, Asked: 1,
				}
			}
			c := CostDefaults()
			var s Scratch
			b.ReportAllocs()
			for b.Loop() {
				c.Rank(&s, candidates, Query{Prompt: 8192, Top: 8})
			}
		})
	}
}
