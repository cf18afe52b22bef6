package subscriber

import (
	"context"
	"log/slog"
	"sync"
	"time"

	"google.golang.org/protobuf/proto"

	pb "inferencecache.io/inferencecache/proto/inferencecache/v1alpha1"
)

const (
	flushOperations = updateOps // pending operations that do not wait for the window
	flushUpdates    = 8         // updates a stream
)

// reporter delivers updates to one server. Only the outbox's run calls report
// and, at its end, close; tell may be called meanwhile.
type reporter interface {
	// report sends updates in order and returns the ack of the last one.
	report(ctx context.Context, updates []*pb.CacheStateUpdate) (*pb.Ack, error)
	// tell sends one update beside the order.
	tell(ctx context.Context, update *pb.CacheStateUpdate) (*pb.Ack, error)
	close()
}

// holder knows everything held. It answers refill with a call of the outbox's
// own refill, such that no change falls in between. held counts it, by tier.
type holder interface {
	refill(o *outbox)
	held() [3]int
}

// phase is what an outbox knows of the server's copy.
type phase uint8

const (
	// phaseBehind: the copy is unknown or has a hole. Changes are not kept;
	// a CLEAR is sent until it is acknowledged.
	phaseBehind phase = iota
	// phaseFilling: the copy was empty, and is being told everything held, part
	// by part, with the changes that come in between.
	phaseFilling
	// phaseFollowing: the copy and what is pending make up what is held.
	phaseFollowing
)

// Causes of a resync, as label values.
const (
	causeStart    = "start"
	causeOverflow = "overflow"
	causeRestart  = "server_restart"
	causeLost     = "lost" // the server says that it has lost track of us
)

var resyncCauses = []string{causeStart, causeOverflow, causeRestart, causeLost}

// outbox carries the changes of one replica to one server: in order, each
// until it is acknowledged, or else all over again from an empty copy. There
// is never a hole. The stream adds and never waits; run sends.
//
// The updates of one outbox form one source: a random epoch and sequence
// numbers from 1. A retry keeps its number, so that an update that was applied
// although its ack got lost is not applied twice. An update that was given up
// for a CLEAR never comes back, and the CLEAR has a higher number. Where there
// is nothing to say, an empty update keeps the promise of a heartbeat; the last
// one says goodbye.
type outbox struct {
	outboxConfig
	epoch  uint64 // random, not 0
	meters *outboxMeters
	// wake has room for one token: there is news for run.
	wake chan struct{}

	// Only run touches these.
	begun    time.Time // run
	sequence uint64    // of the last update made
	pulse    pulse
	trouble  trouble

	mu         sync.Mutex
	phase      phase
	generation uint64 // one up each time that the copy is found to be behind
	pending    pending
	cursor     uint32 // where the next part of what is held begins, while filling
	allowance  int    // bytes of the part that is still being sent, on top of maxBytes
	serverLife uint64 // the server's epoch as last acknowledged; 0: none yet
	closed     bool
}

type outboxConfig struct {
	server    string // URL, for logs and labels
	reporter  reporter
	identity  *pb.CacheStateUpdate // what every update of the replica says
	window    time.Duration        // how long a change may wait for company
	heartbeat time.Duration        // longest silence
	maxBytes  int                  // of pending changes, besides those of a refill
	holder    holder
	state     func() State // of the replica; any goroutine
	troubled  func()       // the server has not been reached for a while; nil: nobody minds
	log       *slog.Logger
}

func newOutbox(config outboxConfig, meters *meters) *outbox {
	o := &outbox{outboxConfig: config, epoch: newEpoch(), wake: make(chan struct{}, 1), pulse: pulse{interval: config.heartbeat}}
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
	if o.phase == phaseBehind || len(changes) == 0 {
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

// refill takes the next part of what is held from the holder. No add may come
// between the making of held and the return. Changes since the first part are
// in order with the parts, so they and the parts together make up what is held.
func (o *outbox) refill(heldFrom func(from uint32, yield func(Change)) (next uint32), now time.Time) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.phase != phaseFilling {
		return // behind again: the next CLEAR begins anew
	}
	o.cursor = heldFrom(o.cursor, func(c Change) { o.pending.add(c, now, now) })
	if o.cursor == 0 {
		o.phase = phaseFollowing
	}
	o.allowance = o.pending.bytes
	o.signal()
}

// heed looks for what an ack says of the server's copy. Another epoch than last
// time means that the server started again, empty; it may also say itself that
// it has lost the copy, which is no news while a CLEAR is on its way.
func (o *outbox) heed(ack *pb.Ack) {
	o.mu.Lock()
	defer o.mu.Unlock()
	cause := ""
	if ack.GetResync() && o.phase != phaseBehind {
		cause = causeLost
	}
	if life := ack.GetServerEpoch(); life != 0 && life != o.serverLife {
		if o.serverLife != 0 {
			cause = causeRestart
		}
		o.serverLife = life
	}
	if cause != "" {
		o.behindLocked(cause)
		o.signal()
	}
}

// close says that no add follows; run ends when the server has everything and
// was told goodbye.
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
	generation uint64 // of the server's copy that they belong to
	clear      bool   // the CLEAR that starts a new copy
	refill     bool   // no updates: the next part of what is held is wanted
	goodbye    bool   // the last job
	made       time.Time
	state      State     // of the replica, then
	stamp      time.Time // engine time of the newest change
}

