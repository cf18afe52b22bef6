package index

import "unsafe"

// An entry says where a key lies: 26 bits of its place behind those that chose
// the stripe, its segment (31 bits) and its offset there (7 bits).
type entry uint64

const (
	offBits = 7
	locBits = 16 + unitBits + offBits
	tagBits = 64 - locBits
)

func tagOf(place uint64) uint64 { return place << stripeBits >> (64 - tagBits) }

func newEntry(tag uint64, r ref, off int) entry {
	return entry(tag<<locBits | uint64(r)<<offBits | uint64(off))
}

func (e entry) tag() uint64 { return uint64(e >> locBits) }
func (e entry) ref() ref    { return ref(e << tagBits >> (tagBits + offBits)) }
func (e entry) off() int    { return int(e & (1<<offBits - 1)) }

// table is a run of entries sorted by tag, with gaps: an entry lies at its home
// or right of it, no empty one lies between. There is no wrap-around; a margin
// behind the last home takes what is pushed out, and the very last entry stays
// empty.
type table struct {
	entries []entry
	main    int   // homes are [0, main)
	used    int   // entries that are not empty
	depth   uint8 // tag bits that all entries share
}

const (
	minMain = 8
	maxUsed = 50_000 // entries before a table is split
)

func (t *table) bytes() int64 { return tableBytes(len(t.entries)) }

func tableBytes(entries int) int64 { return int64(entries)*8 + int64(unsafe.Sizeof(table{})) }

func home(tag uint64, depth uint8, main int) int {
	return int(tag << depth & (1<<tagBits - 1) * uint64(main) >> tagBits)
}

// at is the first entry of a tag, or where it would go.
func (t *table) at(tag uint64) int {
	if t.main == 0 {
		return 0
	}
	i := home(tag, t.depth, t.main)
	for t.entries[i] != 0 && t.entries[i].tag() < tag {
		i++
	}
	return i
}

// full says that a new entry asks for a larger table.
func (t *table) full() bool { return (t.used+1)*20 > t.main*17 }

// insert an entry; false if it would be pushed out of the margin.
func (t *table) insert(e entry) bool {
	s := t.entries
	i := t.at(e.tag())
	for s[i] != 0 && s[i].tag() == e.tag() {
		i++
	}
	j := i
	for j < len(s)-1 && s[j] != 0 {
		j++
	}
	if j >= len(s)-1 {
		return false
	}
	copy(s[i+1:j+1], s[i:j])
	s[i] = e
	t.used++
	return true
}

// find an entry; it has to be there.
func (t *table) find(e entry) int {
	i := t.at(e.tag())
	for t.entries[i] != e {
		if t.entries[i] == 0 || t.entries[i].tag() != e.tag() {
			panic("bug: no entry for a key of a segment")
		}
		i++
	}
	return i
}

// erase empties entry i and closes the gap.
func (t *table) erase(i int) {
	s := t.entries
	j := i + 1
	for s[j] != 0 && home(s[j].tag(), t.depth, t.main) < j {
		j++
	}
	copy(s[i:], s[i+1:j])
	s[j-1] = 0
	t.used--
}

// plan of a table to be built from some entries of another.
type plan struct {
	from    []entry
	depth   uint8
	main    int
	entries int // to allocate
}

func planTable(from []entry, depth uint8, main int) plan {
	end := 0
	for _, e := range from {
		if e != 0 {
			end = max(end, home(e.tag(), depth, main)) + 1
		}
	}
	return plan{from: from, depth: depth, main: main, entries: max(main, end) + 4 + min(main/32, 60)}
}

func (p plan) bytes() int64 { return tableBytes(p.entries) }

func (p plan) build() *table {
	n := &table{entries: make([]entry, p.entries), main: p.main, depth: p.depth}
	at := 0
	for _, e := range p.from {
		if e == 0 {
			continue
		}
		at = max(at, home(e.tag(), p.depth, p.main))
		n.entries[at] = e
		n.used++
		at++
	}
	return n
}

// homes for used entries: a load of three fifths.
func homes(used int) int { return max(minMain, used*5/3) }
