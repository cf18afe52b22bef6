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
	w.start(x, ticks(now))
	w.at = min(ticks(at), w.now)
	keys := [1]kv.Hash{key}
	for _, s := range t.every(func(n scopeName) bool { return n.model == model }) {
		s.mu.RLock()
		if ord, ok := s.byID[replica]; ok {
			for name, p := range s.partitions {
				if adapter == "" || name == adapter {
					w.removeLocked(p, ord, keys[:])
				}
			}
		}
		s.mu.RUnlock()
		s.unpin()
	}
	out = w.end()
	out.Unknown = 0
	if out.Removed+out.Stale == 0 {
		out.Unknown = 1
	}
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
		s.mu.RLock()
		ord, ok := s.byID[b.Replica]
		if p := s.partitions[op.Adapter]; ok && p != nil {
			w.removeLocked(p, ord, keys[:n])
		} else {
			w.out.Unknown += n
		}
		s.mu.RUnlock()
		keys = keys[n:]
	}
}

// removeLocked removes keys, with the scope read-locked.
func (w *writer) removeLocked(p *partition, ord uint16, keys []kv.Hash) {
	o := p.scope.ords[ord]
	at, expired := o.stamp(w.at), p.scope.tenant.limits.Load().expired(w.now)
	p.mu.Lock()
	defer p.mu.Unlock()
	w.begin(w.x, p, w.now)
	for len(keys) > 0 {
		r, off, ok := p.find(w.x, keys[0])
		if !ok {
			w.out.Unknown++
			keys = keys[1:]
			continue
		}
		g := w.x.heap.segment(r)
		n := match(g, off, keys)
		if n == 1 {
			n = matchBack(g, off, keys) // engines evict tails first
			off -= n - 1
		}
		keys = keys[n:]
		gone := 0
		w.edit(g, ord, off, off+n, func(s span) {
			seen := seenOf(s.who)
			switch absent := o.absent(w.now, expired, seen); {
			case !absent && full(w.now, seen) > at:
				w.out.Stale += s.len()
				w.push(s)
				return
			case absent:
				w.out.Unknown += s.len()
			default:
				w.out.Removed += s.len()
			}
			gone += s.len()
		}, func(from, to int) { w.out.Unknown += to - from })
		if gone == 0 {
			continue
		}
		if !w.commit(r, g.n()) {
			gone = w.curtail(r, ord, off)
		}
		w.held -= int64(gone)
		w.settle(r)
	}
	p.scope.count(o, w.held)
	w.done()
}

// curtail takes away all that an ordinal holds of a segment from an offset on:
// a hole in its span would need budget that is not there.
func (w *writer) curtail(r ref, ord uint16, from int) (gone int) {
	g := w.x.heap.segment(r)
	w.edit(g, ord, from, g.n(), func(s span) { gone += s.len() }, func(int, int) {})
	keys := w.keys
	w.commit(r, g.n())
	if gone > 1 {
		w.out.add(w.p.scope, OverCap, gone-1, int(max(0, keys-w.keys-1)))
	}
	return gone
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
	w := writers.Get().(*writer)
	defer writers.Put(w)
	part.mu.Lock()
	defer part.mu.Unlock()
	w.begin(x, part, 0)
	for len(keys) > 0 {
		r, off, ok := part.find(x, keys[0])
		if !ok {
			keys = keys[1:]
			continue
		}
		g := x.heap.segment(r)
		n := match(g, off, keys)
		keys = keys[n:]
		w.edit(g, ord, off, off+n, func(s span) {
			if useOf(s.who) < 255 {
				s.who++
			}
			w.push(s)
		}, func(int, int) {})
		w.commit(r, g.n()) // without budget the use is not counted
	}
	w.done()
}
