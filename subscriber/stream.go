package subscriber

import (
	"context"
	"log/slog"
	"sync"
	"time"

	"inferencecache.io/inferencecache/internal/engine"
)

const (
	// maxClockSkew is how far an engine's time stamp may be from our clock and
	// still be believed. Beyond it (a monotonic clock, a zero) the time of
	// arrival counts.
	maxClockSkew = 5 * time.Minute
	// maxLoggedTags bounds the unknown event names that are logged, each once:
	// the names come from the wire.
	maxLoggedTags = 16
	// idleCheck is how often a silent stream looks after itself.
	idleCheck = 500 * time.Millisecond
	// probeAfter is how long a connected publisher may be silent before it is
	// asked whether it has sent something that did not arrive.
	probeAfter = 2 * time.Second
	// awayGrace is how long an engine may be away before what it held is
	// dropped: its process is gone, or will have to prove that it is not.
	awayGrace = 5 * time.Second
)

// Why a publisher's process is taken for another one than before, as labels.
const (
	causeSequence  = "sequence"  // its numbers step back, or a number came with other bytes
	causeReconnect = "reconnect" // after a reconnect the last batch was another one, or gone
	causeUnproven  = "unproven"  // after a reconnect nothing could show that it is the same
	causeEpoch     = "epoch"     // it says so in its topic
	causeMetrics   = "metrics"   // its metrics do
	causeAway      = "away"      // no connection for some time
)

// stream is the worker of one event source: it takes batches off the queue,
// follows their numbers, fetches what is missing and applies everything to the
// replica. What cannot be had is made up for by forgetting: after it the
// source holds nothing that the engine may have dropped.
//
// Its goroutine alone touches the fields behind log.
type stream struct {
	source  int // number of the source within the replica
	queue   *queue
	dialect engine.Dialect
	limits  engine.Limits
	replica *replica
	state   *machine
	history replayer // nil: the engine offers no replay
	account *account
	auditor *auditor // nil: the engine takes no snapshots
	meters  *sourceMeters
	log     *slog.Logger

	at         position
	connection uint64 // that at speaks of; 0: none yet
	proven     bool   // the process behind connection is the one at speaks of
	epoch      string // of the process; "": not said
	nap        nap
	begun      time.Time // when the process was last found to be a new one
	heard      time.Time // last sign of life
	applied    time.Time // when the last batch came
	refused    time.Time // when the engine last refused to replay; zero: it did not
	logged     map[string]bool
	scratch    engine.Scratch
	verdicts   []engine.Verdict // scratch

	background sync.WaitGroup // of a snapshot under way
}

// run works until the queue is closed and empty, or ctx ends.
func (s *stream) run(ctx context.Context) {
	asking, stop := context.WithCancel(ctx) // of snapshots, which nobody waits for in the end
	defer s.background.Wait()
	defer stop()
	tick := time.NewTicker(idleCheck)
	defer tick.Stop()
	for ctx.Err() == nil {
		select {
		case now := <-tick.C:
			s.audit(asking, now)
			if n, _ := s.queue.size(); n == 0 {
				s.idle(ctx, now)
			}
		default:
		}
		b, ok, done := s.queue.pop()
		if done {
			return
		}
		if ok {
			s.take(ctx, b)
			continue
		}
		select {
		case <-ctx.Done():
		case <-s.queue.ready:
		case now := <-tick.C:
			s.audit(asking, now)
			s.idle(ctx, now)
		}
	}
}

// take follows and applies one batch off the queue.
func (s *stream) take(ctx context.Context, b batch) {
	switch b.mark {
	case markReplaced:
		if b.arrived.After(s.begun) {
			s.restart(ctx, causeMetrics, time.Now())
		}
		return
	case markAsleep:
		s.sleeps(ctx, b.arrived)
		return
	case markAwake:
		s.nap.asleep = false
		return
	case markDrifted:
		if b.arrived.After(s.begun) {
			s.drifted(ctx, b.arrived)
		}
		return
	}
	if b.connection != s.connection {
		s.reconnected(ctx, b)
	}
	if b.mark == markConnected {
		return
	}
	s.heard = b.arrived
	s.account.heard()
	if s.state.hang(false) {
		s.log.Info("engine event stream goes on")
	}
	if b.epoch != s.epoch {
		s.entered(ctx, b)
	}
	if !s.proven { // its topic has told
		s.proven = true
		s.state.read(s.connection, !s.at.known || s.at.since > 0)
	}
	s.meters.lastSequence.Set(float64(b.sequence))
	s.place(ctx, b)
}

