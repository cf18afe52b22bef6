package subscriber

import (
	"fmt"
	"math"

	"inferencecache.io/inferencecache/internal/engine"
	"inferencecache.io/inferencecache/internal/fingerprint"
	"inferencecache.io/inferencecache/internal/kv"
)

// Origins of a store, for engines that tell a new copy from a mention.
const (
	originNew    = "NEW"
	originReused = "REUSED"
)

// placing is where the next block of a store goes.
type placing uint8

const (
	atRoot placing = iota
	afterKnown
	inSeparateSpace
	afterUnknown
)

// store is one BlockStored on its way in.
type store struct {
	event   *engine.Event
	group   *blockGroup
	tier    kv.Tier
	adapter uint32
	again   bool // known copies are mentioned, not added
	unsure  bool // they may be: what came before is known only in part

	placing placing
	place   block // of the block before, if afterKnown; its adapter and size always
	chain   []kv.Hash
	plain   int // blocks in the plain space
	waiting int // orphans
}

func (r *Residency) stored(rs *rankState, e *engine.Event) engine.Verdict {
	t := tierOf(e)
	r.witness(rs, t)
	if len(e.Hashes) == 0 {
		return skipped(NoHashes)
	}
	name, verdict := r.adapterOf(e)
	if verdict.Status != engine.OK {
		return verdict
	}
	if len(e.Tokens) == 0 {
		return r.moved(rs, e, t)
	}
	g := r.group(rs, e.GroupIdx)
	if g == nil {
		return rejected(engine.OverLimit, "groups")
	}
	if verdict := r.shape(rs, g, e); verdict.Status != engine.OK {
		return verdict
	}
	id, ok := r.adapters.id(name)
	if !ok {
		return rejected(AdapterRefused, "")
	}
	s := store{event: e, group: g, tier: t, adapter: id}
	if verdict := r.start(rs, &s); verdict.Status != engine.OK {
		return verdict
	}
	g.size = max(g.size, e.BlockSize)
	s.again = r.isAgain(&s)
	s.unsure = rs.partial && s.listsFromRoot()
	return r.storeBlocks(&s, e.FirstApart(name))
}

// adapterOf names the adapter, or refuses to: blocks of an adapter must not be
// taken for the base model's.
func (r *Residency) adapterOf(e *engine.Event) (string, engine.Verdict) {
	if e.LoraName != "" {
		return e.LoraName, engine.Verdict{}
	}
	if !e.Has(engine.LoraID) {
		return "", engine.Verdict{}
	}
	name, ok := r.config.Adapters[e.LoraID]
	if !ok {
		return "", rejected(UnmappedAdapter, fmt.Sprintf("lora_id %d", e.LoraID))
	}
	return name, engine.Verdict{}
}

// moved takes in a store without tokens: known blocks have a copy in a tier.
func (r *Residency) moved(rs *rankState, e *engine.Event, t kv.Tier) engine.Verdict {
	verdict := skipped(UnknownBlock)
	named := e.Has(engine.GroupIdx)
	for _, hash := range e.Hashes {
		if _, at := r.find(rs, e.GroupIdx, named, hash.ID); at != 0 {
			r.addCopy(at, t, e.Origin == originReused)
			verdict = engine.Verdict{Status: engine.Applied}
		} else if o := r.findOrphan(rs, e.GroupIdx, named, hash.ID); o != nil {
			o.copies.add(t)
			if verdict.Status == engine.Skipped {
				verdict = engine.Verdict{Status: engine.Orphaned, Reason: UnknownParent}
			}
		}
	}
	return verdict
}

func (r *Residency) addCopy(at uint32, t kv.Tier, again bool) {
	h := r.holdings.at(at)
	c := h.copies
	if again && c[slot(t)] > 0 {
		return
	}
	c.add(t)
	r.setCopies(at, c)
}

