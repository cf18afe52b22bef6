package index

import (
	"time"

	"inferencecache.io/inferencecache/internal/kv"
)

// Remove takes one key of a replica away, under every scheme of (tenant, model)
// and under one adapter, or all of them with "". An entry stamped after at
// stays and counts as stale.
func (x *Index) Remove(now time.Time, tenant, model, replica, adapter string, key kv.Hash, at time.Time) (out Applied) {
	t := x.tenant(tenant)
	if t == nil {
		return Applied{Unknown: 1}
	}
	w := writers.Get().(*writer)
	defer writers.Put(w)
	w.x, w.out = x, &out
	w.now = ticks(now)
	w.at = min(ticks(at), w.now)
	w.group.fill(x, []kv.Hash{key})
	for _, s := range t.every(func(n scopeName) bool { return n.model == model }) {
		s.mu.RLock()
		if ord, ok := s.byID[replica]; ok {
			for name, p := range s.partitions {
				if adapter == "" || name == adapter {
					w.removeLocked(p, ord)
				}
			}
		}
		s.mu.RUnlock()
		s.unpin()
	}
	out.Unknown = 0
	if out.Removed+out.Stale == 0 {
		out.Unknown = 1
	}
	w.x, w.out = nil, nil
	return out
}

func (w *writer) remove(b *Batch, op *Op) {
	s := w.x.pinScope(b.Scope, false)
	if s == nil {
		w.out.Unknown += len(op.Keys)
		return
	}
	defer s.unpin()
	for keys := op.Keys; len(keys) > 0; {
		n := min(len(keys), maxWindow)
		w.group.fill(w.x, keys[:n])
		keys = keys[n:]
		s.mu.RLock()
		ord, ok := s.byID[b.Replica]
		if p := s.partitions[op.Adapter]; ok && p != nil {
			w.removeLocked(p, ord)
		} else {
			w.out.Unknown += n
		}
		s.mu.RUnlock()
	}
}

// removeLocked removes the keys of w.group, with the scope read-locked.
func (w *writer) removeLocked(p *partition, ord uint16) {
	o := p.scope.ords[ord]
	limits := p.scope.tenant.limits.Load()
	at, expired := o.stamp(w.at), limits.expired(w.now)
	var keys, held int64
	for i := range p.stripes {
		in := w.group.in(i)
		if len(in) == 0 {
			continue
		}
		st := &p.stripes[i]
		st.mu.Lock()
		for _, k := range in {
			place := w.group.places[k]
			t, slot, j := st.holder(place, ord)
			if t == nil {
				w.out.Unknown++
				continue
			}
			seen := seenOf(t.holders(&t.slots[slot])[j])
			switch absent := o.absent(w.now, expired, seen); {
			case !absent && full(w.now, seen) > at:
				w.out.Stale++
				continue
			case absent:
				w.out.Unknown++
			default:
				w.out.Removed++
			}
			held--
			if t.drop(slot, j) {
				keys--
			}
			st.trim(&w.x.budget, place, false)
		}
		st.mu.Unlock()
	}
	p.size(keys, held)
	p.scope.count(o, held)
}

// holder finds what a replica holds under a place; t is nil if nothing.
func (st *stripe) holder(place uint64, ord uint16) (t *table, i, j int) {
	t = st.table(place)
	if t == nil {
		return nil, 0, 0
	}
	i, ok := t.find(place)
	if !ok {
		return nil, 0, 0
	}
	if j = t.holderOf(&t.slots[i], ord); j < 0 {
		return nil, 0, 0
	}
	return t, i, j
}

// Clear forgets what a replica reported up to at of (tenant, model), under all
// schemes and adapters. The time it takes does not depend on how much that is.
func (x *Index) Clear(now time.Time, tenant, model, replica string, at time.Time) {
	t := x.tenant(tenant)
	if t == nil {
		return
	}
	for _, s := range t.every(func(n scopeName) bool { return n.model == model }) {
		s.clear(replica, min(ticks(at), ticks(now)))
		s.unpin()
	}
}

func (s *scope) clear(replica string, at tick) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.clearLocked(replica, at)
}

// Kill forgets all that a replica reported to a tenant, as fast as Clear.
func (x *Index) Kill(tenant, replica string) {
	t := x.tenant(tenant)
	if t == nil {
		return
	}
	for _, s := range t.every(func(scopeName) bool { return true }) {
		s.mu.Lock()
		s.dieLocked(replica)
		s.mu.Unlock()
		s.unpin()
	}
}

// Credit counts one use of each key that a replica holds, for LFU tenants.
func (x *Index) Credit(p kv.Partition, replica string, keys []kv.Hash) {
	s := x.scope(p.Scope)
	if s == nil || !s.tenant.limits.Load().LFU {
		return
	}
	s.mu.RLock()
	defer s.mu.RUnlock()
	ord, ok := s.byID[replica]
	part := s.partitions[p.Adapter]
	if !ok || part == nil {
		return
	}
	for _, k := range keys {
		place := x.place(k)
		st := &part.stripes[stripeOf(place)]
		st.mu.Lock()
		if t, i, j := st.holder(place, ord); t != nil {
			if w := &t.holders(&t.slots[i])[j]; useOf(*w) < 255 {
				*w++
			}
		}
		st.mu.Unlock()
	}
}
