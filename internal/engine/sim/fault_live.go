package sim

// liveFaults are those asked of the live stream and not carried out yet. They
// take hold of batches when the scheduler hands these over.
type liveFaults struct {
	drop      int // batches
	duplicate int // batches
	reorder   bool
}

// liveMarks say what is to be done to one batch.
type liveMarks struct {
	silent bool // not sent live
	twice  bool // sent live once more
	late   bool // sent live after the batch that follows it
}

// take returns the marks of the next batch.
func (f *liveFaults) take() liveMarks {
	m := liveMarks{silent: f.drop > 0, twice: f.duplicate > 0, late: f.reorder}
	f.drop, f.duplicate, f.reorder = max(f.drop-1, 0), max(f.duplicate-1, 0), false
	return m
}

// Drop keeps the next n batches from the live stream. They still take their
// sequence numbers and can be replayed: what a subscriber sees is a gap, or
// nothing at all if they are the last ones.
func (r *Rank) Drop(n int) { r.faultLive(func(f *liveFaults) { f.drop += n }) }

// Duplicate sends each of the next n batches twice.
func (r *Rank) Duplicate(n int) { r.faultLive(func(f *liveFaults) { f.duplicate += n }) }

// Reorder sends the next batch after the one that follows it. The replay buffer
// stays in order.
func (r *Rank) Reorder() { r.faultLive(func(f *liveFaults) { f.reorder = true }) }

// Skip takes n sequence numbers that are never sent nor buffered, as
// TensorRT-LLM does when its queue is full: a gap that no replay fills.
func (r *Rank) Skip(n int) {
	f := r.current().feed
	f.mu.Lock()
	defer f.mu.Unlock()
	f.next += uint64(n)
	f.overflow += uint64(n)
}

// Garbage sends a batch that is not msgpack: 0xc1 is the one byte that begins
// nothing. It has a sequence number and is replayed like any other.
func (r *Rank) Garbage() { r.current().feed.add(batch{payload: []byte("\xc1 is not msgpack")}) }

// Unknown sends a batch with an event that no consumer knows yet, vLLM's
// TierBlocksCleared (PR 57296). Nothing happens to the cache.
func (r *Rank) Unknown() {
	r.current().feed.put([]event{{kind: tierBlocksCleared, cpu: true}})
}

// BadFrames sends a live message of two frames, without a payload. It has the
// sequence number that the next batch has as well, and is not replayed.
func (r *Rank) BadFrames() { r.current().feed.add(batch{stub: true}) }

func (r *Rank) faultLive(set func(*liveFaults)) {
	f := r.current().feed
	f.mu.Lock()
	defer f.mu.Unlock()
	set(&f.onLive)
}
