package index

import (
	"math"
	"time"

	"inferencecache.io/inferencecache/internal/kv"
)

const (
	maxWindow = 256 // keys stored under one lock
	farOver   = 512 // by how much a batch may go over a count before its end
	maxTries  = 32  // rounds of makeRoom for one key
)

// tail is the last key that was stored: its follower goes beside it. Between
// locks only the key is sure.
type tail struct {
	p *partition
	r ref
	k kv.Hash
}

// Apply carries out a batch, step by step, and then brings the tenant under
// its MaxKeys and the index under its MaxEntries. A step is not atomic for
// lookups: they may see the first keys of a chain before the last.
func (x *Index) Apply(now time.Time, b *Batch) (out Applied) {
	w := writers.Get().(*writer)
	defer writers.Put(w)
	w.start(x, ticks(now))
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
	x.enforce(w.now, b.Scope.Tenant, 0, &w.out)
	return w.end()
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
	if op.HasParent || op.Tokens <= 0 {
		w.tail = tail{}
	}
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
		w.storeWindow(s, limits, b.Replica, op, keys, len(op.Keys)-from-len(keys))
		w.x.enforce(w.now, b.Scope.Tenant, farOver, &w.out)
	}
}

// storeWindow stores keys, behind which the op has more. Locks are let go of
// where room has to be made, and the replica looked up again behind it.
func (w *writer) storeWindow(s *scope, limits *Limits, replica string, op *Op, keys []kv.Hash, more int) {
	tries := 0
	for pos := 0; pos < len(keys); {
		s.mu.RLock()
		ord, known := s.byID[replica]
		p := s.partitions[op.Adapter]
		if at, ok := s.cleared[replica]; ok && w.at < at || known && w.at < s.ords[ord].cleared {
			s.mu.RUnlock()
			w.out.Stale += len(keys) - pos
			return
		}
		room := true
		if known && p != nil {
			was := pos
			pos, room = w.storeLocked(p, ord, limits, op, keys, pos, more)
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
				w.out.Refused += len(keys) - pos
				return
			}
		}
		if room {
			continue
		}
		tries++
		if tries > maxTries || !w.x.makeRoom(w.now, &w.out) {
			w.out.Refused++
			pos++
			tries = 0
		}
	}
}

// storeLocked stores from pos on, with the scope read-locked; room is false if
// the key at the returned pos found none.
func (w *writer) storeLocked(p *partition, ord uint16, limits *Limits, op *Op, keys []kv.Hash, pos, more int) (next int, room bool) {
	o := p.scope.ords[ord]
	stamp := o.stamp(w.at)
	if stamp > w.at {
		o.lifted.Store(true)
	}
	for newest := o.newest.Load(); newest < stamp && !o.newest.CompareAndSwap(newest, stamp); {
		newest = o.newest.Load()
	}
	h := holding{o: o, ord: ord, stamp: stamp, expired: limits.expired(w.now), who: who(uint32(stamp), ord, op.Tier, 0)}
	p.mu.Lock()
	defer p.mu.Unlock()
	w.begin(w.x, p, w.now)
	defer w.done()
	w.resume(o, op, keys, pos)
	room = true
	touched := false
	for room && pos < len(keys) {
		r, off, ok := p.find(w.x, keys[pos])
		if !ok {
			if !touched {
				touch(w, keys[pos+1:])
				touched = true
			}
			pos, room = w.append(&h, keys, pos, more)
			continue
		}
		n := match(w.x.heap.segment(r), off, keys[pos:])
		if room = w.put(&h, r, off, n, pos); room {
			pos += n
			w.tail = tail{p, r, keys[pos-1]}
		}
	}
	if pos > 0 {
		o.tail.Store(uint64(keys[pos-1]))
	}
	p.scope.count(o, w.held)
	return pos, room
}

// resume looks for the key that the one at pos follows, to lay them side by
// side. Where nobody named it, it is taken to be what the replica stored last:
// a wrong guess costs locality, nothing else.
func (w *writer) resume(o *ordinal, op *Op, keys []kv.Hash, pos int) {
	before := op.Parent
	switch {
	case pos > 0:
		before = keys[pos-1]
	case w.tail.p == w.p:
		before = w.tail.k
	case op.HasParent:
	case op.Tokens > 0:
		before = kv.Hash(o.tail.Load())
	default:
		return
	}
	w.tail = tail{}
	if r, _, ok := w.p.find(w.x, before); ok {
		w.tail = tail{w.p, r, before}
	}
}

// holding is what a step stores under every key.
type holding struct {
	o              *ordinal
	ord            uint16
	stamp, expired tick
	who            uint64
}

