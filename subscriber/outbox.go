package subscriber

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"google.golang.org/protobuf/proto"

	pb "inferencecache.io/inferencecache/proto/inferencecache/v1alpha1"
)

const (
	flushOperations = updateOps       // pending operations that do not wait for the window
	flushUpdates    = 8               // updates a stream
	reportTimeout   = 5 * time.Second // for one stream, answer included
	resendFirst     = 50 * time.Millisecond
	resendMost      = 5 * time.Second
)

// reporter delivers updates to one server.
type reporter interface {
	report(ctx context.Context, updates []*pb.CacheStateUpdate) (*pb.Ack, error)
}

// holder knows everything held. It answers refill with a call of the outbox's
// own refill, such that no change falls in between.
type holder interface{ refill(o *outbox) }

// phase is what an outbox knows of the server's copy.
type phase uint8

const (
	// phaseBehind: the copy is unknown or has a hole. Changes are not kept;
	// a CLEAR is sent until it is acknowledged.
	phaseBehind phase = iota
	// phaseAsked: the copy is empty, and the holder is being asked for
	// everything held. Changes are still not kept: they will be in it.
	phaseAsked
	// phaseFollowing: the copy and what is pending make up what is held.
	phaseFollowing
)

// Causes of a resync, as label values.
const (
	causeStart    = "start"
	causeOverflow = "overflow"
	causeRestart  = "server_restart"
)

// outbox carries the changes of one replica to one server: in order, each
// until it is acknowledged, or else all over again from an empty copy. There
// is never a hole. The stream adds and never waits; run sends.
//
// The updates of one outbox form one source: a random epoch and sequence
// numbers from 1. A retry keeps its number, so that an update that was applied
// although its ack got lost is not applied twice. An update that was given up
// for a CLEAR never comes back, and the CLEAR has a higher number.
type outbox struct {
	outboxConfig
	epoch  uint64 // random, not 0
	meters *outboxMeters
	// wake has room for one token: there is news for run.
	wake chan struct{}

	// Only run touches these.
	sequence uint64 // of the last update made
	failing  bool   // the trouble has been logged

	mu         sync.Mutex
	phase      phase
	generation uint64 // one up each time that the copy is found to be behind
	pending    pending
	allowance  int    // bytes of the refill that is still being sent, on top of maxBytes
	serverLife uint64 // the server's epoch as last acknowledged; 0: none yet
	closed     bool
}

type outboxConfig struct {
	server   string // URL, for logs and labels
	reporter reporter
	identity *pb.CacheStateUpdate // what every update of the replica says
	window   time.Duration        // how long a change may wait for company
	maxBytes int                  // of pending changes, besides those of a refill
	holder   holder
	log      *slog.Logger
}

func newOutbox(config outboxConfig, meters *meters) *outbox {
	o := &outbox{outboxConfig: config, epoch: newEpoch(), wake: make(chan struct{}, 1)}
	o.meters = meters.outbox(o)
	o.meters.resyncs[causeStart].Inc()
	return o
}

// add takes changes of the stream, made at now from a batch that the engine
// stamped with stamp. It never waits for the server: what does not fit makes
// the outbox start over.
func (o *outbox) add(changes []Change, now, stamp time.Time) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.phase != phaseFollowing || len(changes) == 0 {
		return
	}
	for _, c := range changes {
		o.pending.add(c, now, stamp)
	}
	if o.pending.bytes > o.maxBytes+o.allowance {
		o.behindLocked(causeOverflow)
	}
	o.signal()
}

// refill takes everything held. No add may come between the making of held and
// the return. The server's copy is empty when it is called.
func (o *outbox) refill(held func(func(Change) bool), now time.Time) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.phase != phaseAsked {
		return // behind again: the next CLEAR asks anew
	}
	o.phase = phaseFollowing
	held(func(c Change) bool {
		o.pending.add(c, now, now)
		return true
	})
	o.allowance = o.pending.bytes
	o.signal()
}

// met tells the outbox of the epoch in an ack. Another one than last time
// means that the server started again, empty.
func (o *outbox) met(life uint64) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if life == 0 || life == o.serverLife {
		return
	}
	known := o.serverLife != 0
	o.serverLife = life
	if known {
		o.behindLocked(causeRestart)
		o.signal()
	}
}

// close says that no add follows; run ends when the server has everything.
func (o *outbox) close() {
	o.mu.Lock()
	o.closed = true
	o.mu.Unlock()
	o.signal()
}

// behindLocked drops everything on the way to the server; run begins again.
func (o *outbox) behindLocked(cause string) {
	o.phase = phaseBehind
	o.generation++
	o.pending.reset()
	o.allowance = 0
	o.meters.resyncs[cause].Inc()
}

func (o *outbox) signal() {
	select {
	case o.wake <- struct{}{}:
	default:
	}
}

// job is a stream's worth of updates.
type job struct {
	updates    []*pb.CacheStateUpdate
	generation uint64    // of the server's copy that they belong to
	clear      bool      // the CLEAR that starts a new copy
	stamp      time.Time // engine time of the newest change
}

