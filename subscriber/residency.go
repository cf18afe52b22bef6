package subscriber

import (
	"inferencecache.io/inferencecache/internal/engine"
	"inferencecache.io/inferencecache/internal/kv"
)

// Defaults of a ResidencyConfig.
const (
	DefaultMaxBlocks  = 500_000
	DefaultMaxOrphans = 64 << 10
)

// ResidencyConfig fixes the rules of a Residency for its life.
type ResidencyConfig struct {
	// BlockSize is the server's, in tokens. Stores of another size are rejected
	// with BlockSizeMismatch; 0 takes any size.
	BlockSize int
	// Adapters names adapters by the engine's lora_id, for engines that send no
	// name. A store with an id that is not listed is rejected.
	Adapters map[int64]string
	// MaxBlocks bounds the engine blocks kept over all ranks and groups, at
	// about 105 bytes each; 0 means DefaultMaxBlocks.
	MaxBlocks int
	// MaxOrphans bounds the blocks that wait for their parent; 0 means
	// DefaultMaxOrphans.
	MaxOrphans int
	// HasLowerTier says that an offload tier exists which the engine does not
	// report: a block that leaves the GPU is then taken to be in T2. It holds
	// for a rank until its stream shows an event of a lower tier itself.
	HasLowerTier bool
}

// Residency is what one replica holds, built from the events of its engine. It
// turns block names of the engine into prefix hashes and keeps count of copies:
//
//	rank, group --> engine hash --> holding: copies in T1, T2, T3
//	                                   |  many to one
//	               adapter, prefix --> block: holdings that have a copy, by tier
//
// A block is held while any copy is left in any rank, group or tier, and its
// tier is the best one left. Only changes of that come out, as Changes.
//
// It does no I/O and is not safe for concurrent use.
type Residency struct {
	config ResidencyConfig

	ranks    map[int]*rankState
	groups   []*blockGroup // by id; 0 is none
	spareIDs []uint32      // ids free to be used again
	adapters adapterTable
	holdings slab[holding]
	blocks   slab[block]
	byHash   table // of holdings, by group and engine hash
	byPrefix table // of blocks, by adapter and prefix hash
	hashing  hashing
	hand     uint32 // where the last search for a victim ended
	orphans  orphanQueue

	out      changes
	tally    Tally
	verdicts []engine.Verdict
	chain    []kv.Hash // scratch of one store
	prefixes []kv.Hash // scratch of one orphan
	pending  []link    // scratch of one attachment
	stats    Stats
}

// NewResidency returns an empty residency.
func NewResidency(config ResidencyConfig) *Residency {
	if config.MaxBlocks <= 0 {
		config.MaxBlocks = DefaultMaxBlocks
	}
	if config.MaxOrphans <= 0 {
		config.MaxOrphans = DefaultMaxOrphans
	}
	return &Residency{
		config:   config,
		ranks:    map[int]*rankState{},
		groups:   make([]*blockGroup, 1),
		adapters: adapterTable{byName: map[string]uint32{}},
		orphans:  newOrphanQueue(config.MaxOrphans),
		hashing:  newHashing(),
	}
}

// Reasons given by a Residency, besides those of package engine.
const (
	NoHashes          engine.Reason = "no_hashes"           // skipped: names no block
	SecondaryGroup    engine.Reason = "secondary_group"     // skipped: not a dense-attention group
	TokensMismatch    engine.Reason = "tokens_mismatch"     // skipped: tokens are not hashes x block size
	PartialBlock      engine.Reason = "partial_block"       // skipped: a shorter block inside its chain
	Reannounced       engine.Reason = "reannounced"         // skipped: copies that are counted already
	SeparateSpace     engine.Reason = "separate_space"      // skipped: salt, image or other keys beyond tokens
	UnknownBlock      engine.Reason = "unknown_block"       // skipped: moves or removes what is not held
	NoCopy            engine.Reason = "no_copy"             // skipped: removes from a tier without a copy
	UnknownParent     engine.Reason = "unknown_parent"      // orphan
	UnmappedAdapter   engine.Reason = "unmapped_adapter"    // rejected: lora_id without a name
	AdapterRefused    engine.Reason = "adapter_refused"     // rejected: name too long, or too many names
	AdapterMismatch   engine.Reason = "adapter_mismatch"    // rejected: other adapter than the parent's
	ZeroBlockSize     engine.Reason = "zero_block_size"     // rejected: tokens in blocks of none
	BlockSizeMismatch engine.Reason = "block_size_mismatch" // rejected: not the server's block size
	MixedBlockSize    engine.Reason = "mixed_block_size"    // rejected: larger blocks than the parent's
)

// Tally sums up one Apply.
type Tally struct {
	// Verdicts has one for each event, in wire order. It is overwritten by the
	// next Apply.
	Verdicts []engine.Verdict
	// Events by their status.
	Applied, Skipped, Rejected, Orphaned int
	// Invalidations is the number of rejected events that remove or clear, and
	// of those with an unknown tag, which may: if it is not zero, more may be
	// held here than there.
	Invalidations int
	Cleared       bool // the engine cleared its cache
	// Blocks, not events.
	OrphansAttached int
	OrphansDropped  int // by the bound, or because they did not fit their parent
	Evicted         int // engine blocks dropped to keep MaxBlocks
}