// put stores n keys that are in a segment, of which the first is the window's
// key pos; false without room.
func (w *writer) put(h *holding, r ref, off, n, pos int) bool {
	g := w.x.heap.segment(r)
	added, fresh, refreshed, stale := 0, 0, 0, 0
	w.edit(g, h.ord, off, off+n, func(s span) {
		seen := seenOf(s.who)
		switch {
		case h.o.absent(w.now, h.expired, seen):
			added += s.len()
			w.lay(h.who, s.from(), s.to(), pos-off)
		case full(w.now, seen) > h.stamp:
			stale += s.len()
			w.push(s)
		default:
			refreshed += s.len()
			w.lay(h.who|uint64(useOf(s.who)), s.from(), s.to(), pos-off)
		}
	}, func(from, to int) {
		fresh += to - from
		w.lay(h.who, from, to, pos-off)
	})
	if !w.commit(r, g.n()) {
		return false
	}
	w.held += int64(fresh)
	w.out.Added += added + fresh
	w.out.Refreshed += refreshed
	w.out.Stale += stale
	return true
}

// lay pushes spans over [from, to), one for each run of equal steps in tokens;
// an offset and shift make an index into those.
func (w *writer) lay(who uint64, from, to, shift int) {
	for from < to {
		tokens := w.tokens[from+shift : to+shift]
		n, step := 1, 0
		if len(tokens) > 1 {
			if d := int(tokens[1]) - int(tokens[0]); d >= 0 && d <= maxStep {
				for step = d; n < len(tokens) && int(tokens[n])-int(tokens[n-1]) == d; {
					n++
				}
			}
		}
		w.push(newSpan(who, tokens[0], step, from, from+n))
		from += n
	}
}

// append stores keys from pos on that are in no segment, up to the next that
// is, behind the tail if there is space.
func (w *writer) append(h *holding, keys []kv.Hash, pos, more int) (next int, room bool) {
	run := 1
	for pos+run < len(keys) && run < segKeys {
		if _, _, ok := w.p.find(w.x, keys[pos+run]); ok {
			break
		}
		run++
	}
	if pos+run == len(keys) {
		more += run
	} else {
		more = run
	}
	r, ok := w.space(more)
	if !ok {
		return pos, false
	}
	g := w.x.heap.segment(r)
	at := g.n()
	run = min(run, capacity(g.class())-at)
	list := func(n int) {
		w.edit(g, h.ord, at, at+n, nil, func(from, to int) { w.lay(h.who, from, to, pos-at) })
	}
	list(run)
	n := 0
	if w.reserve(g) {
		for n < run && w.enter(keys[pos+n], r, at+n) {
			n++
		}
		if n < run && n > 0 {
			list(n)
		}
	}
	if n > 0 {
		w.commit(r, at+n)
		w.held += int64(n)
		w.out.Added += n
		w.tail = tail{w.p, r, keys[pos+n-1]}
	} else if at == 0 {
		w.x.heap.release(r, g.class())
	}
	if w.spare != 0 {
		w.x.heap.release(w.spare, w.ready)
		w.spare = 0
	}
	if n == run {
		return pos + n, true
	}
	// A key that stands twice in the run ends it just as a lack of budget does.
	_, _, twice := w.p.find(w.x, keys[pos+n])
	return pos + n, twice && n > 0
}

// space finds a segment with free offsets for keys that follow the tail:
// the tail's own, a larger one that it is moved to, or a new one.
func (w *writer) space(want int) (ref, bool) {
	h := w.x.heap
	if w.tail.p == w.p && w.tail.r != 0 {
		r := w.tail.r
		g := h.segment(r)
		n := g.n()
		if n < segKeys && n > 0 && g.keys()[n-1] == uint64(w.tail.k) {
			class := classFor(min(segKeys, n+want))
			if class <= g.class() {
				return r, true
			}
			if to, ok := w.rebuild(r, class); ok {
				return to, true
			}
			if n < capacity(g.class()) {
				return r, true
			}
		}
	}
	for class := int(classFor(want)); class >= 0; class-- {
		if r, ok := h.alloc(uint8(class)); ok {
			h.segment(r)[0] = numbers(0, 0, uint8(class), 0, 0)
			return r, true
		}
	}
	return 0, false
}

// enter writes a key behind the keys of a segment, where no reader looks yet,
// and makes its entry; false if it has one already, or without budget.
func (w *writer) enter(k kv.Hash, r ref, off int) bool {
	place := w.x.place(k)
	tag := tagOf(place)
	st := &w.p.stripes[stripeOf(place)]
	if _, _, ok := st.find(w.x.heap, tag, k); ok {
		return false
	}
	w.x.heap.segment(r)[headWords+off] = uint64(k)
	return st.insert(&w.x.budget, newEntry(tag, r, off))
}
