package index

import (
	"sync"
	"sync/atomic"
	"unsafe"
)

const (
	stripeBits = 4
	stripes    = 1 << stripeBits
	maxDepth   = 20 // of a table; more would take 10^10 keys
)

// budget of bytes, charged before they are allocated.
type budget struct {
	limit int64 // 0: none
	used  atomic.Int64
}

// swap gives back some bytes and takes others, or changes nothing if that
// would go over the limit. Giving back always succeeds.
func (b *budget) swap(give, take int64) bool {
	delta := take - give
	if b.limit <= 0 || delta <= 0 {
		b.used.Add(delta)
		return true
	}
	for {
		used := b.used.Load()
		if used+delta > b.limit {
			return false
		}
		if b.used.CompareAndSwap(used, used+delta) {
			return true
		}
	}
}

// stripe is a sixteenth of a partition, by the first bits of a place: a lock
// and a directory of tables by the bits that follow (extendible hashing).
// A table of depth d fills 1<<(depth-d) entries of the directory.
type stripe struct {
	mu    sync.RWMutex
	depth uint8
	dir   []*table // nil before the first key
}

const dirEntryBytes = int64(unsafe.Sizeof((*table)(nil)))

func stripeOf(place uint64) int { return int(place >> (64 - stripeBits)) }

func (st *stripe) slotOf(place uint64) int {
	return int(place << stripeBits >> (64 - st.depth))
}

// table of a place; nil if the stripe is empty.
func (st *stripe) table(place uint64) *table {
	if st.dir == nil {
		return nil
	}
	return st.dir[st.slotOf(place)]
}

// after is the first place behind the table t of place; ok is false behind the
// last table of all.
func (t *table) after(place uint64) (next uint64, ok bool) {
	shift := 64 - stripeBits - t.depth
	next = (place>>shift + 1) << shift
	return next, next != 0
}

// want is what a store found lacking.
type want uint8

const (
	nothing want = iota
	aSlot
	aBlock
)

// grow gives the table of place what it lacks; false without budget.
func (st *stripe) grow(b *budget, place uint64, w want) bool {
	t := st.table(place)
	switch {
	case t == nil:
		p := t.plan(0, 0, 0, minMain, 0)
		if !b.swap(0, p.bytes()+dirEntryBytes) {
			return false
		}
		st.depth, st.dir = 0, []*table{t.build(p)}
		return true
	case t.depth < maxDepth && (t.used >= maxUsed || t.top-t.loose > maxWords && t.used > 1):
		return st.split(b, place)
	case w == aBlock && t.loose*8 < len(t.arena):
		return t.widen(b)
	}
	spare := 0
	if w == aBlock {
		spare = (t.top-t.loose)/12 + 16
	} else if t.top > 0 {
		spare = (t.top - t.loose) / 12
	}
	main := homes(t.used + 1)
	if w == aSlot {
		main = max(main, t.main+t.main/8+1)
	}
	return st.resize(b, place, main, spare)
}

// resize rebuilds the table of place.
func (st *stripe) resize(b *budget, place uint64, main, spare int) bool {
	t := st.table(place)
	p := t.plan(0, len(t.slots), t.depth, main, spare)
	if !b.swap(t.bytes(), p.bytes()) {
		return false
	}
	n := t.build(p)
	st.replace(place, n, n)
	return true
}

// replace puts tables for the lower and upper half where the table of place is.
func (st *stripe) replace(place uint64, lower, upper *table) {
	old := st.table(place)
	span := 1 << (st.depth - old.depth)
	from := st.slotOf(place) &^ (span - 1)
	for i := range span {
		if i < (span+1)/2 {
			st.dir[from+i] = lower
		} else {
			st.dir[from+i] = upper
		}
	}
}

// split cuts the table of place in two.
func (st *stripe) split(b *budget, place uint64) bool {
	t := st.table(place)
	if t.depth == st.depth {
		if !b.swap(0, int64(len(st.dir))*dirEntryBytes) {
			return false
		}
		dir := make([]*table, 2*len(st.dir))
		for i := range dir {
			dir[i] = st.dir[i/2]
		}
		st.dir = dir
		st.depth++
	}
	shift := 64 - stripeBits - t.depth
	middle := place>>shift<<shift | 1<<(shift-1)
	cut := 0
	lower, upper := 0, 0
	for i := range t.slots {
		switch s := &t.slots[i]; {
		case s.n == 0:
		case s.place < middle:
			lower, cut = lower+1, i+1
		default:
			upper++
		}
	}
	spare := (t.top - t.loose) / 24
	low := t.plan(0, cut, t.depth+1, homes(lower), spare)
	high := t.plan(cut, len(t.slots), t.depth+1, homes(upper), spare)
	if !b.swap(t.bytes(), low.bytes()+high.bytes()) {
		return false
	}
	st.replace(place, t.build(low), t.build(high))
	return true
}

// trim rebuilds the table of place if that gives back half of it, or, squeezed,
// if it gives back anything to speak of. An empty stripe drops all tables.
func (st *stripe) trim(b *budget, place uint64, squeeze bool) {
	t := st.table(place)
	if t == nil {
		return
	}
	live := t.top - t.loose
	switch {
	case t.used == 0 && st.empty():
		b.swap(st.bytes(), 0)
		st.depth, st.dir = 0, nil
	case t.used == 0 && t.main > 0:
		st.resize(b, place, 0, 0)
	case squeeze && (tightHomes(t.used)*33/32+8 < t.main || (live*33/32+8 < len(t.arena))):
		st.resize(b, place, tightHomes(t.used), 0)
	case t.main > 4*minMain && t.used < t.main/3,
		len(t.arena) > 64 && live < len(t.arena)/3:
		st.resize(b, place, homes(t.used), live/12)
	}
}

// empty says that no table has a key.
func (st *stripe) empty() bool {
	for i := 0; i < len(st.dir); i += 1 << (st.depth - st.dir[i].depth) {
		if st.dir[i].used > 0 {
			return false
		}
	}
	return true
}

// bytes is what the stripe is charged for.
func (st *stripe) bytes() int64 {
	sum := int64(len(st.dir)) * dirEntryBytes
	for i := 0; i < len(st.dir); i += 1 << (st.depth - st.dir[i].depth) {
		sum += st.dir[i].bytes()
	}
	return sum
}
