package bench

import (
	"slices"

	"inferencecache.io/inferencecache/index"
	"inferencecache.io/inferencecache/internal/kv"
	"inferencecache.io/inferencecache/internal/trace"
)

const (
	engines      = 8
	engineBlocks = 20_000 // that an engine has room for
)

// Replay is what an index is told and asked while engines serve a trace.
type Replay struct {
	Ops    int // blocks asked for, stored and removed
	events []event
}

// event is one request: the lookup, and then what the engine reports.
type event struct {
	ask    []kv.Hash
	engine int
	batch  index.Batch
}

// NewReplay serves the requests with eight engines in turn. Each stores what it
// does not hold, and evicts what it used least recently, tails first.
func NewReplay(requests []trace.Request) *Replay {
	p := &Replay{}
	caches := make([]cache, engines)
	for i := range caches {
		caches[i].used = map[kv.Hash]int{}
	}
	for i, request := range requests {
		e := event{ask: make([]kv.Hash, len(request.Blocks)), engine: i % engines}
		for j, id := range request.Blocks {
			e.ask[j] = kv.Hash(trace.Spread(id))
		}
		e.batch = index.Batch{Scope: Scope, Replica: Replica(e.engine), Seen: Now}
		held, evicted := caches[e.engine].serve(e.ask)
		if len(evicted) > 0 {
			e.batch.Ops = append(e.batch.Ops, index.Op{Kind: index.Remove, Keys: evicted})
		}
		if held < len(e.ask) {
			op := index.Op{Kind: index.Store, Tier: kv.T1, Keys: e.ask[held:], Tokens: int32(held * trace.MooncakeBlock), Step: trace.MooncakeBlock}
			if held > 0 {
				op.Parent, op.HasParent = e.ask[held-1], true
			}
			e.batch.Ops = append(e.batch.Ops, op)
		}
		p.Ops += len(e.ask) + len(evicted) + len(e.ask) - held
		p.events = append(p.events, e)
	}
	return p
}

// cache of one engine.
type cache struct {
	used  map[kv.Hash]int // when last
	clock int
	uses  []use // oldest first; one that a later use made void is skipped
}

type use struct {
	key kv.Hash
	at  int
}

// serve returns how many leading keys were held, and what went for the rest.
func (c *cache) serve(keys []kv.Hash) (held int, evicted []kv.Hash) {
	for held < len(keys) && c.used[keys[held]] > 0 {
		held++
	}
	for _, key := range slices.Backward(keys) {
		c.clock++
		c.used[key] = c.clock
		c.uses = append(c.uses, use{key, c.clock})
	}
	for len(c.used) > engineBlocks {
		oldest := c.uses[0]
		c.uses = c.uses[1:]
		if c.used[oldest.key] == oldest.at {
			delete(c.used, oldest.key)
			evicted = append(evicted, oldest.key)
		}
	}
	return held, evicted
}

// Index carries the replay out on an index.
func (p *Replay) Index(x *index.Index) {
	var s index.Scratch
	for i := range p.events {
		e := &p.events[i]
		x.Lookup(&s, Now, partition, e.ask)
		if len(e.batch.Ops) > 0 {
			x.Apply(Now, &e.batch)
		}
	}
}

// Map carries the replay out block by block on a map from keys to holders as
// bits, and returns something so that it cannot be left out.
func (p *Replay) Map() (sum uint64) {
	m := map[uint64]uint64{}
	for i := range p.events {
		e := &p.events[i]
		sum += LookupMap(m, e.ask)
		bit := uint64(1) << e.engine
		for j := range e.batch.Ops {
			op := &e.batch.Ops[j]
			for _, key := range op.Keys {
				left := m[uint64(key)] &^ bit
				switch {
				case op.Kind == index.Store:
					m[uint64(key)] = left | bit
				case left == 0:
					delete(m, uint64(key))
				default:
					m[uint64(key)] = left
				}
			}
		}
	}
	return sum
}

func (b *bench) trace(requests []trace.Request) {
	p := NewReplay(requests)
	own, other := alternate(b.each, 5, func(int) { p.Index(Unbounded()) }, func(int) { p.Map() })
	b.row(Row{Load: "trace", What: "lookups and events, block-ops a second", Value: perSecond(p.Ops, own), XMap: ratio(other, own), Bound: AtLeast, Must: 7e6})
}
