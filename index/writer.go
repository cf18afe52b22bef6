package index

import (
	"bytes"
	"sync"
	"unsafe"

	"inferencecache.io/inferencecache/internal/kv"
)

// writer changes partitions, one at a time. Whoever uses it holds the scope's
// mu to read and the partition's mu.
type writer struct {
	x       *Index
	now, at tick
	out     Applied
	p       *partition
	keys    int64 // change of the partition's sizes, for done
	held    int64
	tokens  [maxWindow]int32
	tail    tail  // where the last key was stored
	list    spans // the spans that a segment is to have
	lost    spans // those that uncover replaces
	own     int   // where those of the ordinal in work begin in list
	spare   ref   // block kept ready for commit
	ready   uint8 // its class
	touched uint64
}

var writers = sync.Pool{New: func() any { return new(writer) }}

// start what a caller asked for.
func (w *writer) start(x *Index, now tick) { w.x, w.now, w.out, w.tail = x, now, Applied{}, tail{} }

// end it, and say what became of it.
func (w *writer) end() (out Applied) {
	out = w.out
	w.x, w.out, w.tail = nil, Applied{}, tail{}
	return out
}

// begin work on a partition.
func (w *writer) begin(x *Index, p *partition, now tick) {
	w.x, w.p, w.now = x, p, now
}

// done adds to the sizes of the partition.
func (w *writer) done() {
	w.p.size(w.keys, w.held)
	w.keys, w.held, w.p = 0, 0, nil
}

// find where a key lies.
func (p *partition) find(x *Index, k kv.Hash) (r ref, off int, ok bool) {
	place := x.place(k)
	return p.stripes[stripeOf(place)].find(x.heap, tagOf(place), k)
}

func (st *stripe) find(h *heap, tag uint64, k kv.Hash) (r ref, off int, ok bool) {
	t := st.table(tag)
	if t == nil {
		return 0, 0, false
	}
	for i := t.at(tag); ; i++ {
		e := t.entries[i]
		if e == 0 || e.tag() != tag {
			return 0, 0, false
		}
		if g := h.segment(e.ref()); g[headWords+e.off()] == uint64(k) {
			return e.ref(), e.off(), true
		}
	}
}

// touch reads the homes of keys. What follows branches on what it reads, one
// key after the other; these reads wait for memory all at once.
func touch[K ~uint64](w *writer, keys []K) {
	for _, k := range keys {
		place := w.x.place(kv.Hash(k))
		tag := tagOf(place)
		if t := w.p.stripes[stripeOf(place)].table(tag); t != nil {
			w.touched ^= uint64(t.entries[home(tag, t.depth, t.main)])
		}
	}
}

// match counts the keys that lie one behind the other from offset off on.
func match(g segment, off int, keys []kv.Hash) int {
	have := g.keys()[off:]
	n := min(len(have), len(keys))
	if bytes.Equal(bytesOf(have[:n]), bytesOf(keys[:n])) { // many at a time
		return n
	}
	for i, k := range have[:n] {
		if k != uint64(keys[i]) {
			return i
		}
	}
	return n
}

// bytesOf keys, where they lie.
func bytesOf[K ~uint64](keys []K) []byte {
	return unsafe.Slice((*byte)(unsafe.Pointer(unsafe.SliceData(keys))), kv.HashSize*len(keys))
}

// matchBack counts the keys that lie one before the other from offset off on.
func matchBack(g segment, off int, keys []kv.Hash) int {
	have := g.keys()[:off+1]
	n := 1
	for n < min(len(have), len(keys)) && have[off-n] == uint64(keys[n]) {
		n++
	}
	return n
}

// push a span of the ordinal in work.
func (w *writer) push(s span) {
	if n := len(w.list); n > w.own {
		if one, ok := join(w.list.at(n/2-1), s); ok {
			w.list[n-2], w.list[n-1] = one.who, one.what
			return
		}
	}
	w.list = w.list.add(s)
}

// edit makes the list of a segment's spans with changes to what one ordinal
// holds of [from, to): had is shown each span there, gap what lies between,
// in order; what they push takes its place.
func (w *writer) edit(g segment, ord uint16, from, to int, had func(span), gap func(from, to int)) {
	old := w.x.heap.spans(g)
	lo, hi := old.of(ord)
	w.list = append(w.list[:0], old[:2*lo]...)
	w.own = len(w.list)
	at := from
	between := func(end int) {
		if at < end {
			gap(at, end)
			at = end
		}
	}
	for i := lo; i < hi; i++ {
		s := old.at(i)
		if s.from() >= to {
			between(to)
		}
		if s.to() <= from || s.from() >= to {
			w.push(s)
			continue
		}
		start, end := max(s.from(), from), min(s.to(), to)
		if s.from() < start {
			w.push(s.cut(s.from(), start))
		}
		between(start)
		had(s.cut(start, end))
		at = end
		if end < s.to() {
			w.push(s.cut(end, s.to()))
		}
	}
	between(to)
	w.list = append(w.list, old[2*hi:]...)
}

