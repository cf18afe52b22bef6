// Package kv holds the words that every other package speaks: who asks (Scope,
// Partition), what is asked for (Hash), and where a block lives (Tier). It is
// not a model of any engine and holds no state; everything may import it.
package kv

import (
	"encoding/binary"
	"encoding/hex"
)

// ProbeTenant is reserved for the functional self-test. Reports, events and
// lookups under it are refused on the data plane.
const ProbeTenant = "inferencecache.io/probe"

// Scope names the blocks that can be compared with each other whatever the
// adapter: fallbacks (affinity, unknown-* diagnosis) look at a whole scope.
type Scope struct {
	Tenant string
	Model  string
	Scheme string // the engine's hash domain, for instance "vllm"
}

// Complete reports whether all three names are set. An incomplete scope is
// never served.
func (s Scope) Complete() bool { return s.Tenant != "" && s.Model != "" && s.Scheme != "" }

// Partition is a scope and a LoRA adapter; "" is the base model. Keys of two
// partitions never match each other, not even with equal bytes.
type Partition struct {
	Scope
	Adapter string
}

// Hash is a block key: it names a block together with its whole prefix. On
// the wire it is 8 bytes, big-endian.
type Hash uint64

// HashSize is the length of a Hash on the wire, in bytes.
const HashSize = 8

// ParseHash reads the wire form; ok is false unless b is exactly 8 bytes.
func ParseHash(b []byte) (h Hash, ok bool) {
	if len(b) != HashSize {
		return 0, false
	}
	return Hash(binary.BigEndian.Uint64(b)), true
}

// Append adds the wire form of h to b.
func (h Hash) Append(b []byte) []byte { return binary.BigEndian.AppendUint64(b, uint64(h)) }

// Bytes returns the wire form of h in a slice of its own.
func (h Hash) Bytes() []byte { return h.Append(make([]byte, 0, HashSize)) }

// String is the wire form in hex.
func (h Hash) String() string {
	var wire [HashSize]byte
	binary.BigEndian.PutUint64(wire[:], uint64(h))
	return hex.EncodeToString(wire[:])
}

// Pack lays hashes end to end in wire form, 8 bytes each.
func Pack(hashes []Hash) []byte {
	b := make([]byte, 0, len(hashes)*HashSize)
	for _, h := range hashes {
		b = h.Append(b)
	}
	return b
}

// Unpack appends the hashes of a packed chain to dst; ok is false, and dst is
// returned as it was, if the length of packed is not a multiple of 8.
func Unpack(dst []Hash, packed []byte) (hashes []Hash, ok bool) {
	if len(packed)%HashSize != 0 {
		return dst, false
	}
	for ; len(packed) > 0; packed = packed[HashSize:] {
		dst = append(dst, Hash(binary.BigEndian.Uint64(packed)))
	}
	return dst, true
}

// Mix is a bijection of 64 bits whose every output bit depends on every input
// bit: the last steps of SplitMix64 (Steele, Lea and Flood, 2014).
func Mix(x uint64) uint64 {
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return x ^ x>>31
}

// Golden is 2^64 over the golden ratio, by which SplitMix64 steps.
const Golden = 0x9e3779b97f4a7c15

// Tier is where a replica keeps a block; lower is more local and faster. The
// numbers are those of the wire enum CacheTier, and a tier this build does not
// know keeps its place in the order: colder than T3.
type Tier uint8

const (
	TierUnknown Tier = 0   // not said; never stored, see Coldest
	T1          Tier = 1   // the engine's own memory (HBM)
	T2          Tier = 2   // host memory or an external offload
	T3          Tier = 3   // remote or disaggregated storage
	Coldest     Tier = 255 // an unintelligible tier; never mistaken for T1
)

// Known reports whether t is one of T1, T2 and T3.
func (t Tier) Known() bool { return t >= T1 && t <= T3 }

func (t Tier) String() string {
	switch t {
	case T1:
		return "T1"
	case T2:
		return "T2"
	case T3:
		return "T3"
	}
	return "unknown"
}
