package bench

import (
	"context"
	"errors"
	"fmt"
	"math/bits"
	"math/rand/v2"
	"os"
	"runtime"
	"runtime/debug"
	"sync"
	"sync/atomic"
	"time"

	"inferencecache.io/inferencecache/index"
	"inferencecache.io/inferencecache/internal/kv"
	"inferencecache.io/inferencecache/internal/trace"
)

const (
	soakReplicas = 64
	soakChain    = 512     // blocks
	soakSweep    = 100_000 // keys, as a server does by default
	sweepEvery   = 100 * time.Millisecond
	clearEvery   = 20_000 // steps of the writer
	spareShare   = 32     // of the budget, for garbage
	leastSpare   = 4 << 20
	plainReads   = 15 // three for each of the segments that 512 blocks lie in
)

// Soak churns an index at its byte budget for a while: fresh chains, old ones
// again, removals, clears, sweeps, and lookups beside them. It limits the
// memory of the process meanwhile, as a server does, so nothing else should
// run in it.
func Soak(ctx context.Context, budget int64, d time.Duration) ([]Row, error) {
	if budget <= 0 || d <= 0 {
		return nil, errors.New("soak: budget and duration must be positive")
	}
	s := &soak{
		x:     index.New(index.Config{MemoryBytes: budget, Defaults: index.Limits{MaxKeys: -1}}),
		plain: make([]uint64, max(plainReads, budget/8)),
	}
	for i := range s.plain {
		s.plain[i] = uint64(i)
	}
	debug.FreeOSMemory()
	before := resident()
	defer debug.SetMemoryLimit(debug.SetMemoryLimit(budget + before + max(budget/spareShare, leastSpare)))

	ctx, cancel := context.WithTimeout(ctx, d)
	defer cancel()
	var all sync.WaitGroup
	all.Go(func() { s.write(ctx) })
	all.Go(func() { s.read(ctx) })
	most := s.sweep(ctx)
	all.Wait()
	if s.latency.total == 0 {
		return nil, errors.New("soak: too short, nothing was looked up")
	}
	return s.rows(budget, most-before), nil
}

type soak struct {
	x       *index.Index
	newest  atomic.Uint64 // chains stored so far
	added   int64
	evicted int64
	latency histogram // of lookups
	plain   []uint64  // memory as large as the index
	machine histogram // of reading plain as often as a lookup misses the cache
	found   int       // lookups that found something
}

// chain fills keys with the chain of a number: nobody needs to remember it.
func chain(number uint64, keys []kv.Hash) {
	for i := range keys {
		keys[i] = kv.Hash(trace.Spread(number<<16 | uint64(i)))
	}
}

// recent draws how many chains ago: mostly few.
func recent(r *rand.Rand) *rand.Zipf { return rand.NewZipf(r, 1.2, 8, 1<<14) }

func (s *soak) write(ctx context.Context) {
	r := rand.New(rand.NewPCG(12, 13))
	ago := recent(r)
	keys := make([]kv.Hash, soakChain)
	batch := &index.Batch{Scope: Scope, Ops: make([]index.Op, 1)}
	names := make([]string, soakReplicas)
	for i := range names {
		names[i] = Replica(i)
	}
	for step := 1; ctx.Err() == nil; step++ {
		newest := s.newest.Load()
		batch.Replica, batch.Seen = names[r.IntN(soakReplicas)], time.Now()
		op := index.Op{Kind: index.Store, Tier: kv.T1, Keys: keys, Step: blockTokens}
		switch kind := r.IntN(10); {
		case kind < 5 || newest == 0: // a fresh chain
			chain(newest, keys)
			s.newest.Store(newest + 1)
		case kind < 8: // a known one, on some other replica
			chain(newest-1-min(newest-1, ago.Uint64()), keys)
		default: // the second half of a known one is gone
			chain(newest-1-min(newest-1, ago.Uint64()), keys)
			op = index.Op{Kind: index.Remove, Keys: keys[soakChain/2:]}
		}
		batch.Ops[0] = op
		out := s.x.Apply(batch.Seen, batch)
		s.added += int64(out.Added)
		for _, e := range out.Evicted {
			s.evicted += int64(e.Entries)
		}
		if step%clearEvery == 0 {
			s.x.Clear(batch.Seen, Scope.Tenant, Scope.Model, batch.Replica, batch.Seen)
		}
		runtime.Gosched()
	}
}

