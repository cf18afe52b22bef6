package index

import (
	"errors"
	"fmt"
)

// Check proves what the index believes of itself: order and gaps of the
// tables, blocks of the arenas, and every counter. Nothing may write meanwhile.
func (x *Index) Check() error {
	var errs []error
	var bytes, live, held int64
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
		if !t.probe {
			live += t.live.Load()
			held += t.held.Load()
		}
		if err := errors.Join(c.errs...); err != nil {
			errs = append(errs, fmt.Errorf("tenant %q: %w", t.name, err))
		}
	}
	c := &checker{errs: errs}
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
	keys, held, live, bytes int64
	errs                    []error
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
	for i := range p.stripes {
		st := &p.stripes[i]
		st.mu.RLock()
		c.bytes += st.bytes()
		for at := 0; at < len(st.dir); {
			t := st.dir[at]
			span := 1 << (st.depth - t.depth)
			for j := range span {
				if at&(span-1) != 0 || st.dir[at+j] != t {
					c.fail("stripe %d: directory entry %d is not the table's", i, at+j)
				}
			}
			prefix := uint64(i)<<(64-stripeBits) | uint64(at)<<(64-stripeBits-st.depth)
			c.table(t, prefix, held)
			at += span
		}
		st.mu.RUnlock()
	}
}

func (c *checker) table(t *table, prefix uint64, held []int64) {
	used, holders, words := 0, 0, 0
	last := -1
	for i := range t.slots {
		s := &t.slots[i]
		if s.n == 0 {
			continue
		}
		used++
		if (s.place^prefix)>>(64-stripeBits-t.depth) != 0 {
			c.fail("place %x in the table of %x", s.place, prefix)
		}
		if last >= 0 && t.slots[last].place >= s.place {
			c.fail("places out of order at slot %d", i)
		}
		if h := home(s.place, t.depth, t.main); h > i || h < i && last != i-1 {
			c.fail("slot %d lies %d from home, behind a gap", i, i-h)
		}
		last = i
		if s.n > 1 {
			words += blockWords(s.class, s.wide)
			if int(s.n) > 1<<s.class || int(s.word[0])+blockWords(s.class, s.wide) > t.top {
				c.fail("slot %d: block too short", i)
			}
		}
		seen := map[uint16]bool{}
		for _, w := range t.holders(s) {
			if seen[ordOf(w)] {
				c.fail("slot %d: a replica twice", i)
			}
			seen[ordOf(w)] = true
			held[ordOf(w)]++
			holders++
		}
	}
	if n := len(t.slots); n > 0 && t.slots[n-1].n != 0 {
		c.fail("no empty slot at the end")
	}
	loose := 0
	for class, f := range t.free {
		for ; f != 0; f = freeList(t.arena[f-1]) {
			loose += 1 << class
		}
	}
	c.equal("slots", int64(t.used), int64(used))
	c.equal("holders of a table", int64(t.held), int64(holders))
	c.equal("loose words", int64(t.loose), int64(loose))
	c.equal("words", int64(t.top), int64(words+loose))
	c.keys += int64(used)
	c.held += int64(holders)
}
