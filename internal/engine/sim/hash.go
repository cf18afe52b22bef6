package sim

import "math/rand/v2"

// blockHash is the engine's own name of a block and its whole prefix. Like
// vLLM's it depends on a seed, so no two processes need to agree on it and it
// says nothing about the content fingerprint.
type blockHash uint64

// newRoot is the parent of every first block: vLLM's NONE_HASH, which is
// random per process unless it is given a seed.
func newRoot(seed uint64) blockHash {
	for seed == 0 {
		seed = rand.Uint64()
	}
	return blockHash(scramble(seed))
}

// chain returns the hashes of the full blocks of tokens, in order.
func (root blockHash) chain(tokens []uint32, blockSize int) []blockHash {
	hashes := make([]blockHash, 0, len(tokens)/blockSize)
	parent := root
	for ; len(tokens) >= blockSize; tokens = tokens[blockSize:] {
		parent = parent.next(tokens[:blockSize])
		hashes = append(hashes, parent)
	}
	return hashes
}

// next is the hash of the block of tokens that follows h.
func (h blockHash) next(tokens []uint32) blockHash {
	x := uint64(h)
	for _, token := range tokens {
		x = scramble(x + uint64(token))
	}
	return blockHash(x)
}

// scramble is the step of SplitMix64 (Steele, Lea, Flood 2014): a bijection
// whose every output bit depends on every input bit.
func scramble(x uint64) uint64 {
	x += 0x9e3779b97f4a7c15
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return x ^ x>>31
}
