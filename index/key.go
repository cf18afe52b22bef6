package index

import (
	"encoding/binary"
	"math"
	"time"

	"github.com/zeebo/xxh3"

	"inferencecache.io/inferencecache/internal/kv"
)

// Key folds the bytes that an engine calls a block hash into a kv.Hash: 8
// bytes are read as they are (big-endian), any other length is hashed with a
// secret of this index, so that such keys mean nothing to another index. Empty
// bytes name no block and are a bug of the caller.
func (x *Index) Key(b []byte) kv.Hash {
	if len(b) == 0 {
		panic("bug: index key of no bytes")
	}
	if len(b) == kv.HashSize {
		return kv.Hash(binary.BigEndian.Uint64(b))
	}
	return kv.Hash(xxh3.HashSeed(b, x.secret))
}

// place is where a key lies in the order of every table: a bijection of 64
// bits under a random salt. Tables store places, not keys.
func (x *Index) place(k kv.Hash) uint64 { return kv.Mix(uint64(k) ^ x.salt) }

// A tick is a millisecond since the Unix epoch. Holders keep the low 32 bits,
// which are told apart as long as two stamps lie within 24 days: maxTTL keeps
// them there, if Sweep gets round once in four days.
type tick = int64

const (
	noTick tick = math.MinInt64
	maxTTL      = 20 * 24 * time.Hour
)

func ticks(t time.Time) tick { return t.UnixMilli() }

// full restores the high bits of a stamp near now.
func full(now tick, seen uint32) tick { return now - tick(int32(uint32(now)-seen)) }
