package subscriber

import (
	"inferencecache.io/inferencecache/internal/fingerprint"
	"inferencecache.io/inferencecache/internal/kv"
)

// maxOrphanTokens bounds what orphans may remember together: 16 MiB.
const maxOrphanTokens = 4 << 20

// orphan is a stored block whose parent is not known: announced before this
// subscriber listened, lost, or never announced at all. It is not a root, so it
// says nothing until the parent arrives.
type orphan struct {
	group   *blockGroup
	hash    uint64
	parent  uint64
	tokens  []uint32 // of this block alone; its length is the block size
	adapter uint32
	copies  copies

	older, newer *orphan // in age
	prev, next   *orphan // among the children of one parent
}

// orphanQueue keeps orphans by age, to drop the oldest.
type orphanQueue struct {
	limit          int
	count, tokens  int
	oldest, newest *orphan
}

func newOrphanQueue(limit int) orphanQueue { return orphanQueue{limit: limit} }

func (r *Residency) findOrphan(rs *rankState, index int, named bool, hash uint64) *orphan {
	if g := rs.groups[index]; g != nil {
		if o := g.orphans[hash]; o != nil {
			return o
		}
	}
	if !named {
		for _, g := range rs.order {
			if o := g.orphans[hash]; o != nil {
				return o
			}
		}
	}
	return nil
}

// wait makes an orphan, or adds a copy to one that waits already.
func (r *Residency) wait(g *blockGroup, hash, parent uint64, tokens []uint32, adapter uint32, t kv.Tier) {
	if o := g.orphans[hash]; o != nil {
		o.copies.add(t)
		return
	}
	if len(tokens) > maxOrphanTokens {
		r.lost()
		return
	}
	q := &r.orphans
	for q.count > 0 && (q.count >= q.limit || q.tokens+len(tokens) > maxOrphanTokens) {
		r.unlink(q.oldest)
		r.lost()
	}
	if g.orphans == nil {
		g.orphans, g.waiting = map[uint64]*orphan{}, map[uint64]*orphan{}
	}
	o := &orphan{
		group: g, hash: hash, parent: parent, adapter: adapter,
		tokens: append([]uint32(nil), tokens...),
		older:  q.newest,
		next:   g.waiting[parent],
	}
	o.copies.add(t)
	if o.older != nil {
		o.older.newer = o
	} else {
		q.oldest = o
	}
	if o.next != nil {
		o.next.prev = o
	}
	q.newest = o
	q.count++
	q.tokens += len(tokens)
	g.orphans[hash], g.waiting[parent] = o, o
	r.adapters.list[adapter].orphans++
}

func (r *Residency) lost() {
	r.tally.OrphansDropped++
	r.stats.OrphanLoss++
}

// unlink takes an orphan out of the queue and of its group.
func (r *Residency) unlink(o *orphan) {
	q, g := &r.orphans, o.group
	if o.older != nil {
		o.older.newer = o.newer
	} else {
		q.oldest = o.newer
	}
	if o.newer != nil {
		o.newer.older = o.older
	} else {
		q.newest = o.older
	}
	if o.next != nil {
		o.next.prev = o.prev
	}
	switch {
	case o.prev != nil:
		o.prev.next = o.next
	case o.next != nil:
		g.waiting[o.parent] = o.next
	default:
		delete(g.waiting, o.parent)
	}
	delete(g.orphans, o.hash)
	q.count--
	q.tokens -= len(o.tokens)
	r.adapters.list[o.adapter].orphans--
}

// link is a block that others may wait for: by its engine hash, with its place
// in a chain, or without one if it is in the separate space.
type link struct {
	hash  uint64
	place block
	apart bool
}

// attach gives those who wait for a block, and those who wait for them, their
// place. An orphan that does not fit is dropped.
func (r *Residency) attach(g *blockGroup, from link) {
	if len(g.waiting) == 0 {
		return
	}
	r.pending = append(r.pending[:0], from)
	for len(r.pending) > 0 {
		parent := r.pending[len(r.pending)-1]
		r.pending = r.pending[:len(r.pending)-1]
		for o := g.waiting[parent.hash]; o != nil; o = g.waiting[parent.hash] {
			r.unlink(o)
			child := link{hash: o.hash, apart: parent.apart}
			if child.apart {
				r.hold(g, o.hash, nil, o.copies)
			} else {
				if o.adapter != parent.place.adapter || len(o.tokens) != int(parent.place.size) || parent.place.full() {
					r.lost()
					continue
				}
				r.prefixes = fingerprint.AppendAfter(r.prefixes[:0], parent.place.prefix, o.tokens, len(o.tokens))
				child.place = parent.place.child(r.prefixes[0])
				r.hold(g, o.hash, &child.place, o.copies)
			}
			r.tally.OrphansAttached++
			r.pending = append(r.pending, child)
		}
	}
}
