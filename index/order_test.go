package index

import (
	"math/rand/v2"
	"slices"
	"sync"
	"testing"

	"inferencecache.io/inferencecache/internal/kv"
)

// A chain grows and then shrinks from its end, while segments are moved, split
// off and packed. Readers come to a key along the chain or straight by its
// entry: having seen it one way, they must not see the past the other way.
func TestReadersSeeOneOrder(t *testing.T) {
	const replica = "r0"
	chain := seq(1, 3001)
	x := New(unbounded())
	holds := func(s *Scratch, keys []kv.Hash) int {
		for _, r := range x.Lookup(s, t0, base, keys) {
			if r.Replica == replica {
				return r.Blocks
			}
		}
		return 0
	}
	during := func(write func(r *rand.Rand), look func(s *Scratch, r *rand.Rand, last int) (next int, ok bool)) {
		stop := make(chan struct{})
		var readers sync.WaitGroup
		for i := range uint64(2) {
			readers.Go(func() {
				var s Scratch
				r := rand.New(rand.NewPCG(i, 0))
				last, ok := holds(&s, chain), true
				for ok {
					select {
					case <-stop:
						return
					default:
					}
					if last, ok = look(&s, r, last); !ok {
						t.Errorf("a reader saw the past after %d blocks", last)
					}
				}
			})
		}
		write(rand.New(rand.NewPCG(7, 7)))
		close(stop)
		readers.Wait()
		check(t, x)
	}
	steps := func(r *rand.Rand, do func(from, to int)) {
		for from := 0; from < len(chain); {
			to := min(from+1+r.IntN(40), len(chain))
			do(from, to)
			from = to
		}
	}

	during(func(r *rand.Rand) {
		steps(r, func(from, to int) {
			x.Apply(t0, store(replica, t0, chain[from:to]...))
			x.Apply(t0, store("r1", t0, chain[from:from+r.IntN(to-from+1)]...))
		})
	}, func(s *Scratch, r *rand.Rand, last int) (int, bool) {
		n := holds(s, chain)
		if n < last {
			return n, false
		}
		if n > 0 && holds(s, chain[r.IntN(n):][:1]) == 0 {
			return n, false
		}
		if j := r.IntN(len(chain)); holds(s, chain[j:][:1]) > 0 {
			return max(n, j+1), true
		}
		return n, true
	})
	back := slices.Clone(chain)
	slices.Reverse(back)
	during(func(r *rand.Rand) {
		steps(r, func(from, to int) {
			x.Apply(t0, &Batch{Scope: base.Scope, Replica: replica, Seen: t0, Ops: []Op{{Kind: Remove, Keys: back[from:to]}}})
			if r.IntN(3) == 0 { // leaves keys that nobody holds: segments are packed
				x.Apply(t0, &Batch{Scope: base.Scope, Replica: "r1", Seen: t0, Ops: []Op{{Kind: Remove, Keys: back[from:to]}}})
			}
		})
	}, func(s *Scratch, r *rand.Rand, last int) (int, bool) {
		n := holds(s, chain)
		if n > last {
			return n, false
		}
		if n < len(chain) && holds(s, chain[n+r.IntN(len(chain)-n):][:1]) > 0 {
			return n, false
		}
		return n, true
	})
}
