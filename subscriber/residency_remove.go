package subscriber

import (
	"inferencecache.io/inferencecache/internal/engine"
	"inferencecache.io/inferencecache/internal/kv"
)

// removed takes one copy of each hash from the tier that the event names.
func (r *Residency) removed(rs *rankState, e *engine.Event) engine.Verdict {
	t := tierOf(e)
	r.witness(rs, t)
	if len(e.Hashes) == 0 {
		return skipped(NoHashes)
	}
	named := e.Has(engine.GroupIdx)
	if g := rs.groups[e.GroupIdx]; named && g != nil && g.attention == attentionOther {
		return skipped(SecondaryGroup)
	}
	verdict := skipped(UnknownBlock)
	for i, hash := range e.Hashes {
		left := -1
		if e.Remaining != nil {
			left = e.Remaining[i]
		}
		_, at := r.find(rs, e.GroupIdx, named, hash.ID)
		found, had := at != 0, false
		if found {
			had = r.removeCopy(rs, at, t, left)
		} else if o := r.findOrphan(rs, e.GroupIdx, named, hash.ID); o != nil {
			found, had = true, r.removeOrphanCopy(o, t, left)
		}
		switch {
		case had:
			verdict = engine.Verdict{Status: engine.Applied}
		case found && verdict.Status == engine.Skipped:
			verdict = skipped(NoCopy)
		}
	}
	return verdict
}

// lower takes a copy from c, or leaves the number of them that the engine says,
// if it says one. It reports whether there was a copy.
func (c *copies) lower(t kv.Tier, left int) bool {
	n := &c[slot(t)]
	if *n == 0 {
		return false
	}
	*n--
	if left >= 0 {
		*n = uint8(min(left, maxCopies))
	}
	return true
}

func (r *Residency) removeCopy(rs *rankState, at uint32, t kv.Tier, left int) bool {
	h := r.holdings.at(at)
	c := h.copies
	if !c.lower(t, left) {
		return false
	}
	if c.sum() == 0 && t == kv.T1 && h.block != 0 && r.config.HasLowerTier && !rs.lowerTier {
		c[slot(kv.T2)] = 1
		h.assumed = true
		rs.assumed++
	}
	r.setCopies(at, c)
	return true
}

func (r *Residency) removeOrphanCopy(o *orphan, t kv.Tier, left int) bool {
	if !o.copies.lower(t, left) {
		return false
	}
	if o.copies.sum() == 0 {
		r.unlink(o)
	}
	return true
}
