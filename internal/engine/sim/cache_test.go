package sim

import (
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// hold runs a whole request through c and returns how much it matched and
// what it evicted.
func hold(t *testing.T, c *cache, hashes ...blockHash) (matched int, evicted []blockHash) {
	t.Helper()
	l, evicted, ok := c.allocate(hashes, len(hashes))
	if !ok {
		t.Fatalf("no room for %v", hashes)
	}
	matched = l.matched
	c.store(l)
	c.release(l)
	if err := c.check(); err != nil {
		t.Fatal(err)
	}
	return matched, evicted
}

func TestCacheEvictsTailsOfTheOldestPromptFirst(t *testing.T) {
	c := newCache(6)
	hold(t, c, 1, 2, 3)
	hold(t, c, 11, 12, 13)
	hold(t, c, 1, 2) // a hit moves only what it uses
	matched, evicted := hold(t, c, 21, 22)
	if matched != 0 || !slices.Equal(evicted, []blockHash{3, 13}) {
		t.Errorf("matched %d, evicted %v", matched, evicted)
	}
	matched, evicted = hold(t, c, 11, 12, 13)
	if matched != 2 || !slices.Equal(evicted, []blockHash{2}) {
		t.Errorf("matched %d, evicted %v", matched, evicted)
	}
}

func TestCacheKeepsBlocksInUse(t *testing.T) {
	c := newCache(4)
	l, _, _ := c.allocate([]blockHash{1, 2}, 3) // two full blocks and a tail
	if c.used() != 3 || len(c.held) != 0 {
		t.Errorf("used %d, held %d before the store", c.used(), len(c.held))
	}
	if _, _, ok := c.allocate([]blockHash{5, 6}, 2); ok {
		t.Error("allocated beyond the capacity")
	}
	c.store(l)
	if gone := c.evict(9); len(gone) != 0 || c.clear() {
		t.Error("took blocks from a running request")
	}
	c.release(l)
	if c.used() != 0 || len(c.held) != 2 || !c.clear() || len(c.held) != 0 {
		t.Errorf("used %d, held %d at the end", c.used(), len(c.held))
	}
}

func TestCacheForgetsAnAbandonedLease(t *testing.T) {
	c := newCache(4)
	hold(t, c, 1)
	l, _, _ := c.allocate([]blockHash{1, 2, 3}, 4)
	c.release(l)
	if err := c.check(); err != nil || c.used() != 0 || len(c.held) != 1 {
		t.Errorf("used %d, held %d, %v", c.used(), len(c.held), err)
	}
}

// TestCacheAgreesWithItsEvents follows random overlapping requests: what the
// stored and evicted hashes say is held must be what is held.
func TestCacheAgreesWithItsEvents(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	c := newCache(12)
	heard := map[blockHash]bool{}
	var running []*lease
	removed := func(hashes []blockHash) {
		for _, hash := range hashes {
			if !heard[hash] {
				t.Fatalf("evicted %d, which was not held", hash)
			}
			delete(heard, hash)
		}
	}
	for range 5000 {
		switch random.IntN(4) {
		case 0, 1:
			tokens := text(byte('a'+random.IntN(4)), 1+random.IntN(9))
			tokens[len(tokens)/2] += uint32(random.IntN(2))
			l, evicted, ok := c.allocate(newRoot(1).chain(tokens, 2, variant{}), (len(tokens)+1)/2)
			if !ok {
				continue
			}
			removed(evicted)
			if random.IntN(5) == 0 {
				c.release(l)
				continue
			}
			for _, hash := range c.store(l) {
				heard[hash] = true
			}
			running = append(running, l)
		case 2:
			if len(running) > 0 {
				i := random.IntN(len(running))
				c.release(running[i])
				running = slices.Delete(running, i, i+1)
			}
		case 3:
			removed(c.evict(random.IntN(3)))
		}
		if err := c.check(); err != nil {
			t.Fatal(err)
		}
		held := map[blockHash]bool{}
		for hash := range c.held {
			held[hash] = true
		}
		if diff := cmp.Diff(heard, held); diff != "" {
			t.Fatal(diff)
		}
	}
}

func TestHashDependsOnSeedParentAndTokens(t *testing.T) {
	same := newRoot(7).chain(text('a', 33), 16, variant{})
	if again := newRoot(7).chain(text('a', 40), 16, variant{}); !slices.Equal(same, again) || len(same) != 2 {
		t.Errorf("%x is not %x", same, again)
	}
	different := []blockHash{
		same[0], same[1],
		newRoot(8).chain(text('a', 16), 16, variant{})[0],
		newRoot(7).chain(text('b', 16), 16, variant{})[0],
		newRoot(0).chain(text('a', 16), 16, variant{})[0],
		newRoot(0).chain(text('a', 16), 16, variant{})[0],
	}
	slices.Sort(different)
	if n := len(slices.Compact(different)); n != 6 {
		t.Errorf("%d different hashes of 6", n)
	}
}
