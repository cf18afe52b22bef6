package sim

import (
	"context"
	"encoding/binary"
	"sync"
	"time"
)

// queueLimit is vLLM's max_queue_size: batches waiting for the event
// thread. vLLM blocks its scheduler when it is full; this engine drops the
// batch and keeps its sequence number, as TensorRT-LLM does, so that the
// loss shows as a gap.
const queueLimit = 100_000

// endMarker is the sequence number that ends a replay: -1 as vLLM writes it.
const endMarker = ^uint64(0)

// feed is the event thread of one process (vLLM's ZmqEventPublisher): it takes
// batches in order, sends them live and keeps the newest for replay. Sequence
// numbers start at 0 and are given when the scheduler hands a batch over.
type feed struct {
	cfg    Config
	live   *socket
	ready  chan struct{}      // capacity 1: the queue is not empty
	stalls chan time.Duration // capacity 1: stand still for so long
	gone   chan struct{}      // closed when a successor is in place

	mu       sync.Mutex
	closed   bool
	next     uint64 // sequence of the next batch
	queue    []batch
	drops    int // batches to keep from the live stream
	cut      int // replies in the next replay, if cutNext
	cutNext  bool
	buffer   []batch // encoded; a ring of at most BufferSteps
	oldest   int     // position of the oldest in a full ring
	overflow uint64  // batches lost because the queue was full
}

// batch is the events of one scheduler step, then their encoded form.
type batch struct {
	seq     uint64
	at      time.Time
	events  []event
	payload []byte
	silent  bool // dropped from the live stream by order
}

// replayRequest is a peer's wish for all batches from start on.
type replayRequest struct {
	peer  *peer
	start uint64
}

func newFeed(cfg Config, live *socket) *feed {
	return &feed{
		cfg: cfg, live: live,
		ready:  make(chan struct{}, 1),
		stalls: make(chan time.Duration, 1),
		gone:   make(chan struct{}),
	}
}

// put hands the events of one step over; it never blocks.
func (f *feed) put(events []event) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.closed {
		return
	}
	seq := f.next
	f.next++
	if len(f.queue) >= queueLimit {
		f.overflow++
		return
	}
	b := batch{seq: seq, at: time.Now(), events: events}
	if f.drops > 0 {
		f.drops--
		b.silent = true
	}
	f.queue = append(f.queue, b)
	signal(f.ready)
}

// drop keeps the next n batches from the live stream, on top of earlier ones.
func (f *feed) drop(n int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.drops += n
}

// truncate ends the next replay after n replies, without an end marker.
func (f *feed) truncate(n int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.cut, f.cutNext = n, true
}

// stall makes the event thread stand still for d, replay included. While it
// stands a further stall is queued, and one more replaces that.
func (f *feed) stall(d time.Duration) {
	for {
		select {
		case f.stalls <- d:
			return
		default:
		}
		select {
		case <-f.stalls:
		default:
		}
	}
}

// close ends the feed: what is queued is lost with the process, and nothing is
// sent after close returns.
func (f *feed) close() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.closed, f.queue, f.buffer = true, nil, nil
}

// run is the event thread. It returns when ctx ends or the process is replaced.
func (f *feed) run(ctx context.Context, requests <-chan replayRequest) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-f.gone:
			return
		case d := <-f.stalls:
			f.stand(ctx, d)
		case r := <-requests:
			f.replay(r)
		case <-f.ready:
			if f.sendOne() {
				signal(f.ready)
			}
		}
	}
}

func (f *feed) stand(ctx context.Context, d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-f.gone:
	case <-ctx.Done():
	}
}

// sendOne encodes, sends and buffers the oldest batch; more reports that
// others wait. Taking one at a time lets replay requests in between.
func (f *feed) sendOne() (more bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if len(f.queue) == 0 {
		return false
	}
	b := f.queue[0]
	f.queue[0] = batch{}
	f.queue = f.queue[1:]
	b.payload = appendBatch(nil, f.cfg.Encoding, b.at, b.events)
	b.events = nil
	// Queueing for peers does not block, and under the lock nothing of a
	// process can be sent after its end.
	if !b.silent {
		topic := []byte(f.cfg.Topic)
		f.live.publish(topic, appendMessage(nil, topic, seqFrame(b.seq), b.payload))
	}
	f.keep(b)
	return len(f.queue) > 0
}

// keep adds b to the replay ring. f.mu is held.
func (f *feed) keep(b batch) {
	if len(f.buffer) < f.cfg.BufferSteps {
		f.buffer = append(f.buffer, b)
		return
	}
	f.buffer[f.oldest] = b
	f.oldest = (f.oldest + 1) % len(f.buffer)
}

// from returns the buffered batches with a sequence of at least start, and
// whether all that a replay should send is there.
func (f *feed) from(start uint64) (batches []batch, whole bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for i := range f.buffer {
		if b := f.buffer[(f.oldest+i)%len(f.buffer)]; b.seq >= start {
			batches = append(batches, b)
		}
	}
	if f.cutNext {
		f.cutNext = false
		return batches[:min(f.cut, len(batches))], false
	}
	return batches, true
}

// replay answers r. It queues all replies at once, so that a slow client holds
// up nobody; the queue of a peer has room for one whole replay.
//
// vLLM leaves its ROUTER at libzmq's limit of 1,000 messages and loses what a
// slow client does not read in time. Here that is a fault to ask for: Truncate.
func (f *feed) replay(r replayRequest) {
	batches, whole := f.from(r.start)
	for _, b := range batches {
		r.peer.out.push(f.reply(b.seq, b.payload))
	}
	if whole {
		r.peer.out.push(f.reply(endMarker, nil))
	}
}

// reply encodes one reply behind the empty frame of the request's envelope.
func (f *feed) reply(seq uint64, payload []byte) []byte {
	if f.cfg.ReplayLayout == LayoutOld {
		return appendMessage(nil, nil, seqFrame(seq), payload)
	}
	topic := []byte(f.cfg.Topic)
	if seq == endMarker {
		topic = nil
	}
	return appendMessage(nil, nil, topic, seqFrame(seq), payload)
}

func seqFrame(seq uint64) []byte { return binary.BigEndian.AppendUint64(nil, seq) }

// requestFrom reads what a ROUTER gets of a replay request after the identity:
// [empty, start]. vLLM logs and ignores anything else.
func requestFrom(frames [][]byte) (start uint64, ok bool) {
	if len(frames) != 2 || len(frames[0]) != 0 || len(frames[1]) != 8 {
		return 0, false
	}
	return binary.BigEndian.Uint64(frames[1]), true
}
