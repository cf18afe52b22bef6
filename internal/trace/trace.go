// Package trace reads and makes request traces that carry block ids: which
// prompt came when, and which blocks of prefix it shares with others. It holds
// no tokens and no text, knows nothing of engines, replicas or caches, and
// does not replay anything. The benchmarks read it.
package trace

import (
	"time"

	"inferencecache.io/inferencecache/internal/kv"
)

// Request is one line of a trace.
type Request struct {
	At     time.Duration // since the start of the trace, never before the last one's
	Input  int           // tokens of the prompt
	Output int           // tokens of the answer
	// Blocks are ids of the prompt's blocks in order, with the last block even
	// if it is not full. They are global and depend on the chain: equal ids
	// mean equal prefixes up to and including the block.
	Blocks []uint64
}

// Spread turns the small numbers of a trace into what hashes look like
// (SplitMix64).
func Spread(id uint64) uint64 { return kv.Mix(id + kv.Golden) }
