package bench

import (
	"math/rand/v2"
	"slices"
	"time"

	"inferencecache.io/inferencecache/index"
	"inferencecache.io/inferencecache/internal/kv"
)

// remove measures taking away single blocks, in the orders that engines evict
// in and in one that they do not.
func (b *bench) remove() {
	keys := Keys(distinct(b.blocks, 1))
	x := Unbounded()
	Fill(x, keys, Chain, 1)
	m := FillMap(keys, Chain, 1)

	third := len(keys) / 3
	random := slices.Clone(keys[:third])
	rand.New(rand.NewPCG(3, 4)).Shuffle(third, func(i, j int) { random[i], random[j] = random[j], random[i] })
	tail := slices.Clone(keys[2*third:])
	slices.Reverse(tail)
	for _, order := range []struct {
		name string
		keys []kv.Hash
	}{
		{"random order", random},
		{"from the head", keys[third : 2*third]},
		{"from the tail", tail},
	} {
		own, other := b.removeAll(x, m, order.keys)
		b.row(Row{Load: held(1), What: "remove a block, " + order.name, Value: float64(own), Unit: "ns", XMap: ratio(other, own), Bound: AtMost, Must: 2e3})
	}
}

// removeAll removes keys one by one, until none is left or the time is up. The
// median batch of each side counts.
func (b *bench) removeAll(x *index.Index, m map[uint64]uint64, keys []kv.Hash) (own, other time.Duration) {
	const size, least = 256, 64 // keys a batch, batches
	batch := &index.Batch{Scope: Scope, Replica: Replica(0), Seen: Now, Ops: []index.Op{{Kind: index.Remove}}}
	var owns, others []float64 // ns, of which a part counts
	for begun := time.Now(); len(keys) >= size && (len(owns) < least || time.Since(begun) < 2*b.each); keys = keys[size:] {
		start := time.Now()
		for i := range size {
			batch.Ops[0].Keys = keys[i : i+1]
			x.Apply(Now, batch)
		}
		middle := time.Now()
		for _, key := range keys[:size] {
			delete(m, uint64(key))
		}
		owns = append(owns, float64(middle.Sub(start))/size)
		others = append(others, float64(time.Since(middle))/size)
	}
	return time.Duration(median(owns)), time.Duration(median(others))
}

// clear measures forgetting a replica that holds everything: five that do, one
// behind the other, since the first pays for code that nobody ran for a while.
func (b *bench) clear() {
	keys := Keys(distinct(b.blocks, 1))
	const replicas = 5
	for _, act := range []struct {
		name string
		do   func(x *index.Index, replica string)
	}{
		{"clear", func(x *index.Index, replica string) { x.Clear(Now, Scope.Tenant, Scope.Model, replica, Now) }},
		{"kill", func(x *index.Index, replica string) { x.Kill(Scope.Tenant, replica) }},
	} {
		x := Unbounded()
		for r := range replicas {
			fillAs(x, Replica(r), keys, Chain, Chain)
		}
		var all []time.Duration
		for r := range replicas {
			start := time.Now()
			act.do(x, Replica(r))
			all = append(all, time.Since(start))
		}
		b.row(Row{Load: held(replicas), What: act.name + " a replica that holds all", Value: float64(median(all)), Unit: "ns", Bound: AtMost, Must: 10e3})
	}
}
