package bench

import (
	"fmt"
	"math"
	"runtime"
	"time"

	"inferencecache.io/inferencecache/index"
)

// lookup measures prompts of d blocks that k replicas hold, up to different
// depths.
func (b *bench) lookup(d, k int) {
	keys := Keys(distinct(b.blocks, k))
	x := Unbounded()
	Fill(x, keys, d, k)
	m := FillMap(keys, d, k)
	prompt := Chains(keys, d)
	var s index.Scratch
	var sum uint64
	ours := func(i int) { x.Lookup(&s, Now, partition, prompt(i)) }
	turns := max(15, int(b.each/time.Millisecond)) // short, so that most are undisturbed
	own, other := alternate(b.each, turns, ours, func(i int) { sum += LookupMap(m, prompt(i)) })
	runtime.KeepAlive(sum)

	r := Row{Load: held(k), What: fmt.Sprintf("lookup, %d blocks", d), Value: float64(own), Unit: "ns", XMap: ratio(other, own)}
	switch {
	case d == 64 && k == 1:
		r.Bound, r.Must = AtMost, 1e3
	case d == 1024:
		r.Bound, r.Must = AtMost, 10e3
	case d == 16384:
		r.Bound, r.Must = AtMost, 100e3
	}
	b.row(r)
	b.row(Row{Load: held(k), What: fmt.Sprintf("allocations of a lookup, %d blocks", d), Value: allocations(ours), Bound: AtMost})
}

// allocations of a call. The runtime allocates too, so the least of a few
// tries is taken.
func allocations(f func(i int)) float64 {
	const calls = 100
	least := math.Inf(1)
	var before, after runtime.MemStats
	for range 5 {
		runtime.ReadMemStats(&before)
		for i := range calls {
			f(i)
		}
		runtime.ReadMemStats(&after)
		least = min(least, float64(after.Mallocs-before.Mallocs)/calls)
	}
	return least
}
