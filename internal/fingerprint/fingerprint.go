// Package fingerprint turns token ids into chained block hashes: the key space
// that producers and gateways share. It is the only maker of a kv.Hash from
// tokens. It knows no tenant, model or adapter: those are the partition's.
//
// The algorithm is frozen (spec: "Content fingerprint"): XXH3-64 with seed
// 1337 over little-endian uint32 token ids gives a block's content hash; the
// first prefix hash is that content hash, every later one is the hash of the
// 16 bytes (previous prefix hash, content hash), both little-endian.
package fingerprint

import (
	"encoding/binary"

	"github.com/zeebo/xxh3"

	"inferencecache.io/inferencecache/internal/kv"
)

const (
	// Seed of every hash.
	Seed = 1337
	// DefaultBlockSize is the block of vLLM's and SGLang's defaults, in tokens.
	DefaultBlockSize = 16
	// maxStackBlock is the largest block hashed from a buffer on the stack.
	maxStackBlock = 256
)

// Append adds to dst the prefix hashes of the full blocks of tokens, which
// start a prompt. Tokens that do not fill a block are left out; a blockSize
// below one gives nothing. It allocates only what dst needs to grow, as long
// as blocks have at most 256 tokens.
func Append(dst []kv.Hash, tokens []uint32, blockSize int) []kv.Hash {
	return chain(dst, 0, false, tokens, blockSize)
}

// AppendAfter is Append for tokens that continue the prefix named by parent.
// A parent of value 0 is a parent like any other.
func AppendAfter(dst []kv.Hash, parent kv.Hash, tokens []uint32, blockSize int) []kv.Hash {
	return chain(dst, parent, true, tokens, blockSize)
}

func chain(dst []kv.Hash, previous kv.Hash, chained bool, tokens []uint32, blockSize int) []kv.Hash {
	if blockSize <= 0 {
		return dst
	}
	var stack [4 * maxStackBlock]byte
	block := stack[:]
	if blockSize > maxStackBlock {
		if len(tokens) < blockSize {
			return dst
		}
		block = make([]byte, 4*blockSize)
	}
	block = block[:4*blockSize]
	var link [16]byte
	for ; len(tokens) >= blockSize; tokens = tokens[blockSize:] {
		for i, token := range tokens[:blockSize] {
			binary.LittleEndian.PutUint32(block[4*i:], token)
		}
		hash := xxh3.HashSeed(block, Seed)
		if chained {
			binary.LittleEndian.PutUint64(link[:8], uint64(previous))
			binary.LittleEndian.PutUint64(link[8:], hash)
			hash = xxh3.HashSeed(link[:], Seed)
		}
		previous, chained = kv.Hash(hash), true
		dst = append(dst, previous)
	}
	return dst
}
