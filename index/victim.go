package index

import (
	"cmp"
	"slices"
	"strings"
)

// candidate is a key, or one holder of it, that may have to go.
type candidate struct {
	rank    uint8 // counts no more, expired, live
	use     uint8 // 0 unless the tenant is LFU
	ord     uint16
	seen    tick
	tokens  int32
	p       *partition
	place   uint64
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
	if a.place != b.place {
		return cmp.Compare(x.key(a.place), x.key(b.place))
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

// keyCandidate is a key as old as its newest holder and as used as its most
// used one.
func keyCandidate(now tick, l *Limits, p *partition, t *table, s *slot) candidate {
	c := candidate{p: p, place: s.place, seen: noTick}
	expired := l.expired(now)
	for j, w := range t.holders(s) {
		o := p.scope.ords[ordOf(w)]
		seen := full(now, seenOf(w))
		if o.dead || seen <= o.mark {
			continue
		}
		c.rank = max(c.rank, rankExpired)
		if seen > expired {
			c.rank = rankLive
		}
		c.seen = max(c.seen, seen)
		c.tokens = max(c.tokens, t.tokensOf(s, j))
		if l.LFU {
			c.use = max(c.use, useOf(w))
		}
	}
	return c
}

// offerHolders offers the holders of a key that are live, or all.
func (f *first) offerHolders(now tick, p *partition, t *table, s *slot, all bool) {
	l := p.scope.tenant.limits.Load()
	expired := l.expired(now)
	for j, w := range t.holders(s) {
		o := p.scope.ords[ordOf(w)]
		if o.dead && !all {
			continue
		}
		rank, use, seen := rankLive, uint8(0), full(now, seenOf(w))
		switch {
		case o.dead || seen <= o.mark:
			rank = rankAbsent
		case seen <= expired:
			rank = rankExpired
		}
		if l.LFU {
			use = useOf(w)
		}
		if f.tooLate(rank, use, seen) {
			continue
		}
		f.offer(candidate{
			rank: rank, use: use, ord: ordOf(w), seen: seen,
			tokens: t.tokensOf(s, j), p: p, place: s.place, replica: o.id,
		})
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
