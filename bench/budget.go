package bench

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"time"

	"inferencecache.io/inferencecache/index"
	"inferencecache.io/inferencecache/internal/kv"
)

// Flow is an endless flow of fresh chains, piece by piece, into an index that
// is full.
type Flow struct {
	x      *index.Index
	batch  *index.Batch
	keys   []kv.Hash // of the next piece
	random *rand.Rand
	now    time.Time
	depth  int     // of the next piece in its chain
	parent kv.Hash // of the next piece
}

// NewFlow fills an index with a budget for about the given number of
// holder-blocks, until it evicts. Two of one size do the same, step by step.
func NewFlow(blocks int) *Flow {
	f := &Flow{
		x:      index.New(index.Config{MemoryBytes: int64(blocks) * 32, Defaults: index.Limits{MaxKeys: -1}, Seed: 1}),
		batch:  &index.Batch{Scope: Scope, Replica: Replica(0), Ops: make([]index.Op, 1)},
		keys:   make([]kv.Hash, Piece),
		random: rand.New(rand.NewPCG(5, 6)),
		now:    Now,
	}
	for evicted := 0; evicted < blocks/16; { // a while longer than the first
		f.Next()
		for _, e := range f.Add().Evicted {
			evicted += e.Entries
		}
	}
	return f
}

// Next makes the next piece ready, so that Add can be timed alone.
func (f *Flow) Next() {
	for i := range f.keys {
		f.keys[i] = kv.Hash(f.random.Uint64())
	}
	f.now = f.now.Add(time.Millisecond)
	f.batch.Seen = f.now
	f.batch.Ops[0] = index.Op{
		Kind: index.Store, Tier: kv.T1, Keys: f.keys, Step: blockTokens,
		Parent: f.parent, HasParent: f.depth > 0, Tokens: int32(f.depth * blockTokens),
	}
	f.depth = (f.depth + Piece) % Chain
	f.parent = f.keys[Piece-1]
}

// Add stores the piece.
func (f *Flow) Add() index.Applied { return f.x.Apply(f.now, f.batch) }

// Counts of the index.
func (f *Flow) Counts() index.Counts { return f.x.Counts() }

// MapFlow does the same on a map: what is oldest goes.
type MapFlow struct {
	m    map[uint64]uint64
	keys []uint64 // a ring, the oldest at next
	next int
}

// NewMapFlow fills a map with n keys, rounded to pieces.
func NewMapFlow(n int) *MapFlow {
	f := &MapFlow{m: map[uint64]uint64{}, keys: make([]uint64, max(1, n/Piece)*Piece)}
	r := rand.New(rand.NewPCG(7, 8))
	for i := range f.keys {
		f.keys[i] = r.Uint64()
		f.m[f.keys[i]] = 1
	}
	return f
}

// Add stores a piece.
func (f *MapFlow) Add(keys []kv.Hash) {
	for i, key := range keys {
		old := &f.keys[f.next+i]
		delete(f.m, *old)
		*old = uint64(key)
		f.m[*old] = 1
	}
	f.next = (f.next + len(keys)) % len(f.keys)
}

// budget measures adding to an index that evicts as much. The same batches go
// through turns from the start, since a batch that is slow of itself is slow in
// each of them, and one that the machine stopped in the middle is not.
func (b *bench) budget() {
	const turns = 5
	best := make([]time.Duration, max(100, b.blocks/Piece)) // about as many as the index holds
	var owns, others []time.Duration
	for turn := range turns {
		f := NewFlow(b.blocks)
		m := NewMapFlow(int(f.Counts().Entries))
		for i := range best {
			if b.ctx.Err() != nil {
				return
			}
			f.Next()
			start := time.Now()
			f.Add()
			middle := time.Now()
			m.Add(f.keys)
			others = append(others, time.Since(middle))
			own := middle.Sub(start)
			owns = append(owns, own)
			if turn == 0 || own < best[i] {
				best[i] = own
			}
		}
	}
	slices.Sort(owns)
	slices.Sort(others)
	const load = "at the budget"
	n := len(owns)
	own, other := owns[n/2], others[n/2]
	b.row(Row{Load: load, What: "add, holder-blocks a second, median batch", Value: perSecond(Piece, own), XMap: ratio(other, own), Bound: AtLeast, Must: 1e6})
	rare := n - 1 - n/1000
	b.row(Row{Load: load, What: "batch of 512, p99.9, with what the machine adds", Value: float64(owns[rare]), Unit: "ns", XMap: ratio(others[rare], owns[rare])})
	b.row(Row{Load: load, What: fmt.Sprintf("batch of 512, slowest of %d, each at its best of %d turns", len(best), turns), Value: float64(slices.Max(best)), Unit: "ns", Bound: AtMost, Must: 1e6})
}
