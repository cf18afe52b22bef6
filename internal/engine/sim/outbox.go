package sim

import (
	"sync"
	"time"
)

// outbox is the send queue of one peer. It is bounded in messages and refuses
// more, which is what the high-water mark of a PUB or ROUTER socket of libzmq
// does. Any goroutine pushes, one takes.
type outbox struct {
	limit int
	ready chan struct{} // capacity 1: there may be something to take
	room  chan struct{} // capacity 1: something was taken

	mu     sync.Mutex
	queue  [][]byte
	head   int    // queue[:head] is taken
	urgent []byte // goes before the queue and does not count
	closed bool
}

func newOutbox(limit int) *outbox {
	return &outbox{limit: limit, ready: make(chan struct{}, 1), room: make(chan struct{}, 1)}
}

// push queues an encoded message, or reports that there is no room. It never
// blocks; a closed outbox swallows everything.
func (o *outbox) push(message []byte) bool {
	o.mu.Lock()
	full := len(o.queue)-o.head >= o.limit
	if !full && !o.closed {
		o.queue = append(o.queue, message)
	}
	accepted := !full || o.closed
	o.mu.Unlock()
	if accepted {
		signal(o.ready)
	}
	return accepted
}

// offer is push for one pusher that waits for room, but no longer than patience
// after the last message was taken.
func (o *outbox) offer(message []byte, patience time.Duration) bool {
	if o.push(message) {
		return true
	}
	timer := time.NewTimer(patience)
	defer timer.Stop()
	for {
		select {
		case <-o.room:
			if o.push(message) {
				return true
			}
		case <-timer.C:
			return false
		}
	}
}

// hurry puts an encoded message before the queue, in place of one that still
// waits there. So a peer gets its PONG although its queue is full, and one that
// asks for many and reads none takes no memory.
func (o *outbox) hurry(message []byte) {
	o.mu.Lock()
	o.urgent = message
	o.mu.Unlock()
	signal(o.ready)
}

// take moves up to max messages to dst, oldest first, and the urgent one. Once
// closed, open is false.
func (o *outbox) take(dst [][]byte, max int) (messages [][]byte, open bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.urgent != nil {
		dst, o.urgent = append(dst, o.urgent), nil
	}
	n := min(max, len(o.queue)-o.head)
	if n > 0 {
		signal(o.room)
	}
	dst = append(dst, o.queue[o.head:o.head+n]...)
	clear(o.queue[o.head : o.head+n])
	o.head += n
	switch {
	case o.head == len(o.queue):
		o.queue, o.head = o.queue[:0], 0
	case o.head > len(o.queue)/2:
		kept := copy(o.queue, o.queue[o.head:])
		clear(o.queue[kept:])
		o.queue, o.head = o.queue[:kept], 0
	}
	return dst, !o.closed
}

// close drops what is queued and wakes the taker.
func (o *outbox) close() {
	o.mu.Lock()
	o.closed, o.queue, o.head = true, nil, 0
	o.mu.Unlock()
	signal(o.ready)
	signal(o.room)
}

// signal leaves a mark in a channel of capacity 1.
func signal(c chan<- struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}
