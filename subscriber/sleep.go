package subscriber

import (
	"context"
	"time"
)

// nap is what a stream knows of its engine's sleep. vLLM put to sleep at level 1
// or 2 (POST /sleep) gives its cache away, but the event that says so leaves
// with the first step after it wakes: until then only its metrics tell. What it
// sent before it fell asleep is void, in a replay of its history too.
type nap struct {
	asleep bool // by the last metrics page
	still  bool // nothing came since what was held was forgotten
	// void: what was sent before is, and where that ends could not be found out
	// yet.
	void bool
	last digest // the last batch before; not valid: none
	less bool   // what came behind last and was forgotten too may be held
}

// sleeps takes note that the engine had no cache at some time. It may have been
// awake between two such notes.
func (s *stream) sleeps(ctx context.Context, seen time.Time) {
	if !s.nap.asleep {
		s.log.Info("engine asleep, starting over without what was held")
	}
	if !s.nap.asleep || !s.nap.still {
		s.replica.clear(s.source, false, seen)
		s.nap.void, s.nap.less = true, false
	}
	newer := s.applied.After(seen)
	s.nap.asleep, s.nap.still = true, true
	if s.nap.void && s.connection > 0 {
		all, brought := s.catchUp(ctx)
		s.settleNap(all, brought || newer)
	}
}

// catchUp reads what the engine has sent until now, as far as it can be had.
func (s *stream) catchUp(ctx context.Context) (all, brought bool) {
	before := s.at.next
	switch {
	case s.history == nil:
		return s.proven, false
	case s.coolingDown() || !s.state.unbroken(s.connection):
		return false, false
	}
	all = s.rounds(ctx)
	return all, s.at.next != before
}

// settleNap forgets what came before the engine fell asleep. If all of it has
// come, that is behind us. If some is newer than the page, or came just now, the
// engine may have sent it after it woke, so that more may be held than is known.
func (s *stream) settleNap(all, newer bool) {
	s.replica.clear(s.source, newer, time.Now())
	if s.nap.less = s.nap.less || newer; s.nap.less {
		s.state.lost()
	}
	if !all || !s.proven {
		return
	}
	s.bookmark()
	s.at.since = 0
	s.nap.still = true
	if !s.nap.less {
		s.state.certain()
	}
}

// bookmark says that the engine fell asleep before the batch that comes next.
func (s *stream) bookmark() {
	s.nap.void, s.nap.last = false, digest{}
	if s.at.known && s.at.next > 0 {
		s.nap.last = s.at.last()
	}
}

// afterNap goes on behind the last batch before the engine fell asleep.
func (s *stream) afterNap() {
	s.at.begin(s.nap.last.sequence)
	s.at.recall(s.nap.last)
	s.at.since = 0
	s.replica.clear(s.source, s.nap.less, time.Now())
	if s.state.certain(); s.nap.less {
		s.state.lost()
	}
	s.state.read(s.connection, false)
}