// Apply takes in a batch of a rank and returns what changed for the replica, in
// order, and what became of each event. The changes are the caller's.
func (r *Residency) Apply(rank int, b *engine.Batch) ([]Change, Tally) {
	r.verdicts = r.verdicts[:0]
	r.tally = Tally{}
	rs := r.rank(rank)
	for i := range b.Events {
		e := &b.Events[i]
		v := r.event(rs, e)
		r.verdicts = append(r.verdicts, v)
		r.count(e, v)
	}
	if len(rs.order) == 0 && !rs.lowerTier && !rs.partial && rs.touched == nil {
		delete(r.ranks, rank) // it has shown nothing worth a place
	}
	r.tally.Verdicts = r.verdicts
	return r.out.take(), r.tally
}

func (r *Residency) event(rs *rankState, e *engine.Event) engine.Verdict {
	if e.Verdict.Status != engine.OK {
		return e.Verdict
	}
	switch e.Kind {
	case engine.Stored:
		return r.stored(rs, e)
	case engine.Removed:
		return r.removed(rs, e)
	case engine.Cleared:
		r.clearCopies(rs)
		r.tally.Cleared = true
		return engine.Verdict{Status: engine.Applied}
	}
	return skipped(engine.UnknownTag)
}

func (r *Residency) count(e *engine.Event, v engine.Verdict) {
	switch v.Status {
	case engine.Applied:
		r.tally.Applied++
	case engine.Skipped:
		r.tally.Skipped++
	case engine.Rejected:
		r.tally.Rejected++
	case engine.Orphaned:
		r.tally.Orphaned++
	}
	lost := v.Status == engine.Rejected && e.Kind != engine.Stored
	if lost || v.Reason == engine.UnknownTag {
		r.tally.Invalidations++
	}
}

func skipped(reason engine.Reason) engine.Verdict {
	return engine.Verdict{Status: engine.Skipped, Reason: reason}
}

func rejected(reason engine.Reason, detail string) engine.Verdict {
	return engine.Verdict{Status: engine.Rejected, Reason: reason, Detail: detail}
}

// ClearRank forgets a rank as if it had never spoken: its engine restarted, or
// its history cannot be trusted.
func (r *Residency) ClearRank(rank int) []Change {
	if rs, ok := r.ranks[rank]; ok {
		r.clearCopies(rs)
		r.forgetRank(rs)
	} else if r.Len() == 0 {
		r.out.clear()
	}
	return r.out.take()
}

// SetPartial says whether the events that a rank sent until now are known only
// in part. A store that lists a prompt from its root may mention copies or add
// some, which cannot be told without what came before: then it adds none to
// blocks that are held, because a copy too many would stay when the engine has
// none left.
func (r *Residency) SetPartial(rank int, partial bool) {
	if rs, ok := r.ranks[rank]; ok || partial {
		if !ok {
			rs = r.rank(rank)
		}
		rs.partial = partial
	}
}

// ClearAll forgets everything.
func (r *Residency) ClearAll() []Change {
	for _, rs := range r.ranks {
		r.silently(func() { r.dropCopies(rs) })
		r.forgetRank(rs)
	}
	r.out.clear()
	return r.out.take()
}

// NameAdapters replaces the names of adapters, for stores to come. What was stored
// under another name stays there until the engine drops it.
func (r *Residency) NameAdapters(adapters map[int64]string) { r.config.Adapters = adapters }

// Holds reports whether a block of an adapter's partition is held.
func (r *Residency) Holds(adapter string, h kv.Hash) bool {
	id, ok := r.adapters.byName[adapter]
	return ok && r.named(id, h) != 0
}

// HoldsAny reports whether anything of a rank is held.
func (r *Residency) HoldsAny(rank int) bool {
	rs, ok := r.ranks[rank]
	if !ok {
		return false
	}
	for _, g := range rs.order {
		if g.held > 0 {
			return true
		}
	}
	return false
}

// WarmTokens is the room in tokens that what a rank holds in T1 takes up in its
// engine. Groups hold the same tokens, each in blocks of its own: the largest
// counts.
func (r *Residency) WarmTokens(rank int) int64 {
	var most int64
	if rs, ok := r.ranks[rank]; ok {
		for _, g := range rs.order {
			most = max(most, int64(g.warm)*int64(g.size))
		}
	}
	return most
}

// Len is the number of blocks held, each counted once for the replica.
func (r *Residency) Len() int { return r.blocks.len() }

// Stats is the state of a Residency in numbers.
type Stats struct {
	Held       [3]int // blocks by best tier: T1, T2, T3
	Holdings   int    // engine blocks known, over ranks and groups; bounded by MaxBlocks
	Separate   int    // of these, out of reach of plain lookups
	Multiple   int    // of these, with more than one copy
	Orphans    int    // blocks that wait for their parent
	Ranks      int
	Evicted    uint64 // engine blocks dropped to keep MaxBlocks, ever
	OrphanLoss uint64 // orphans dropped, ever
}

// Stats returns the present numbers at no cost.
func (r *Residency) Stats() Stats {
	s := r.stats
	s.Holdings = r.holdings.len()
	s.Orphans = r.orphans.count
	s.Ranks = len(r.ranks)
	return s
}
