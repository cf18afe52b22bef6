package index

import (
	"cmp"
	"slices"
	"strings"

	"inferencecache.io/inferencecache/internal/kv"
)

// candidate is a key, or one holder of it, that may have to go.
type candidate struct {
	rank    uint8 // counts no more, expired, live
	use     uint8 // 0 unless the tenant is LFU
	ord     uint16
	seen    tick
	tokens  int32
	p       *partition
	key     kv.Hash
	n       int    // how many keys up to this one
	replica string // of a holder
}

const (
	rankAbsent uint8 = iota
	rankExpired
	rankLive
)

// before is the order in which candidates go: the tail of a chain before its
// head, since a block without the ones before it never matches.
func (x *Index) before(a, b *candidate) int {
	if c := cmp.Compare(a.rank, b.rank); c != 0 {
		return c
	}
	if c := cmp.Compare(a.use, b.use); c != 0 {
		return c
	}
	if c := cmp.Compare(a.seen, b.seen); c != 0 {
		return c
	}
	if c := cmp.Compare(b.tokens, a.tokens); c != 0 {
		return c
	}
	if a.p != b.p {
		s, t := a.p.scope, b.p.scope
		return cmp.Or(strings.Compare(s.Tenant, t.Tenant), strings.Compare(s.Model, t.Model),
			strings.Compare(s.Scheme, t.Scheme), strings.Compare(a.p.adapter, b.p.adapter))
	}
	if a.key != b.key {
		return cmp.Compare(a.key, b.key)
	}
	return strings.Compare(a.replica, b.replica)
}

// first keeps the n candidates that go first: a heap with the last of them on
// top.
type first struct {
	x    *Index
	n    int
	heap []candidate
}

// first starts a choice of n. There is one at a time.
func (v *victims) first(x *Index, n int) *first {
	clear(v.heap)
	v.heap = v.heap[:0]
	return &first{x: x, n: n, heap: v.heap}
}

func (f *first) sorted() []candidate {
	slices.SortFunc(f.heap, func(a, b candidate) int { return f.x.before(&a, &b) })
	f.x.victims.heap = f.heap // for the next
	return f.heap
}

func (f *first) offer(c candidate) {
	if len(f.heap) < f.n {
		f.heap = append(f.heap, c)
		for i := len(f.heap) - 1; i > 0; {
			up := (i - 1) / 2
			if f.x.before(&f.heap[up], &f.heap[i]) >= 0 {
				break
			}
			f.heap[up], f.heap[i] = f.heap[i], f.heap[up]
			i = up
		}
		return
	}
	if f.n == 0 || f.x.before(&f.heap[0], &c) <= 0 {
		return
	}
	f.heap[0] = c
	for i := 0; ; {
		down := 2*i + 1
		if down >= len(f.heap) {
			return
		}
		if r := down + 1; r < len(f.heap) && f.x.before(&f.heap[r], &f.heap[down]) > 0 {
			down = r
		}
		if f.x.before(&f.heap[down], &f.heap[i]) <= 0 {
			return
		}
		f.heap[i], f.heap[down] = f.heap[down], f.heap[i]
		i = down
	}
}

// offerKeys offers each key of a segment, as old as its newest holder and as
// used as its most used one; whole: all of them at once, as if they were one.
func (f *first) offerKeys(now tick, p *partition, r ref, whole bool) {
	l := p.scope.tenant.limits.Load()
	g := f.x.heap.segment(r)
	spans := f.x.heap.spans(g)
	if whole {
		if c, ok := keyCandidate(now, l, p, spans, 0, g.n()); ok {
			c.key, c.n = kv.Hash(g.keys()[g.n()-1]), g.n()
			f.offer(c)
		}
		return
	}
	for off, k := range g.keys() {
		if c, ok := keyCandidate(now, l, p, spans, off, off+1); ok {
			c.key, c.n = kv.Hash(k), 1
			f.offer(c)
		}
	}
}

// keyCandidate sums up the spans over [from, to); ok is false if there are none.
func keyCandidate(now tick, l *Limits, p *partition, spans spans, from, to int) (c candidate, ok bool) {
	c = candidate{p: p, seen: noTick}
	expired := l.expired(now)
	for i := range spans.len() {
		s := spans.at(i)
		if s.to() <= from || s.from() >= to {
			continue
		}
		ok = true
		o := p.scope.ords[ordOf(s.who)]
		seen := full(now, seenOf(s.who))
		if o.dead || seen <= o.mark {
			continue
		}
		c.rank = max(c.rank, rankExpired)
		if seen > o.hides(expired) {
			c.rank = rankLive
		}
		c.seen = max(c.seen, seen)
		c.tokens = max(c.tokens, s.tokens(min(to, s.to())-1))
		if l.LFU {
			c.use = max(c.use, useOf(s.who))
		}
	}
	return c, ok
}

// offerHolders offers the holders of a segment's keys that are not dead, each
// for itself; whole: a span of keys at once.
func (f *first) offerHolders(now tick, p *partition, r ref, whole bool) {
	l := p.scope.tenant.limits.Load()
	expired := l.expired(now)
	g := f.x.heap.segment(r)
	spans := f.x.heap.spans(g)
	for i := range spans.len() {
		s := spans.at(i)
		o := p.scope.ords[ordOf(s.who)]
		if o.dead {
			continue
		}
		c := candidate{rank: rankLive, ord: ordOf(s.who), seen: full(now, seenOf(s.who)), p: p, n: 1, replica: o.id}
		switch {
		case c.seen <= o.mark:
			c.rank = rankAbsent
		case c.seen <= o.hides(expired):
			c.rank = rankExpired
		}
		if l.LFU {
			c.use = useOf(s.who)
		}
		from := s.from()
		if whole {
			from, c.n = s.to()-1, s.len()
		}
		for off := from; off < s.to() && !f.tooLate(c.rank, c.use, c.seen); off++ {
			c.key, c.tokens = kv.Hash(g.keys()[off]), s.tokens(off)
			f.offer(c)
		}
	}
}

// tooLate spares most holders of a window the making of a candidate.
func (f *first) tooLate(rank, use uint8, seen tick) bool {
	if len(f.heap) < f.n {
		return false
	}
	last := &f.heap[0]
	if rank != last.rank {
		return rank > last.rank
	}
	if use != last.use {
		return use > last.use
	}
	return seen > last.seen
}