// reserve a block that commit may need for the list; false without budget.
func (w *writer) reserve(g segment) bool {
	n := w.list.len()
	if n <= 1 || g.count() > 1 && n <= spanRoom(g.spanClass()) {
		return true
	}
	var ok bool
	w.ready = spanClassFor(n)
	w.spare, ok = w.x.heap.alloc(w.ready)
	return ok
}

// commit gives a segment the spans of the list and n keys. Without budget it
// changes nothing and returns false; that does not happen behind reserve, nor
// if the list is not longer than what it replaces.
func (w *writer) commit(r ref, n int) bool {
	h := w.x.heap
	g := h.segment(r)
	count := w.list.len()
	block, class, was := ref(g[1]), g.spanClass(), g.count()
	if count > 1 && (was <= 1 || count > spanRoom(class) || class > 0 && count <= spanRoom(class)/4) {
		fresh, fits := w.spare, w.ready
		ok := fresh != 0
		if !ok {
			fits = spanClassFor(count)
			fresh, ok = h.alloc(fits)
		}
		switch {
		case ok:
			w.spare, block, class = 0, fresh, fits
			copy(h.words(block), w.list)
		case was <= 1 || count > spanRoom(class):
			return false
		}
	}
	live := w.list.cover().len()
	w.keys += int64(live - g.live())
	old, oldClass := ref(g[1]), g.spanClass()
	mu := w.x.guards.of(r)
	lock(mu)
	switch {
	case count > 1:
		if was > 1 && block == old {
			copy(h.words(block), w.list)
		}
		g[1] = uint64(block)
	case count == 1:
		g[1], g[2] = w.list[0], w.list[1]
	}
	g[0] = numbers(n, live, g.class(), class, count)
	mu.Unlock()
	if was > 1 && (count <= 1 || block != old) {
		h.release(old, oldClass)
	}
	return true
}

// settle frees a segment that nobody holds a key of, and packs one that is
// mostly such keys.
func (w *writer) settle(r ref) {
	g := w.x.heap.segment(r)
	switch n, live := g.n(), g.live(); {
	case live == 0:
		touch(w, g.keys())
		for off, k := range g.keys() {
			w.erase(k, r, off)
		}
		w.x.heap.release(r, g.class())
	case n > 4 && live <= n/2:
		w.rebuild(r, classFor(live))
	}
	if w.tail.r == r {
		w.tail = tail{}
	}
}

func (w *writer) erase(k uint64, r ref, off int) {
	place := w.x.place(kv.Hash(k))
	w.p.stripes[stripeOf(place)].erase(&w.x.budget, newEntry(tagOf(place), r, off))
}

// rebuild moves the keys of a segment that are held to a block of a class. The
// old block stays as it is until no entry leads there: a reader has the lock of
// the stripe that led it.
func (w *writer) rebuild(r ref, class uint8) (to ref, ok bool) {
	h := w.x.heap
	old := h.segment(r)
	l := h.spans(old)
	held := l.cover()
	if to, ok = h.alloc(class); !ok {
		return 0, false
	}
	g := h.segment(to)
	dst := spans(g[1:3])
	if l.len() > 1 {
		block, ok := h.alloc(old.spanClass())
		if !ok {
			h.release(to, class)
			return 0, false
		}
		g[1] = uint64(block)
		dst = h.words(block)
	}
	var moved [segKeys + 1]int
	n := 0
	for off, k := range old.keys() {
		moved[off] = n
		if held.has(off) {
			g[headWords+n] = k
			n++
		}
	}
	moved[old.n()] = n
	for i := range l.len() {
		s := l.at(i)
		s = newSpan(s.who, s.tokens(s.from()), s.step(), moved[s.from()], moved[s.to()])
		dst[2*i], dst[2*i+1] = s.who, s.what
	}
	g[0] = numbers(n, n, class, old.spanClass(), l.len())
	touch(w, old.keys())
	for off, k := range old.keys() {
		if !held.has(off) {
			w.erase(k, r, off)
			continue
		}
		place := w.x.place(kv.Hash(k))
		tag := tagOf(place)
		w.p.stripes[stripeOf(place)].change(newEntry(tag, r, off), newEntry(tag, to, moved[off]))
	}
	if l.len() > 1 {
		h.release(ref(old[1]), old.spanClass())
	}
	h.release(r, old.class())
	return to, true
}
