package index

import (
	"math/bits"
	"unsafe"
)

// slot is a key of a table with its holders. One holder lies in word and
// tokens. Two and more lie in a block of 1<<class words in the arena, which
// word then names; they share tokens, unless wide: then 1<<class token counts,
// two a word, follow in the block. n == 0 is an empty slot.
type slot struct {
	place  uint64
	word   [1]uint64
	tokens int32
	n      uint16
	class  uint8
	wide   bool
}

// table is a sorted run of slots with gaps: a slot lies at its home or right of
// it, places ascend, no empty slot lies between a home and its slot. There is no
// wrap-around; a margin behind the last home takes what is pushed out, and
// the very last slot stays empty.
type table struct {
	slots []slot
	main  int   // homes are [0, main)
	used  int   // slots with n > 0
	held  int   // holders
	depth uint8 // place bits, after the stripe's, that all slots share

	arena []uint64
	top   int               // words of the arena ever handed out
	loose int               // words below top that are in no block
	free  [classes]freeList // blocks to hand out again
}

const (
	classes   = 17 // blocks of 1 to 65,536 words
	minMain   = 4
	maxUsed   = 3600    // slots of a table before it is split
	maxWords  = 1 << 16 // words in blocks before it is split
	slotBytes = int64(unsafe.Sizeof(slot{}))
	wordBytes = 8
)

// freeList is the offset of its first block plus one; that block's first word
// is the next freeList.
type freeList uint32

// bytes is what the table is charged for.
func (t *table) bytes() int64 { return tableBytes(len(t.slots), len(t.arena)) }

func tableBytes(slots, words int) int64 {
	return int64(slots)*slotBytes + int64(words)*wordBytes + int64(unsafe.Sizeof(table{}))
}

func home(place uint64, depth uint8, main int) int {
	h, _ := bits.Mul64(place<<(stripeBits+depth), uint64(main))
	return int(h)
}

// find returns the slot of a place, or where it would go.
func (t *table) find(place uint64) (i int, ok bool) {
	if t.main == 0 {
		return 0, false
	}
	s := t.slots
	i = home(place, t.depth, t.main)
	for i < len(s) && s[i].place < place && s[i].n != 0 {
		i++
	}
	return i, i < len(s) && s[i].place == place && s[i].n != 0
}

// seek returns the first used slot at or behind place, len(slots) if none.
func (t *table) seek(place uint64) int {
	i, _ := t.find(place)
	return t.next(i)
}

func (t *table) next(i int) int {
	for i < len(t.slots) && t.slots[i].n == 0 {
		i++
	}
	return i
}

// holders are the words of a slot's holders; they alias the table.
func (t *table) holders(s *slot) []uint64 {
	if s.n == 1 {
		return s.word[:]
	}
	return t.arena[s.word[0]:][:s.n]
}

func (t *table) tokensOf(s *slot, j int) int32 {
	if !s.wide {
		return s.tokens
	}
	return int32(t.arena[int(s.word[0])+1<<s.class+j/2] >> (32 * (j & 1)))
}

func (t *table) setWide(s *slot, j int, tokens int32) {
	w := &t.arena[int(s.word[0])+1<<s.class+j/2]
	shift := 32 * (j & 1)
	*w = *w&^(0xffffffff<<shift) | uint64(uint32(tokens))<<shift
}

// index of a replica among the holders, or -1.
func (t *table) holderOf(s *slot, ord uint16) int {
	for j, w := range t.holders(s) {
		if ordOf(w) == ord {
			return j
		}
	}
	return -1
}

// full says that a new slot asks for a larger table.
func (t *table) full() bool { return (t.used+1)*10 > t.main*9 }

// insert puts a new key with its first holder at i, as find returned it; false
// if it would be pushed out of the margin.
func (t *table) insert(i int, place, word uint64, tokens int32) bool {
	s := t.slots
	j := i
	for j < len(s)-1 && s[j].n != 0 {
		j++
	}
	if j >= len(s)-1 {
		return false
	}
	copy(s[i+1:j+1], s[i:j])
	s[i] = slot{place: place, word: [1]uint64{word}, tokens: tokens, n: 1}
	t.used++
	t.held++
	return true
}

// add appends a holder to a used slot; false if the arena has no block.
func (t *table) add(s *slot, word uint64, tokens int32) bool {
	if s.n == 1 || int(s.n) == 1<<s.class || !s.wide && tokens != s.tokens {
		if !t.move(s, int(s.n)+1, s.wide || tokens != s.tokens) {
			return false
		}
	}
	j := int(s.n)
	s.n++
	t.held++
	t.arena[int(s.word[0])+j] = word
	if s.wide {
		t.setWide(s, j, tokens)
	}
	return true
}