// shape decides whether a store with tokens is one of dense, full blocks of the
// right size: by what the engine says of the group, or else by its numbers.
func (r *Residency) shape(rs *rankState, g *blockGroup, e *engine.Event) engine.Verdict {
	switch e.SpecKind {
	case "":
	case "full_attention", "mla_attention", "sink_full_attention":
		g.attention = attentionDense
	default:
		g.attention = attentionOther
	}
	if g.attention == attentionOther {
		return skipped(SecondaryGroup)
	}
	if e.BlockSize <= 0 {
		return rejected(ZeroBlockSize, "")
	}
	if len(e.Tokens) != len(e.Hashes)*e.BlockSize {
		return engine.Verdict{Status: engine.Skipped, Reason: TokensMismatch,
			Detail: fmt.Sprintf("%d tokens, %d hashes of %d", len(e.Tokens), len(e.Hashes), e.BlockSize)}
	}
	if r.config.BlockSize > 0 && e.BlockSize != r.config.BlockSize {
		return r.otherSize(rs, g, e)
	}
	if r.config.BlockSize == 0 && g.attention == attentionUnsaid {
		return r.largestOnly(rs, g, e.BlockSize)
	}
	return engine.Verdict{}
}

// otherSize judges a store whose blocks are not the server's.
func (r *Residency) otherSize(rs *rankState, g *blockGroup, e *engine.Event) engine.Verdict {
	if len(e.Hashes) == 1 && e.BlockSize < r.config.BlockSize && e.Has(engine.ParentHash) && g.size > 0 {
		return skipped(PartialBlock)
	}
	for _, other := range rs.order {
		if other != g && other.size > 0 { // of the server's size, or it would have none
			return skipped(SecondaryGroup)
		}
	}
	return rejected(BlockSizeMismatch, fmt.Sprintf("%d tokens a block, the server has %d", e.BlockSize, r.config.BlockSize))
}

// largestOnly keeps to the groups with the largest blocks while the engine does
// not say what its groups are.
func (r *Residency) largestOnly(rs *rankState, g *blockGroup, size int) engine.Verdict {
	if len(rs.order) == 1 {
		return engine.Verdict{}
	}
	for _, other := range rs.order {
		if other != g && other.attention == attentionUnsaid && other.size > size {
			return skipped(SecondaryGroup)
		}
	}
	for _, other := range rs.order {
		if other != g && other.attention == attentionUnsaid && other.size > 0 && other.size < size {
			r.dropGroup(other)
		}
	}
	return engine.Verdict{}
}

// start finds out what the chain of a store continues.
func (r *Residency) start(rs *rankState, s *store) engine.Verdict {
	e := s.event
	s.place = block{adapter: s.adapter, size: uint32(e.BlockSize)}
	if !e.Has(engine.ParentHash) {
		return engine.Verdict{}
	}
	_, at := r.find(rs, e.GroupIdx, e.Has(engine.GroupIdx), e.Parent.ID)
	if at == 0 {
		s.placing = afterUnknown
		return engine.Verdict{}
	}
	h := r.holdings.at(at)
	if h.block == 0 {
		s.placing = inSeparateSpace
		return engine.Verdict{}
	}
	return s.follow(r.blocks.at(h.block))
}

// follow puts what comes next after a known block, if it fits there.
func (s *store) follow(b *block) engine.Verdict {
	size := uint32(s.event.BlockSize)
	switch {
	case b.adapter != s.adapter:
		return rejected(AdapterMismatch, "")
	case size < b.size:
		return skipped(PartialBlock)
	case size > b.size:
		return rejected(MixedBlockSize, fmt.Sprintf("%d tokens a block after blocks of %d", size, b.size))
	}
	s.placing, s.place = afterKnown, *b
	return engine.Verdict{}
}

// isAgain recognises a store that mentions copies which are counted already.
// Unless the engine says so, it is one that starts at a root and lists more
// than one block, all known in that tier; a lone block may be a second copy.
func (r *Residency) isAgain(s *store) bool {
	switch s.event.Origin {
	case originNew:
		return false
	case originReused:
		return true
	}
	if !s.listsFromRoot() {
		return false
	}
	for _, hash := range s.event.Hashes {
		at := r.held(s.group, hash.ID)
		if at == 0 || r.holdings.at(at).copies[slot(s.tier)] == 0 {
			return false
		}
	}
	return true
}

// listsFromRoot is the shape of stores that mention a whole prompt.
func (s *store) listsFromRoot() bool {
	return s.placing == atRoot && len(s.event.Hashes) > 1 && s.event.Origin == ""
}

