package replay

import "inferencecache.io/inferencecache/internal/kv"

// cache is the LRU of whole blocks of one replica: a list through an array,
// newest first. 0 is the head's place.
type cache struct {
	limit int // blocks; 0: none
	at    map[kv.Hash]int32
	nodes []node
	spare []int32
}

type node struct {
	key         kv.Hash
	newer, next int32
}

func newCache(limit int) *cache {
	return &cache{limit: limit, at: map[kv.Hash]int32{}, nodes: make([]node, 1)}
}

// match is how many leading keys are held.
func (c *cache) match(keys []kv.Hash) int {
	for i, key := range keys {
		if c.at[key] == 0 {
			return i
		}
	}
	return len(keys)
}

// use touches all keys, the last first, and returns those that had to go.
func (c *cache) use(keys []kv.Hash) (evicted []kv.Hash) {
	for i := len(keys) - 1; i >= 0; i-- {
		c.touch(keys[i])
	}
	for c.limit > 0 && len(c.at) > c.limit {
		oldest := c.nodes[0].newer
		evicted = append(evicted, c.nodes[oldest].key)
		delete(c.at, c.nodes[oldest].key)
		c.unlink(oldest)
		c.spare = append(c.spare, oldest)
	}
	return evicted
}

func (c *cache) touch(key kv.Hash) {
	i, ok := c.at[key]
	switch {
	case ok:
		c.unlink(i)
	case len(c.spare) > 0:
		i = c.spare[len(c.spare)-1]
		c.spare = c.spare[:len(c.spare)-1]
	default:
		i = int32(len(c.nodes))
		c.nodes = append(c.nodes, node{})
	}
	c.at[key] = i
	first := c.nodes[0].next
	c.nodes[i] = node{key: key, newer: 0, next: first}
	c.nodes[first].newer = i
	c.nodes[0].next = i
}

func (c *cache) unlink(i int32) {
	n := c.nodes[i]
	c.nodes[n.newer].next = n.next
	c.nodes[n.next].newer = n.newer
}
