package subscriber

import (
	"context"
	"time"
)

const (
	replayRounds   = 3                // without progress, until a replay is given up
	replayMost     = 2 * time.Minute  // for all rounds
	replayCooldown = 30 * time.Second // after the engine refused to replay
	roundPause     = 100 * time.Millisecond
	// probePatience is how long a probe waits: an engine's event thread looks
	// for requests every tenth of a second.
	probePatience = 1500 * time.Millisecond
)

// outcome is what became of one round of a replay.
type outcome uint8

const (
	replayComplete    outcome = iota // to the end marker, nothing missing
	replayEmpty                      // the end marker alone
	replayTruncated                  // no end marker
	replayHole                       // a number was skipped
	replayStartedLate                // the engine does not reach back to the start
	replayRefused                    // no connection, or no answer at all
	replayForeign                    // another process answered
	replayOutcomes
)

var outcomeNames = [replayOutcomes]string{"complete", "empty", "truncated", "hole", "started_late", "refused", "foreign"}

func (o outcome) String() string {
	if o < replayOutcomes {
		return outcomeNames[o]
	}
	panic("bug: unknown outcome")
}

// reconnected begins a connection: the process behind it may be another one
// than before. That the last batch can be had again, byte by byte, is proof.
func (s *stream) reconnected(ctx context.Context, b batch) {
	s.connection, s.heard = b.connection, b.arrived
	s.proven = !s.at.known || s.at.next == 0
	s.at.reconnect()
	if s.proven {
		s.begun = b.arrived
	}
	if !s.proven && s.history == nil && s.epoch != "" && (b.mark == markConnected || b.epoch == s.epoch) {
		return // the topic of the next batch will tell
	}
	s.read(ctx)
}

// entered takes note of the name that a process gives itself.
func (s *stream) entered(ctx context.Context, b batch) {
	if s.epoch != "" {
		s.restart(ctx, causeEpoch, b.arrived)
	}
	s.epoch = b.epoch
}

// restart begins with another process than before: what was held is gone.
func (s *stream) restart(ctx context.Context, cause string, now time.Time) {
	s.replaced(cause, now)
	s.read(ctx)
}

// replaced forgets a process that is gone, or that nothing proves to be there.
func (s *stream) replaced(cause string, now time.Time) {
	if cause != causeUnproven && cause != causeAway {
		s.nap = nap{}
	}
	s.meters.restarts[cause].Inc()
	s.log.Info("engine restarted, starting over without what was held", "cause", cause)
	s.forget(now)
}

// read brings the stream up to what the engine has sent until now: rounds of
// replay until the end marker comes, or until the engine gives no more. If the
// process has not proven to be the same by then, it counts as another one.
func (s *stream) read(ctx context.Context) {
	all, brought := s.catchUp(ctx)
	if !s.proven && ctx.Err() == nil {
		s.replaced(causeUnproven, time.Now())
	}
	if s.nap.void || s.nap.asleep && brought {
		s.settleNap(all, brought)
	}
	s.state.read(s.connection, !s.at.known || s.at.since > 0)
}

func (s *stream) coolingDown() bool {
	return !s.refused.IsZero() && time.Since(s.refused) < replayCooldown
}

// rounds reports whether all came, to the end marker.
func (s *stream) rounds(ctx context.Context) (all bool) {
	ctx, cancel := context.WithTimeout(ctx, replayMost)
	defer cancel()
	for idle := 0; idle < replayRounds && ctx.Err() == nil; {
		r := s.round(ctx)
		switch {
		case r.outcome == replayComplete, r.outcome == replayEmpty, r.outcome == replayStartedLate && r.late, r.broken:
			return !r.broken
		case r.applied > 0, r.outcome == replayForeign:
			idle = 0
			continue
		}
		idle++
		switch {
		case idle < replayRounds:
			sleep(ctx, roundPause)
		case r.outcome == replayHole || r.outcome == replayStartedLate: // asked often enough: it is gone
			s.skip(r.resume, time.Now())
			idle = 0
		case s.at.known && s.proven && s.passOver(ctx): // one batch cannot be read
			idle = 0
		case r.outcome == replayRefused:
			s.refuse(r.err)
		}
	}
	return false
}

// passOver goes on behind the next batch if the engine gives what comes after
// it, though not the batch itself: it may be larger than what is accepted.
func (s *stream) passOver(ctx context.Context) (passed bool) {
	// An answer without a batch proves nothing: the engine may only have been
	// slow, and have nothing to give.
	_, _ = s.history.replay(ctx, s.at.next+1, func(sequence uint64, _ []byte) bool {
		if passed = sequence > s.at.next; passed {
			s.skip(sequence, time.Now())
		}
		return false
	})
	return passed
}

// refuse notes that the engine does not replay, for now.
func (s *stream) refuse(err error) {
	if s.refused.IsZero() {
		s.log.Warn("engine does not replay its events: what it held before is not known, and losses cannot be made up for", "err", err)
	}
	s.refused = time.Now()
	s.account.replays(false)
}

// answered notes that it does.
func (s *stream) answered() {
	s.refused = time.Time{}
	s.account.replays(true)
}

