package sim

import (
	"math/rand/v2"

	"inferencecache.io/inferencecache/internal/kv"
)

// blockHash is the engine's own name of a block and its whole prefix. Like
// vLLM's it depends on a seed, so no two processes need to agree on it and it
// says nothing about the content fingerprint.
type blockHash uint64

// variant is what besides its tokens went into the blocks of a prompt.
type variant struct {
	adapter   string // LoRA; "" is the base model, or in events one without a name
	adapterID int    // its place among the loaded ones, from 1; not hashed
	salt      string // of the request; "" is none
}

// keys are vLLM's extra keys of a block, in its order (kv_cache_utils.py,
// generate_block_hash_extra_keys): the adapter's name on every block, the salt
// on the first one only. The others get it by way of their parent's hash.
func (v variant) keys(first bool) []string {
	var keys []string
	if v.adapter != "" {
		keys = append(keys, v.adapter)
	}
	if first && v.salt != "" {
		keys = append(keys, v.salt)
	}
	return keys
}

// newRoot is the parent of every first block: vLLM's NONE_HASH, which is
// random per process unless it is given a seed.
func newRoot(seed uint64) blockHash {
	for seed == 0 {
		seed = rand.Uint64()
	}
	return blockHash(scramble(seed))
}

// chain returns the hashes of the full blocks of tokens, in order.
func (root blockHash) chain(tokens []uint32, blockSize int, v variant) []blockHash {
	hashes := make([]blockHash, 0, len(tokens)/blockSize)
	parent := root
	for ; len(tokens) >= blockSize; tokens = tokens[blockSize:] {
		parent = parent.next(tokens[:blockSize], v.keys(len(hashes) == 0))
		hashes = append(hashes, parent)
	}
	return hashes
}

// next is the hash of the block of tokens and extra keys that follows h. The
// complement at the end of a key keeps its bytes apart from tokens.
func (h blockHash) next(tokens []uint32, keys []string) blockHash {
	x := uint64(h)
	for _, key := range keys {
		for i := range len(key) {
			x = scramble(x + uint64(key[i]))
		}
		x = scramble(^x)
	}
	for _, token := range tokens {
		x = scramble(x + uint64(token))
	}
	return blockHash(x)
}

// scramble is the step of SplitMix64.
func scramble(x uint64) uint64 { return kv.Mix(x + kv.Golden) }
