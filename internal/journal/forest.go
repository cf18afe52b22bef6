package journal

import "inferencecache.io/inferencecache/internal/kv"

// maxWindow bounds the nodes that are remembered, as a power of two: 12 MiB for
// a reader, 20 for a writer.
const maxWindow = 20

// forest is the keys of a file by the chains they came in. A node has a number,
// from 1, and a parent with a lower one, or 0. Only the last window nodes are
// known.
type forest struct {
	bits    int
	keys    []kv.Hash // of node n at (n-1) % window
	parents []uint32
	count   uint32
	table   []bucket // where nodes are; only a writer's, without it nothing is found
}

// bucket says where four nodes are whose keys share its place; the oldest gives
// way. Each is 0 or a used bit, 11 bits of the key, and 20 of the node's place:
// so few looks at a node are for nothing.
type bucket [4]uint32

const used = 1 << 31

func newForest(bits int, writing bool) *forest {
	f := &forest{bits: bits}
	if writing {
		f.table = make([]bucket, 1<<max(0, bits-1)) // twice as many places as nodes
	}
	return f
}

func (f *forest) live(n uint32) bool {
	return n != 0 && n <= f.count && uint64(f.count-n) < 1<<f.bits
}

func (f *forest) place(n uint32) uint32 { return (n - 1) & (1<<f.bits - 1) }

func (f *forest) key(n uint32) kv.Hash { return f.keys[f.place(n)] }

func (f *forest) parent(n uint32) uint32 { return f.parents[f.place(n)] }

// bucket returns where key belongs and what its mark begins with.
func (f *forest) bucket(key kv.Hash) (b *bucket, mark uint32) {
	spread := uint64(key) * kv.Golden // keys are the callers' and may be alike
	return &f.table[spread>>32&uint64(len(f.table)-1)], used | uint32(spread>>53)<<maxWindow
}

// at returns the number of the node at the place of a mark.
func (f *forest) at(mark uint32) uint32 {
	return f.count - (f.count-1-mark)&(1<<f.bits-1)
}

// add makes a node.
func (f *forest) add(key kv.Hash, parent uint32) uint32 {
	f.count++
	if place := f.place(f.count); int(place) < len(f.keys) {
		f.keys[place], f.parents[place] = key, parent
	} else {
		f.keys, f.parents = append(f.keys, key), append(f.parents, parent)
	}
	if f.table != nil {
		b, mark := f.bucket(key)
		b[f.oldest(b)] = mark | f.place(f.count)
	}
	return f.count
}

// oldest returns a free place of b or that of its oldest node.
func (f *forest) oldest(b *bucket) (place int) {
	for i, mark := range b {
		switch {
		case mark == 0:
			return i
		case f.at(mark) < f.at(b[place]):
			place = i
		}
	}
	return place
}

// find returns the latest node of key, or 0.
func (f *forest) find(key kv.Hash) (found uint32) {
	b, want := f.bucket(key)
	for _, mark := range b {
		if mark&^(1<<maxWindow-1) != want {
			continue
		}
		if n := f.at(mark); n > found && f.key(n) == key {
			found = n
		}
	}
	return found
}

// child returns a node of key below parent, or 0.
func (f *forest) child(parent uint32, key kv.Hash) uint32 {
	// Keys that came together lie side by side.
	if n := parent + 1; f.live(n) && f.key(n) == key && f.parent(n) == parent {
		return n
	}
	b, want := f.bucket(key)
	for _, mark := range b {
		if mark&^(1<<maxWindow-1) != want {
			continue
		}
		if n := f.at(mark); f.key(n) == key && f.parent(n) == parent {
			return n
		}
	}
	return 0
}

// descend follows keys from node n of the first of them downwards and returns
// how many there are and the last one's node.
func (f *forest) descend(n uint32, keys []kv.Hash) (length int, last uint32) {
	for length = 1; length < len(keys); length++ {
		next := f.child(n, keys[length])
		if next == 0 {
			break
		}
		n = next
	}
	return length, n
}

// ascend follows keys from node n of the first of them upwards.
func (f *forest) ascend(n uint32, keys []kv.Hash) (length int, last uint32) {
	for length = 1; length < len(keys); length++ {
		next := f.parent(n)
		if !f.live(next) || f.key(next) != keys[length] {
			break
		}
		n = next
	}
	return length, n
}