// round is one replay over a connection of its own, and what it brought. One
// connection is one process.
type round struct {
	outcome outcome
	first   bool // nothing has come yet
	late    bool // of an unknown process, the first number was not 0
	applied int
	resume  uint64 // replayHole and replayStartedLate: the number that came instead
	broken  bool   // the live connection ended meanwhile
	err     error
}

// round asks for what comes next. Of a process that is not proven to be the
// same it also asks for the last batch before that.
func (s *stream) round(ctx context.Context) round {
	connection, known, proven := s.connection, s.at.known, s.proven
	start := uint64(0)
	switch {
	case known && proven:
		start = s.at.next
	case known:
		start = s.at.next - 1
	case s.nap.last.valid:
		start = s.nap.last.sequence
	}
	r := round{first: true, outcome: replayTruncated}
	ended, err := s.history.replay(ctx, start, func(sequence uint64, payload []byte) bool {
		return s.replayed(&r, sequence, payload)
	})
	r.err = err
	switch {
	case r.outcome != replayTruncated: // something missing, or another process
	case r.first && !ended:
		r.outcome = replayRefused
	case r.first && !proven:
		r.outcome = replayForeign
	case r.first && known:
		r.outcome = replayEmpty
	case r.first && s.nap.last.valid: // a batch that was there is not: this says nothing
		r.outcome = replayRefused
	case r.first:
		r.outcome = replayEmpty
		s.begin(0)
	case ended && r.late:
		r.outcome = replayStartedLate
	case ended:
		r.outcome = replayComplete
	}
	s.meters.replays[r.outcome].Inc()
	s.meters.replayed.Add(r.applied)
	if r.outcome != replayRefused {
		s.answered()
	}
	if r.outcome == replayForeign {
		s.replaced(causeReconnect, time.Now())
	}
	if r.broken = !s.state.unbroken(connection); r.broken && r.applied > 0 {
		// The one that answered may have begun since, and what is still queued
		// is of the one before.
		s.replaced(causeUnproven, time.Now())
	}
	return r
}

// replayed takes one batch of a round; more is false if the round is to end.
func (s *stream) replayed(r *round, sequence uint64, payload []byte) (more bool) {
	first := r.first
	r.first = false
	switch {
	case !s.at.known && first && s.nap.last.valid && sequence <= s.nap.last.sequence:
		if sequence != s.nap.last.sequence || !s.at.is(s.nap.last, payload) {
			r.outcome = replayForeign
			return false
		}
		s.afterNap()
		return true
	case !s.at.known:
		r.late = sequence > 0
		s.begin(sequence)
	case first && !s.proven:
		if same, _ := s.at.same(sequence, payload); !same || sequence != s.at.next-1 {
			r.outcome = replayForeign
			return false
		}
		s.proven = true
		return true
	case sequence < s.at.next:
		return true
	case sequence > s.at.next:
		r.outcome, r.resume = replayHole, sequence
		if first {
			r.outcome = replayStartedLate
		}
		return false
	}
	s.apply(payload, time.Now())
	r.applied++
	return true
}

// idle looks after a stream that has nothing to do.
func (s *stream) idle(ctx context.Context, now time.Time) {
	switch {
	case s.at.known && s.state.away(now) > awayGrace:
		s.replaced(causeAway, now)
	case !s.proven && s.state.unbroken(s.connection) && now.Sub(s.heard) > awayGrace:
		s.restart(ctx, causeUnproven, now) // it was to say so itself, and is silent
	case s.history == nil || !s.state.unbroken(s.connection):
	case !s.refused.IsZero():
		if !s.coolingDown() {
			s.rebuild(ctx)
		}
	case now.Sub(s.heard) >= probeAfter:
		s.probe(ctx)
	}
}

// probe asks a silent engine whether something was lost that no later number
// shows, and whether it is still there.
func (s *stream) probe(ctx context.Context) {
	if s.nap.void {
		s.read(ctx)
		s.heard = time.Now()
		return
	}
	limited, cancel := context.WithTimeout(ctx, probePatience)
	r := s.round(limited)
	cancel()
	if ctx.Err() != nil {
		return
	}
	s.heard = time.Now()
	if s.state.hang(r.outcome == replayRefused) {
		if r.outcome == replayRefused {
			s.log.Warn("engine event stream stands still: no events, and no answer from the thread that sends them", "err", r.err)
		} else {
			s.log.Info("engine event stream answers again")
		}
	}
	s.meters.tail.Add(r.applied)
	if s.nap.asleep && r.applied > 0 {
		s.settleNap(r.outcome == replayComplete, true)
	}
	if r.outcome != replayComplete && r.outcome != replayEmpty && r.outcome != replayRefused {
		s.read(ctx)
	}
}

// rebuild starts over from the engine's history if that reaches further back
// than what was taken in while the engine did not replay.
func (s *stream) rebuild(ctx context.Context) {
	reaches, answered := false, false
	ended, err := s.history.replay(ctx, 0, func(sequence uint64, _ []byte) bool {
		reaches, answered = !s.at.known || sequence < s.at.since, true
		return false
	})
	if !ended && !answered {
		s.refuse(err)
		return
	}
	s.answered()
	if reaches {
		s.forget(time.Now())
	}
	s.read(ctx)
}