// run sends until close and all is sent, or until ctx ends.
func (o *outbox) run(ctx context.Context) {
	defer o.reporter.close()
	o.begun = time.Now()
	for ctx.Err() == nil {
		j, wait := o.next(time.Now())
		switch {
		case j.refill:
			o.holder.refill(o)
		case j.updates == nil:
			o.pause(ctx, wait)
		case j.goodbye:
			o.noteHealth(ctx, o.send(ctx, j)) // once: nobody waits for more
			return
		case o.deliver(ctx, j) && j.clear:
			o.cleared(j.generation)
		}
	}
}

// pause waits for news, but not longer than wait.
func (o *outbox) pause(ctx context.Context, wait time.Duration) {
	timer := time.NewTimer(wait)
	defer timer.Stop()
	select {
	case <-ctx.Done():
	case <-o.wake:
	case <-timer.C:
	}
}

// next is the job that is due, or, without updates, how long until one may be:
// never longer than it may take to notice another state.
func (o *outbox) next(now time.Time) (j job, wait time.Duration) {
	j = job{made: now, state: o.state(), stamp: now}
	held := o.holder.held() // not under mu: its lock is the outer one
	silence := o.pulse.wait(now, j.state)
	o.mu.Lock()
	defer o.mu.Unlock()
	j.generation = o.generation
	switch {
	case o.phase == phaseBehind:
		if wait = o.pulse.history(now, o.begun, j.state); wait > 0 && !o.closed {
			return job{}, min(wait, stateCheck)
		}
		j.clear = true
		o.number(&j, []*pb.CacheOperation{{Kind: pb.CacheOperation_CLEAR}})
	case o.phase == phaseFilling && o.pending.bytes < updateBytes:
		j.refill = true
	case o.pending.empty():
		j.goodbye = o.closed
		if silence > 0 && !j.goodbye {
			return job{}, min(silence, stateCheck)
		}
		o.number(&j, nil)
	default:
		wait = min(silence, o.pending.since.Add(o.window).Sub(now))
		if wait > 0 && !o.closed && o.phase == phaseFollowing && len(o.pending.operations) < flushOperations && o.pending.bytes < updateBytes {
			return job{}, min(wait, stateCheck)
		}
		o.takeLocked(&j)
	}
	if o.phase == phaseFollowing && o.pending.empty() && len(j.updates) > 0 {
		j.updates[len(j.updates)-1].Held = &pb.HeldBlocks{T1: int64(held[0]), T2: int64(held[1]), T3: int64(held[2])}
	}
	return j, 0
}

// takeLocked fills j with what is pending.
func (o *outbox) takeLocked(j *job) {
	j.stamp = o.pending.newest
	for len(j.updates) < flushUpdates && !o.pending.empty() {
		if operations := o.pending.take(); operations != nil {
			o.number(j, operations)
		}
	}
	if o.pending.empty() {
		o.allowance = 0
	}
}

// number adds an update of operations to j.
func (o *outbox) number(j *job, operations []*pb.CacheOperation) {
	o.sequence++
	update := o.update(j.stamp, j.state)
	update.Operations = operations
	update.SourceEpoch = o.epoch
	update.Sequence = o.sequence
	update.Goodbye = j.goodbye
	j.updates = append(j.updates, update)
	o.pulse.note(j.made, j.state)
}

// update is one that says nothing yet but who, when and how far to trust it.
func (o *outbox) update(stamp time.Time, state State) *pb.CacheStateUpdate {
	update := proto.CloneOf(o.identity)
	update.TimestampUs = stamp.UnixMicro()
	update.StreamState = state.wire()
	update.HeartbeatMs = o.pulse.promise()
	return update
}

// cleared begins to tell everything held, once the CLEAR of generation has been
// acknowledged, unless the copy is behind again.
func (o *outbox) cleared(generation uint64) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.generation == generation {
		o.phase, o.cursor = phaseFilling, 1
	}
}

func (o *outbox) current() uint64 {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.generation
}

// settled reports that the server was sent everything that changed until then.
func (o *outbox) settled(then time.Time) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.phase == phaseFollowing && (o.pending.empty() || o.pending.since.After(then))
}

// size is the number of operations that wait and what they take, in bytes.
func (o *outbox) size() (operations, bytes int) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return len(o.pending.operations), o.pending.bytes
}
