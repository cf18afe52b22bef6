package index

import (
	"sync"
	"time"
)

// sweepSlots is how many slots a sweep looks at under one lock.
const sweepSlots = 256

// sweeper is where the pass under way has got to.
type sweeper struct {
	mu       sync.Mutex // held by whoever frees a partition, too
	begun    bool
	part     int
	place    uint64
	writer   writer
	segments []ref
}

// Sweep looks at up to the given number of keys, from where the last call
// ended to the end of the pass at most. It takes away what has expired
// (counted in Evicted) and what was cleared or killed (not counted), and frees
// what is empty.
func (x *Index) Sweep(now time.Time, slots int) (out Applied) {
	w := &x.sweeper
	w.mu.Lock()
	defer w.mu.Unlock()
	at := ticks(now)
	for slots > 0 {
		if !w.begun {
			x.started.Add(1)
			w.begun, w.part, w.place = true, 0, 0
		}
		p := x.list.at(w.part)
		if p == nil {
			x.tidy(at)
			w.begun = false
			x.passes.Add(1)
			return out
		}
		var seen int
		w.place, seen = w.sweep(x, p, at, w.place, min(slots, sweepSlots), &out)
		slots -= seen + 1
		if w.place == 0 && (p.keys.Load() > 0 || !x.free(p)) {
			w.part++
		}
	}
	return out
}

// sweep goes over the segments behind place, up to n keys further; next is 0
// behind the last.
func (sw *sweeper) sweep(x *Index, p *partition, now tick, place uint64, n int, out *Applied) (next uint64, seen int) {
	p.scope.mu.RLock()
	defer p.scope.mu.RUnlock()
	p.mu.Lock()
	defer p.mu.Unlock()
	sw.segments = sw.segments[:0]
	next, seen = p.scan(place, n, func(r ref) { sw.segments = append(sw.segments, r) })
	w := &sw.writer
	w.begin(x, p, now)
	for _, r := range sw.segments {
		w.reclaim(r, out)
	}
	w.done()
	return next, seen
}

// reclaim takes the absent spans of a segment away, and renews old stamps.
func (w *writer) reclaim(r ref, out *Applied) {
	s := w.p.scope
	expired := s.tenant.limits.Load().expired(w.now)
	g := w.x.heap.segment(r)
	l := w.x.heap.spans(g)
	w.list = w.list[:0]
	evicted, keys, renewed := 0, w.keys, false
	for i := range l.len() {
		sp := l.at(i)
		switch o := s.ords[ordOf(sp.who)]; {
		case !o.absent(w.now, expired, seenOf(sp.who)):
			fresh := sp.renew(w.now)
			renewed = renewed || fresh != sp
			w.list = w.list.add(fresh)
		case w.lose(sp, sp.len()):
			evicted += sp.len()
		}
	}
	if len(w.list) == len(l) && !renewed {
		return
	}
	w.commit(r, g.n())
	out.add(s, Expired, evicted, int(keys-w.keys))
	w.settle(r)
}

// free drops an empty partition, with the sweeper locked.
func (x *Index) free(p *partition) bool {
	s := p.scope
	s.mu.Lock()
	defer s.mu.Unlock()
	if p.keys.Load() != 0 || s.partitions[p.adapter] != p {
		return false
	}
	delete(s.partitions, p.adapter)
	x.budget.swap(partitionBytes, 0, 0)
	s.tenant.list.remove(p)
	if i := x.list.remove(p); i < x.sweeper.part {
		x.sweeper.part--
	} else if i == x.sweeper.part {
		x.sweeper.place = 0
	}
	return true
}

// tidy ends a pass: it forgets clears that are older than the TTL, replicas
// without entries, and then scopes and tenants without anything.
func (x *Index) tidy(now tick) {
	for _, t := range x.all() {
		expired := t.limits.Load().expired(now)
		for _, s := range t.every(func(scopeName) bool { return true }) {
			s.tidy(expired)
			s.unpin()
		}
		t.freeScopes()
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	for name, t := range x.tenants {
		if t.pins.Load() == 0 && t.empty() {
			delete(x.tenants, name)
		}
	}
}

func (s *scope) tidy(expired tick) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for id, at := range s.cleared {
		if at <= expired {
			delete(s.cleared, id)
		}
	}
	for id, ord := range s.byID {
		o := s.ords[ord]
		if o.entries.Load() == 0 && max(o.newest.Load(), o.cleared, o.vouched.Load()) <= expired {
			s.dieLocked(id)
		}
	}
}

func (t *tenant) freeScopes() {
	t.mu.Lock()
	defer t.mu.Unlock()
	used := map[string]bool{}
	for name, s := range t.scopes {
		if s.pins.Load() == 0 && s.empty() {
			delete(t.scopes, name)
		} else {
			used[name.model] = true
		}
	}
	for name := range t.models {
		if !used[name] {
			delete(t.models, name)
		}
	}
}

func (s *scope) empty() bool {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return len(s.partitions)+len(s.byID)+len(s.cleared) == 0
}

func (t *tenant) empty() bool {
	t.mu.RLock()
	defer t.mu.RUnlock()
	return len(t.scopes) == 0
}
