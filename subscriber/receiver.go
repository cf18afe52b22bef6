package subscriber

import (
	"bytes"
	"context"
	"encoding/binary"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/go-zeromq/zmq4"
)

// Reasons for which a message is not a batch, and the label values under which
// those are counted.
const (
	badFrames   = "frames"            // not topic, sequence, payload
	badSequence = "sequence"          // not 8 bytes
	badReserved = "reserved_sequence" // the end marker of replays is never live
	badEmpty    = "empty_payload"
	badTopic    = "topic" // not subscribed to; the library does not filter
)

const (
	liveFrames       = 3 // topic, sequence, payload
	sequenceSize     = 8 // bytes, unsigned big-endian
	reservedSequence = ^uint64(0)

	reconnectFirst = 100 * time.Millisecond
	reconnectMost  = 5 * time.Second
	healthyAfter   = 30 * time.Second // of connection: the next retry is a first one again
)

// receiver owns the socket: it connects, reads, checks the shape of what it
// reads and pushes it on. It never waits for anything but the network.
type receiver struct {
	endpoint   string // as configured, for logs
	guarded    string // the same under the guarded transport's name
	topic      string
	frameLimit int64 // bytes
	queue      *queue
	state      *machine
	metrics    *sourceMeters
	log        *slog.Logger

	epoch string // last seen; kept so that equal ones share their memory

	wide atomic.Bool // take messages of all topics, to see whether there are any
	mu   sync.Mutex  // over stop
	stop func()      // ends the present session
}

// run connects again and again until ctx ends.
func (r *receiver) run(ctx context.Context) {
	retry := backoff{first: reconnectFirst, most: reconnectMost}
	quiet := false // the trouble has been logged
	for ctx.Err() == nil {
		connected, lasted, err := r.session(ctx)
		if ctx.Err() != nil {
			return
		}
		r.metrics.disconnects.Inc()
		if connected || !quiet {
			r.log.Warn("engine event stream lost", "endpoint", r.endpoint, "err", err)
			quiet = true
		}
		if lasted >= healthyAfter {
			retry.reset()
		}
		sleep(ctx, retry.next())
	}
}

// session is one connection from dial to its first error, and how long it
// stood.
func (r *receiver) session(ctx context.Context) (connected bool, lasted time.Duration, err error) {
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	r.mu.Lock()
	r.stop = stop
	r.mu.Unlock()
	topic := r.topic
	if r.wide.Load() {
		topic = ""
	}
	s, err := openSub(ctx, r.guarded, topic, r.frameLimit)
	if err != nil {
		return false, 0, err
	}
	defer s.close()
	started := time.Now()
	connection := r.state.connect()
	defer func() { r.state.disconnect(time.Now()) }()
	r.queue.push(batch{mark: markConnected, connection: connection, arrived: started})
	r.metrics.connects.Inc()
	r.log.Info("engine event stream connected", "endpoint", r.endpoint)
	for {
		message, err := s.Recv()
		if err != nil {
			return true, time.Since(started), err
		}
		r.take(message, connection)
	}
}

// widen connects again, to messages of all topics. Those of others than topic
// are counted and dropped.
func (r *receiver) widen() {
	if r.wide.Swap(true) {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.stop != nil {
		r.stop()
	}
}

// take pushes a live message into the queue or counts why not.
func (r *receiver) take(message zmq4.Msg, connection uint64) {
	for _, frame := range message.Frames {
		r.metrics.receivedBytes.Add(len(frame))
	}
	sequence, payload, bad := parseLive(message.Frames, r.topic)
	if bad != "" {
		r.metrics.refused(bad).Inc()
		return
	}
	dropped := r.queue.push(batch{connection: connection, sequence: sequence, payload: payload,
		epoch: r.epochOf(message.Frames[0]), arrived: time.Now()})
	r.metrics.queueDropped.Add(dropped)
}

// epochTag comes before the name of the process in the topics of SGLang engines
// that take snapshots.
var epochTag = []byte("\x00sgl-kv-epoch=")

// epochOf is the name that a topic gives the publisher's process, if any.
func (r *receiver) epochOf(topic []byte) string {
	_, epoch, ok := bytes.Cut(topic, epochTag)
	if !ok {
		return ""
	}
	epoch, _, _ = bytes.Cut(epoch, []byte{0})
	if string(epoch) != r.epoch {
		r.epoch = string(epoch)
	}
	return r.epoch
}

// parseLive splits a live message, topic, sequence and payload, or names what
// is wrong with it. Filters are prefixes: an engine that takes snapshots
// appends to its topic.
func parseLive(frames [][]byte, topic string) (sequence uint64, payload []byte, bad string) {
	if len(frames) != liveFrames {
		return 0, nil, badFrames
	}
	if !bytes.HasPrefix(frames[0], []byte(topic)) {
		return 0, nil, badTopic
	}
	if len(frames[1]) != sequenceSize {
		return 0, nil, badSequence
	}
	sequence = binary.BigEndian.Uint64(frames[1])
	if sequence == reservedSequence {
		return 0, nil, badReserved
	}
	if len(frames[2]) == 0 {
		return 0, nil, badEmpty
	}
	return sequence, frames[2], ""
}