func (r *Residency) storeBlocks(s *store, firstApart int) engine.Verdict {
	e, size := s.event, s.event.BlockSize
	for i, hash := range e.Hashes {
		if i >= firstApart {
			s.placing = inSeparateSpace
		}
		r.out.hint = len(e.Hashes) - i
		at := r.held(s.group, hash.ID)
		if at != 0 && r.holdings.at(at).block == 0 {
			s.placing = inSeparateSpace // once there, never out: its keys may have been left out this time
		}
		switch s.placing {
		case inSeparateSpace:
			r.storeApart(s, hash.ID, at)
			continue
		case afterUnknown:
			if at == 0 {
				parent := e.Parent.ID
				if i > 0 {
					parent = e.Hashes[i-1].ID
				}
				r.wait(s.group, hash.ID, parent, e.Tokens[i*size:(i+1)*size], s.adapter, s.tier)
				s.waiting++
				continue
			}
			// The block itself is known, whatever became of its parent.
			if verdict := s.follow(r.blocks.at(r.holdings.at(at).block)); verdict.Status != engine.OK {
				return verdict
			}
			r.addCopy(at, s.tier, s.again || s.unsure)
			s.plain++
			continue
		}
		if s.place.full() {
			return rejected(engine.OutOfRange, "prefix of over 32 bits of tokens")
		}
		r.storePlain(s, i, at)
	}
	return s.verdict()
}

func (s *store) verdict() engine.Verdict {
	switch {
	case s.again:
		return skipped(Reannounced)
	case s.plain > 0:
		return engine.Verdict{Status: engine.Applied}
	case s.waiting > 0:
		return engine.Verdict{Status: engine.Orphaned, Reason: UnknownParent}
	}
	return skipped(SeparateSpace)
}

// storeApart keeps a block out of reach of lookups: known, so that what builds
// on it is neither a root nor an orphan, but never reported.
func (r *Residency) storeApart(s *store, hash uint64, at uint32) {
	if at != 0 && r.holdings.at(at).block == 0 {
		r.addCopy(at, s.tier, s.again || s.unsure)
		return
	}
	if at != 0 {
		r.setCopies(at, copies{})
	}
	r.hold(s.group, hash, nil, r.adopt(s, hash))
	r.attach(s.group, link{hash: hash, apart: true})
}

// storePlain stores block i of a chain whose beginning is known.
func (r *Residency) storePlain(s *store, i int, at uint32) {
	if len(s.chain) == 0 {
		s.chain = r.fingerprint(s, i)
	}
	s.place = s.next()
	s.chain = s.chain[1:]
	s.plain++
	hash := s.event.Hashes[i].ID
	if at != 0 {
		b := r.blocks.at(r.holdings.at(at).block)
		if b.prefix == s.place.prefix && b.adapter == s.adapter {
			r.addCopy(at, s.tier, s.again || s.unsure)
			return
		}
		// The engine used the name again and its removal was missed.
		r.setCopies(at, copies{})
	}
	r.hold(s.group, hash, &s.place, r.adopt(s, hash))
	r.attach(s.group, link{hash: hash, place: s.place})
}

// fingerprint makes the prefix hashes of block i and all that follow.
func (r *Residency) fingerprint(s *store, i int) []kv.Hash {
	tokens := s.event.Tokens[i*s.event.BlockSize:]
	if s.placing == atRoot {
		r.chain = fingerprint.Append(r.chain[:0], tokens, s.event.BlockSize)
	} else {
		r.chain = fingerprint.AppendAfter(r.chain[:0], s.place.prefix, tokens, s.event.BlockSize)
	}
	return r.chain
}

// next is the place of the block that s.chain begins with.
func (s *store) next() block {
	if s.placing == atRoot {
		s.placing = afterKnown
		return block{prefix: s.chain[0], tokens: s.place.size, size: s.place.size, adapter: s.place.adapter}
	}
	return s.place.child(s.chain[0])
}

// child is the place of a block named prefix after b.
func (b *block) child(prefix kv.Hash) block {
	return block{
		prefix:    prefix,
		parent:    b.prefix,
		hasParent: true,
		tokens:    b.tokens + b.size,
		size:      b.size,
		adapter:   b.adapter,
	}
}

// full reports that no block fits after b: its tokens would not be countable.
func (b *block) full() bool { return b.tokens > math.MaxInt32-b.size }

// adopt is the first copy of a new holding, and those of the orphan it was.
func (r *Residency) adopt(s *store, hash uint64) copies {
	var c copies
	c.add(s.tier)
	if o := s.group.orphans[hash]; o != nil {
		c.merge(o.copies)
		r.unlink(o)
	}
	return c
}
