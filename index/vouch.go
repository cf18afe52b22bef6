package index

import (
	"time"

	"inferencecache.io/inferencecache/internal/kv"
)

// Vouch says that all that a replica holds in a scope still held at a time, so
// that it ages from then on: for the TTL, and in Run.Seen. Stamps stay what
// they are; a late Clear and the order of eviction go by them. A vouch speaks
// of nothing that is not in the index, and ends with a later Clear or a Kill.
//
// The time it takes does not depend on how much is held. Expired holders that
// no sweep has met are back.
func (x *Index) Vouch(now time.Time, name kv.Scope, replica string, at time.Time) {
	s := x.pinScope(name, false)
	if s == nil {
		return
	}
	defer s.unpin()
	s.mu.RLock()
	defer s.mu.RUnlock()
	ord, ok := s.byID[replica]
	if !ok {
		return
	}
	o := s.ords[ord]
	stamp := min(ticks(at), ticks(now))
	for last := o.vouched.Load(); last < stamp && !o.vouched.CompareAndSwap(last, stamp); {
		last = o.vouched.Load()
	}
}

// hides says how far back holders of the ordinal are absent at the latest:
// those a late clear spoke of, and those that expired unless all are vouched for.
func (o *ordinal) hides(expired tick) tick {
	if o.vouched.Load() > expired {
		return o.mark
	}
	return max(o.mark, expired)
}

// renew gives a holder that is vouched for a stamp that 32 bits still tell from
// the future. The new one is older than any clear that may yet come.
func (s span) renew(now tick) span {
	if full(now, seenOf(s.who)) < now-maxTTL.Milliseconds() {
		s.who = who(uint32(now-maxTTL.Milliseconds()/2), ordOf(s.who), tierOf(s.who), useOf(s.who))
	}
	return s
}
