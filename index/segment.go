package index

import (
	"math/bits"
	"sync"
)

// segment is a block of the heap: a word of numbers, two words of spans, keys.
// One span lies in the segment; more lie in a block of their own, which the
// second word then names. Keys that follow each other in a chain are put side
// by side, but nothing depends on it: any keys may share a segment.
//
// A key that nobody holds any more stays, uncovered by any span, until the
// segment is packed or freed.
type segment []uint64

const (
	headWords = 3
	segClass  = 5 // of the largest segment
	segKeys   = unitWords<<segClass - headWords
)

func capacity(class uint8) int { return unitWords<<class - headWords }

// classFor n keys, or as many as go into a segment.
func classFor(n int) uint8 {
	return uint8(min(segClass, bits.Len(uint(n+headWords-1)/unitWords)))
}

func (g segment) n() int           { return int(uint8(g[0])) }
func (g segment) live() int        { return int(uint8(g[0] >> 8)) } // keys that a span covers
func (g segment) class() uint8     { return uint8(g[0] >> 16) }
func (g segment) spanClass() uint8 { return uint8(g[0] >> 24) } // of the block of spans
func (g segment) count() int       { return int(g[0] >> 32) }   // spans
func (g segment) keys() []uint64   { return g[headWords:][:g.n()] }

func numbers(n, live int, class, spanClass uint8, count int) uint64 {
	return uint64(n) | uint64(live)<<8 | uint64(class)<<16 | uint64(spanClass)<<24 | uint64(count)<<32
}

func (h *heap) segment(r ref) segment { return h.words(r) }

// spans of a segment; they alias it.
func (h *heap) spans(g segment) spans {
	if n := g.count(); n > 1 {
		return h.words(ref(g[1]))[:2*n]
	}
	return spans(g[1:][:2*g.count()])
}

// spanClassFor more than one span.
func spanClassFor(count int) uint8 { return uint8(bits.Len(uint(count-1) / 2)) }

func spanRoom(class uint8) int { return 2 << class }

// cover is a set of offsets.
type cover [2]uint64

func (c *cover) add(from, to int) {
	for i := range c {
		lo, hi := max(from-64*i, 0), min(to-64*i, 64)
		if lo < hi {
			c[i] |= (^uint64(0) >> (64 - (hi - lo))) << lo
		}
	}
}

func (c cover) has(off int) bool { return c[off/64]>>(off%64)&1 != 0 }
func (c cover) len() int         { return bits.OnesCount64(c[0]) + bits.OnesCount64(c[1]) }

func (l spans) cover() (c cover) {
	for i := range l.len() {
		s := l.at(i)
		c.add(s.from(), s.to())
	}
	return c
}

// guards are locks for the content of segments, shared by all that have the
// same low bits in their ref.
type guards [256]struct {
	sync.RWMutex
	_ [40]byte // a cache line each
}

func (g *guards) of(r ref) *sync.RWMutex { return &g[(uint32(r)*0x9e3779b1)>>24].RWMutex }
