package subscriber

import "inferencecache.io/inferencecache/internal/kv"

// maxRun is the most hashes one Change carries.
const maxRun = 4096

// changes collects what happens to a replica's blocks, neighbours in one Change
// where they make a chain.
type changes struct {
	list  []Change
	quiet bool // say nothing: a Clear will
	hint  int  // blocks that may follow the next one in its chain
}

// take hands over what was collected.
func (c *changes) take() []Change {
	list := c.list
	c.list = nil
	return list
}

func (c *changes) last() *Change {
	if len(c.list) == 0 {
		return &Change{}
	}
	return &c.list[len(c.list)-1]
}

// store says that the best copy of b is now in t.
func (c *changes) store(adapter string, b *block, t kv.Tier) {
	if c.quiet {
		return
	}
	if last := c.last(); last.continuedBy(adapter, b, t) {
		last.Hashes = append(last.Hashes, b.prefix)
		return
	}
	c.list = append(c.list, storeOf(adapter, b, t, c.hint))
}

// storeOf is the Store of b alone, with room for a chain of some length.
func storeOf(adapter string, b *block, t kv.Tier, room int) Change {
	return Change{
		Kind:      Store,
		Adapter:   adapter,
		Tier:      t,
		Hashes:    append(make([]kv.Hash, 0, max(1, min(room, maxRun))), b.prefix),
		Parent:    b.parent,
		HasParent: b.hasParent,
		Tokens:    int(b.tokens - b.size),
		BlockSize: int(b.size),
	}
}

// continuedBy reports whether b in t is the next block of the chain that c
// stores.
func (c *Change) continuedBy(adapter string, b *block, t kv.Tier) bool {
	n := len(c.Hashes)
	return c.Kind == Store && n < maxRun && b.hasParent && c.Hashes[n-1] == b.parent &&
		c.Adapter == adapter && c.Tier == t && c.BlockSize == int(b.size) &&
		c.Tokens+n*c.BlockSize == int(b.tokens-b.size)
}

// remove says that no copy of prefix is left.
func (c *changes) remove(adapter string, prefix kv.Hash) {
	if c.quiet {
		return
	}
	if last := c.last(); last.Kind == Remove && last.Adapter == adapter && len(last.Hashes) < maxRun {
		last.Hashes = append(last.Hashes, prefix)
		return
	}
	c.list = append(c.list, Change{Kind: Remove, Adapter: adapter, Hashes: []kv.Hash{prefix}})
}

// clear says that nothing is left at all.
func (c *changes) clear() {
	if c.last().Kind != Clear {
		c.list = append(c.list, Change{Kind: Clear})
	}
}

// heldPiece is how many blocks are handed over at a time.
const heldPiece = 16 << 10

// Held yields everything held as Stores, chains in one piece where they can be,
// until yield returns false. Replayed into an empty index they give what is
// held; a chain may come before the one it continues. yield must not use r.
func (r *Residency) Held(yield func(Change) bool) {
	more := true
	for from := uint32(1); from != 0 && more; {
		from = r.HeldFrom(from, heldPiece, func(c Change) {
			more = more && yield(c)
		})
	}
}

// HeldFrom yields the part of what is held that begins at from, 1 at first, as
// Stores of at most so many blocks together, and returns where the next part begins, 0 behind the last. If r
// changes between two parts, all parts and then the changes, or changes and
// parts in the order in which they came, give what is held in the end.
func (r *Residency) HeldFrom(from, most uint32, yield func(Change)) (next uint32) {
	to := min(r.blocks.used+1, from+most)
	if from >= to {
		return 0
	}
	run := runs{from: from, follower: make([]uint32, to-from), inner: make([]bool, to-from)}
	for at := from; at < to; at++ {
		b := r.blocks.at(at)
		if b.size == 0 || !b.hasParent {
			continue
		}
		parentAt := r.named(b.adapter, b.parent)
		if parentAt < from || parentAt >= to || run.follower[parentAt-from] != 0 {
			continue
		}
		parent := r.blocks.at(parentAt)
		if parent.tier() == b.tier() && parent.size == b.size && parent.tokens+b.size == b.tokens {
			run.follower[parentAt-from], run.inner[at-from] = at, true
		}
	}
	for at := from; at < to; at++ {
		if r.blocks.at(at).size != 0 && !run.inner[at-from] {
			r.yieldRun(at, &run, yield)
		}
	}
	if to > r.blocks.used {
		return 0
	}
	return to
}

// runs are the chains within a part of the blocks.
type runs struct {
	from     uint32
	follower []uint32 // the block that continues one; 0: none
	inner    []bool   // is continued to: no run starts here
}

// yieldRun yields the run that starts at a block, in pieces of maxRun.
func (r *Residency) yieldRun(at uint32, in *runs, yield func(Change)) {
	for at != 0 {
		b := r.blocks.at(at)
		run := storeOf(r.adapters.list[b.adapter].name, b, b.tier(), 1)
		for at = in.follower[at-in.from]; at != 0 && len(run.Hashes) < maxRun; at = in.follower[at-in.from] {
			run.Hashes = append(run.Hashes, r.blocks.at(at).prefix)
		}
		yield(run)
	}
}
