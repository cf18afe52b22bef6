package index

import (
	"errors"
	"fmt"
	"math"

	"inferencecache.io/inferencecache/internal/kv"
)

// Check proves what the index believes of itself: order and gaps of the
// tables, an entry for each key of a segment and none besides, blocks of the
// heap, and every counter. Nothing may write meanwhile.
func (x *Index) Check() error {
	var errs []error
	var bytes, units, live, held int64
	parts := 0
	for _, t := range x.all() {
		c := &checker{}
		for _, s := range t.every(func(scopeName) bool { return true }) {
			c.scope(s)
			parts += len(s.partitions)
			s.unpin()
		}
		c.equal("tenant entries", t.live.Load(), c.live)
		c.equal("tenant keys", t.keys.Load(), c.keys)
		c.equal("tenant holders", t.held.Load(), c.held)
		for _, m := range t.models {
			c.keys -= m.keys.Load()
			c.live -= m.live.Load()
		}
		c.equal("keys of models", 0, c.keys)
		c.equal("entries of models", 0, c.live)
		c.equal("pins", int64(t.pins.Load()), 0)
		bytes += c.bytes
		units += c.units
		if !t.probe {
			live += t.live.Load()
			held += t.held.Load()
		}
		if err := errors.Join(c.errs...); err != nil {
			errs = append(errs, fmt.Errorf("tenant %q: %w", t.name, err))
		}
	}
	c := &checker{errs: errs, units: units}
	bytes += c.heap(x.heap)
	c.equal("bytes", x.budget.used.Load(), bytes)
	c.equal("entries", x.live.Load(), live)
	c.equal("holders", x.held.Load(), held)
	c.equal("partitions", int64(x.list.len()), int64(parts))
	if x.budget.limit > 0 && bytes > x.budget.limit {
		c.fail("%d bytes, over the budget of %d", bytes, x.budget.limit)
	}
	return errors.Join(c.errs...)
}

// checker sums up what it meets, and what is wrong with it.
type checker struct {
	keys, held, live, bytes, units int64
	errs                           []error
}

func (c *checker) fail(format string, args ...any) {
	c.errs = append(c.errs, fmt.Errorf(format, args...))
}

func (c *checker) equal(what string, got, want int64) {
	if got != want {
		c.fail("%s: %d counted, %d found", what, got, want)
	}
}

func (c *checker) scope(s *scope) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	c.equal("pins of a scope", int64(s.pins.Load()), 1)
	held := make([]int64, len(s.ords))
	var keys, live int64
	for _, p := range s.partitions {
		n := &checker{}
		n.partition(p, held)
		n.equal("partition keys", p.keys.Load(), n.keys)
		n.equal("partition holders", p.held.Load(), n.held)
		keys += n.keys
		c.held += n.held
		c.bytes += n.bytes + partitionBytes
		c.units += n.units
		c.errs = append(c.errs, n.errs...)
	}
	for i, o := range s.ords {
		ord, named := s.byID[o.id]
		named = named && int(ord) == i
		if named == o.dead {
			c.fail("replica %q: dead %t, but named %t", o.id, o.dead, named)
		}
		if o.dead {
			c.equal("entries of a dead replica", o.entries.Load(), 0)
			continue
		}
		c.equal("entries of "+o.id, o.entries.Load(), held[i])
		live += held[i]
	}
	c.equal("ordinals", int64(len(s.ords)), int64(len(s.byID)+len(s.dead)))
	c.equal("scope keys", s.keys.Load(), keys)
	c.equal("scope entries", s.live.Load(), live)
	c.keys += keys
	c.live += live
}

func (c *checker) partition(p *partition, held []int64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	entries := 0
	for i := range p.stripes {
		st := &p.stripes[i]
		c.bytes += st.bytes()
		for at := 0; at < len(st.dir); {
			t := st.dir[at]
			span := 1 << (st.depth - t.depth)
			for j := range span {
				if at&(span-1) != 0 || st.dir[at+j] != t {
					c.fail("stripe %d: directory entry %d is not the table's", i, at+j)
				}
			}
			c.table(t, uint64(at)<<(tagBits-st.depth))
			entries += t.used
			at += span
		}
	}
	in := 0
	p.scan(0, math.MaxInt, func(r ref) { in += c.segment(p, r, held) })
	c.equal("entries", int64(entries), int64(in))
}

