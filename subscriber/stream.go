package subscriber

import (
	"context"
	"log/slog"
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
)

// stream is the worker of one event source: it takes batches off the queue,
// follows their sequence, applies them to residency and hands the changes to
// every outbox. Its goroutine alone touches residency and the tracker.
type stream struct {
	queue     *queue
	dialect   engine.Dialect
	limits    engine.Limits
	residency *Residency
	tracker   tracker
	state     *machine
	outboxes  []*outbox
	refills   chan *outbox // outboxes that ask for everything held
	meters    *meters
	log       *slog.Logger
	logged    map[string]bool // unknown event names
}

// run works until the queue is closed and empty, or ctx ends.
func (s *stream) run(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case o := <-s.refills:
			o.refill(s.residency.Held, time.Now())
			continue
		default:
		}
		b, ok, done := s.queue.pop()
		switch {
		case done:
			return
		case ok:
			s.take(b)
			continue
		}
		select {
		case <-ctx.Done():
			return
		case o := <-s.refills:
			o.refill(s.residency.Held, time.Now())
		case <-s.queue.ready:
		}
	}
}

// serve answers outboxes that still ask for everything held after the last
// batch, until they have ended.
func (s *stream) serve(ctx context.Context, ended <-chan struct{}) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-ended:
			return
		case o := <-s.refills:
			o.refill(s.residency.Held, time.Now())
		}
	}
}

// take follows, decodes and applies one batch. A batch that cannot be decoded
// is dropped and counted: it may have been a removal, so the state says so.
func (s *stream) take(b batch) {
	if !s.follow(b) {
		return
	}
	decoded, err := engine.Decode(s.dialect, b.payload, s.limits)
	if err != nil {
		s.meters.undecodable.Inc()
		if s.state.lost() {
			s.log.Warn("undecodable batch dropped", "sequence", b.sequence, "err", err)
		}
		return
	}
	s.noteUnknown(decoded)
	changes, tally := s.residency.Apply(decoded.Rank, decoded)
	s.note(tally)
	s.publish(changes, b.arrived, s.stamp(decoded, b.arrived))
}

// note counts what residency made of a batch. Events that may have taken away
// what is still counted as held make the stream less certain.
func (s *stream) note(tally Tally) {
	for _, v := range tally.Verdicts {
		s.meters.event(v.Status, v.Reason).Inc()
	}
	if tally.Invalidations > 0 {
		s.state.lost()
	}
	s.meters.evicted.Add(tally.Evicted)
	s.meters.orphansDropped.Add(tally.OrphansDropped)
	s.meters.orphansAttached.Add(tally.OrphansAttached)
}

// follow judges the batch's place in the sequence and is false if it is to be
// ignored. After a gap or a restart nothing that was held is certain any more,
// and a wrong hint is worse than none: it is dropped here and at the servers.
func (s *stream) follow(b batch) bool {
	v, missing := s.tracker.observe(b.connection, b.sequence, b.lost)
	s.meters.batches[v].Inc()
	s.meters.lastSequence.Set(float64(b.sequence))
	switch v {
	case verdictDuplicate:
		return false
	case verdictGap:
		s.meters.missing.Add(int(min(missing, 1<<31)))
		if s.state.lost() {
			s.log.Warn("event stream has a gap, starting over", "missing", missing, "dropped_here", b.lost, "sequence", b.sequence)
		}
		s.publish(s.residency.ClearAll(), b.arrived, b.arrived)
	case verdictRestart:
		s.state.restarted()
		s.log.Info("engine restarted, starting over", "sequence", b.sequence)
		s.publish(s.residency.ClearAll(), b.arrived, b.arrived)
	}
	return true
}

// publish hands changes to every outbox; stamp is the engine's time.
func (s *stream) publish(changes []Change, arrived, stamp time.Time) {
	for _, o := range s.outboxes {
		o.add(changes, arrived, stamp)
	}
	now := s.residency.Stats()
	s.meters.orphans.Set(float64(now.Orphans))
	for i, n := range now.Held {
		s.meters.held[i].Set(float64(n))
	}
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
