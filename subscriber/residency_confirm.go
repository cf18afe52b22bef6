package subscriber

import "inferencecache.io/inferencecache/internal/kv"

// Watch begins or ends to remember which blocks of a rank change.
func (r *Residency) Watch(rank int, on bool) {
	rs, ok := r.ranks[rank]
	switch {
	case !ok && on:
		rs = r.rank(rank)
	case !ok:
		return
	}
	rs.touched = nil
	if on {
		rs.touched = map[uint64]struct{}{}
	}
}

// Confirm compares what a rank holds in its own memory with what its engine
// says that it holds, by engine hash. Blocks that the engine does not have lose
// their copies there; those that changed since Watch are left alone. unknown is
// how many blocks of the engine are not known here.
func (r *Residency) Confirm(rank int, blocks map[uint64]struct{}) (changes []Change, refuted, unknown int) {
	rs, ok := r.ranks[rank]
	if !ok || rs.touched == nil {
		return nil, 0, 0
	}
	touched := rs.touched
	rs.touched = nil
	known := 0
	for _, g := range rs.order {
		r.each(g, func(at uint32) {
			h := r.holdings.at(at)
			if _, held := blocks[h.hash]; held {
				known++
				return
			}
			if _, newer := touched[h.hash]; newer || h.copies[slot(kv.T1)] == 0 {
				return
			}
			c := h.copies
			c[slot(kv.T1)] = 0
			r.setCopies(at, c)
			refuted++
		})
	}
	return r.out.take(), refuted, max(0, len(blocks)-known)
}
