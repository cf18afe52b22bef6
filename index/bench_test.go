package index

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"inferencecache.io/inferencecache/internal/kv"
)

// The figures are for a million holder-blocks: chains of 16,384 blocks, held
// by k replicas.
const (
	benchEntries = 1 << 20
	benchChain   = 16384
)

var (
	benchScope = kv.Scope{Tenant: "tenant", Model: "model", Scheme: "vllm"}
	benchNow   = time.UnixMilli(1_700_000_000_000)
)

func benchKeys(n int) []kv.Hash {
	r := rand.New(rand.NewPCG(1, 2))
	keys := make([]kv.Hash, n)
	for i := range keys {
		keys[i] = kv.Hash(r.Uint64())
	}
	return keys
}

func unbounded() Config { return Config{Defaults: Limits{MaxKeys: -1}} }

// fill stores keys in batches of a few hundred, as engines report them. Replica
// i does not hold the last i*512 blocks of a chain.
func fill(x *Index, keys []kv.Hash, k int) {
	for r := range k {
		id := fmt.Sprint("replica-", r)
		for from := 0; from < len(keys); from += 512 {
			if from%benchChain >= benchChain-r*512 {
				continue
			}
			x.Apply(benchNow, &Batch{Scope: benchScope, Replica: id, Seen: benchNow, Ops: []Op{
				{Kind: Store, Tier: kv.T1, Keys: keys[from:min(from+512, len(keys))], Tokens: int32(from % benchChain * 16), Step: 16},
			}})
		}
	}
}

func benchMap(keys []kv.Hash) map[uint64]uint64 {
	m := make(map[uint64]uint64)
	for i, k := range keys {
		m[uint64(k)] = uint64(i)
	}
	return m
}

// reportMap reports how many times as long the same work takes on a map.
func reportMap(b *testing.B, ours time.Duration, work func(i int)) {
	n := min(b.N, 2_000_000)
	start := time.Now()
	for i := range n {
		work(i)
	}
	theirs := time.Since(start)
	b.ReportMetric(float64(theirs)/float64(n)/(float64(ours)/float64(b.N)), "x-map")
}

func BenchmarkLookup(b *testing.B) {
	for _, k := range []int{1, 8} {
		keys := benchKeys(benchEntries / k)
		x := New(unbounded())
		fill(x, keys, k)
		m := benchMap(keys)
		p := kv.Partition{Scope: benchScope}
		for _, d := range []int{64, 1024, 16384} {
			b.Run(fmt.Sprintf("d=%d/k=%d", d, k), func(b *testing.B) {
				var s Scratch
				pieces := len(keys) / d
				at := func(i int) []kv.Hash {
					i = i * 7919 % pieces
					return keys[i*d:][:d]
				}
				b.ReportAllocs()
				i := 0
				for b.Loop() {
					if len(x.Lookup(&s, benchNow, p, at(i))) == 0 && d > 4096 {
						b.Fatal("nothing found")
					}
					i++
				}
				c := x.Counts()
				b.ReportMetric(float64(c.Bytes)/float64(c.Entries), "B/holder-block")
				var sum uint64
				reportMap(b, b.Elapsed(), func(i int) {
					for _, key := range at(i) {
						sum += m[uint64(key)]
					}
				})
				_ = sum
			})
		}
	}
}

func BenchmarkAdd(b *testing.B) {
	for _, k := range []int{1, 8} {
		b.Run(fmt.Sprintf("k=%d", k), func(b *testing.B) {
			keys := benchKeys(benchEntries / k)
			var x *Index
			for b.Loop() {
				x = New(unbounded())
				fill(x, keys, k)
			}
			c := x.Counts()
			b.ReportMetric(float64(c.Entries)*float64(b.N)/b.Elapsed().Seconds(), "holder-blocks/s")
			b.ReportMetric(float64(c.Bytes)/float64(c.Entries), "B/holder-block")
			reportMap(b, b.Elapsed(), func(int) {
				for range k {
					benchMap(keys)
				}
			})
		})
	}
}

