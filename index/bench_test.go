package index_test

import (
	"fmt"
	"os"
	"runtime"
	"slices"
	"testing"
	"time"

	"inferencecache.io/inferencecache/bench"
	"inferencecache.io/inferencecache/index"
	"inferencecache.io/inferencecache/internal/kv"
	"inferencecache.io/inferencecache/internal/trace"
)

// x-map is the time of the same work done block by block on a plain
// map[uint64]uint64 of as many keys, divided by ours. Both are timed in short
// turns, of which the medians count: what disturbs the machine meets both, and
// few turns of either.

// duel times ours in the loop of b, and after a millisecond of it theirs: the
// same calls, as far as they take no longer. Calls come in slices, so that
// reading the clock costs nothing.
func duel(b *testing.B, slice int, ours, theirs func(i int)) {
	const turn = time.Millisecond
	b.ReportAllocs()
	var own, other []float64 // ns of a call, by turn
	var last time.Duration
	i, j, begun := 0, 0, 0
	for b.Loop() {
		ours(i)
		i++
		if i%slice != 0 || b.Elapsed()-last < turn {
			continue
		}
		b.StopTimer()
		own = append(own, float64(b.Elapsed()-last)/float64(i-begun))
		other = append(other, mapTurn(turn, slice, &j, i, theirs))
		last, begun = b.Elapsed(), i
		b.StartTimer()
	}
	if len(own) > 0 { // not if told to run but a few calls
		b.ReportMetric(median(other)/median(own), "x-map")
	}
}

// mapTurn makes calls from *j up to end, in slices, until the turn is over, and
// returns the time of one in ns.
func mapTurn(turn time.Duration, slice int, j *int, end int, theirs func(i int)) float64 {
	start, first := time.Now(), *j
	for {
		for range slice {
			theirs(*j)
			*j++
		}
		if took := time.Since(start); took >= turn || *j >= end {
			return float64(took) / float64(*j-first)
		}
	}
}

func median(values []float64) float64 {
	slices.Sort(values)
	return values[len(values)/2]
}

func reportBytes(b *testing.B, c index.Counts) {
	b.ReportMetric(float64(c.Bytes)/float64(c.Entries), "B/holder-block")
}

func BenchmarkLookup(b *testing.B) {
	for _, d := range []int{64, 1024, 16384} {
		for _, k := range []int{1, 8} {
			b.Run(fmt.Sprintf("d=%d/k=%d", d, k), func(b *testing.B) {
				keys := bench.Keys(bench.Million / k)
				x := bench.Unbounded()
				bench.Fill(x, keys, d, k)
				m := bench.FillMap(keys, d, k)
				prompt := bench.Chains(keys, d)
				look := bench.InIndex(x)()
				var sum uint64
				duel(b, max(1, 4096/d), func(i int) { look(prompt(i)) }, func(i int) { sum += bench.LookupMap(m, prompt(i)) })
				runtime.KeepAlive(sum)
				reportBytes(b, x.Counts())
			})
		}
	}
}

// BenchmarkAdd builds a million holder-blocks from nothing. An op is all of it.
func BenchmarkAdd(b *testing.B) {
	for _, k := range []int{1, 8} {
		b.Run(fmt.Sprintf("k=%d", k), func(b *testing.B) {
			keys := bench.Keys(bench.Million / k)
			var x *index.Index
			duel(b, 1,
				func(int) { x = bench.Unbounded(); bench.Fill(x, keys, bench.Chain, k) },
				func(int) { bench.FillMap(keys, bench.Chain, k) })
			b.ReportMetric(float64(x.Counts().Entries)*float64(b.N)/b.Elapsed().Seconds(), "holder-blocks/s")
			reportBytes(b, x.Counts())
		})
	}
}

// BenchmarkRemove removes blocks of a million one by one, from the heads of
// their chains on. What is gone is filled in again off the clock.
func BenchmarkRemove(b *testing.B) {
	keys := bench.Keys(bench.Million)
	x := bench.Unbounded()
	bench.Fill(x, keys, bench.Chain, 1)
	m := bench.FillMap(keys, bench.Chain, 1)
	batch := &index.Batch{Scope: bench.Scope, Replica: bench.Replica(0), Seen: bench.Now, Ops: []index.Op{{Kind: index.Remove}}}
	duel(b, 256,
		func(i int) {
			if i > 0 && i%len(keys) == 0 {
				b.StopTimer()
				bench.Fill(x, keys, bench.Chain, 1)
				m = bench.FillMap(keys, bench.Chain, 1)
				b.StartTimer()
			}
			batch.Ops[0].Keys = keys[i%len(keys):][:1]
			x.Apply(bench.Now, batch)
		},
		func(i int) { delete(m, uint64(keys[i%len(keys)])) })
}

