package rank

import "inferencecache.io/inferencecache/internal/kv"

// Lot is the weight of a replica for a prompt in rendezvous hashing (Thaler and
// Ravishankar, 1998): the replica with the highest weight gets the prompt, so
// that one more or less of n replicas moves only every n-th prompt. Both
// arguments are hashes.
func Lot(prompt, replica uint64) uint64 { return kv.Mix(prompt ^ replica*kv.Golden) }

// slot spreads keys, which callers choose, over the places of a table.
func slot(key kv.Hash, mask uint64) uint64 { return uint64(key) * kv.Golden >> 32 & mask }

// likes is how many replicas the forecast knows for one prefix.
const likes = 4

// Forecast remembers for some seconds where prompts were sent, as their
// prefixes will be held there before any event says so. It looks at prompts at
// depths that are powers of two and at their end, in a table of fixed size
// where a newer prefix may take the place of another. Prompts of different salts
// have nothing in common. It is not safe for concurrent use.
type Forecast struct {
	life  float64 // seconds
	mask  uint64
	table []foreseen
}

type foreseen struct {
	key      kv.Hash
	replicas [likes]uint32  // and one; 0: none
	at       [likes]float64 // seconds
}

// NewForecast has 1<<bits places and believes what it was told for life seconds.
func NewForecast(bits int, life float64) *Forecast {
	return &Forecast{life: life, mask: 1<<bits - 1, table: make([]foreseen, 1<<bits)}
}

func (f *Forecast) place(key kv.Hash) *foreseen {
	return &f.table[slot(key, f.mask)]
}

// depths calls visit for the depths that the forecast looks at.
func depths(blocks int, visit func(depth int)) {
	for depth := 1; depth < blocks; depth *= 2 {
		visit(depth)
	}
	if blocks > 0 {
		visit(blocks)
	}
}

// Sent notes that a prompt goes to a replica, at a time in seconds. A prefix is
// believed in from the first time on: sending more of its like there proves
// nothing, so that a forecast that no event confirms ends in time.
func (f *Forecast) Sent(now float64, salt uint64, keys []kv.Hash, replica uint32) {
	depths(len(keys), func(depth int) {
		key := keys[depth-1] ^ kv.Hash(salt)
		e := f.place(key)
		if e.key != key {
			*e = foreseen{key: key}
		}
		oldest := 0
		for i := range e.at {
			if e.replicas[i] == replica+1 {
				if now-e.at[i] < f.life {
					return
				}
				oldest = i
				break
			}
			if e.replicas[i] == 0 && e.replicas[oldest] != 0 || e.at[i] < e.at[oldest] {
				oldest = i
			}
		}
		e.replicas[oldest], e.at[oldest] = replica+1, now
	})
}

// Soon calls found with each replica that a prompt with the same first blocks
// was sent to, and with how many of them. A replica may come several times,
// with more blocks each time.
func (f *Forecast) Soon(now float64, salt uint64, keys []kv.Hash, found func(replica uint32, blocks int)) {
	depths(len(keys), func(depth int) {
		key := keys[depth-1] ^ kv.Hash(salt)
		e := f.place(key)
		if e.key != key {
			return
		}
		for i, at := range e.at {
			if e.replicas[i] != 0 && now-at < f.life {
				found(e.replicas[i]-1, depth)
			}
		}
	})
}
