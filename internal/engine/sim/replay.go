package sim

import (
	"encoding/binary"
	"slices"
	"time"
)

// endMarker is the sequence number that ends a replay: -1 as vLLM writes it.
const endMarker = ^uint64(0)

// replayPatience is how long the queue of a client may be full without a
// message leaving it before the client counts as one that does not read. A busy
// machine holds up one that does for a good part of that.
const replayPatience = time.Second

// ring is the replay buffer: the newest batches, at most limit.
type ring struct {
	limit   int
	batches []batch
	oldest  int // position of the oldest; 0 unless the ring is full
}

func (r *ring) keep(b batch) {
	if len(r.batches) < r.limit {
		r.batches = append(r.batches, b)
		return
	}
	r.batches[r.oldest] = b
	r.oldest = (r.oldest + 1) % len(r.batches)
}

// from returns the batches with a sequence of at least start, in order.
func (r *ring) from(start uint64) (batches []batch) {
	for i := range r.batches {
		if b := r.batches[(r.oldest+i)%len(r.batches)]; b.seq >= start {
			batches = append(batches, b)
		}
	}
	return batches
}

// forget drops the n oldest batches and returns how many there were.
func (r *ring) forget(n int) int {
	n = min(n, len(r.batches))
	r.batches, r.oldest = r.from(0)[n:], 0
	return n
}

// replayRequest is a peer's wish for all batches from start on.
type replayRequest struct {
	peer  *peer
	start uint64
}

// requestFrom reads what a ROUTER gets of a replay request after the identity:
// [empty, start]. vLLM logs and ignores anything else.
func requestFrom(frames [][]byte) (start uint64, ok bool) {
	if len(frames) != 2 || len(frames[0]) != 0 || len(frames[1]) != 8 {
		return 0, false
	}
	return binary.BigEndian.Uint64(frames[1]), true
}

// replay answers r. The queue of a peer has room for one whole replay, so that
// a slow client holds up nobody, unless Config.ReplayHWM makes it shorter: then
// a client that reads is waited for, and one that does not loses the rest.
//
// The ROUTER of vLLM has libzmq's limit of 1,000 messages and drops silently:
// a slow client gets the first ones and never the end marker.
func (f *feed) replay(r replayRequest) {
	batches, end := f.replies(r.start)
	if end {
		batches = append(batches, batch{seq: endMarker})
	}
	for i, b := range batches {
		if !r.peer.out.offer(f.reply(b), replayPatience) {
			r.peer.socket.dropped.Add(uint64(len(batches) - i))
			return
		}
	}
}

// replies are the batches that a replay from start on sends, and whether the
// end marker follows them. It carries out the faults that were asked for.
func (f *feed) replies(start uint64) (batches []batch, end bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.onReplay.refuse > 0 {
		f.onReplay.refuse--
		return nil, false
	}
	faults := f.onReplay
	f.onReplay = replayFaults{}
	batches = f.buffer.from(start)
	if faults.empty {
		batches = nil
	}
	if i := faults.hole - 1; i >= 0 && i < len(batches) {
		batches = slices.Delete(batches, i, i+1)
	}
	if faults.cut {
		return batches[:min(faults.keep, len(batches))], false
	}
	return batches, true
}

// reply encodes one reply behind the empty frame of the request's envelope.
func (f *feed) reply(b batch) []byte {
	if f.cfg.ReplayLayout == LayoutOld {
		return appendMessage(nil, nil, seqFrame(b.seq), b.payload)
	}
	topic := []byte(f.cfg.Topic)
	if b.seq == endMarker {
		topic = nil
	}
	return appendMessage(nil, nil, topic, seqFrame(b.seq), b.payload)
}
