package subscriber

import (
	"sync"
	"time"
)

// batch is one live message of the engine as it came in, not decoded, or the
// mark of something that happened between two of them.
type batch struct {
	mark       mark
	connection uint64 // ordinal of the connection it came over, from 1
	sequence   uint64
	payload    []byte
	epoch      string // of the publisher's process, from engines that name it
	arrived    time.Time
	// lost is the gap mark: so many batches between the one before and this
	// one came in and were dropped here.
	lost uint64
}

// mark says what a batch is; the zero value is a message.
type mark uint8

const (
	markMessage   mark = iota
	markConnected      // the connection begins here
	markReplaced       // the engine's process has been another one since arrived, as its metrics show
	markAsleep         // the engine sleeps without a cache, as they show too
	markAwake          // it does not
	markDrifted        // more is held than there is room for, as they show too
)

// queue stands between the goroutine that owns the socket and the worker. It
// is bounded in batches and in payload bytes. A push never waits: what does
// not fit pushes out the oldest, with a gap mark on the batch that follows. A
// batch larger than the whole queue is let in alone.
//
// Any goroutine may push, one pops.
type queue struct {
	maxBatches, maxBytes int
	// ready has room for one token and holds it whenever there may be
	// something to pop or the queue is closed.
	ready chan struct{}

	mu     sync.Mutex
	held   []batch // from head on, oldest first
	head   int
	bytes  int
	closed bool
}

func newQueue(maxBatches, maxBytes int) *queue {
	return &queue{maxBatches: maxBatches, maxBytes: maxBytes, ready: make(chan struct{}, 1)}
}

// push adds b and says how many batches had to go for it.
func (q *queue) push(b batch) (dropped int) {
	q.mu.Lock()
	for len(q.held) > q.head && (len(q.held)-q.head >= q.maxBatches || q.bytes+len(b.payload) > q.maxBytes) {
		oldest := q.takeLocked()
		dropped++
		next := &b
		if len(q.held) > q.head {
			next = &q.held[q.head]
		}
		next.lost += oldest.lost + 1
	}
	q.held = append(q.held, b)
	q.bytes += len(b.payload)
	q.mu.Unlock()
	q.signal()
	return dropped
}

// pop takes the oldest batch; ok is false if there is none. After close and
// the last batch, done is true.
func (q *queue) pop() (b batch, ok, done bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if len(q.held) == q.head {
		return batch{}, false, q.closed
	}
	return q.takeLocked(), true, false
}

// close says that no push follows. What is held can still be popped.
func (q *queue) close() {
	q.mu.Lock()
	q.closed = true
	q.mu.Unlock()
	q.signal()
}

// size is the number of batches held and their payload bytes.
func (q *queue) size() (batches, bytes int) {
	q.mu.Lock()
	defer q.mu.Unlock()
	return len(q.held) - q.head, q.bytes
}

func (q *queue) signal() {
	select {
	case q.ready <- struct{}{}:
	default:
	}
}

// takeLocked removes the oldest batch of a queue that is not empty.
func (q *queue) takeLocked() batch {
	b := q.held[q.head]
	q.held[q.head] = batch{}
	q.head++
	q.bytes -= len(b.payload)
	switch {
	case q.head == len(q.held):
		q.held, q.head = q.held[:0], 0
	case q.head >= 1024 && 2*q.head >= len(q.held):
		n := copy(q.held, q.held[q.head:])
		clear(q.held[n:])
		q.held, q.head = q.held[:n], 0
	}
	return b
}
