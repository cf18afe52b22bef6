package replay

import (
	"bytes"
	"encoding/xml"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"inferencecache.io/inferencecache/internal/kv"
	"inferencecache.io/inferencecache/internal/trace"
)

// naiveCache is a cache as a list, newest first.
type naiveCache struct {
	limit int
	keys  []kv.Hash
}

func (c *naiveCache) match(keys []kv.Hash) int {
	for i, key := range keys {
		if !slices.Contains(c.keys, key) {
			return i
		}
	}
	return len(keys)
}

func (c *naiveCache) use(keys []kv.Hash) (evicted []kv.Hash) {
	for _, key := range slices.Backward(keys) {
		c.keys = slices.Insert(slices.DeleteFunc(c.keys, func(k kv.Hash) bool { return k == key }), 0, key)
	}
	for c.limit > 0 && len(c.keys) > c.limit {
		last := len(c.keys) - 1
		evicted = append(evicted, c.keys[last])
		c.keys = c.keys[:last]
	}
	return evicted
}

// prompts are random chains in a small tree.
func prompts(seed uint64, n int) []Request {
	rng := rand.New(rand.NewPCG(seed, 1))
	all := make([]Request, n)
	for i := range all {
		key := kv.Hash(1)
		for range 1 + rng.IntN(8) {
			key = key*31 + kv.Hash(rng.IntN(3))
			all[i].Keys = append(all[i].Keys, key)
		}
		all[i].At = time.Duration(i) * 10 * time.Millisecond
	}
	return all
}

func TestCacheForgetsAsANaiveOneDoes(t *testing.T) {
	t.Parallel()
	for _, limit := range []int{0, 1, 7, 40} {
		c, naive := newCache(limit), &naiveCache{limit: limit}
		for i, r := range prompts(uint64(limit), 400) {
			if got, want := c.match(r.Keys), naive.match(r.Keys); got != want {
				t.Fatalf("limit %d, prompt %d: %d match, want %d", limit, i, got, want)
			}
			if diff := cmp.Diff(naive.use(r.Keys), c.use(r.Keys)); diff != "" {
				t.Fatalf("limit %d, prompt %d: evicted (-want +got):\n%s", limit, i, diff)
			}
		}
	}
}

