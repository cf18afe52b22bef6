package rank

import (
	"crypto/sha256"
	"encoding/binary"
	"hash"
)

// Seed gathers what an affinity pick hashes: for a chain, every key behind its
// length as 4 bytes big-endian; for one exact key, its bytes alone.
type Seed struct{ hash hash.Hash }

// NewSeed starts an empty seed.
func NewSeed() Seed { return Seed{sha256.New()} }

// Key adds one key of a chain.
func (s Seed) Key(key []byte) {
	var length [4]byte
	binary.BigEndian.PutUint32(length[:], uint32(len(key)))
	s.hash.Write(length[:])
	s.hash.Write(key)
}

// Raw adds bytes as they are.
func (s Seed) Raw(b []byte) { s.hash.Write(b) }

// Pick chooses one of members, which are sorted and not empty: the first 8
// bytes of the seed's SHA-256, big-endian, modulo their number.
func (s Seed) Pick(members []string) string {
	digest := s.hash.Sum(nil)
	return members[binary.BigEndian.Uint64(digest)%uint64(len(members))]
}
