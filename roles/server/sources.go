package server

import (
	"sync"
	"time"

	"inferencecache.io/inferencecache/internal/kv"
)

const (
	// sourceTTL is how long a silent source's sequence is remembered.
	sourceTTL = 30 * time.Minute
	// idleAfter a source may give way to another one where there are too many;
	// heartbeats come more often. idleTries of them are looked at.
	idleAfter = time.Minute
	idleTries = 8
	// missedHeartbeats in a row are a sign of death, not of a slow network.
	missedHeartbeats = 3
)

// source names one ordered stream of updates.
type source struct {
	scope   kv.Scope
	replica string
}

// step is the place of one ordered update within its source.
type step struct {
	from     source
	epoch    uint64
	sequence uint64
	clears   bool          // it holds a CLEAR: what came before does not matter
	goodbye  bool          // nothing follows
	promise  time.Duration // within which another one follows; 0: none
	vouches  bool          // what was reported before still holds
	ttl      time.Duration // after which entries that nobody vouches for are gone
	seen     time.Time     // its stamp; inOrder moves it forward to the source's newest
}

// sources remembers how far each ordered stream has come, so that an update
// sent again after a lost Ack has no second effect, and which of them the
// server has lost track of. Safe for concurrent use.
type sources struct {
	limit int
	mu    sync.Mutex // guards by, and used of each position
	by    map[source]*position
}

type position struct {
	used time.Time // last update, for expire

	mu       sync.Mutex // held while an update of this source is applied
	epoch    uint64
	sequence uint64
	seen     time.Time     // newest stamp; an ordered stream's clock does not run back
	heard    time.Time     // when the last update arrived
	promise  time.Duration // of the last update
	vouched  time.Time     // when an update last vouched, or cleared
	lost     bool          // there is a hole in what is known: all must come again
}

func newSources(limit int) *sources { return &sources{limit: limit, by: map[source]*position{}} }

// inOrder calls apply with fresh if the update is new, and without if it was
// applied already, one update of a source at a time; sound says that nothing
// the source reported before is missing. It returns the last sequence applied,
// and whether the source has to report everything again.
func (s *sources) inOrder(now time.Time, u *step, apply func(fresh, sound bool)) (applied uint64, resync bool) {
	p := s.at(now, u.from)
	if p == nil { // nothing is known of what came before, nor will be
		apply(true, false)
		return u.sequence, false
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.heard = now
	if p.epoch == u.epoch && u.sequence <= p.sequence {
		apply(false, false)
		return p.sequence, p.lost
	}
	p.follow(now, u)
	apply(true, !p.lost)
	resync = p.lost
	if u.goodbye {
		p.bury()
	}
	return u.sequence, resync
}

// follow moves p on to a new update. One that neither begins its source nor
// continues it has others before it that the server has not seen, or has
// forgotten: only a CLEAR makes up for those. The same goes for a source that
// has not vouched for so long that its entries are gone. Its stamps go on over
// epochs: the CLEAR of a new one must not be older than what it clears.
func (p *position) follow(now time.Time, u *step) {
	switch {
	case u.clears:
		p.lost = false
	case p.epoch != u.epoch:
		p.lost = u.sequence != 1
	case u.sequence != p.sequence+1:
		p.lost = true
	}
	if u.clears || p.vouched.IsZero() {
		p.vouched = now
	}
	if u.vouches {
		p.lost = p.lost || now.Sub(p.vouched) >= u.ttl
		p.vouched = now
	}
	p.epoch, p.sequence, p.promise = u.epoch, u.sequence, u.promise
	if u.seen.Before(p.seen) {
		u.seen = p.seen
	}
	p.seen = u.seen
}

// bury expects nothing of the source any more; what it reported is forgotten.
func (p *position) bury() { p.promise, p.lost = 0, true }

// at finds or makes the position of a source; nil if there are too many and
// none that looks idle. One that gives way has to report everything again when
// it comes back, so those that are in use stay: else they would drive each
// other out.
func (s *sources) at(now time.Time, from source) *position {
	s.mu.Lock()
	defer s.mu.Unlock()
	p, ok := s.by[from]
	if !ok {
		if len(s.by) >= s.limit && !s.makeRoomLocked(now) {
			return nil
		}
		p = &position{}
		s.by[from] = p
	}
	p.used = now
	return p
}

func (s *sources) makeRoomLocked(now time.Time) bool {
	tries := 0
	for from, p := range s.by { // any: map order is random enough
		if now.Sub(p.used) >= idleAfter {
			delete(s.by, from)
			return true
		}
		if tries++; tries == idleTries {
			break
		}
	}
	return false
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

// silent buries each source that has broken its promise of heartbeats: nothing
// for after, nor for several of them. It calls forget with the newest stamp of
// the source while no update of it can be applied, and returns whom.
func (s *sources) silent(now time.Time, after time.Duration, forget func(from source, seen time.Time)) (dead []source) {
	for from, p := range s.unheard(now, after) {
		p.mu.Lock()
		if p.promise > 0 && now.Sub(p.heard) >= max(after, missedHeartbeats*p.promise) {
			p.bury()
			forget(from, p.seen)
			dead = append(dead, from)
		}
		p.mu.Unlock()
	}
	return dead
}

func (s *sources) unheard(now time.Time, after time.Duration) map[source]*position {
	s.mu.Lock()
	defer s.mu.Unlock()
	unheard := map[source]*position{}
	for from, p := range s.by {
		if now.Sub(p.used) >= after {
			unheard[from] = p
		}
	}
	return unheard
}
