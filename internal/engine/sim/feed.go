package sim

import (
	"context"
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"
)

// queueLimit is vLLM's max_queue_size: batches waiting for the event
// thread. vLLM blocks its scheduler when it is full; this engine drops the
// batch and keeps its sequence number, as TensorRT-LLM does, so that the
// loss shows as a gap.
const queueLimit = 100_000

// Metadata that SGLang appends to the topic of live messages.
const (
	epochTag   = "\x00sgl-kv-epoch="    // the name of the process
	barrierTag = "\x00sgl-kv-snapshot=" // after that; of the batch that marks a snapshot's cut
)

// feed is the event thread of one process (vLLM's ZmqEventPublisher): it takes
// batches in order, sends them live and keeps the newest for replay. Sequence
// numbers start at 0 and are given when the scheduler hands a batch over.
type feed struct {
	cfg    Config
	rank   int
	live   *socket
	epoch  string             // name of the process; "" unless Config.Epoch
	topic  string             // of live messages
	ready  chan struct{}      // capacity 1: the queue is not empty
	stalls chan time.Duration // capacity 1: stand still for so long
	gone   chan struct{}      // closed when a successor is in place

	mu        sync.Mutex
	closed    bool
	next      uint64 // sequence of the next batch
	queue     []batch
	buffer    ring          // encoded
	placement *placement    // what is sent; nil without snapshots
	late      []liveMessage // held back until the next batch is sent
	onLive    liveFaults    // asked for, not carried out yet
	onReplay  replayFaults  // likewise
	refusal   string        // of the next snapshot request; "" is none
	overflow  uint64        // batches lost because the queue was full
}

// batch is the events of one scheduler step, then their encoded form.
type batch struct {
	seq     uint64
	at      time.Time
	events  []event
	payload []byte
	barrier *barrier // the batch is the cut of a snapshot
	stub    bool     // no batch, but a message without a payload and without a number of its own
	live    liveMarks
}

// liveMessage is an encoded live message.
type liveMessage struct{ topic, bytes []byte }

func newFeed(cfg Config, rank int, live *socket) *feed {
	f := &feed{
		cfg: cfg, rank: rank, live: live, topic: cfg.Topic,
		ready:  make(chan struct{}, 1),
		stalls: make(chan time.Duration, 1),
		gone:   make(chan struct{}),
		buffer: ring{limit: cfg.BufferSteps},
	}
	if cfg.Epoch {
		f.epoch = newID()
		f.topic += epochTag + f.epoch
	}
	if cfg.Snapshot != "" {
		f.placement = newPlacement()
	}
	return f
}

// newID is a name like those that SGLang takes from uuid4().hex.
func newID() string { return fmt.Sprintf("%016x%016x", rand.Uint64(), rand.Uint64()) }

// put hands the events of one step over; it never blocks.
func (f *feed) put(events []event) { f.add(batch{events: events}) }

// add gives b its number and queues it, as put does.
func (f *feed) add(b batch) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.closed {
		return
	}
	b.seq, b.at = f.next, time.Now()
	if !b.stub {
		f.next++
	}
	if len(f.queue) >= queueLimit {
		f.overflow++
		return
	}
	if !b.stub {
		b.live = f.onLive.take()
	}
	f.queue = append(f.queue, b)
	signal(f.ready)
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
	f.closed, f.queue, f.late, f.buffer.batches = true, nil, nil, nil
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
	if b.stub {
		f.publish(newMessage(f.topic, seqFrame(b.seq)))
		return len(f.queue) > 0
	}
	if b.payload == nil {
		b.payload = appendBatch(nil, f.cfg.Encoding, b.at, f.rank, b.events)
	}
	f.send(b)
	f.buffer.keep(batch{seq: b.seq, payload: b.payload})
	if f.placement != nil {
		f.placement.apply(b.events)
	}
	if b.barrier != nil {
		f.answerSnapshot(b)
	}
	return len(f.queue) > 0
}

// send publishes b, and behind it what waits for a batch to overtake it. f.mu
// is held: queueing for peers does not block, and under the lock nothing of a
// process can be sent after its end.
func (f *feed) send(b batch) {
	topic := f.topic
	if b.barrier != nil {
		topic += barrierTag + b.barrier.id
	}
	m := newMessage(topic, seqFrame(b.seq), b.payload)
	var messages []liveMessage
	switch {
	case b.live.silent:
	case b.live.twice:
		messages = []liveMessage{m, m}
	default:
		messages = []liveMessage{m}
	}
	if b.live.late {
		f.late = append(f.late, messages...)
		return
	}
	for _, m := range append(messages, f.late...) {
		f.publish(m)
	}
	f.late = nil
}

func (f *feed) publish(m liveMessage) { f.live.publish(m.topic, m.bytes) }

// newMessage encodes one: the topic and what follows it.
func newMessage(topic string, frames ...[]byte) liveMessage {
	first := []byte(topic)
	return liveMessage{first, appendMessage(nil, append([][]byte{first}, frames...)...)}
}

func seqFrame(seq uint64) []byte { return binary.BigEndian.AppendUint64(nil, seq) }
