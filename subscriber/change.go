package subscriber

import "inferencecache.io/inferencecache/internal/kv"

// ChangeKind says what a Change does.
type ChangeKind uint8

const (
	Store  ChangeKind = iota + 1 // the replica holds Hashes, best copy in Tier
	Remove                       // it holds no copy of Hashes any more
	Clear                        // it holds nothing at all
)

// Change is one step of what a replica holds, in server terms: it is what
// residency makes of an engine event and what the outbox carries.
type Change struct {
	Kind      ChangeKind
	Adapter   string
	Tier      kv.Tier
	Hashes    []kv.Hash // Store: a chain; block i+1 continues block i
	Parent    kv.Hash   // Store: the block before Hashes[0], if HasParent
	HasParent bool
	Tokens    int // Store: tokens before Hashes[0]
	BlockSize int // Store: tokens a block
}
