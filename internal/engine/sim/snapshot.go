package sim

import (
	"cmp"
	"context"
	"maps"
	"slices"
)

// SGLang's placement snapshots (PR 34407, srt/disaggregation/kv_events.py): a
// client asks a second ROUTER what the process holds and gets the hashes, not
// the tokens, as of a cut that an empty batch marks in the live stream.

const (
	snapshotVersion = 1
	snapshotCommand = "snapshot-v1"
	snapshotRecords = 4096  // in a chunk, at most
	snapshotQueue   = 1_000 // messages for one client: libzmq's default
)

// placement is what the events sent so far say is on the GPU. The event thread
// alone uses it.
type placement struct {
	records map[blockHash]record
	stores  uint64
}

// record is one block of a snapshot.
type record struct {
	hash, parent blockHash
	hasParent    bool
	order        uint64 // in which blocks were stored
}

// barrier makes a batch the cut of a snapshot.
type barrier struct {
	id     string
	client *peer
}

func newPlacement() *placement { return &placement{records: make(map[blockHash]record)} }

func (p *placement) apply(events []event) {
	for _, e := range events {
		switch {
		case e.cpu:
		case e.kind == blockStored:
			r := record{parent: e.parent, hasParent: e.hasParent}
			for _, hash := range e.hashes {
				p.stores++
				r.hash, r.order = hash, p.stores
				p.records[hash] = r
				r.parent, r.hasParent = hash, true
			}
		case e.kind == blockRemoved:
			for _, hash := range e.hashes {
				delete(p.records, hash)
			}
		case e.kind == allBlocksCleared:
			clear(p.records)
		}
	}
}

// list returns the records, parents before children.
func (p *placement) list() []record {
	return slices.SortedFunc(maps.Values(p.records), func(a, b record) int { return cmp.Compare(a.order, b.order) })
}

// SnapshotError answers the next snapshot request with an error of this text.
func (r *Rank) SnapshotError(text string) {
	f := r.current().feed
	f.mu.Lock()
	defer f.mu.Unlock()
	f.refusal = text
}

// onSnapshotRequest answers what is wrong at once; what is right waits in the
// queue of batches for its cut.
func (r *Rank) onSnapshotRequest(_ context.Context, p *peer, frames [][]byte) {
	if len(frames) != 2 {
		r.log.Debug("snapshot request of the wrong shape", "name", r.cfg.Name, "frames", len(frames))
		return
	}
	f := r.current().feed
	f.mu.Lock()
	refusal := f.refusal
	f.refusal = ""
	f.mu.Unlock()
	if len(frames[0]) != 0 || string(frames[1]) != snapshotCommand {
		refusal = "invalid snapshot-v1 request"
	}
	if refusal != "" {
		p.out.push(appendMessage(nil, nil, []byte("error"), []byte(refusal)))
		return
	}
	f.add(batch{barrier: &barrier{id: newID(), client: p}})
}

// answerSnapshot sends what was placed when b, the barrier, was sent. f.mu is
// held.
func (f *feed) answerSnapshot(b batch) {
	records := f.placement.list()
	send := func(kind string, payload []byte) {
		b.barrier.client.out.push(appendMessage(nil, nil, []byte(kind), payload))
	}
	send("header", appendSnapshotHeader(nil, snapshotHeader{
		version: snapshotVersion, epoch: f.epoch, rank: f.rank,
		resume: b.seq + 1, barrier: b.seq, barrierID: b.barrier.id, records: len(records),
	}))
	for chunk := range slices.Chunk(records, snapshotRecords) {
		send("chunk", appendSnapshotChunk(nil, chunk))
	}
	send("end", nil)
}

// snapshotHeader begins a snapshot: live batches from resume on continue it.
type snapshotHeader struct {
	version   int
	epoch     string
	rank      int
	resume    uint64 // sequence
	barrier   uint64 // sequence
	barrierID string
	records   int
}

func appendSnapshotHeader(b []byte, h snapshotHeader) []byte {
	b = appendUint(appendArray(b, 7), uint64(h.version))
	b = appendString(b, h.epoch)
	b = appendUint(b, uint64(h.rank))
	b = appendUint(b, h.resume)
	b = appendUint(b, h.barrier)
	b = appendString(b, h.barrierID)
	return appendUint(b, uint64(h.records))
}

// appendSnapshotChunk writes records as [parent or nil, [hash]], with signed
// hashes as SGLang's are.
func appendSnapshotChunk(b []byte, records []record) []byte {
	b = appendArray(b, len(records))
	for _, r := range records {
		b = appendArray(b, 2)
		if r.hasParent {
			b = appendInt(b, int64(r.parent))
		} else {
			b = appendNil(b)
		}
		b = appendInt(appendArray(b, 1), int64(r.hash))
	}
	return b
}
