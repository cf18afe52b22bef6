package bench

import (
	"fmt"
	"math/rand/v2"
	"time"

	"inferencecache.io/inferencecache/index"
	"inferencecache.io/inferencecache/internal/kv"
)

const (
	// Chain is how many blocks the chains have that are added: 262,144 tokens.
	Chain = 16384
	// Piece is how many keys a batch carries at most, as engines report them.
	Piece = 512

	// MaxHolders of a block that a load can have.
	MaxHolders = 32

	blockTokens = 16
)

var (
	// Scope of all loads.
	Scope = kv.Scope{Tenant: "tenant", Model: "model", Scheme: "vllm"}
	// Now is what the loads call now. It stands still unless they say so.
	Now = time.UnixMilli(1_700_000_000_000)

	partition = kv.Partition{Scope: Scope}
)

// Unbounded is an index that evicts nothing.
func Unbounded() *index.Index {
	return index.New(index.Config{Defaults: index.Limits{MaxKeys: -1}})
}

// Keys returns n random keys, the same each time.
func Keys(n int) []kv.Hash {
	r := rand.New(rand.NewPCG(1, 2))
	keys := make([]kv.Hash, n)
	for i := range keys {
		keys[i] = kv.Hash(r.Uint64())
	}
	return keys
}

// Replica names the replicas of the loads.
func Replica(r int) string { return fmt.Sprint("replica-", r) }

// Fill stores keys as chains of the given length, held by k replicas, in
// batches of a few hundred. Each replica ends a 32nd of the chain before the
// one before it, so k is at most MaxHolders.
func Fill(x *index.Index, keys []kv.Hash, chain, k int) {
	for r := range k {
		fillAs(x, Replica(r), keys, chain, chain-r*chain/MaxHolders)
	}
}

// fillAs stores the first keys of each chain under one replica.
func fillAs(x *index.Index, replica string, keys []kv.Hash, chain, ends int) {
	batch := &index.Batch{Scope: Scope, Replica: replica, Seen: Now, Ops: make([]index.Op, 1)}
	for from := 0; from < len(keys); from += chain {
		StoreChain(x, batch, keys[from:min(from+ends, len(keys))])
	}
}

// StoreChain stores a chain from its root on, batch by batch.
func StoreChain(x *index.Index, batch *index.Batch, chain []kv.Hash) {
	for from := 0; from < len(chain); from += Piece {
		op := index.Op{Kind: index.Store, Tier: kv.T1, Step: blockTokens, Keys: chain[from:min(from+Piece, len(chain))]}
		if from > 0 {
			op.Parent, op.HasParent, op.Tokens = chain[from-1], true, int32(from*blockTokens)
		}
		batch.Ops[0] = op
		x.Apply(Now, batch)
	}
}

// FillMap does on a map what Fill does: each key names its holders as bits.
func FillMap(keys []kv.Hash, chain, k int) map[uint64]uint64 {
	m := map[uint64]uint64{}
	for r := range k {
		ends := chain - r*chain/MaxHolders
		for from := 0; from < len(keys); from += chain {
			for _, key := range keys[from:min(from+ends, len(keys))] {
				m[uint64(key)] |= 1 << r
			}
		}
	}
	return m
}

// LookupMap is a lookup on a map: who holds all of keys.
func LookupMap(m map[uint64]uint64, keys []kv.Hash) uint64 {
	all := ^uint64(0)
	for _, key := range keys {
		all &= m[uint64(key)]
		if all == 0 {
			break
		}
	}
	return all
}

// Chains hands out the chains of a set of keys, far from each other.
func Chains(keys []kv.Hash, chain int) func(i int) []kv.Hash {
	n := max(1, len(keys)/chain)
	return func(i int) []kv.Hash {
		i = i * 7919 % n
		return keys[i*chain : min((i+1)*chain, len(keys))]
	}
}

// distinct is how many keys make about the given number of holder-blocks.
func distinct(blocks, k int) int { return max(1, blocks/k) }