func TestCapacitiesAreThoseOfOneCacheEach(t *testing.T) {
	t.Parallel()
	requests := prompts(9, 500)
	sizes := []int{1, 2, 5, 20, 100, 0}
	var want []Capacity
	for _, size := range sizes {
		c := newCache(size)
		hit, all := 0, 0
		for _, r := range requests {
			hit += c.match(r.Keys)
			all += len(r.Keys)
			c.use(r.Keys)
		}
		want = append(want, Capacity{size, float64(hit) / float64(all)})
	}
	if diff := cmp.Diff(want, Capacities(requests, sizes)); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

// public reads a trace that lies beside the project. It is not ours to copy.
func public(t *testing.T, name string) []Request {
	t.Helper()
	file, err := os.Open(filepath.Join("../../../shared/data/traces/mooncake", name+"_trace.jsonl"))
	if err != nil {
		if os.Getenv("CI") == "true" {
			t.Fatal(err)
		}
		t.Skip(err)
	}
	defer file.Close()
	lines, err := trace.NewReader(file, trace.Mooncake).ReadAll()
	if err != nil {
		t.Fatal(err)
	}
	return Requests(lines)
}

func TestCapacityTableOfPublicTraces(t *testing.T) {
	t.Parallel()
	sizes := []int{1000, 2000, 4000, 8000, 16000, 32000, 64000, 0}
	for name, want := range map[string][]float64{
		"conversation": {.045, .054, .087, .178, .263, .332, .359, .366},
		"synthetic":    {.084, .146, .234, .373, .530, .628, .640, .640},
	} {
		for i, c := range Capacities(public(t, name), sizes) {
			if got := c.HitRate; got < want[i]-.0005 || got >= want[i]+.0005 {
				t.Errorf("%s, %d blocks: %.4f, want %.3f", name, c.Blocks, got, want[i])
			}
		}
	}
}

func run(t *testing.T, c Config, requests []Request, policy string) Result {
	t.Helper()
	r, err := Run(t.Context(), c, requests, policy, func(float64) {})
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// near says whether got is within 3 % of want.
func near(got, want float64) bool { return got > want*.97 && got < want*1.03 }

// The cost ranking beats every other policy on public traces, with loads that
// are always known and with ones that are ten seconds old.
func TestCostIsBestOnPublicTraces(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"conversation", "synthetic"} {
		requests := public(t, name)
		for _, stale := range []bool{false, true} {
			c := DefaultConfig()
			if stale {
				c.ReportEvery, c.EventLag = 10*time.Second, 2*time.Second
			}
			ours := run(t, c, requests, "cost")
			for _, policy := range Policies {
				if policy == "cost" || policy == "longest-prefix" && name == "conversation" && !stale {
					continue // hours
				}
				other := run(t, c, requests, policy)
				t.Logf("%s stale %v %-14s %.3f %.2f %.2f / %.2f / %.2f / %.3f", name, stale, policy,
					other.HitRate, other.Skew, other.P50, other.P90, other.P99, other.Mean)
				if ours.P50 > other.P50 || ours.P90 >= other.P90 || ours.P99 >= other.P99 || ours.Mean >= other.Mean {
					t.Errorf("%s, stale %v: cost %+v is not better than %+v", name, stale, ours, other)
				}
				if policy == "round-robin" && !stale {
					want := map[string][2]float64{"conversation": {.080, 1.92}, "synthetic": {.107, 5.66}}[name]
					if !near(other.HitRate, want[0]) || !near(other.P50, want[1]) {
						t.Errorf("%s: round robin hits %.3f at a median of %.2f s, want %v", name, other.HitRate, other.P50, want)
					}
				}
			}
		}
	}
}

// toolCalls is a trace unlike the public ones: short calls over two long
// prefixes that all share.
func toolCalls() []Request {
	rng := rand.New(rand.NewPCG(5, 5))
	var all []Request
	at := time.Duration(0)
	for i := range 6000 {
		at += time.Duration(rng.ExpFloat64() * float64(80*time.Millisecond))
		r := Request{At: at, Output: 20 + rng.IntN(60)}
		prefix := kv.Hash(1 + rng.IntN(2))
		for j := range 30 {
			r.Keys = append(r.Keys, kv.Hash(trace.Spread(uint64(prefix)<<32+uint64(j))))
		}
		for j := range 1 + rng.IntN(6) {
			r.Keys = append(r.Keys, kv.Hash(trace.Spread(uint64(i+10)<<32+uint64(j))))
		}
		all = append(all, r)
	}
	return all
}

func TestCostIsNearTheBestOnToolCalls(t *testing.T) {
	t.Parallel()
	requests := toolCalls()
	c := DefaultConfig()
	ours := run(t, c, requests, "cost")
	t.Logf("%-14s %.3f %.2f %.3f / %.3f / %.3f / %.4f", "cost", ours.HitRate, ours.Skew, ours.P50, ours.P90, ours.P99, ours.Mean)
	for _, policy := range Policies {
		if policy == "cost" || policy == "longest-prefix" {
			continue
		}
		other := run(t, c, requests, policy)
		t.Logf("%-14s %.3f %.2f %.3f / %.3f / %.3f / %.4f", policy, other.HitRate, other.Skew, other.P50, other.P90, other.P99, other.Mean)
		for _, pair := range [][2]float64{{ours.P50, other.P50}, {ours.P90, other.P90}, {ours.P99, other.P99}, {ours.Mean, other.Mean}} {
			if pair[0] > 1.02*pair[1] {
				t.Errorf("cost %+v is worse than %+v", ours, other)
			}
		}
	}
}

func TestPlotIsWellFormed(t *testing.T) {
	t.Parallel()
	r := Report{Trace: "a<b>.jsonl", Sweeps: []Sweep{{8, 2000, []Result{{Policy: "cost", Mean: 1, P99: 10}, {Policy: "compat"}}}}}
	var b bytes.Buffer
	if err := r.Plot(&b); err != nil {
		t.Fatal(err)
	}
	for d := xml.NewDecoder(&b); ; {
		if _, err := d.Token(); err == io.EOF {
			break
		} else if err != nil {
			t.Fatal(err)
		}
	}
}
