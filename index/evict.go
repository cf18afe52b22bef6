package index

import (
	"cmp"
	"math"
	"sync"
)

const (
	exactKeys   = 2048 // up to so many the victims are the best of all
	clockKeys   = 4096 // else the best of the segments that start in a window of so many
	coldWindows = 4    // that makeRoom looks through
	clockTake   = 8    // at most so many of a window
	coldSlack   = 24   // what is younger by this share of its age is as cold
)

// victims serialises evictions, so that no two go for the same excess.
type victims struct {
	mu     sync.Mutex
	clock  clock     // over all partitions
	cold   candidate // makeRoom takes what is as cold as this
	next   candidate // the coldest that was not
	heap   []candidate
	writer writer
}

// add an eviction to the sums.
func (a *Applied) add(s *scope, r Reason, entries, keys int) {
	if entries == 0 {
		return
	}
	lfu := s.tenant.limits.Load().LFU
	for i := range a.Evicted {
		if e := &a.Evicted[i]; e.Tenant == s.Tenant && e.LFU == lfu && e.Reason == r {
			e.Entries += entries
			e.Keys += keys
			return
		}
	}
	a.Evicted = append(a.Evicted, Eviction{Tenant: s.Tenant, LFU: lfu, Reason: r, Entries: entries, Keys: keys})
}

// enforce brings keys of the tenant and entries of the index under their
// limits, unless they are over by no more than slack.
func (x *Index) enforce(now tick, name string, slack int64, out *Applied) {
	if t := x.tenant(name); t != nil && !t.probe {
		if l := t.limits.Load(); l.MaxKeys >= 0 && t.keys.Load() > l.MaxKeys+slack {
			x.victims.mu.Lock()
			x.enforceKeys(now, t, l, out)
			x.victims.mu.Unlock()
		}
	}
	if limit := x.config.MaxEntries; limit > 0 && x.live.Load() > limit+slack {
		x.victims.mu.Lock()
		x.enforceEntries(now, limit, out)
		x.victims.mu.Unlock()
	}
}

func (x *Index) enforceKeys(now tick, t *tenant, l *Limits, out *Applied) {
	for idle := 0; idle < 3; idle++ {
		keys := t.keys.Load()
		over := int(keys - l.MaxKeys)
		if over <= 0 {
			return
		}
		window, take, whole := clockKeys, clockTake, true
		if keys <= exactKeys {
			window, take, whole = int(keys), over, false
			t.clock = clock{}
		}
		f := x.victims.first(x, min(take, over))
		t.clock.tour(&t.list, scanned(window, whole), func(p *partition, r ref) { f.offerKeys(now, p, r, whole) })
		for _, c := range f.sorted() {
			if over = int(t.keys.Load() - l.MaxKeys); over > 0 && x.evictKeys(now, c, over, OverKeys, out) {
				idle = 0
			}
		}
	}
}

// scanned entries of a tour that is to meet all keys, of which there are few, or
// a window of them. Keys that nobody holds have entries too.
func scanned(window int, whole bool) int {
	if whole {
		return window
	}
	return math.MaxInt
}

func (x *Index) enforceEntries(now tick, limit int64, out *Applied) {
	for idle := 0; idle < 3; idle++ {
		held := x.held.Load()
		over := int(x.live.Load() - limit)
		if over <= 0 {
			return
		}
		window, take, whole := clockKeys, clockTake, true
		if held <= exactKeys {
			take, whole = over, false
			x.victims.clock = clock{}
		}
		f := x.victims.first(x, min(take, over))
		x.victims.clock.tour(&x.list, scanned(window, whole), func(p *partition, r ref) { f.offerHolders(now, p, r, whole) })
		for _, c := range f.sorted() {
			if over = int(x.live.Load() - limit); over > 0 && x.evictHolder(now, c, over, out) {
				idle = 0
			}
		}
	}
}

// makeRoom evicts some segments, whole; false if there was none. No lock may be
// held.
//
// Of each window the coldest may go, if they are as cold as what went lately.
// Where nothing is, a few windows on, what counts as cold is raised to the
// coldest that was found, and what is a little younger: so an idle tenant's
// segments go before those of a busy one, wherever the clock stands. Without
// the little, most windows would be looked through for nothing.
func (x *Index) makeRoom(now tick, out *Applied) (any bool) {
	v := &x.victims
	v.mu.Lock()
	defer v.mu.Unlock()
	for range coldWindows {
		f := v.first(x, clockTake)
		v.clock.tour(&x.list, clockKeys, func(p *partition, r ref) { f.offerKeys(now, p, r, true) })
		for _, c := range f.sorted() {
			if v.cold.before(&c) {
				if v.next.p == nil || c.before(&v.next) {
					v.next = c
				}
				break
			}
			any = x.evictKeys(now, c, segKeys, OverCap, out) || any
			if c.p.keys.Load() == 0 {
				x.sweeper.mu.Lock()
				x.free(c.p)
				x.sweeper.mu.Unlock()
			}
		}
		if any {
			return true
		}
	}
	found := v.next.p != nil
	v.cold, v.next = v.next, candidate{}
	v.cold.p = nil // it may be freed by now
	if v.cold.seen != noTick {
		v.cold.seen += (now - v.cold.seen) / coldSlack
	}
	return found
}

