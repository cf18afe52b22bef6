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

// Held yields everything held as Stores, chains in one piece where they can be,
// until yield returns false. Replayed into an empty index they give what is
// held; a chain may come before the one it continues. yield must not use r.
func (r *Residency) Held(yield func(Change) bool) {
	next := make([]uint32, r.blocks.used+1) // the block that continues a run
	inner := make([]bool, r.blocks.used+1)  // is continued to: no run starts here
	for at := uint32(1); at <= r.blocks.used; at++ {
		b := r.blocks.at(at)
		if b.size == 0 || !b.hasParent {
			continue
		}
		parentAt := r.adapters.list[b.adapter].blocks[b.parent]
		if parentAt == 0 || next[parentAt] != 0 {
			continue
		}
		parent := r.blocks.at(parentAt)
		if parent.tier() == b.tier() && parent.size == b.size && parent.tokens+b.size == b.tokens {
			next[parentAt], inner[at] = at, true
		}
	}
	for at := uint32(1); at <= r.blocks.used; at++ {
		if r.blocks.at(at).size != 0 && !inner[at] && !r.yieldRun(at, next, yield) {
			return
		}
	}
}

// yieldRun yields the run that starts at a block, in pieces of maxRun.
func (r *Residency) yieldRun(at uint32, next []uint32, yield func(Change) bool) bool {
	for at != 0 {
		b := r.blocks.at(at)
		run := storeOf(r.adapters.list[b.adapter].name, b, b.tier(), 1)
		for at = next[at]; at != 0 && len(run.Hashes) < maxRun; at = next[at] {
			run.Hashes = append(run.Hashes, r.blocks.at(at).prefix)
		}
		if !yield(run) {
			return false
		}
	}
	return true
}