func BenchmarkRemove(b *testing.B) {
	keys := benchKeys(benchEntries)
	x := New(unbounded())
	m := benchMap(keys)
	fill(x, keys, 1)
	i := 0
	batch := &Batch{Scope: benchScope, Replica: "replica-0", Seen: benchNow, Ops: []Op{{Kind: Remove}}}
	b.ReportAllocs()
	for b.Loop() {
		batch.Ops[0].Keys = keys[i%len(keys):][:1] // beyond a million: of keys that are gone
		x.Apply(benchNow, batch)
		i++
	}
	reportMap(b, b.Elapsed(), func(i int) { delete(m, uint64(keys[i%len(keys)])) })
}

// BenchmarkClear clears a replica that holds a million blocks; filling and the
// sweep that reclaims them are not measured, so an op means nothing.
func BenchmarkClear(b *testing.B) {
	keys := benchKeys(benchEntries)
	x := New(unbounded())
	slowest := time.Duration(0)
	const rounds = 5
	for range rounds {
		fill(x, keys, 1)
		start := time.Now()
		x.Clear(benchNow, benchScope.Tenant, benchScope.Model, "replica-0", benchNow)
		slowest = max(slowest, time.Since(start))
		x.Sweep(benchNow, 1<<30)
	}
	b.ReportMetric(float64(slowest.Nanoseconds()), "slowest-ns")
	b.ReportMetric(0, "ns/op")
}

// BenchmarkAtBudget adds to an index that a million blocks have filled. An op
// is a batch of 512.
func BenchmarkAtBudget(b *testing.B) {
	r := rand.New(rand.NewPCG(3, 4))
	x := New(Config{MemoryBytes: benchEntries * 30, Defaults: Limits{MaxKeys: -1}})
	fill(x, benchKeys(benchEntries), 1)
	keys := make([]kv.Hash, 512)
	batch := &Batch{Scope: benchScope, Replica: "replica-0", Ops: []Op{{Kind: Store, Tier: kv.T1, Keys: keys, Step: 16}}}
	now, slowest := benchNow, time.Duration(0)
	b.ReportAllocs()
	for b.Loop() {
		for i := range keys {
			keys[i] = kv.Hash(r.Uint64())
		}
		now = now.Add(time.Millisecond)
		batch.Seen = now
		start := time.Now()
		x.Apply(now, batch)
		slowest = max(slowest, time.Since(start))
	}
	c := x.Counts()
	b.ReportMetric(float64(b.N)*512/b.Elapsed().Seconds(), "holder-blocks/s")
	b.ReportMetric(float64(slowest.Microseconds()), "slowest-us")
	b.ReportMetric(float64(c.Bytes)/float64(c.Entries), "B/holder-block")
}

// BenchmarkLookupBesideWriter looks up while one writer runs flat out.
func BenchmarkLookupBesideWriter(b *testing.B) {
	keys := benchKeys(benchEntries)
	x := New(unbounded())
	fill(x, keys, 1)
	for _, writers := range []int{0, 1} {
		b.Run(fmt.Sprintf("writers=%d", writers), func(b *testing.B) {
			stop, done := make(chan struct{}), make(chan struct{})
			go func() {
				defer close(done)
				for i := 0; writers > 0; i++ {
					select {
					case <-stop:
						return
					default:
						from := i * 512 % len(keys)
						x.Apply(benchNow, &Batch{Scope: benchScope, Replica: "replica-0", Seen: benchNow, Ops: []Op{
							{Kind: Store, Tier: kv.T1, Keys: keys[from : from+512], Step: 16},
						}})
					}
				}
			}()
			var s Scratch
			p := kv.Partition{Scope: benchScope}
			i := 0
			for b.Loop() {
				x.Lookup(&s, benchNow, p, keys[i*1024%len(keys):][:1024])
				i++
			}
			close(stop)
			<-done
		})
	}
}
