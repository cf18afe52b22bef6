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

func (p *Popularity) place(key kv.Hash) *popular {
	return &p.table[slot(key, p.mask)]
}

// Ask counts a prompt, at a time in seconds. Prompts of different salts have
// nothing in common.
func (p *Popularity) Ask(now float64, salt uint64, keys []kv.Hash) {
	for depth := 1; depth <= len(keys); depth *= 2 {
		key := keys[depth-1] ^ kv.Hash(salt)
		e := p.place(key)
		if e.key != key {
			*e = popular{key: key}
		}
		e.count = e.count*math.Exp((e.at-now)/p.fade) + 1
		e.at = now
	}
}

// Rates are prompts a second by the power of two that is the depth they were
// counted at.
type Rates [32]float64

// Rates is how many prompts a second have the same first blocks.
func (p *Popularity) Rates(now float64, salt uint64, keys []kv.Hash) (rates Rates) {
	for i := 0; i < len(rates) && 1<<i <= len(keys); i++ {
		rates[i] = p.Rate(now, salt, keys[1<<i-1])
	}
	return rates
}

// Rate is how many prompts a second have the block of a key at a depth that is a
// power of two.
func (p *Popularity) Rate(now float64, salt uint64, key kv.Hash) float64 {
	key ^= kv.Hash(salt)
	if e := p.place(key); e.key == key {
		return e.count * math.Exp((e.at-now)/p.fade) / p.fade
	}
	return 0
}

// Behind is how many prompts a second ask for the block behind so many blocks,
// or for one not far behind it.
func (r *Rates) Behind(blocks int) float64 {
	if i := bits.Len(uint(blocks)); i < len(r) {
		return r[i]
	}
	return 0
}
