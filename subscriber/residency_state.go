package subscriber

import (
	"inferencecache.io/inferencecache/internal/kv"
)

// maxCopies is where a count of copies stops. Engines may announce copies that
// they never take back; a low ceiling lets a few removals make up for that.
const maxCopies = 8

// copies of one engine block in T1, T2 and T3.
type copies [3]uint8

// slot is the place of a tier in copies.
func slot(t kv.Tier) int { return int(t - kv.T1) }

func (c copies) sum() int { return int(c[0]) + int(c[1]) + int(c[2]) }

func (c *copies) add(t kv.Tier) {
	if n := &c[slot(t)]; *n < maxCopies {
		*n++
	}
}

func (c *copies) merge(o copies) {
	for i, n := range o {
		c[i] = min(c[i]+n, maxCopies)
	}
}

// holding is one engine block of one rank and group.
type holding struct {
	hash    uint64 // the engine's name for it
	block   uint32 // in blocks; 0: in the separate space, out of reach of lookups
	group   uint32 // in groups; 0 marks a free place
	copies  copies
	assumed bool // its T2 copy is the operator's word, not the engine's
}

// block is one block of the replica, under the name the server knows.
type block struct {
	prefix    kv.Hash
	parent    kv.Hash // if hasParent
	tokens    uint32  // of the prompt, up to and including the block
	size      uint32  // tokens of the block; 0 marks a free place
	adapter   uint32
	holders   [3]uint32 // holdings with a copy in T1, T2, T3
	hasParent bool
}

// tier is the best tier with a copy, TierUnknown if there is none.
func (b *block) tier() kv.Tier {
	for i, n := range b.holders {
		if n > 0 {
			return kv.T1 + kv.Tier(i)
		}
	}
	return kv.TierUnknown
}

// rankState is what one rank's stream has shown.
type rankState struct {
	rank      int
	groups    map[int]*blockGroup // by the engine's group index
	order     []*blockGroup       // the same, oldest first
	lowerTier bool                // it has sent an event of T2 or T3
	partial   bool                // see SetPartial
	touched   map[uint64]struct{} // engine hashes that changed since Watch; nil: not watched
	assumed   int                 // holdings with assumed set
}

// attention says whether a group's blocks are dense prefixes.
type attention uint8

const (
	attentionUnsaid attention = iota // the engine sends no kind
	attentionDense
	attentionOther // sliding window, Mamba, ...: says nothing about a prefix
)

// blockGroup is a KV-cache group of a rank. Groups share engine hashes: the
// hash does not tell them apart.
type blockGroup struct {
	id        uint32
	owner     *rankState
	attention attention
	size      int // largest block size stored, in tokens; 0 before the first
	held      int // holdings
	warm      int // of these, with a copy in T1
	plain     int // of these, with a block

	orphans map[uint64]*orphan // by their own hash
	waiting map[uint64]*orphan // by their parent's: the first of its children
}

func (r *Residency) rank(rank int) *rankState {
	rs, ok := r.ranks[rank]
	if !ok {
		rs = &rankState{rank: rank, groups: map[int]*blockGroup{}}
		r.ranks[rank] = rs
	}
	return rs
}

// maxGroups bounds the groups of all ranks together. Models have up to ten, and
// replicas up to some hundred ranks.
const maxGroups = 4096

// group finds or makes a group of a rank; nil if there are too many.
func (r *Residency) group(rs *rankState, index int) *blockGroup {
	if g, ok := rs.groups[index]; ok {
		return g
	}
	if len(r.groups)-1-len(r.spareIDs) >= maxGroups {
		return nil
	}
	g := &blockGroup{owner: rs}
	if n := len(r.spareIDs); n > 0 {
		g.id, r.spareIDs = r.spareIDs[n-1], r.spareIDs[:n-1]
		r.groups[g.id] = g
	} else {
		g.id = uint32(len(r.groups))
		r.groups = append(r.groups, g)
	}
	rs.groups[index] = g
	rs.order = append(rs.order, g)
	return g
}

// find looks up an engine hash. An event that names no group is about group 0,
// or else about whichever group has the hash.
func (r *Residency) find(rs *rankState, index int, named bool, hash uint64) (g *blockGroup, at uint32) {
	if g := rs.groups[index]; g != nil {
		if at := r.held(g, hash); at != 0 {
			return g, at
		}
	}
	if !named {
		for _, g := range rs.order {
			if g.held == 0 {
				continue
			}
			if at := r.held(g, hash); at != 0 {
				return g, at
			}
		}
	}
	return nil, 0
}

// hold records a new engine block; b is its place in the chain, or nil for the
// separate space. The hash must not be held in g.
func (r *Residency) hold(g *blockGroup, hash uint64, place *block, c copies) {
	if r.holdings.len() >= r.config.MaxBlocks {
		r.evict()
	}
	at := r.holdings.take()
	h := r.holdings.at(at)
	h.hash, h.group = hash, g.id
	if place != nil {
		h.block = r.blockAt(place)
		g.plain++
	} else {
		r.stats.Separate++
	}
	g.held++
	r.byHash.put(r.hashing.of(hash, g.id), at)
	r.setCopies(at, c)
}

// blockAt finds the block with place's name, or makes it of place.
func (r *Residency) blockAt(place *block) uint32 {
	at := r.named(place.adapter, place.prefix)
	if at == 0 {
		at = r.blocks.take()
		*r.blocks.at(at) = *place
		r.byPrefix.put(r.hashing.of(uint64(place.prefix), place.adapter), at)
		r.adapters.list[place.adapter].blocks++
	}
	return at
}

