package server

import (
	"hash/maphash"
	"sync"
	"time"

	"inferencecache.io/inferencecache/internal/kv"
)

// removalBits sizes the table of what engines gave up: 1 MiB.
const removalBits = 16

// removals remembers which blocks engines gave up lately and when, in a table
// of fixed size where a newer one takes the place of an older. It explains
// misses and decides nothing. Safe for concurrent use.
type removals struct {
	seed  maphash.Seed
	mu    sync.Mutex // guards table
	table []removal
}

type removal struct {
	what uint64 // of source, adapter and key
	at   int64  // milliseconds since the epoch
}

func newRemovals() *removals {
	return &removals{seed: maphash.MakeSeed(), table: make([]removal, 1<<removalBits)}
}

// who is the part of what that all keys of a batch share.
func (r *removals) who(from source, adapter string) uint64 {
	return maphash.Comparable(r.seed, from) ^ maphash.String(r.seed, adapter)
}

func what(who uint64, key kv.Hash) uint64 { return (who ^ uint64(key)) * kv.Golden }

// add notes that a source gave up keys.
func (r *removals) add(at time.Time, from source, adapter string, keys []kv.Hash) {
	who, ms := r.who(from, adapter), at.UnixMilli()
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, key := range keys {
		w := what(who, key)
		r.table[w>>(64-removalBits)] = removal{w, ms}
	}
}

// when a source gave up a key; ok is false if that is not known any more.
func (r *removals) when(from source, adapter string, key kv.Hash) (at time.Time, ok bool) {
	w := what(r.who(from, adapter), key)
	r.mu.Lock()
	defer r.mu.Unlock()
	if e := r.table[w>>(64-removalBits)]; e.what == w && e.at != 0 {
		return time.UnixMilli(e.at), true
	}
	return time.Time{}, false
}
