package index

import (
	"sync"
	"time"
)

// sweepSlots is how many slots a sweep looks at under one lock.
const sweepSlots = 256

// sweeper is where the pass under way has got to.
type sweeper struct {
	mu    sync.Mutex // held by whoever frees a partition, too
	begun bool
	part  int
	place uint64
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
		w.place, seen = p.sweep(at, w.place, min(slots, sweepSlots), &out)
		slots -= seen + 1
		if w.place == 0 && (p.keys.Load() > 0 || !x.free(p)) {
			w.part++
		}
	}
	return out
}

// sweep looks at up to n keys of the table at place; next is 0 behind the last
// table.
func (p *partition) sweep(now tick, place uint64, n int, out *Applied) (next uint64, seen int) {
	s := p.scope
	s.mu.RLock()
	defer s.mu.RUnlock()
	expired := s.tenant.limits.Load().expired(now)
	st := &p.stripes[stripeOf(place)]
	st.mu.Lock()
	defer st.mu.Unlock()
	t := st.table(place)
	if t == nil {
		next, _ = (&table{}).after(place)
		return next, 0
	}
	next, _ = t.after(place)
	for i := t.seek(place); i < len(t.slots); i = t.next(i) {
		if seen == n {
			next = t.slots[i].place
			break
		}
		seen++
		if !p.sweepSlot(now, expired, t, i, out) {
			i++
		}
	}
	st.trim(&s.tenant.index.budget, place, false)
	return next, seen
}

// sweepSlot takes away the absent holders of slot i; gone if it was all of them.
func (p *partition) sweepSlot(now, expired tick, t *table, i int, out *Applied) (gone bool) {
	s := p.scope
	sl := &t.slots[i]
	evicted := 0
	for j := int(sl.n) - 1; j >= 0; j-- {
		w := t.holders(sl)[j]
		o := s.ords[ordOf(w)]
		if !o.absent(now, expired, seenOf(w)) {
			continue
		}
		if !o.dead {
			s.count(o, -1)
			if full(now, seenOf(w)) > o.mark {
				evicted++
			}
		}
		if gone = t.drop(i, j); gone {
			p.size(-1, -1)
			break
		}
		p.size(0, -1)
	}
	keys := 0
	if gone {
		keys = 1
	}
	out.add(s, Expired, evicted, keys)
	return gone
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
	for i := range p.stripes {
		st := &p.stripes[i]
		st.mu.Lock()
		x.budget.swap(st.bytes(), 0)
		st.dir, st.depth = nil, 0
		st.mu.Unlock()
	}
	x.budget.swap(partitionBytes, 0)
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
		if o.entries.Load() == 0 && max(o.newest.Load(), o.cleared) <= expired {
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
