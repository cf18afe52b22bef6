package server

import (
	"sync"
	"time"

	"inferencecache.io/inferencecache/internal/kv"
)

// sourceTTL is how long a silent source's sequence is remembered.
const sourceTTL = 30 * time.Minute

// source names one ordered stream of updates.
type source struct {
	scope   kv.Scope
	replica string
}

// sources remembers how far each ordered stream has come, so that an update
// sent again after a lost Ack has no second effect.
type sources struct {
	limit int
	mu    sync.Mutex // guards by
	by    map[source]*position
}

type position struct {
	mu       sync.Mutex // held while an update of this source is applied
	epoch    uint64
	sequence uint64
	seen     time.Time // newest stamp; an ordered stream's clock does not run back
	used     time.Time
}

func newSources(limit int) *sources { return &sources{limit: limit, by: map[source]*position{}} }

// inOrder calls apply(true) if the update is new and apply(false) if it was
// applied already, one update of a source at a time, and returns the last
// sequence applied. It moves seen forward to the newest stamp of the source.
func (s *sources) inOrder(now time.Time, from source, epoch, sequence uint64, seen *time.Time, apply func(fresh bool)) uint64 {
	p := s.at(now, from)
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.epoch == epoch && sequence <= p.sequence {
		apply(false)
		return p.sequence
	}
	if p.epoch != epoch {
		p.epoch, p.seen = epoch, time.Time{}
	}
	p.sequence = sequence
	if seen.Before(p.seen) {
		*seen = p.seen
	}
	p.seen = *seen
	apply(true)
	return sequence
}

// at finds or makes the position of a source. At the limit one that was not
// used lately gives way; what it loses is only the memory of duplicates.
func (s *sources) at(now time.Time, from source) *position {
	s.mu.Lock()
	defer s.mu.Unlock()
	p, ok := s.by[from]
	if !ok {
		if len(s.by) >= s.limit {
			for other := range s.by { // any: map order is random enough
				delete(s.by, other)
				break
			}
		}
		p = &position{}
		s.by[from] = p
	}
	p.used = now
	return p
}

func (s *sources) expire(now time.Time, ttl time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for from, p := range s.by {
		if now.Sub(p.used) >= ttl {
			delete(s.by, from)
		}
	}
}
