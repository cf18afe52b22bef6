package replay

import (
	"strconv"
	"time"

	"inferencecache.io/inferencecache/index"
	"inferencecache.io/inferencecache/internal/kv"
	"inferencecache.io/inferencecache/internal/rank"
)

// router is what the routing side knows: a real index, fed with the events of
// the caches.
type router struct {
	index   *index.Index
	soon    *rank.Forecast // what prompts sent within the last seconds will leave behind
	popular *rank.Popularity
	scratch index.Scratch
	ranking rank.Scratch
	names   []string
	number  map[string]int
	depths  []int // scratch: of the last question, by replica
	later   []int // scratch: as foreseen
}

var scope = kv.Scope{Tenant: "replay", Model: "model", Scheme: "trace"}

// epoch is the index's time at the start of a trace.
var epoch = time.Unix(1_800_000_000, 0)

func clock(now float64) time.Time { return epoch.Add(time.Duration(now * float64(time.Second))) }

// foresight is how long a prediction of our own lives, in seconds: an event
// confirms it by then, or it was wrong.
const foresight = 5

func newRouter(replicas int) *router {
	r := &router{
		index:   index.New(index.Config{Defaults: index.Limits{TTL: 1000 * time.Hour, MaxKeys: -1}}),
		soon:    rank.NewForecast(16, foresight),
		popular: rank.NewPopularity(16, 30),
		number:  map[string]int{}, depths: make([]int, replicas), later: make([]int, replicas),
	}
	for i := range replicas {
		name := "replica-" + strconv.Itoa(i)
		r.names = append(r.names, name)
		r.number[name] = i
	}
	return r
}

// hear applies the events of one cache.
func (r *router) hear(c *change) {
	now := clock(c.at)
	b := index.Batch{Scope: scope, Replica: r.names[c.replica], Seen: now}
	if len(c.stored) > 0 {
		b.Ops = append(b.Ops, index.Op{
			Kind: index.Store, Tier: kv.T1, Keys: c.stored, Parent: c.parent, HasParent: c.depth > 0,
			Tokens: int32(c.depth), Step: 1,
		})
	}
	if len(c.evicted) > 0 {
		b.Ops = append(b.Ops, index.Op{Kind: index.Remove, Keys: c.evicted})
	}
	r.index.Apply(now, &b)
}

// foresee is how many leading blocks each replica will hold soon.
func (r *router) foresee(now float64, keys []kv.Hash) []int {
	clear(r.later)
	r.soon.Soon(now, 0, keys, func(replica uint32, blocks int) { r.later[replica] = max(r.later[replica], blocks) })
	return r.later
}

// look asks the index how many leading blocks each replica holds.
func (r *router) look(now float64, keys []kv.Hash) []int {
	clear(r.depths)
	if len(keys) == 0 {
		return r.depths
	}
	for _, run := range r.index.Lookup(&r.scratch, clock(now), kv.Partition{Scope: scope}, keys) {
		i := r.number[run.Replica]
		r.depths[i] = run.Blocks
	}
	return r.depths
}
