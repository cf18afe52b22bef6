package subscriber

import (
	"math/bits"
	"math/rand/v2"

	"inferencecache.io/inferencecache/internal/kv"
)

// table finds records of a slab by their names. It knows places, not names: a slot
// has the hash of a record's name in its upper half and the record's place in
// the lower one, 0 if the slot is free. So it needs no pointers and 11 to 21
// bytes a record, and growing does not look at the records.
//
// Slots are tried one after the other from the one that the hash names; those
// behind a record that is dropped move up.
type table struct {
	slots []uint64 // a power of two of them, at most 3/4 in use
	count int
}

const leastSlots = 64

// find is the place of the record for which is holds, among those with a hash;
// 0 if there is none.
func (t *table) find(hash uint32, is func(at uint32) bool) uint32 {
	if t.count == 0 {
		return 0
	}
	mask := uint32(len(t.slots) - 1)
	for i := hash & mask; t.slots[i] != 0; i = (i + 1) & mask {
		if slot := t.slots[i]; uint32(slot>>32) == hash && is(uint32(slot)) {
			return uint32(slot)
		}
	}
	return 0
}

// put adds a record that is not in the table.
func (t *table) put(hash, at uint32) {
	if 4*(t.count+1) > 3*len(t.slots) {
		t.grow()
	}
	t.place(uint64(hash)<<32 | uint64(at))
	t.count++
}

func (t *table) grow() {
	old := t.slots
	t.slots = make([]uint64, max(leastSlots, 2*len(old)))
	for _, slot := range old {
		if slot != 0 {
			t.place(slot)
		}
	}
}

func (t *table) place(slot uint64) {
	mask := uint32(len(t.slots) - 1)
	i := uint32(slot>>32) & mask
	for t.slots[i] != 0 {
		i = (i + 1) & mask
	}
	t.slots[i] = slot
}

// drop takes out a record that is in the table.
func (t *table) drop(hash, at uint32) {
	mask := uint32(len(t.slots) - 1)
	i := hash & mask
	for uint32(t.slots[i]) != at {
		if t.slots[i] == 0 {
			panic("bug: record is not in its table")
		}
		i = (i + 1) & mask
	}
	for next := (i + 1) & mask; t.slots[next] != 0; next = (next + 1) & mask {
		home := uint32(t.slots[next]>>32) & mask
		if (next-home)&mask >= (next-i)&mask { // it may stand at i
			t.slots[i], i = t.slots[next], next
		}
	}
	t.slots[i] = 0
	t.count--
}

// hashing spreads names over a table. Names may come from outside, so that
// nobody is to know how.
type hashing struct{ seed uint64 }

func newHashing() hashing { return hashing{rand.Uint64()} }

// of is the hash of a name within a scope: a group's engine hash, or an
// adapter's prefix hash.
func (h hashing) of(name uint64, scope uint32) uint32 {
	const odd, other = 0x9e3779b97f4a7c15, 0xd6e8feb86659fd93
	high, low := bits.Mul64(name^h.seed, odd)
	high, low = bits.Mul64(high^low^uint64(scope), other)
	return uint32(high ^ low)
}

// held is the place of an engine block of a group, 0 if it is not held.
func (r *Residency) held(g *blockGroup, hash uint64) uint32 {
	return r.byHash.find(r.hashing.of(hash, g.id), func(at uint32) bool {
		h := r.holdings.at(at)
		return h.hash == hash && h.group == g.id
	})
}

// named is the place of a block in an adapter's partition, 0 if there is none.
func (r *Residency) named(adapter uint32, prefix kv.Hash) uint32 {
	return r.byPrefix.find(r.hashing.of(uint64(prefix), adapter), func(at uint32) bool {
		b := r.blocks.at(at)
		return b.prefix == prefix && b.adapter == adapter
	})
}

// each yields the places of a group's holdings, which may be dropped meanwhile.
func (r *Residency) each(g *blockGroup, yield func(at uint32)) {
	left := g.held
	for at := uint32(1); left > 0; at++ {
		if r.holdings.at(at).group == g.id {
			yield(at)
			left--
		}
	}
}