// BenchmarkClear clears a replica that holds a million blocks; filling and the
// sweep that reclaims them are not measured, so an op means nothing.
func BenchmarkClear(b *testing.B) {
	keys := bench.Keys(bench.Million)
	x := bench.Unbounded()
	slowest := time.Duration(0)
	const rounds = 5
	for range rounds {
		bench.Fill(x, keys, bench.Chain, 1)
		start := time.Now()
		x.Clear(bench.Now, bench.Scope.Tenant, bench.Scope.Model, bench.Replica(0), bench.Now)
		slowest = max(slowest, time.Since(start))
		x.Sweep(bench.Now, 1<<30)
	}
	b.ReportMetric(float64(slowest.Nanoseconds()), "slowest-ns")
	b.ReportMetric(0, "ns/op")
}

// BenchmarkAtBudget adds to an index that evicts as much. An op is a batch.
func BenchmarkAtBudget(b *testing.B) {
	f := bench.NewFlow(bench.Million)
	m := bench.NewMapFlow(int(f.Counts().Entries))
	var slowest time.Duration
	keys := bench.Keys(bench.Million)
	duel(b, 1,
		func(int) {
			f.Next()
			start := time.Now()
			f.Add()
			slowest = max(slowest, time.Since(start))
		},
		func(i int) { m.Add(keys[i*bench.Piece%len(keys):][:bench.Piece]) })
	b.ReportMetric(float64(b.N)*bench.Piece/b.Elapsed().Seconds(), "holder-blocks/s")
	b.ReportMetric(float64(slowest.Microseconds()), "slowest-us")
	reportBytes(b, f.Counts())
}

// BenchmarkTrace replays the trace of the file TRACE, or one made up.
func BenchmarkTrace(b *testing.B) {
	requests := trace.Generate(1, 12031)
	if name := os.Getenv("TRACE"); name != "" {
		f, err := os.Open(name)
		if err != nil {
			b.Fatal(err)
		}
		defer f.Close()
		if requests, err = trace.NewReader(f, trace.Mooncake).ReadAll(); err != nil {
			b.Fatal(err)
		}
	}
	p := bench.NewReplay(requests)
	var x *index.Index
	duel(b, 1,
		func(int) { x = bench.Unbounded(); p.Index(x) },
		func(int) { p.Map() })
	b.ReportMetric(float64(p.Ops)*float64(b.N)/b.Elapsed().Seconds(), "block-ops/s")
	reportBytes(b, x.Counts())
}

// BenchmarkReaders looks up prompts of 1,024 blocks side by side. An op is a
// lookup of any reader, by the median of short turns; the map has as many
// readers and no writer.
func BenchmarkReaders(b *testing.B) {
	for _, load := range bench.Loads(bench.Million) {
		x := bench.Unbounded()
		load.Fill(x)
		m := load.Map()
		write := load.Writer(x)
		for _, readers := range []int{1, 2, 8} {
			for writers, step := range []func(){nil, write} {
				b.Run(fmt.Sprintf("load=%s/readers=%d/writer=%d", load.Name, readers, writers), func(b *testing.B) {
					benchmarkReaders(b, load, readers, bench.InIndex(x), bench.InMap(m), step)
				})
			}
		}
	}
}

func benchmarkReaders(b *testing.B, load *bench.Load, readers int, ours, theirs func() func([]kv.Hash), write func()) {
	const turn = 10 * time.Millisecond
	var own, ratio []float64
	for b.Loop() {
		own = append(own, load.Rate(readers, turn, ours, write))
		b.StopTimer()
		ratio = append(ratio, own[len(own)-1]/load.Rate(readers, turn, theirs, nil))
		b.StartTimer()
	}
	rate := median(own)
	b.ReportMetric(1e9/rate, "ns/op")
	b.ReportMetric(rate*1024, "block-ops/s")
	b.ReportMetric(median(ratio), "x-map")
}