// set overwrites holder j; false if the arena has no block for the tokens.
func (t *table) set(s *slot, j int, word uint64, tokens int32) bool {
	if s.n == 1 {
		s.word[0], s.tokens = word, tokens
		return true
	}
	if !s.wide && tokens != s.tokens && !t.move(s, int(s.n), true) {
		return false
	}
	t.holders(s)[j] = word
	if s.wide {
		t.setWide(s, j, tokens)
	}
	return true
}

// move gives the holders a block for n.
func (t *table) move(s *slot, n int, wide bool) bool {
	class := classFor(n)
	off, ok := t.alloc(class, wide)
	if !ok {
		return false
	}
	old := *s
	s.class, s.wide = class, wide
	if old.n == 1 {
		t.arena[off] = old.word[0]
	} else {
		copy(t.arena[off:], t.holders(&old))
	}
	s.word[0] = uint64(off)
	if wide {
		for j := range int(old.n) {
			t.setWide(s, j, t.tokensOf(&old, j))
		}
	}
	if old.n > 1 {
		t.release(&old)
	}
	return true
}

// drop takes holder j away, and the slot with the last; gone says so, and then
// slots behind i have moved.
func (t *table) drop(i, j int) (gone bool) {
	s := &t.slots[i]
	t.held--
	switch s.n {
	case 1:
		t.erase(i)
		return true
	case 2:
		last, tokens := t.holders(s)[1-j], t.tokensOf(s, 1-j)
		t.release(s)
		*s = slot{place: s.place, word: [1]uint64{last}, tokens: tokens, n: 1}
		return false
	}
	h, end := t.holders(s), int(s.n)-1
	h[j] = h[end]
	if s.wide {
		t.setWide(s, j, t.tokensOf(s, end))
	}
	s.n--
	if half := s.class - 1; !s.wide && int(s.n) <= 1<<s.class/4 {
		t.give(int(s.word[0])+1<<half, half)
		s.class = half
	}
	return false
}

// remove takes a whole key away.
func (t *table) remove(i int) {
	s := &t.slots[i]
	t.held -= int(s.n)
	if s.n > 1 {
		t.release(s)
	}
	t.erase(i)
}

// erase empties slot i and closes the gap.
func (t *table) erase(i int) {
	s := t.slots
	j := i + 1
	for s[j].n != 0 && home(s[j].place, t.depth, t.main) < j {
		j++
	}
	copy(s[i:], s[i+1:j])
	s[j-1] = slot{}
	t.used--
}

// plan is the shape of a table to be built from a range of slots of another.
type plan struct {
	lo, hi       int // slots of the source
	depth        uint8
	main         int
	slots, words int // slots and words to allocate
}

// plan a table of given depth with the slots [lo, hi) of t, with main homes and
// spare words beyond those that its blocks need.
func (t *table) plan(lo, hi int, depth uint8, main, spare int) plan {
	p := plan{lo: lo, hi: hi, depth: depth, main: main, words: spare}
	end := 0
	for i := lo; i < hi; i++ {
		s := &t.slots[i]
		if s.n == 0 {
			continue
		}
		end = max(end, home(s.place, depth, main)) + 1
		if s.n > 1 {
			p.words += blockWords(classFor(int(s.n)), s.wide)
		}
	}
	if main > 0 {
		p.slots = max(main, end) + 4 + min(main/32, 60)
	}
	return p
}

func (p plan) bytes() int64 { return tableBytes(p.slots, p.words) }

// build what was planned; t stays as it is.
func (t *table) build(p plan) *table {
	n := &table{main: p.main, depth: p.depth, slots: make([]slot, p.slots), arena: make([]uint64, p.words)}
	at := 0
	for i := p.lo; i < p.hi; i++ {
		s := &t.slots[i]
		if s.n == 0 {
			continue
		}
		at = max(at, home(s.place, p.depth, p.main))
		n.slots[at] = *s
		if s.n > 1 {
			n.adopt(&n.slots[at], t, s)
		}
		n.used++
		n.held += int(s.n)
		at++
	}
	return n
}

// adopt copies the block of from's slot s, which d is a copy of.
func (t *table) adopt(d *slot, from *table, s *slot) {
	d.class = classFor(int(s.n))
	off, _ := t.alloc(d.class, s.wide)
	d.word[0] = uint64(off)
	copy(t.arena[off:], from.holders(s))
	if s.wide {
		for j := range int(s.n) {
			t.setWide(d, j, from.tokensOf(s, j))
		}
	}
}

// homes for used slots: a load of 3/4, looser in a small table.
func homes(used int) int {
	if used < 64 {
		return max(minMain, used*2)
	}
	return used * 4 / 3
}

// tightHomes is the least worth a rebuild: a load of 7/8.
func tightHomes(used int) int { return used*8/7 + 1 }

// widen makes room for more words in the arena.
func (t *table) widen(b *budget) bool {
	more := len(t.arena)/12 + 16
	if !b.swap(0, int64(more)*wordBytes) {
		return false
	}
	arena := make([]uint64, len(t.arena)+more)
	copy(arena, t.arena)
	t.arena = arena
	return true
}
