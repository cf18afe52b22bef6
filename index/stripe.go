package index

import (
	"sync"
	"unsafe"
)

const (
	stripeBits = 4
	stripes    = 1 << stripeBits
	maxDepth   = 16 // of a table: tags keep ten bits to tell homes by
)

// stripe is a sixteenth of a partition's entries, by the first bits of a place:
// a directory of tables by the tag bits that follow (extendible hashing). A
// table of depth d fills 1<<(depth-d) entries of the directory. The partition's
// writer reads it without mu, and builds tables before it locks.
type stripe struct {
	mu    sync.RWMutex
	depth uint8
	dir   []*table // nil before the first key
}

// spins before a goroutine is parked for a lock. Both kinds are held for a
// fraction of a microsecond; to park and wake takes tens of them.
const spins = 100

func rlock(mu *sync.RWMutex) {
	for range spins {
		if mu.TryRLock() {
			return
		}
	}
	mu.RLock()
}

func lock(mu *sync.RWMutex) {
	for range spins {
		if mu.TryLock() {
			return
		}
	}
	mu.Lock()
}

const dirEntryBytes = int64(unsafe.Sizeof((*table)(nil)))

func stripeOf(place uint64) int { return int(place >> (64 - stripeBits)) }

func (st *stripe) slotOf(tag uint64) int { return int(tag >> (tagBits - st.depth)) }

// table of a tag; nil if the stripe is empty.
func (st *stripe) table(tag uint64) *table {
	if st.dir == nil {
		return nil
	}
	return st.dir[st.slotOf(tag)]
}

// insert an entry for a key that has none; false without budget.
func (st *stripe) insert(b *budget, e entry) bool {
	for {
		if t := st.table(e.tag()); t != nil && !t.full() {
			lock(&st.mu)
			ok := t.insert(e)
			st.mu.Unlock()
			if ok {
				return true
			}
		}
		if !st.grow(b, e.tag()) {
			return false
		}
	}
}

// erase an entry.
func (st *stripe) erase(b *budget, e entry) {
	t := st.table(e.tag())
	lock(&st.mu)
	t.erase(t.find(e))
	st.mu.Unlock()
	switch {
	case t.used == 0 && st.empty():
		b.swap(st.bytes(), 0, 0)
		st.direct(0, nil)
	case t.main > 8*minMain && t.used < t.main/4:
		st.resize(b, t, homes(t.used), growKeep)
	}
}

// direct readers to another directory.
func (st *stripe) direct(depth uint8, dir []*table) {
	lock(&st.mu)
	defer st.mu.Unlock()
	st.depth, st.dir = depth, dir
}

// change an entry to another of the same tag.
func (st *stripe) change(e, to entry) {
	lock(&st.mu)
	defer st.mu.Unlock()
	t := st.table(e.tag())
	t.entries[t.find(e)] = to
}

// grow makes room in the table of a tag; false without budget.
func (st *stripe) grow(b *budget, tag uint64) bool {
	t := st.table(tag)
	switch {
	case t == nil:
		p := planTable(nil, 0, minMain)
		if !b.swap(0, p.bytes()+dirEntryBytes, growKeep) {
			return false
		}
		st.direct(0, []*table{p.build()})
		return true
	case t.used >= maxUsed && t.depth < maxDepth:
		return st.split(b, t)
	case t.full():
		return st.resize(b, t, homes(t.used+1), growKeep)
	}
	// The margin ran out.
	return st.resize(b, t, t.main+t.main/8+1, growKeep) || st.resize(b, t, t.main, keepNought)
}

// resize rebuilds a table.
func (st *stripe) resize(b *budget, t *table, main int, keep int64) bool {
	p := planTable(t.entries, t.depth, main)
	if !b.swap(t.bytes(), p.bytes(), keep) {
		return false
	}
	n := p.build()
	st.replace(t, n, n)
	return true
}

// replace puts tables for the lower and upper half where a table is.
func (st *stripe) replace(old, lower, upper *table) {
	lock(&st.mu)
	defer st.mu.Unlock()
	span := 1 << (st.depth - old.depth)
	from := 0
	for st.dir[from] != old {
		from += span
	}
	for i := range span {
		if i < (span+1)/2 {
			st.dir[from+i] = lower
		} else {
			st.dir[from+i] = upper
		}
	}
}

// split cuts a table in two.
func (st *stripe) split(b *budget, t *table) bool {
	if t.depth == st.depth {
		if !b.swap(0, int64(len(st.dir))*dirEntryBytes, growKeep) {
			return false
		}
		dir := make([]*table, 2*len(st.dir))
		for i := range dir {
			dir[i] = st.dir[i/2]
		}
		st.direct(st.depth+1, dir)
	}
	cut, lower := 0, 0
	for i, e := range t.entries {
		if e != 0 && e.tag()>>(tagBits-1-t.depth)&1 == 0 {
			cut = i + 1
			lower++
		}
	}
	low := planTable(t.entries[:cut], t.depth+1, homes(lower))
	high := planTable(t.entries[cut:], t.depth+1, homes(t.used-lower))
	if !b.swap(t.bytes(), low.bytes()+high.bytes(), growKeep) {
		return false
	}
	st.replace(t, low.build(), high.build())
	return true
}

// empty says that no table has an entry.
func (st *stripe) empty() bool {
	for t := range st.tables {
		if t.used > 0 {
			return false
		}
	}
	return true
}

// tables of the directory, each once.
func (st *stripe) tables(yield func(*table) bool) {
	for i := 0; i < len(st.dir); {
		t := st.dir[i]
		if !yield(t) {
			return
		}
		i += 1 << (st.depth - t.depth)
	}
}

// bytes is what the stripe is charged for.
func (st *stripe) bytes() int64 {
	sum := int64(len(st.dir)) * dirEntryBytes
	for t := range st.tables {
		sum += t.bytes()
	}
	return sum
}
