package bench

import (
	"fmt"
	"math/rand/v2"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"inferencecache.io/inferencecache/index"
	"inferencecache.io/inferencecache/internal/kv"
)

const (
	prompt = 1024 // blocks of each prompt of a Load
	root   = 256  // of them the system prompt, if it is shared
)

// Load is a set of prompts that one replica holds, and how often each is asked
// for.
type Load struct {
	Name    string
	root    []kv.Hash // what all prompts start with; may be nil
	prompts [][]kv.Hash
	zipf    bool
}

// Loads of about the given number of holder-blocks: all prompts alike, some
// far more often than others, and all below one system prompt.
func Loads(blocks int) []*Load {
	keys := Keys(max(blocks, prompt))
	var separate, rooted [][]kv.Hash
	for from := 0; from+prompt <= len(keys); from += prompt {
		separate = append(separate, keys[from:from+prompt])
	}
	shared := keys[:root]
	for from := root; from+prompt-root <= len(keys); from += prompt - root {
		chain := append(make([]kv.Hash, 0, prompt), shared...)
		rooted = append(rooted, append(chain, keys[from:from+prompt-root]...))
	}
	return []*Load{
		{Name: "uniform", prompts: separate},
		{Name: "zipf", prompts: separate, zipf: true},
		{Name: "root", prompts: rooted, root: shared},
	}
}

// Fill stores the prompts.
func (l *Load) Fill(x *index.Index) {
	batch := &index.Batch{Scope: Scope, Replica: Replica(0), Seen: Now, Ops: make([]index.Op, 1)}
	for _, p := range l.prompts {
		StoreChain(x, batch, p)
	}
}

// Map that holds the same.
func (l *Load) Map() map[uint64]uint64 {
	m := map[uint64]uint64{}
	for _, p := range l.prompts {
		for _, key := range p {
			m[uint64(key)] = 1
		}
	}
	return m
}

// pick returns what one reader asks for.
func (l *Load) pick(seed uint64) func() []kv.Hash {
	r := rand.New(rand.NewPCG(seed, 9))
	if !l.zipf {
		return func() []kv.Hash { return l.prompts[r.IntN(len(l.prompts))] }
	}
	z := rand.NewZipf(r, 1.1, 1, uint64(len(l.prompts)-1))
	return func() []kv.Hash { return l.prompts[z.Uint64()] }
}

// InIndex makes lookups for Rate.
func InIndex(x *index.Index) func() func([]kv.Hash) {
	return func() func([]kv.Hash) {
		s := new(index.Scratch)
		return func(keys []kv.Hash) { x.Lookup(s, Now, partition, keys) }
	}
}

// InMap makes lookups for Rate in a map that nobody writes.
func InMap(m map[uint64]uint64) func() func([]kv.Hash) {
	return func() func([]kv.Hash) {
		var sum uint64
		return func(keys []kv.Hash) { sum += LookupMap(m, keys) }
	}
}

// Rate runs readers side by side for d, and write over and over beside them if
// it is not nil, and returns the lookups a second of all readers together.
// Each reader makes its own lookup. All let others run now and then, as
// handlers do when they wait for the next request.
func (l *Load) Rate(readers int, d time.Duration, lookup func() func([]kv.Hash), write func()) float64 {
	var stop atomic.Bool
	var done atomic.Int64
	var all sync.WaitGroup
	start := time.Now()
	for r := range readers {
		all.Go(func() {
			next, look := l.pick(uint64(r)), lookup()
			for first := true; first || !stop.Load(); first = false {
				for range 8 {
					look(next())
				}
				done.Add(8)
				runtime.Gosched()
			}
		})
	}
	if write != nil {
		all.Go(func() {
			for !stop.Load() {
				write()
				runtime.Gosched()
			}
		})
	}
	time.Sleep(d)
	stop.Store(true)
	all.Wait()
	return perSecond(int(done.Load()), time.Since(start))
}

// Writer returns an endless writer of fresh chains, below the root if there is
// one, which takes each away again a while later.
func (l *Load) Writer(x *index.Index) func() {
	const pieces = 64
	random := rand.New(rand.NewPCG(10, 11))
	ring := make([]kv.Hash, pieces*Piece)
	store := index.Op{Kind: index.Store, Tier: kv.T1, Step: blockTokens}
	if len(l.root) > 0 {
		store.Parent, store.HasParent, store.Tokens = l.root[len(l.root)-1], true, int32(len(l.root)*blockTokens)
	}
	batch := &index.Batch{Scope: Scope, Replica: Replica(0), Seen: Now}
	n := 0
	return func() {
		keys := ring[n%pieces*Piece:][:Piece]
		batch.Ops = batch.Ops[:0]
		if n >= pieces {
			batch.Ops = append(batch.Ops, index.Op{Kind: index.Remove, Keys: keys})
			x.Apply(Now, batch)
		}
		for i := range keys {
			keys[i] = kv.Hash(random.Uint64())
		}
		store.Keys = keys
		batch.Ops = append(batch.Ops[:0], store)
		x.Apply(Now, batch)
		n++
	}
}

// readers measures lookups side by side, idle and beside a writer. A writer to
// another index shares all with them but its locks: what is lost beside that
// one, the machine takes.
func (b *bench) readers(l *Load) {
	x := Unbounded()
	l.Fill(x)
	m := l.Map()
	another := Unbounded()
	l.Fill(another)
	write, elsewhere := l.Writer(x), l.Writer(another)
	turn := min(b.each, 10*time.Millisecond) // short, so that most are undisturbed
	turns := max(5, int(b.each/turn))
	for _, n := range []int{1, 2, 8} {
		var idle, xmap, kept, busyXMap, left []float64
		for range turns { // ratios within a turn, since the machine's speed changes
			plain := l.Rate(n, turn, InMap(m), nil)
			alone := l.Rate(n, turn, InIndex(x), nil)
			busy := l.Rate(n, turn, InIndex(x), write)
			apart := l.Rate(n, turn, InIndex(x), elsewhere)
			idle = append(idle, alone)
			xmap = append(xmap, alone/plain)
			kept = append(kept, busy/alone)
			busyXMap = append(busyXMap, busy/plain)
			left = append(left, apart/alone)
		}
		what := fmt.Sprintf("lookups a second, %d blocks, %d readers", prompt, n)
		b.row(Row{Load: l.Name, What: what, Value: median(idle), XMap: median(xmap)})
		machine := median(left)
		b.row(Row{Load: l.Name, What: what + ", with a writer to another index / without", Value: machine})
		b.row(Row{
			Load: l.Name, What: what + ", with a writer / without", Value: median(kept), XMap: median(busyXMap),
			Bound: AtLeast, Must: besideWriter(machine),
		})
	}
}

// besideWriter is the share of their idle rate that readers must keep beside a
// writer: 0.7 of what the machine leaves them beside one of no concern to them.
func besideWriter(machine float64) float64 { return 0.7 * min(1, machine) }
