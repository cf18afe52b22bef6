package index

import "inferencecache.io/inferencecache/internal/kv"

// span is what one replica holds of a segment in one piece: the keys [from,
// to), all stamped alike, with tokens that grow by the same step.
type span struct {
	who  uint64 // stamp (32 bits), ordinal (16), tier (8), use (8)
	what uint64 // tokens up to key from (32 bits), step (16), from (8), to (8)
}

const maxStep = 1<<16 - 1

func who(seen uint32, ord uint16, tier kv.Tier, use uint8) uint64 {
	return uint64(seen)<<32 | uint64(ord)<<16 | uint64(tier)<<8 | uint64(use)
}

func seenOf(who uint64) uint32  { return uint32(who >> 32) }
func ordOf(who uint64) uint16   { return uint16(who >> 16) }
func tierOf(who uint64) kv.Tier { return kv.Tier(who >> 8) }
func useOf(who uint64) uint8    { return uint8(who) }

func newSpan(who uint64, tokens int32, step, from, to int) span {
	return span{who, uint64(uint32(tokens))<<32 | uint64(step)<<16 | uint64(from)<<8 | uint64(to)}
}

func (s span) from() int { return int(uint8(s.what >> 8)) }
func (s span) to() int   { return int(uint8(s.what)) }
func (s span) step() int { return int(uint16(s.what >> 16)) }
func (s span) len() int  { return s.to() - s.from() }

// tokens up to and with the key at off.
func (s span) tokens(off int) int32 {
	return int32(s.what>>32) + int32((off-s.from())*s.step())
}

// cut is the part of s from one offset to another.
func (s span) cut(from, to int) span { return newSpan(s.who, s.tokens(from), s.step(), from, to) }

// join makes one of two spans, if they are.
func join(a, b span) (span, bool) {
	if a.who != b.who || a.to() != b.from() {
		return span{}, false
	}
	step := int(b.tokens(b.from())) - int(a.tokens(a.to()-1))
	if step < 0 || step > maxStep || a.len() > 1 && a.step() != step || b.len() > 1 && b.step() != step {
		return span{}, false
	}
	return newSpan(a.who, a.tokens(a.from()), step, a.from(), b.to()), true
}

// spans are words, two a span, ordered by ordinal and from.
type spans []uint64

func (l spans) len() int         { return len(l) / 2 }
func (l spans) at(i int) span    { return span{l[2*i], l[2*i+1]} }
func (l spans) add(s span) spans { return append(l, s.who, s.what) }

// of an ordinal are [lo, hi).
func (l spans) of(ord uint16) (lo, hi int) {
	hi = l.len()
	for hi-lo > 8 {
		if mid := (lo + hi) / 2; ordOf(l[2*mid]) < ord {
			lo = mid + 1
		} else {
			hi = mid
		}
	}
	for lo < l.len() && ordOf(l[2*lo]) < ord {
		lo++
	}
	hi = lo
	for hi < l.len() && ordOf(l[2*hi]) == ord {
		hi++
	}
	return lo, hi
}

// find the span of an ordinal that covers an offset.
func (l spans) find(ord uint16, off int) (s span, ok bool) {
	lo, hi := l.of(ord)
	for i := lo; i < hi; i++ {
		if s = l.at(i); s.from() <= off && off < s.to() {
			return s, true
		}
	}
	return span{}, false
}