// before says whether a is colder than b, by rank, use and age.
func (a *candidate) before(b *candidate) bool {
	return cmp.Or(cmp.Compare(a.rank, b.rank), cmp.Compare(a.use, b.use), cmp.Compare(a.seen, b.seen)) < 0
}

// work on a partition of a victim.
func (x *Index) work(p *partition, now tick, do func(w *writer)) {
	p.scope.mu.RLock()
	defer p.scope.mu.RUnlock()
	p.mu.Lock()
	defer p.mu.Unlock()
	w := &x.victims.writer
	w.begin(x, p, now)
	do(w)
	w.done()
}

// evictKeys takes up to most keys of the candidate's segment away, the last
// first, with all their holders.
func (x *Index) evictKeys(now tick, c candidate, most int, why Reason, out *Applied) (any bool) {
	x.work(c.p, now, func(w *writer) {
		r, off, ok := c.p.find(x, c.key)
		if !ok {
			return
		}
		g := x.heap.segment(r)
		held := x.heap.spans(g).cover()
		from := off + 1
		for n := 0; from > 0 && n < min(c.n, most); {
			if from--; held.has(from) {
				n++
			}
		}
		entries := w.uncover(r, from, off+1)
		out.add(w.p.scope, why, entries, int(-w.keys))
		any = w.keys < 0
		w.settle(r)
	})
	return any
}

// uncover takes [from, to) of a segment from all holders, and what lies behind
// it too where a hole would need budget that is not there. It returns how many
// of them counted.
func (w *writer) uncover(r ref, from, to int) (entries int) {
	g := w.x.heap.segment(r)
	old := w.x.heap.spans(g)
	for {
		w.list = w.list[:0]
		for i := range old.len() {
			s := old.at(i)
			if s.from() < from {
				w.list = w.list.add(s.cut(s.from(), min(s.to(), from)))
			}
			if s.to() > to {
				w.list = w.list.add(s.cut(max(s.from(), to), s.to()))
			}
		}
		w.lost = append(w.lost[:0], old...)
		if w.commit(r, g.n()) {
			for i := range w.lost.len() {
				s := w.lost.at(i)
				if n := min(s.to(), to) - max(s.from(), from); n > 0 && w.lose(s, n) {
					entries += n
				}
			}
			return entries
		}
		to = g.n()
	}
}

// lose counts n keys of a span out, and says whether they counted.
func (w *writer) lose(s span, n int) bool {
	w.held -= int64(n)
	o := w.p.scope.ords[ordOf(s.who)]
	if o.dead {
		return false
	}
	w.p.scope.count(o, -int64(n))
	return full(w.now, seenOf(s.who)) > o.mark
}

// evictHolder takes up to most keys of the candidate's span from its holder, the
// last first.
func (x *Index) evictHolder(now tick, c candidate, most int, out *Applied) (any bool) {
	x.work(c.p, now, func(w *writer) {
		r, off, ok := c.p.find(x, c.key)
		if !ok {
			return
		}
		g := x.heap.segment(r)
		s, ok := x.heap.spans(g).find(c.ord, off)
		if !ok || full(now, seenOf(s.who)) != c.seen {
			return // reported anew since
		}
		any = true
		from := max(s.from(), off+1-min(c.n, most))
		w.edit(g, c.ord, from, off+1, func(span) {}, nil)
		n := off + 1 - from
		if !w.commit(r, g.n()) {
			w.edit(g, c.ord, from, s.to(), func(span) {}, nil)
			w.commit(r, g.n())
			n = s.to() - from
		}
		if w.lose(s, n) {
			keys := 0
			for i := from; i < from+n; i++ {
				if !w.counts(g, i) {
					keys++
				}
			}
			out.add(w.p.scope, OverCap, n, keys)
		}
		w.settle(r)
	})
	return any
}

// counts says whether a holder of the key at off is neither dead nor cleared.
func (w *writer) counts(g segment, off int) bool {
	l := w.x.heap.spans(g)
	for i := range l.len() {
		s := l.at(i)
		if s.from() > off || s.to() <= off {
			continue
		}
		if o := w.p.scope.ords[ordOf(s.who)]; !o.dead && full(w.now, seenOf(s.who)) > o.mark {
			return true
		}
	}
	return false
}
