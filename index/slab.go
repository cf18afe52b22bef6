package index

import "math/bits"

// The arena of a table is cut into blocks of a power of two of words, found
// again by a free list a class. A block is split to serve a smaller one; small
// ones are never joined: a rebuild of the table packs them.

func classFor(n int) uint8 { return uint8(bits.Len(uint(n - 1))) }

// blockWords of a class; a wide block has half as many words again for tokens.
func blockWords(class uint8, wide bool) int {
	words := 1 << class
	if wide {
		words += words / 2
	}
	return words
}

// alloc hands out a block; false if the arena has to grow first.
func (t *table) alloc(class uint8, wide bool) (off int, ok bool) {
	words := blockWords(class, wide)
	if !wide {
		for c := class; c < min(class+2, classes); c++ {
			if t.free[c] == 0 {
				continue
			}
			off = int(t.free[c]) - 1
			t.free[c] = freeList(t.arena[off])
			t.loose -= 1 << c
			if c > class {
				t.give(off+words, class)
			}
			return off, true
		}
	}
	if t.top+words > len(t.arena) {
		return 0, false
	}
	off = t.top
	t.top += words
	return off, true
}

// release frees the block of a slot.
func (t *table) release(s *slot) {
	off := int(s.word[0])
	t.give(off, s.class)
	if s.wide {
		t.give(off+1<<s.class, s.class-1)
	}
}

func (t *table) give(off int, class uint8) {
	t.arena[off] = uint64(t.free[class])
	t.free[class] = freeList(off + 1)
	t.loose += 1 << class
}