// place applies a batch where it belongs, after what is missing before it.
func (s *stream) place(ctx context.Context, b batch) {
	v := s.at.judge(b.sequence, b.payload)
	s.meters.batches[v].Inc()
	switch v {
	case verdictGap:
		s.meters.missing.Add(int(min(b.sequence-s.at.next, 1<<31)))
		s.log.Debug("event stream has a gap", "from", s.at.next, "to", b.sequence, "dropped_here", b.lost)
		s.read(ctx)
		v = s.at.judge(b.sequence, b.payload)
	case verdictRestart:
		s.restart(ctx, causeSequence, b.arrived)
		v = s.at.judge(b.sequence, b.payload)
	}
	switch v {
	case verdictDuplicate:
		s.at.heard(b.sequence)
		return
	case verdictGap:
		s.skip(b.sequence, b.arrived)
	case verdictRestart:
		// It answers with the history of a process that is gone.
		s.nap = nap{}
		s.forget(b.arrived)
		fallthrough
	case verdictFirst:
		s.begin(b.sequence)
	}
	if s.nap.void {
		s.bookmark() // this one came after the engine was found asleep
	}
	s.at.heard(b.sequence)
	s.apply(b.payload, b.arrived)
}

// apply decodes and applies the batch that comes next. One that cannot be
// decoded may have been a removal.
func (s *stream) apply(payload []byte, arrived time.Time) {
	s.at.advance(payload)
	s.nap.still, s.applied = false, arrived
	decoded, err := s.scratch.Decode(s.dialect, payload, s.limits)
	defer s.scratch.Release()
	if err != nil {
		s.meters.undecodable.Inc()
		s.replica.clear(s.source, true, arrived)
		if s.state.lost() {
			s.log.Warn("undecodable batch, starting over without what was held", "sequence", s.at.next-1, "err", err)
		}
		return
	}
	s.noteUnknown(decoded)
	tally := s.replica.apply(s.source, decoded, arrived, s.stamp(decoded, arrived), s.verdicts)
	s.verdicts = tally.Verdicts
	s.note(tally)
	s.account.note(decoded, tally, &s.at, arrived)
}

// note counts what residency made of a batch. Events that may have taken away
// what is still counted as held make the stream less certain.
func (s *stream) note(tally Tally) {
	for all := tally.Verdicts; len(all) > 0; {
		status, reason, alike := all[0].Status, all[0].Reason, 1
		for alike < len(all) && all[alike].Status == status && all[alike].Reason == reason {
			alike++
		}
		s.meters.event(status, reason).Add(alike)
		all = all[alike:]
	}
	if tally.Cleared { // what came before it does not matter any more
		s.at.since = 0
		s.state.certain()
	}
	if tally.Invalidations > 0 {
		s.state.doubt()
	}
	s.meters.evicted.Add(tally.Evicted)
	s.meters.orphansDropped.Add(tally.OrphansDropped)
	s.meters.orphansAttached.Add(tally.OrphansAttached)
}

// begin takes sequence for the first batch that can be had of this process.
func (s *stream) begin(sequence uint64) {
	s.at.begin(sequence)
	s.replica.clear(s.source, sequence > 0, time.Now())
	if sequence == 0 {
		s.state.certain()
	}
	s.state.read(s.connection, sequence > 0)
}

// skip goes on at sequence without what comes before it.
func (s *stream) skip(sequence uint64, now time.Time) {
	s.meters.lost.Add(int(min(sequence-s.at.next, 1<<31)))
	if s.state.lost() {
		s.log.Warn("events lost for good, starting over without what was held", "from", s.at.next, "to", sequence)
	}
	s.replica.clear(s.source, true, now)
	s.at.begin(sequence)
	s.state.read(s.connection, true)
}

// forget everything about the process and what it held.
func (s *stream) forget(now time.Time) {
	s.replica.clear(s.source, false, now)
	s.at.forget()
	s.begun, s.epoch, s.proven = now, "", true
	s.state.certain()
}

// stamp is when the engine made the batch, or when it arrived if the engine's
// clock cannot be believed.
func (s *stream) stamp(b *engine.Batch, arrived time.Time) time.Time {
	t, ok := b.Time()
	if !ok || t.Sub(arrived).Abs() > maxClockSkew {
		s.meters.implausible.Inc()
		return arrived
	}
	return t
}

// noteUnknown logs the kinds of event that this build does not know.
func (s *stream) noteUnknown(b *engine.Batch) {
	for _, tag := range b.UnknownTags() {
		if len(s.logged) < maxLoggedTags && !s.logged[tag] {
			s.logged[tag] = true
			s.log.Warn("engine sends events of an unknown kind", "tag", tag)
		}
	}
}