func (c *checker) table(t *table, prefix uint64) {
	used := 0
	last := -1
	for i, e := range t.entries {
		if e == 0 {
			continue
		}
		used++
		if t.depth > 0 && (e.tag()^prefix)>>(tagBits-t.depth) != 0 {
			c.fail("tag %x in the table of %x", e.tag(), prefix)
		}
		if last >= 0 && t.entries[last].tag() > e.tag() {
			c.fail("tags out of order at entry %d", i)
		}
		if h := home(e.tag(), t.depth, t.main); h > i || h < i && last != i-1 {
			c.fail("entry %d lies %d from home, behind a gap", i, i-h)
		}
		last = i
	}
	if t.entries[len(t.entries)-1] != 0 {
		c.fail("no empty entry at the end")
	}
	c.equal("entries of a table", int64(t.used), int64(used))
}

// segment returns how many entries lead to it.
func (c *checker) segment(p *partition, r ref, held []int64) int {
	x := p.scope.tenant.index
	g := x.heap.segment(r)
	l := x.heap.spans(g)
	c.units += 1 << g.class()
	if l.len() > 1 {
		c.units += 1 << g.spanClass()
		if l.len() > spanRoom(g.spanClass()) {
			c.fail("segment %d: block of spans too short", r)
		}
	}
	if g.n() == 0 || g.n() > capacity(g.class()) || g.live() == 0 {
		c.fail("segment %d: %d keys, %d held, in a block of class %d", r, g.n(), g.live(), g.class())
	}
	for off, k := range g.keys() {
		if at, o, ok := p.find(x, kv.Hash(k)); !ok || at != r || o != off {
			c.fail("segment %d: key %d is found at %d, %d, %t", r, off, at, o, ok)
		}
	}
	for i := range l.len() {
		s := l.at(i)
		if s.from() >= s.to() || s.to() > g.n() {
			c.fail("segment %d: span over %d to %d of %d keys", r, s.from(), s.to(), g.n())
		}
		if i > 0 {
			if b := l.at(i - 1); ordOf(b.who) > ordOf(s.who) || ordOf(b.who) == ordOf(s.who) && b.to() > s.from() {
				c.fail("segment %d: span %d out of order", r, i)
			}
		}
		held[ordOf(s.who)] += int64(s.len())
		c.held += int64(s.len())
	}
	live := l.cover().len()
	c.equal("keys held in a segment", int64(g.live()), int64(live))
	c.keys += int64(live)
	return g.n()
}

// heap checks the free lists, and returns the bytes of all slabs.
func (c *checker) heap(h *heap) (bytes int64) {
	h.mu.Lock()
	defer h.mu.Unlock()
	var size, used, free int64
	for no, s := range h.slabs {
		if s.state == nil {
			continue
		}
		bytes += slabBytes(s.class)
		size += 1 << s.class
		used += int64(s.used)
		for unit, state := range s.state {
			if state == 0 {
				continue
			}
			free += 1 << (state - 1)
			if unit&(1<<(state-1)-1) != 0 {
				c.fail("slab %d: free block of class %d at unit %d", no, state-1, unit)
			}
		}
	}
	for class, r := range h.free {
		for ; r != 0; r = ref(h.words(r)[0]) {
			free -= 1 << class
			if h.slabs[r.slab()].state[r.unit()] != uint8(class+1) {
				c.fail("free block %d is not marked so", r)
			}
		}
	}
	c.equal("units", h.size, size)
	c.equal("units in use by slabs", h.used, used)
	c.equal("units in use by segments", h.used, c.units)
	c.equal("free units", h.size-h.used, size-used)
	c.equal("free units in lists", 0, free)
	return bytes
}