// run sends until close and all is sent, or until ctx ends.
func (o *outbox) run(ctx context.Context) {
	for ctx.Err() == nil {
		j, wait, done := o.next(time.Now())
		switch {
		case done:
			return
		case j.updates == nil:
			o.pause(ctx, wait)
		case o.deliver(ctx, j) && j.clear:
			o.cleared(j.generation)
		}
	}
}

// pause waits for news, but not longer than wait if that is positive.
func (o *outbox) pause(ctx context.Context, wait time.Duration) {
	var after <-chan time.Time
	if wait > 0 {
		timer := time.NewTimer(wait)
		defer timer.Stop()
		after = timer.C
	}
	select {
	case <-ctx.Done():
	case <-o.wake:
	case <-after:
	}
}

// next is the job that is due, or, without updates, how long until one may be
// (0: not before news), or done if there will be none any more.
func (o *outbox) next(now time.Time) (j job, wait time.Duration, done bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	j = job{generation: o.generation, stamp: o.pending.newest}
	if o.phase == phaseBehind {
		j.clear, j.stamp = true, now
		o.number(&j, []*pb.CacheOperation{{Kind: pb.CacheOperation_CLEAR}})
		return j, 0, false
	}
	if o.pending.empty() {
		return job{}, 0, o.closed && o.phase == phaseFollowing
	}
	wait = o.pending.since.Add(o.window).Sub(now)
	if wait > 0 && !o.closed && len(o.pending.operations) < flushOperations && o.pending.bytes < updateBytes {
		return job{}, wait, false
	}
	for len(j.updates) < flushUpdates && !o.pending.empty() {
		if operations := o.pending.take(); operations != nil {
			o.number(&j, operations)
		}
	}
	if o.pending.empty() {
		o.allowance = 0
	}
	return j, 0, false
}

// number adds an update of operations to j.
func (o *outbox) number(j *job, operations []*pb.CacheOperation) {
	o.sequence++
	update := proto.CloneOf(o.identity)
	update.TimestampUs = j.stamp.UnixMicro()
	update.Operations = operations
	update.SourceEpoch = o.epoch
	update.Sequence = o.sequence
	j.updates = append(j.updates, update)
}

// deliver sends j until it is acknowledged. It is false if j was given up,
// because the copy it belongs to is gone or ctx ended.
func (o *outbox) deliver(ctx context.Context, j job) bool {
	retry := backoff{first: resendFirst, most: resendMost}
	for {
		err := o.send(ctx, j)
		o.noteHealth(ctx, err)
		if err == nil {
			return true
		}
		if !sleep(ctx, retry.next()) || o.current() != j.generation {
			return false
		}
	}
}

// send is one try to deliver j.
func (o *outbox) send(ctx context.Context, j job) error {
	started := time.Now()
	ack, err := o.call(ctx, j.updates)
	o.meters.seconds.UpdateDuration(started)
	if err != nil {
		return err
	}
	last := j.updates[len(j.updates)-1].Sequence
	if ack.GetServerEpoch() != 0 && ack.GetSequence() < last {
		return fmt.Errorf("server applied updates up to %d of %d", ack.GetSequence(), last)
	}
	for _, update := range j.updates {
		o.meters.operations.Add(len(update.Operations))
	}
	o.meters.delay.Update(max(0, time.Since(j.stamp).Seconds()))
	return nil
}

// sendStats delivers one load report, which has no place in the order, once.
func (o *outbox) sendStats(ctx context.Context, stats *pb.ReplicaStats, at time.Time) error {
	update := proto.CloneOf(o.identity)
	update.TimestampUs = at.UnixMicro()
	update.Stats = stats
	_, err := o.call(ctx, []*pb.CacheStateUpdate{update})
	return err
}

// call reports updates within the time limit and takes note of who answered.
func (o *outbox) call(ctx context.Context, updates []*pb.CacheStateUpdate) (*pb.Ack, error) {
	ctx, cancel := context.WithTimeout(ctx, reportTimeout)
	defer cancel()
	ack, err := o.reporter.report(ctx, updates)
	if err == nil && !ack.GetAccepted() {
		err = fmt.Errorf("not accepted: %q", ack.GetReasonCode())
	}
	if err != nil {
		o.meters.errors.Inc()
		return nil, fmt.Errorf("report to %s: %w", o.server, err)
	}
	o.met(ack.GetServerEpoch())
	return ack, nil
}

// cleared gets everything held, once the CLEAR of generation has been
// acknowledged, unless the copy is behind again.
func (o *outbox) cleared(generation uint64) {
	o.mu.Lock()
	asks := o.generation == generation
	if asks {
		o.phase = phaseAsked
	}
	o.mu.Unlock()
	if asks {
		o.holder.refill(o)
	}
}

func (o *outbox) current() uint64 {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.generation
}

// noteHealth logs when reports begin to fail and when they get through again.
func (o *outbox) noteHealth(ctx context.Context, err error) {
	switch {
	case err == nil && o.failing:
		o.log.Info("server reachable again", "server", o.server)
	case err != nil && !o.failing && ctx.Err() == nil:
		o.log.Warn("server unreachable, reports are kept", "server", o.server, "err", err)
	}
	o.failing = err != nil
}

// size is the number of operations that wait and what they take, in bytes.
func (o *outbox) size() (operations, bytes int) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return len(o.pending.operations), o.pending.bytes
}