func (s *soak) read(ctx context.Context) {
	r := rand.New(rand.NewPCG(14, 15))
	ago := recent(r)
	keys := make([]kv.Hash, soakChain)
	var scratch index.Scratch
	var sum uint64
	for ctx.Err() == nil {
		newest := s.newest.Load()
		if newest == 0 {
			runtime.Gosched()
			continue
		}
		number := newest - 1 - min(newest-1, ago.Uint64())
		chain(number, keys)
		start := time.Now()
		runs := s.x.Lookup(&scratch, start, partition, keys)
		s.latency.add(time.Since(start))

		start = time.Now()
		sum = s.walk(number, sum)
		s.machine.add(time.Since(start))
		if len(runs) > 0 {
			s.found++
		}
		runtime.Gosched()
	}
}

// walk reads plainReads places of plain memory that belong to a chain, each
// only once the one before is known: what the machine makes of a lookup that
// does nothing else. Like a lookup, it finds those of recent chains in a cache.
func (s *soak) walk(chain, sum uint64) uint64 {
	for i := range uint64(plainReads) {
		at := trace.Spread(chain<<4|i) ^ sum>>63 // sum is small: the order is forced, the place is not changed
		sum += s.plain[at%uint64(len(s.plain))] & 1
	}
	return sum
}

// sweep as a server does, and return the most memory that was resident.
func (s *soak) sweep(ctx context.Context) (most int64) {
	tick := time.NewTicker(sweepEvery)
	defer tick.Stop()
	for {
		most = max(most, resident())
		select {
		case <-ctx.Done():
			return most
		case now := <-tick.C:
			s.x.Sweep(now, soakSweep)
		}
	}
}

func (s *soak) rows(budget, resident int64) []Row {
	c := s.x.Counts()
	p50, p99 := s.latency.quantile(0.5), s.latency.quantile(0.99)
	machine := float64(s.machine.quantile(0.99)) / float64(s.machine.quantile(0.5))
	load := fmt.Sprintf("soak, %d MiB", budget>>20)
	return []Row{
		{Load: load, What: "holder-blocks", Value: float64(c.Entries)},
		{Load: load, What: "bytes / budget", Value: float64(c.Bytes) / float64(budget), Bound: AtMost, Must: 1},
		{Load: load, What: "resident at most, above what was before, / budget", Value: max(0, float64(resident)) / float64(budget), Bound: AtMost, Must: 1.1},
		{Load: load, What: "holder-blocks added", Value: float64(s.added)},
		{Load: load, What: "holder-blocks evicted", Value: float64(s.evicted)},
		{Load: load, What: "lookups", Value: float64(s.latency.total)},
		{Load: load, What: "lookups that found a run", Value: float64(s.found) / float64(s.latency.total)},
		{Load: load, What: "lookup, 512 blocks, p50", Value: float64(p50), Unit: "ns"},
		{Load: load, What: "lookup, 512 blocks, p99", Value: float64(p99), Unit: "ns"},
		{Load: load, What: "p99 / p50 of reading plain memory beside them", Value: machine},
		{Load: load, What: "p99 / p50", Value: float64(p99) / float64(p50), Bound: AtMost, Must: max(10, machine)},
	}
}

// resident memory of the process in bytes; 0 where it cannot be read.
func resident() int64 {
	text, err := os.ReadFile("/proc/self/statm")
	if err != nil {
		return 0
	}
	var size, pages int64
	if _, err := fmt.Sscan(string(text), &size, &pages); err != nil {
		return 0
	}
	return pages * int64(os.Getpagesize())
}

// histogram of durations with 16 classes for each power of two.
type histogram struct {
	counts [64 * 16]uint64
	total  uint64
}

func (h *histogram) add(d time.Duration) {
	ns := uint64(max(16, d))
	power := bits.Len64(ns) - 1
	h.counts[power*16+int(ns>>(power-4)&15)]++
	h.total++
}

// quantile is the upper end of the class that the share of durations ends in.
func (h *histogram) quantile(share float64) time.Duration {
	left := max(1, uint64(share*float64(h.total)))
	for class, n := range h.counts {
		if n >= left {
			power := class / 16
			return time.Duration(uint64(class%16+17) << (power - 4))
		}
		left -= n
	}
	return 0
}
