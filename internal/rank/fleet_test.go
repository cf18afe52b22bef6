package rank

import (
	"fmt"
	"hash/fnv"
	"math"
	"testing"

	"inferencecache.io/inferencecache/internal/kv"
)

func nameHash(name string) uint64 {
	h := fnv.New64a()
	h.Write([]byte(name))
	return h.Sum64()
}

// place gives each of so many prompts to the first of n replicas, of which
// nothing is known, and returns where they went.
func place(n, prompts int) []string {
	var s Scratch
	sent := make([]float64, n)
	to := make([]string, prompts)
	for p := range prompts {
		candidates := make([]Candidate, n)
		for i := range candidates {
			name := fmt.Sprint("replica-", i)
			candidates[i] = Candidate{Replica: name, Lot: Lot(uint64(p)*0x9e3779b97f4a7c15, nameHash(name)), Recent: sent[i], Number: int32(i)}
		}
		ranked, _ := CostDefaults().Rank(&s, candidates, Query{Prompt: 1000, Top: 2})
		to[p] = ranked[0].Replica
		sent[ranked[0].Number]++
	}
	return to
}

func TestOneMoreReplicaMovesItsShareOfPrompts(t *testing.T) {
	t.Parallel()
	const prompts = 4000
	for _, n := range []int{4, 8, 32} {
		before, after := place(n, prompts), place(n+1, prompts)
		moved, elsewhere := 0, 0
		for p := range prompts {
			if before[p] != after[p] {
				moved++
				if after[p] != fmt.Sprint("replica-", n) {
					elsewhere++ // pushed on by the bound
				}
			}
		}
		share := float64(moved) / prompts
		if want := 1 / float64(n+1); share < .8*want || share > 2*want || elsewhere > moved/3 {
			t.Errorf("%d replicas and one more: %.3f of the prompts move, want about %.3f; %d of %d to old ones", n, share, want, elsewhere, moved)
		}
	}
}

func TestNoReplicaGetsMoreThanItsShareOfHints(t *testing.T) {
	t.Parallel()
	for _, n := range []int{2, 8, 50} {
		got := map[string]int{}
		for _, name := range place(n, 1000) {
			got[name]++
		}
		for name, count := range got {
			if limit := math.Ceil(1.25 * 1001 / float64(n)); float64(count) > limit {
				t.Errorf("%s of %d has %d of 1000, above %.0f", name, n, count, limit)
			}
		}
	}
}

func TestCutListIsTheHeadOfTheWhole(t *testing.T) {
	t.Parallel()
	var whole, cut Scratch
	c := CostDefaults()
	for seed := range 300 {
		n := 1 + seed%70
		candidates := make([]Candidate, n)
		for i := range candidates {
			r := Lot(uint64(seed), uint64(i))
			candidates[i] = Candidate{
				Replica: fmt.Sprint("r", i), Loaded: r%7 != 0, Backlog: float64(r>>8%5) / 4, Tokens: [3]int32{int32(r >> 16 % 3 * 500)},
				Soon: int32(r >> 24 % 2 * 800), Asked: float64(r >> 32 % 3), Lot: r, Number: int32(i), Suspect: r>>40%9 == 0,
			}
		}
		q := Query{Prompt: 1600, Least: 16}
		if seed%3 == 0 {
			q.TTFT = .5
		}
		all, _ := c.Rank(&whole, candidates, q)
		for top := 1; top <= n; top += 1 + n/5 {
			q.Top = top
			few, _ := c.Rank(&cut, candidates, q)
			if len(few) != top {
				t.Fatalf("%d of %d, want %d", len(few), n, top)
			}
			for i := range few {
				if few[i].Replica != all[i].Replica && (i < top-1 || few[i].Held != 0) {
					t.Fatalf("seed %d: place %d of the best %d is %s, of all %s", seed, i, top, few[i].Replica, all[i].Replica)
				}
			}
		}
	}
}

func TestNthIsOfTheSortedValues(t *testing.T) {
	t.Parallel()
	for n := 1; n < 60; n++ {
		values := make([]float64, n)
		for i := range values {
			values[i] = float64(Lot(uint64(n), uint64(i)) % 13)
		}
		for k := range n {
			less, equal := 0, 0
			got := nth(append([]float64(nil), values...), k)
			for _, v := range values {
				if v < got {
					less++
				} else if v == got {
					equal++
				}
			}
			if less > k || less+equal <= k {
				t.Fatalf("%v is not number %d of %v", got, k, values)
			}
		}
	}
}

func TestForecastKnowsLikePromptsForItsLife(t *testing.T) {
	t.Parallel()
	f := NewForecast(12, 5)
	prompt := make([]kv.Hash, 100)
	for i := range prompt {
		prompt[i] = kv.Hash(i + 1)
	}
	soon := func(now float64, salt uint64, keys []kv.Hash) map[uint32]int {
		found := map[uint32]int{}
		f.Soon(now, salt, keys, func(replica uint32, blocks int) { found[replica] = max(found[replica], blocks) })
		return found
	}
	f.Sent(0, 1, prompt, 0)
	f.Sent(1, 1, prompt[:40], 3)
	f.Sent(4, 1, prompt, 0) // proves nothing
	for _, tc := range []struct {
		now    float64
		salt   uint64
		blocks int
		want   string
	}{
		{2, 1, 100, "map[0:100 3:32]"},
		{2, 1, 40, "map[0:32 3:40]"},
		{2, 1, 20, "map[0:16 3:16]"},
		{2, 1 << 40, 100, "map[]"},
		{5.5, 1, 40, "map[3:40]"},
		{6.5, 1, 100, "map[]"},
	} {
		if got := fmt.Sprint(soon(tc.now, tc.salt, prompt[:tc.blocks])); got != tc.want {
			t.Errorf("at %v, salt %d, %d blocks: %s, want %s", tc.now, tc.salt, tc.blocks, got, tc.want)
		}
	}
	for replica := range uint32(6) { // more than it keeps
		f.Sent(10+float64(replica), 1, prompt[:1], replica)
	}
	if got := fmt.Sprint(soon(14.5, 1, prompt[:1])); got != "map[2:1 3:1 4:1 5:1]" {
		t.Errorf("the latest four: %s", got)
	}
}
