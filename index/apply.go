package index

import (
	"math"
	"sync"
	"time"

	"inferencecache.io/inferencecache/internal/kv"
)

// writer is the state of one Apply.
type writer struct {
	x       *Index
	now, at tick
	out     *Applied
	group   group
	tokens  [maxWindow]int32
	touched uint64
}

var writers = sync.Pool{New: func() any { return new(writer) }}

// farOver is by how much a batch may go over a count before its end.
const farOver = 512

// Apply carries out a batch, step by step, and then brings the tenant under
// its MaxKeys and the index under its MaxEntries. A step is not atomic for
// lookups: they may see the first keys of a chain before the last.
func (x *Index) Apply(now time.Time, b *Batch) (out Applied) {
	w := writers.Get().(*writer)
	defer writers.Put(w)
	w.x, w.out = x, &out
	w.now = ticks(now)
	w.at = min(ticks(b.Seen), w.now)
	for i := range b.Ops {
		switch op := &b.Ops[i]; op.Kind {
		case Store:
			w.store(b, op)
		case Remove:
			w.remove(b, op)
		case Clear:
			if s := x.pinScope(b.Scope, false); s != nil {
				s.clear(b.Replica, w.at)
				s.unpin()
			}
		default:
			panic("bug: index op of no kind")
		}
	}
	x.enforce(w.now, b.Scope.Tenant, 0, &out)
	w.x, w.out = nil, nil
	return out
}

func (w *writer) store(b *Batch, op *Op) {
	if op.Tier == kv.TierUnknown || op.Counts != nil && len(op.Counts) != len(op.Keys) {
		panic("bug: index store without a tier, or with counts for other keys")
	}
	limits := w.x.limitsOf(b.Scope.Tenant)
	switch {
	case len(op.Keys) == 0:
		return
	case w.at <= limits.expired(w.now):
		w.out.Stale += len(op.Keys)
		return
	case limits.MaxKeys == 0:
		w.out.Refused += len(op.Keys)
		return
	}
	s := w.x.pinScope(b.Scope, true)
	defer s.unpin()
	sum := int64(op.Tokens)
	for from := 0; from < len(op.Keys); from += maxWindow {
		keys := op.Keys[from:min(from+maxWindow, len(op.Keys))]
		for i := range keys {
			if op.Counts != nil {
				sum += int64(op.Counts[from+i])
			} else {
				sum += int64(op.Step)
			}
			w.tokens[i] = int32(min(max(sum, 0), math.MaxInt32))
		}
		w.group.fill(w.x, keys)
		w.storeChunk(s, limits, b.Replica, op, len(keys))
		w.x.enforce(w.now, b.Scope.Tenant, farOver, w.out)
	}
}

// storeChunk stores the n keys of w.group. Locks are let go of where room has
// to be made, and the replica looked up again behind it.
func (w *writer) storeChunk(s *scope, limits *Limits, replica string, op *Op, n int) {
	tries := 0
	for pos := 0; pos < n; {
		s.mu.RLock()
		ord, known := s.byID[replica]
		p := s.partitions[op.Adapter]
		if at, ok := s.cleared[replica]; ok && w.at < at || known && w.at < s.ords[ord].cleared {
			s.mu.RUnlock()
			w.out.Stale += n - pos
			return
		}
		room := true
		if known && p != nil {
			was := pos
			pos, room = w.storeLocked(p, ord, limits, op.Tier, pos, n)
			if pos > was {
				tries = 0
			}
		}
		s.mu.RUnlock()
		if !known || p == nil {
			s.mu.Lock()
			known = s.replicaLocked(replica)
			room = s.partitionLocked(op.Adapter) != nil
			s.mu.Unlock()
			if !known {
				w.out.Refused += n - pos
				return
			}
		}
		if room {
			continue
		}
		tries++
		place := w.group.places[w.group.order[pos]]
		if tries > maxTries || !w.x.makeRoom(w.now, p, place, w.out) {
			w.out.Refused++
			pos++
			tries = 0
		}
	}
}

// storeLocked stores from pos on, with the scope read-locked; room is false if
// the key at the returned pos found none.
func (w *writer) storeLocked(p *partition, ord uint16, limits *Limits, tier kv.Tier, pos, n int) (next int, room bool) {
	o := p.scope.ords[ord]
	stamp := o.stamp(w.at)
	if stamp > w.at {
		o.lifted.Store(true)
	}
	for newest := o.newest.Load(); newest < stamp && !o.newest.CompareAndSwap(newest, stamp); {
		newest = o.newest.Load()
	}
	e := entry{
		ord: ord, o: o, tier: tier, stamp: stamp,
		now: w.now, expired: limits.expired(w.now), budget: &w.x.budget,
	}
	room = true
	for room && pos < n {
		place := w.group.places[w.group.order[pos]]
		st := &p.stripes[stripeOf(place)]
		st.mu.Lock()
		end := w.group.start[stripeOf(place)+1]
		w.touched ^= st.touch(&w.group.places, w.group.order[pos:end])
		for room && pos < end {
			k := w.group.order[pos]
			if room = e.store(st, w.group.places[k], w.tokens[k], w.out); room {
				pos++
			}
		}
		st.mu.Unlock()
	}
	p.size(e.keys, e.held)
	p.scope.count(o, e.held)
	return pos, room
}

// entry is what a step stores under every key, and sums up what it did.
type entry struct {
	ord          uint16
	tier         kv.Tier
	o            *ordinal
	stamp        tick
	now, expired tick
	budget       *budget
	keys, held   int64
}

// store with the stripe locked; false without room.
func (e *entry) store(st *stripe, place uint64, tokens int32, out *Applied) bool {
	word := holder(uint32(e.stamp), e.ord, e.tier, 0)
	for {
		lacks := e.try(st.table(place), place, word, tokens, out)
		if lacks == nothing {
			return true
		}
		if !st.grow(e.budget, place, lacks) {
			return false
		}
	}
}

func (e *entry) try(t *table, place, word uint64, tokens int32, out *Applied) want {
	if t == nil {
		return aSlot
	}
	i, ok := t.find(place)
	if !ok {
		if t.full() || !t.insert(i, place, word, tokens) {
			return aSlot
		}
		e.keys++
		e.held++
		out.Added++
		return nothing
	}
	s := &t.slots[i]
	j := t.holderOf(s, e.ord)
	if j < 0 {
		if !t.add(s, word, tokens) {
			return aBlock
		}
		e.held++
		out.Added++
		return nothing
	}
	old := t.holders(s)[j]
	absent := e.o.absent(e.now, e.expired, seenOf(old))
	if !absent {
		if full(e.now, seenOf(old)) > e.stamp {
			out.Stale++
			return nothing
		}
		word |= uint64(useOf(old))
	}
	if !t.set(s, j, word, tokens) {
		return aBlock
	}
	if absent {
		out.Added++
	} else {
		out.Refreshed++
	}
	return nothing
}
