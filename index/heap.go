package index

import (
	"math"
	"sync"
	"sync/atomic"
	"unsafe"
)

// budget of bytes, charged before they are allocated.
type budget struct {
	limit int64 // 0: none
	used  atomic.Int64
}

// Shares of the limit that are kept back: segments leave some for the tables of
// entries, and tables some for the little that one needs to stay in order.
const (
	slabKeep   = 16 // a sixteenth
	growKeep   = 64
	keepNought = math.MaxInt64
)

// swap gives back some bytes and takes others, or changes nothing if that
// would leave less than a share of the limit. Giving back always succeeds.
func (b *budget) swap(give, take, keep int64) bool {
	delta := take - give
	if b.limit <= 0 || delta <= 0 {
		b.used.Add(delta)
		return true
	}
	for {
		used := b.used.Load()
		if used+delta > b.limit-b.limit/keep {
			return false
		}
		if b.used.CompareAndSwap(used, used+delta) {
			return true
		}
	}
}

// A ref names a block: slab (16 bits), unit of four words in it (15 bits). No
// block has ref 0.
type ref uint32

const (
	unitBits  = 15
	unitWords = 4
	maxClass  = unitBits // a block of class c is 1<<c units; this is a slab of 1 MiB
	classes   = maxClass + 1
	minSlab   = 7 // class of the smallest slab, 4 KiB
	maxSlabs  = 1 << 16
	slabShare = 8 // a new slab is an eighth of what there is
)

func (r ref) slab() int { return int(r >> unitBits) }
func (r ref) unit() int { return int(r & (1<<unitBits - 1)) }

// heap hands out blocks of words to all partitions: a buddy system over slabs,
// which hold no pointers and are given back when they are empty.
type heap struct {
	budget *budget
	view   atomic.Pointer[[][]uint64] // words of the slabs, for readers; replaced, never changed

	mu    sync.Mutex
	slabs []slab       // by number; without state where there is none. Number 0 stays unused
	free  [classes]ref // first free block of a class; its first words are next and previous
	used  int64        // units in blocks
	size  int64        // units in slabs
}

type slab struct {
	class uint8
	used  int     // units in blocks
	state []uint8 // at the first unit of a free block: its class + 1
}

func newHeap(b *budget) *heap {
	h := &heap{budget: b, slabs: make([]slab, 1)}
	h.view.Store(&[][]uint64{nil})
	return h
}

// words from the start of a block to the end of its slab.
func (h *heap) words(r ref) []uint64 {
	return (*h.view.Load())[r.slab()][r.unit()*unitWords:]
}

func slabBytes(class uint8) int64 {
	return int64(unitWords*8+1)<<class + int64(unsafe.Sizeof(slab{}))
}

// alloc returns a block of a class, its words undefined; false without budget.
func (h *heap) alloc(class uint8) (ref, bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	c := h.fit(class)
	if c == classes {
		if !h.growLocked(class) {
			return 0, false
		}
		c = h.fit(class)
	}
	r := h.free[c]
	h.unlink(r, c)
	for c > class {
		c--
		h.link(r+1<<c, c)
	}
	h.used += 1 << class
	h.slabs[r.slab()].used += 1 << class
	return r, true
}

// fit is the smallest class with a free block at least this large.
func (h *heap) fit(class uint8) uint8 {
	for class < classes && h.free[class] == 0 {
		class++
	}
	return class
}

// release frees a block.
func (h *heap) release(r ref, class uint8) {
	h.mu.Lock()
	defer h.mu.Unlock()
	s := &h.slabs[r.slab()]
	h.used -= 1 << class
	s.used -= 1 << class
	for class < s.class {
		buddy := r ^ 1<<class
		if s.state[buddy.unit()] != class+1 {
			break
		}
		h.unlink(buddy, class)
		r = min(r, buddy)
		class++
	}
	h.link(r, class)
	if s.used == 0 {
		h.trimLocked()
	}
}

func (h *heap) link(r ref, class uint8) {
	next := h.free[class]
	w := h.words(r)
	w[0], w[1] = uint64(next), 0
	if next != 0 {
		h.words(next)[1] = uint64(r)
	}
	h.free[class] = r
	h.slabs[r.slab()].state[r.unit()] = class + 1
}

func (h *heap) unlink(r ref, class uint8) {
	w := h.words(r)
	next, prev := ref(w[0]), ref(w[1])
	if prev == 0 {
		h.free[class] = next
	} else {
		h.words(prev)[0] = uint64(next)
	}
	if next != 0 {
		h.words(next)[1] = uint64(prev)
	}
	h.slabs[r.slab()].state[r.unit()] = 0
}

// growLocked adds a slab for a block of a class, smaller than wanted if the budget
// has no more.
func (h *heap) growLocked(class uint8) bool {
	least := max(class, minSlab)
	size := least
	for size < maxClass && 2<<size <= h.size/slabShare {
		size++
	}
	for !h.budget.swap(0, slabBytes(size), slabKeep) {
		if size == least {
			return false
		}
		size--
	}
	no := 1
	for no < len(h.slabs) && h.slabs[no].state != nil {
		no++
	}
	if no == maxSlabs {
		h.budget.swap(slabBytes(size), 0, 0)
		return false
	}
	if no == len(h.slabs) {
		h.slabs = append(h.slabs, slab{})
	}
	h.slabs[no] = slab{class: size, state: make([]uint8, 1<<size)}
	h.size += 1 << size
	h.show(no, make([]uint64, unitWords<<size))
	h.link(ref(no)<<unitBits, size)
	return true
}

// show replaces the words of one slab in the view.
func (h *heap) show(no int, words []uint64) {
	view := make([][]uint64, len(h.slabs))
	copy(view, *h.view.Load())
	view[no] = words
	h.view.Store(&view)
}

// trimLocked gives empty slabs back while more than an eighth is free.
func (h *heap) trimLocked() {
	for no := range h.slabs {
		s := &h.slabs[no]
		if s.state == nil || s.used > 0 || h.used > 0 && h.size-1<<s.class < h.used+h.used/slabShare {
			continue
		}
		h.unlink(ref(no)<<unitBits, s.class)
		h.size -= 1 << s.class
		h.budget.swap(slabBytes(s.class), 0, 0)
		h.show(no, nil)
		*s = slab{}
	}
}
