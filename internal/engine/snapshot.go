package engine

import (
	"errors"
	"fmt"
)

// Names of the messages of SGLang's snapshot protocol (pull request 34407), and
// the request. Replies are [ , "header", header], [ , "chunk", records] any
// number of times, then [ , "end", ""]; or [ , "error", text].
const (
	SnapshotRequest = "snapshot-v1"
	SnapshotHead    = "header"
	SnapshotChunk   = "chunk"
	SnapshotEnd     = "end"
	SnapshotError   = "error"
)

// snapshotVersion is the only one there is.
const snapshotVersion = 1

// SnapshotHeader says which state of the engine the records describe: the one
// when it sent the batch numbered Barrier, which says nothing else.
type SnapshotHeader struct {
	Epoch   string // of the process
	Rank    int
	Resume  uint64 // number of the first batch after the snapshot
	Barrier uint64
	Records uint64 // that follow, over all chunks
}

var errSnapshotShape = errors.New("not [version, epoch, rank, resume, barrier, barrier id, records]")

// DecodeSnapshotHeader reads a header.
func DecodeSnapshotHeader(payload []byte) (h SnapshotHeader, err error) {
	r := reader{buf: payload}
	const fields = 7
	head, err := r.next()
	if err != nil {
		return h, err
	}
	if head.kind != kindArray || head.n < fields {
		return h, errSnapshotShape
	}
	version, err := r.number()
	if err != nil {
		return h, err
	}
	if version != snapshotVersion {
		return h, fmt.Errorf("snapshot version %d is not known", version)
	}
	epoch, err := r.next()
	if err != nil {
		return h, err
	}
	if epoch.kind != kindString {
		return h, errSnapshotShape
	}
	h.Epoch = string(r.bytes(epoch))
	var rank uint64
	for _, to := range []*uint64{&rank, &h.Resume, &h.Barrier} {
		if *to, err = r.number(); err != nil {
			return h, err
		}
	}
	if err := r.skip(2); err != nil { // the barrier's id is in its topic
		return h, err
	}
	h.Rank = int(min(rank, 1<<31))
	h.Records, err = r.number()
	return h, err
}

// DecodeSnapshotChunk reads records [parent or nil, [hash]] and yields the ID
// of each block.
func DecodeSnapshotChunk(payload []byte, yield func(id uint64)) (records int, err error) {
	r := reader{buf: payload}
	head, err := r.next()
	if err != nil {
		return 0, err
	}
	if head.kind != kindArray {
		return 0, errors.New("a chunk is not a list of records")
	}
	for range head.n {
		record, err := r.next()
		if err != nil {
			return records, err
		}
		if record.kind != kindArray || record.n != 2 {
			return records, errors.New("a record is not [parent, hashes]")
		}
		if err := r.skip(3); err != nil {
			return records, err
		}
		hashes, err := r.next()
		if err != nil {
			return records, err
		}
		if hashes.kind != kindArray {
			return records, errors.New("the hashes of a record are not a list")
		}
		for range hashes.n {
			hash, err := r.next()
			if err != nil {
				return records, err
			}
			if hash.kind != kindUint && hash.kind != kindInt {
				return records, errors.New("a hash is not an integer")
			}
			yield(hash.n)
		}
		records++
	}
	return records, nil
}

// number reads an integer that is not negative.
func (r *reader) number() (uint64, error) {
	v, err := r.next()
	if err != nil {
		return 0, err
	}
	if v.kind != kindUint {
		return 0, errSnapshotShape
	}
	return v.n, nil
}