// setCopies gives a holding its new counts, reports what that changes for the
// replica, and forgets what is held no more.
func (r *Residency) setCopies(at uint32, to copies) {
	h := r.holdings.at(at)
	g := r.groups[h.group]
	owner := g.owner
	if owner.touched != nil {
		owner.touched[h.hash] = struct{}{}
	}
	before := h.copies
	h.copies = to
	if h.assumed && to[slot(kv.T2)] == 0 {
		h.assumed = false
		owner.assumed--
	}
	if before[slot(kv.T1)] > 0 {
		g.warm--
	}
	if to[slot(kv.T1)] > 0 {
		g.warm++
	}
	if before.sum() > 1 {
		r.stats.Multiple--
	}
	if to.sum() > 1 {
		r.stats.Multiple++
	}
	if h.block != 0 {
		r.setHolders(h.block, before, to)
	}
	if to.sum() == 0 {
		g.held--
		r.byHash.drop(r.hashing.of(h.hash, g.id), at)
		if h.block != 0 {
			g.plain--
		} else {
			r.stats.Separate--
		}
		r.holdings.put(at)
	}
}

func (r *Residency) setHolders(at uint32, before, to copies) {
	b := r.blocks.at(at)
	was := b.tier()
	for i := range b.holders {
		switch {
		case before[i] == 0 && to[i] > 0:
			b.holders[i]++
		case before[i] > 0 && to[i] == 0:
			b.holders[i]--
		}
	}
	is := b.tier()
	if was == is && is != kv.TierUnknown {
		return
	}
	adapter := r.adapters.list[b.adapter]
	if was != kv.TierUnknown {
		r.stats.Held[slot(was)]--
	}
	if is != kv.TierUnknown {
		r.stats.Held[slot(is)]++
		r.out.store(adapter.name, b, is)
		return
	}
	if was != kv.TierUnknown {
		r.out.remove(adapter.name, b.prefix)
	}
	adapter.blocks--
	r.byPrefix.drop(r.hashing.of(uint64(b.prefix), b.adapter), at)
	r.blocks.put(at)
}

// clearCopies drops all that a rank holds. The rank keeps what its stream has
// shown about groups and tiers.
func (r *Residency) clearCopies(rs *rankState) {
	for _, other := range r.ranks {
		if other == rs {
			continue
		}
		for _, g := range other.order {
			if g.plain > 0 {
				r.dropCopies(rs)
				return
			}
		}
	}
	r.silently(func() { r.dropCopies(rs) })
	r.out.clear()
}

func (r *Residency) silently(f func()) {
	r.out.quiet = true
	f()
	r.out.quiet = false
}

func (r *Residency) dropCopies(rs *rankState) {
	held := 0
	for _, g := range rs.order {
		held += g.held
	}
	if held == r.holdings.len() {
		r.wipe(rs)
	}
	for _, g := range rs.order {
		r.dropGroup(g)
	}
}

// wipe drops all holdings, which are a rank's, and gives their memory back. It
// reports nothing: that nothing is held is a Clear.
func (r *Residency) wipe(rs *rankState) {
	for _, g := range rs.order {
		g.held, g.plain, g.warm = 0, 0, 0
	}
	for _, a := range r.adapters.list {
		a.blocks = 0
	}
	rs.assumed = 0
	r.stats.Held, r.stats.Separate, r.stats.Multiple = [3]int{}, 0, 0
	r.holdings, r.blocks, r.hand = slab[holding]{}, slab[block]{}, 0
	r.byHash, r.byPrefix = table{}, table{}
}

// dropGroup drops what a group holds, orphans included.
func (r *Residency) dropGroup(g *blockGroup) {
	r.each(g, func(at uint32) { r.setCopies(at, copies{}) })
	for _, o := range g.orphans {
		r.unlink(o)
	}
	g.orphans, g.waiting = nil, nil
}

func (r *Residency) forgetRank(rs *rankState) {
	for _, g := range rs.order {
		r.groups[g.id] = nil
		r.spareIDs = append(r.spareIDs, g.id)
	}
	delete(r.ranks, rs.rank)
}

// contenders is how many holdings are compared to find a victim.
const contenders = 8

// evict drops the least useful of a few holdings: first what lookups cannot
// reach, then what only the operator vouches for, then the colder tier, then
// the longer prefix, because shorter ones are shared by more prompts.
func (r *Residency) evict() {
	victim, worst := uint32(0), int64(-1)
	for seen := 0; seen < contenders && seen < r.holdings.len(); {
		r.hand = r.holdings.after(r.hand)
		h := r.holdings.at(r.hand)
		if h.group == 0 {
			continue
		}
		seen++
		if cost := r.uselessness(h); cost > worst {
			victim, worst = r.hand, cost
		}
	}
	if victim == 0 {
		panic("bug: nothing to evict")
	}
	r.setCopies(victim, copies{})
	r.tally.Evicted++
	r.stats.Evicted++
}

func (r *Residency) uselessness(h *holding) int64 {
	const tokens = 1 << 32 // above every length of a prefix
	if h.block == 0 {
		return 5 * tokens
	}
	score := int64(r.blocks.at(h.block).tokens)
	switch {
	case h.assumed && h.copies.sum() == 1:
		return score + 3*tokens
	case h.copies[slot(kv.T1)] > 0:
		return score
	case h.copies[slot(kv.T2)] > 0:
		return score + tokens
	}
	return score + 2*tokens
}
