package sim

import (
	"container/list"
	"fmt"
	"maps"
	"slices"
)

// cache is the block pool of one process: an LRU of full blocks by hash, with
// the blocks of running requests kept out of eviction's reach, as in vLLM's
// BlockPool. Unlike vLLM it never holds two copies of one hash. It knows no
// time, no events and no lock; the scheduler owns it.
//
// Every block is one of: held and pinned (a running request uses it), held and
// idle (in the LRU, still good for hits), reserved (allocated, not computed or
// not full, so without a name), or empty.
//
// Copies in the memory of the host are apart from all that, as those of vLLM's
// OffloadingConnector: they take no room here and outlive an eviction.
type cache struct {
	capacity int
	held     map[blockHash]*block
	idle     *list.List // of *block; the front is evicted next
	reserved int
	cpu      map[blockHash]struct{}
}

type block struct {
	hash blockHash
	refs int
	idle *list.Element // nil while refs > 0
}

// lease is what one request has of the cache.
type lease struct {
	hashes   []blockHash // of its full blocks
	matched  int         // leading ones that were held already
	loaded   int         // ones behind those that only the host held: copied, not computed
	reserved int         // blocks without a name: not computed yet, or the partial tail
	stored   bool        // hashes[matched:] are held as well
}

func newCache(capacity int) *cache {
	return &cache{capacity: capacity, held: make(map[blockHash]*block), idle: list.New(), cpu: make(map[blockHash]struct{})}
}

// used is the number of blocks that cannot be evicted. vLLM's usage gauge is
// used/capacity, so an idle engine with a full prefix cache shows 0.
func (c *cache) used() int { return len(c.held) - c.idle.Len() + c.reserved }

// allocate pins the held blocks of a prompt and reserves the rest, count
// blocks in all (a partial tail counts as one). It evicts what it must, least
// recently used first, and returns those hashes. Without room it changes
// nothing and ok is false.
func (c *cache) allocate(hashes []blockHash, count int) (l *lease, evicted []blockHash, ok bool) {
	l = &lease{hashes: hashes}
	for l.matched < len(hashes) && c.held[hashes[l.matched]] != nil {
		l.matched++
	}
	for _, hash := range hashes[l.matched:] {
		if _, ok := c.cpu[hash]; !ok {
			break
		}
		l.loaded++
	}
	l.reserved = count - l.matched
	wanted := l.reserved
	for _, hash := range hashes[:l.matched] {
		if c.held[hash].refs == 0 {
			wanted++
		}
	}
	if c.used()+wanted > c.capacity {
		return nil, nil, false
	}
	for _, hash := range hashes[:l.matched] {
		c.pin(c.held[hash])
	}
	evicted = c.evict(len(c.held) + c.reserved + l.reserved - c.capacity)
	c.reserved += l.reserved
	return l, evicted, true
}

// store names the reserved full blocks of l, now that they are computed or
// copied from the host, and returns the new hashes.
func (c *cache) store(l *lease) []blockHash {
	fresh := l.hashes[l.matched:]
	for _, hash := range fresh {
		// A parent is pinned whenever its child is and is freed after it, so it
		// leaves the LRU after it: behind the first miss nothing is held.
		if c.held[hash] != nil {
			panic("bug: sim cache holds a block whose parent it had not")
		}
		c.held[hash] = &block{hash: hash, refs: 1}
	}
	l.stored = true
	l.reserved -= len(fresh)
	c.reserved -= len(fresh)
	return fresh
}

// release gives back all that l has. The last block is freed first, so that
// the tail of a prompt is evicted before its head.
func (c *cache) release(l *lease) {
	mine := l.hashes
	if !l.stored {
		mine = mine[:l.matched]
	}
	for i := len(mine) - 1; i >= 0; i-- {
		b := c.held[mine[i]]
		if b.refs--; b.refs == 0 {
			b.idle = c.idle.PushBack(b)
		}
	}
	c.reserved -= l.reserved
	*l = lease{}
}

// evict forgets up to n idle blocks and returns their hashes.
func (c *cache) evict(n int) []blockHash {
	var gone []blockHash
	for ; n > 0 && c.idle.Len() > 0; n-- {
		b := c.idle.Remove(c.idle.Front()).(*block)
		delete(c.held, b.hash)
		gone = append(gone, b.hash)
	}
	return gone
}

// offload is evict, but the blocks stay with the host. fresh are the ones that
// it did not have before.
func (c *cache) offload(n int) (gone, fresh []blockHash) {
	gone = c.evict(n)
	for _, hash := range gone {
		if _, ok := c.cpu[hash]; !ok {
			c.cpu[hash] = struct{}{}
			fresh = append(fresh, hash)
		}
	}
	return gone, fresh
}

// forgetCPU forgets the copies of the host and returns their hashes, in order.
func (c *cache) forgetCPU() []blockHash {
	gone := slices.Sorted(maps.Keys(c.cpu))
	clear(c.cpu)
	return gone
}

// clear forgets everything but the host's copies, unless a block is in use.
func (c *cache) clear() bool {
	if c.used() > 0 {
		return false
	}
	clear(c.held)
	c.idle.Init()
	return true
}

func (c *cache) pin(b *block) {
	if b.refs++; b.refs == 1 {
		c.idle.Remove(b.idle)
		b.idle = nil
	}
}

// check proves the invariants; tests call it.
func (c *cache) check() error {
	idle := 0
	for hash, b := range c.held {
		if b.hash != hash || b.refs < 0 || (b.refs == 0) != (b.idle != nil) {
			return fmt.Errorf("block %x: hash %x, %d refs, idle %v", hash, b.hash, b.refs, b.idle != nil)
		}
		if b.refs == 0 {
			idle++
		}
	}
	if idle != c.idle.Len() {
		return fmt.Errorf("%d idle blocks, %d in the list", idle, c.idle.Len())
	}
	if c.reserved < 0 || len(c.held)+c.reserved > c.capacity {
		return fmt.Errorf("%d held and %d reserved of %d", len(c.held), c.reserved, c.capacity)
	}
	return nil
}
