package subscriber

import "hash/maphash"

// verdict is what a live batch's number says about the stream.
type verdict uint8

const (
	verdictFirst     verdict = iota // nothing is known of the process
	verdictNext                     // follows the one before
	verdictGap                      // batches in between are missing
	verdictDuplicate                // has been applied already
	verdictRestart                  // the publisher counts from the start again
	verdicts
)

var verdictNames = [verdicts]string{"first", "next", "gap", "duplicate", "restart"}

func (v verdict) String() string {
	if v < verdicts {
		return verdictNames[v]
	}
	panic("bug: unknown verdict")
}

// remembered is how many batches can be told from others with their numbers.
const remembered = 64

// position is how far a stream has come in the numbers of one publisher's
// process: from 0 on, one up for each batch. It is owned by the stream's
// goroutine.
type position struct {
	known bool   // false: nothing has been applied, and history is not known to be empty
	since uint64 // everything from here to next has been applied
	next  uint64 // number of the batch that must come now
	live  uint64 // lowest number that the present connection may still bring

	seed   maphash.Seed
	recent [remembered]digest // of the last batches, by number modulo remembered
}

// digest stands for a payload. Payloads contain a time stamp, so two processes
// do not send the same under one number.
type digest struct {
	valid    bool
	sequence uint64
	sum      uint64
}

func newPosition() position { return position{seed: maphash.MakeSeed()} }

// begin takes sequence for the first batch of the process that can be had.
func (p *position) begin(sequence uint64) {
	p.known, p.since, p.next = true, sequence, sequence
	p.recent = [remembered]digest{}
}

// forget everything: the process is another one, or may be.
func (p *position) forget() { *p = position{seed: p.seed} }

// advance past the batch at next.
func (p *position) advance(payload []byte) {
	p.recent[p.next%remembered] = digest{true, p.next, maphash.Bytes(p.seed, payload)}
	p.next++
}

// same compares a payload with the one that came under its number; known is
// false if that is not remembered.
func (p *position) same(sequence uint64, payload []byte) (same, known bool) {
	d := &p.recent[sequence%remembered]
	if !d.valid || d.sequence != sequence {
		return false, false
	}
	return d.sum == maphash.Bytes(p.seed, payload), true
}

// last is the batch before next, if it was applied.
func (p *position) last() digest { return p.recent[(p.next-1)%remembered] }

// recall takes a batch that was remembered elsewhere for the one at next.
func (p *position) recall(d digest) {
	p.recent[p.next%remembered] = d
	p.next++
}

// is reports whether d stands for a payload.
func (p *position) is(d digest, payload []byte) bool { return d.sum == maphash.Bytes(p.seed, payload) }

// reconnect says that a new connection begins, which brings any number.
func (p *position) reconnect() { p.live = 0 }

// judge a batch that came live over the present connection. One that is behind
// is a duplicate if it is the same as before, or if it only follows what the
// connection brought until now, since it was replayed in the meantime. If the
// connection's numbers step back, its process is another one.
func (p *position) judge(sequence uint64, payload []byte) verdict {
	switch same, known := p.same(sequence, payload); {
	case !p.known:
		return verdictFirst
	case sequence > p.next:
		return verdictGap
	case sequence == p.next:
		return verdictNext
	case known && same, !known && sequence >= p.live:
		return verdictDuplicate
	}
	return verdictRestart
}

// heard notes the number of a live batch.
func (p *position) heard(sequence uint64) { p.live = sequence + 1 }
