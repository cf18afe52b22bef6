package replay

import (
	"slices"

	"inferencecache.io/inferencecache/internal/kv"
)

// Capacity is what one cache shared by all would hit, by its size in blocks.
type Capacity struct {
	Blocks  int     `json:"blocks"` // 0: without bound
	HitRate float64 `json:"hit_rate"`
}

// Capacities plays the prompts to one LRU cache of every size at once: by stack
// distance, so in one pass (Mattson and others, 1970). A block hits a cache of
// c blocks if fewer than c others were used since its last use and all blocks
// before it in its prompt hit as well.
func Capacities(requests []Request, sizes []int) []Capacity {
	uses := 0
	for _, r := range requests {
		uses += len(r.Keys)
	}
	s := stack{live: make([]int32, uses+1), last: map[kv.Hash]int{}}
	need := map[int]int{} // by how large a cache must be for that hit
	misses := 0
	for _, r := range requests {
		deepest := 0
		for i, key := range r.Keys {
			d, seen := s.distance(key)
			if !seen {
				misses += len(r.Keys) - i
				break
			}
			deepest = max(deepest, d)
			need[deepest]++
		}
		for _, key := range slices.Backward(r.Keys) {
			s.use(key)
		}
	}
	all := make([]Capacity, 0, len(sizes))
	for _, size := range sizes {
		hits := 0
		for d, n := range need {
			if size == 0 || d <= size {
				hits += n
			}
		}
		all = append(all, Capacity{size, float64(hits) / float64(max(1, uses))})
	}
	return all
}

// stack knows how many different keys were used since one was: a Fenwick tree
// over the times of last uses.
type stack struct {
	live []int32 // tree of marks: this time is the last use of some key
	last map[kv.Hash]int
	now  int
}

// distance is the size that a cache must have to hold key still.
func (s *stack) distance(key kv.Hash) (blocks int, seen bool) {
	at, ok := s.last[key]
	if !ok {
		return 0, false
	}
	return s.sum(s.now) - s.sum(at) + 1, true
}

func (s *stack) use(key kv.Hash) {
	if at, ok := s.last[key]; ok {
		s.mark(at, -1)
	}
	s.now++
	s.last[key] = s.now
	s.mark(s.now, 1)
}

func (s *stack) mark(at int, by int32) {
	for ; at < len(s.live); at += at & -at {
		s.live[at] += by
	}
}

func (s *stack) sum(to int) (n int) {
	for ; to > 0; to -= to & -to {
		n += int(s.live[to])
	}
	return n
}
