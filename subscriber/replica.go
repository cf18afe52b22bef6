package subscriber

import (
	"slices"
	"sync"
	"time"

	"inferencecache.io/inferencecache/internal/engine"
	"inferencecache.io/inferencecache/internal/kv"
)

// replica is what the event streams of one replica share: what it holds, and
// the outboxes that must hear of each change. Any goroutine may call it.
type replica struct {
	meters *meters

	// mu is held over a change of residency and its hand-over to all outboxes,
	// so that each of them gets the changes in the order in which they were
	// made. Outboxes lock themselves within it, never the other way round.
	mu        sync.Mutex
	residency *Residency
	outboxes  []*outbox
}

// apply takes in a batch of one stream; stamp is the engine's time. The tally's
// verdicts are in the memory of those given.
func (r *replica) apply(source int, b *engine.Batch, arrived, stamp time.Time, verdicts []engine.Verdict) Tally {
	r.mu.Lock()
	defer r.mu.Unlock()
	changes, tally := r.residency.Apply(source, b)
	if tally.Cleared {
		r.residency.SetPartial(source, false)
	}
	r.publishLocked(changes, arrived, stamp)
	tally.Verdicts = append(verdicts[:0], tally.Verdicts...)
	return tally
}

// clear forgets what one stream has told. partial: and there is more that it
// has not heard.
func (r *replica) clear(source int, partial bool, now time.Time) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.publishLocked(r.residency.ClearRank(source), now, now)
	r.residency.SetPartial(source, partial)
}

// name gives adapters their names from now on.
func (r *replica) name(adapters map[int64]string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.residency.NameAdapters(adapters)
}

// watch makes a stream's residency remember what changes, or forget that.
func (r *replica) watch(source int, on bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.residency.Watch(source, on)
}

// confirm drops what a stream's engine does not hold, see Residency.Confirm.
func (r *replica) confirm(source int, blocks map[uint64]struct{}, now time.Time) (refuted, unknown int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	changes, refuted, unknown := r.residency.Confirm(source, blocks)
	r.publishLocked(changes, now, now)
	return refuted, unknown
}

// holds reports whether any copy of a block is held.
func (r *replica) holds(adapter string, h kv.Hash) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.residency.Holds(adapter, h)
}

// holdsAny reports whether a stream has told of a block that is still held.
func (r *replica) holdsAny(source int) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.residency.HoldsAny(source)
}

// warmTokens is the room that what a stream holds takes up in its engine.
func (r *replica) warmTokens(source int) int64 {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.residency.WarmTokens(source)
}

// stats are the residency's numbers.
func (r *replica) stats() Stats {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.residency.Stats()
}

// held counts the blocks that lookups can find, by best tier.
func (r *replica) held() [3]int { return r.stats().Held }

// refill gives an outbox the next part of what is held.
func (r *replica) refill(o *outbox) {
	r.mu.Lock()
	defer r.mu.Unlock()
	o.refill(func(from uint32, yield func(Change)) uint32 {
		return r.residency.HeldFrom(from, heldPiece, yield)
	}, time.Now())
}

// join adds an outbox: it hears of every change from now on.
func (r *replica) join(o *outbox) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.outboxes = append(r.outboxes, o)
}

// leave takes an outbox out: it hears of no change any more.
func (r *replica) leave(o *outbox) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.outboxes = slices.DeleteFunc(r.outboxes, func(other *outbox) bool { return other == o })
}

// all are the outboxes of now.
func (r *replica) all() []*outbox {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.outboxes)
}

func (r *replica) publishLocked(changes []Change, arrived, stamp time.Time) {
	for _, o := range r.outboxes {
		o.add(changes, arrived, stamp)
	}
	now := r.residency.Stats()
	r.meters.orphans.Set(float64(now.Orphans))
	for i, n := range now.Held {
		r.meters.held[i].Set(float64(n))
	}
}
