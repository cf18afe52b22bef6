package rank

import (
	"math"
	"math/bits"

	"inferencecache.io/inferencecache/internal/kv"
)

// Popularity estimates how often prefixes are asked for: it counts the blocks
// of prompts at depths that are powers of two, in a table of fixed size whose
// counts fade. Two prefixes that share a place in it count as the one asked for
// last. It is not safe for concurrent use.
type Popularity struct {
	fade  float64 // seconds in which a count falls to 1/e
	mask  uint64
	table []popular
}

type popular struct {
	key   kv.Hash
	count float64
	at    float64 // seconds
}

// NewPopularity has 1<<bits places and forgets within some times fade seconds.
func NewPopularity(bits int, fade float64) *Popularity {
	return &Popularity{fade: fade, mask: 1<<bits - 1, table: make([]popular, 1<<bits)}
}

// Ask counts a prompt, at a time in seconds.
func (p *Popularity) Ask(now float64, keys []kv.Hash) {
	for depth := 1; depth <= len(keys); depth *= 2 {
		key := keys[depth-1]
		e := &p.table[uint64(key)*0x9e3779b97f4a7c15>>40&p.mask]
		if e.key != key {
			*e = popular{key: key}
		}
		e.count = e.count*math.Exp((e.at-now)/p.fade) + 1
		e.at = now
	}
}

// Rate is how many prompts a second ask for the block at index from or for one
// not far behind it.
func (p *Popularity) Rate(now float64, keys []kv.Hash, from int) float64 {
	depth := 1 << bits.Len(uint(from)) // the next power of two above from
	if depth > len(keys) {
		return 0
	}
	key := keys[depth-1]
	e := &p.table[uint64(key)*0x9e3779b97f4a7c15>>40&p.mask]
	if e.key != key {
		return 0
	}
	return e.count * math.Exp((e.at-now)/p.fade) / p.fade
}
