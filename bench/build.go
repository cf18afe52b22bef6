package bench

import (
	"runtime"
	"time"

	"inferencecache.io/inferencecache/index"
)

// build measures adding up to the full size, and what is there then costs.
func (b *bench) build(k int) {
	keys := Keys(distinct(b.blocks, k))
	turns := 3
	if b.blocks > Million {
		turns = 1
	}
	empty := heapObjects()
	var x *index.Index
	own, other := alternate(b.each, turns,
		func(int) { x = Unbounded(); Fill(x, keys, Chain, k) },
		func(int) { FillMap(keys, Chain, k) })
	counts := x.Counts()
	entries := int(counts.Entries)

	size := Row{Load: held(k), What: "memory of a holder-block", Value: float64(counts.Bytes) / float64(entries), Unit: "B"}
	add := Row{Load: held(k), What: "add, holder-blocks a second", Value: perSecond(entries, own), XMap: ratio(other, own)}
	switch k {
	case 1:
		size.Bound, size.Must = AtMost, 40
		add.Bound, add.Must = AtLeast, 1.5e6
	case 8:
		size.Bound, size.Must = AtMost, 12
	}
	b.row(size)
	b.row(add)

	objects := float64(heapObjects()) - float64(empty)
	b.row(Row{Load: held(k), What: "heap objects", Value: max(0, objects), Bound: AtMost, Must: 1000})
	took, pause := collect()
	b.row(Row{Load: held(k), What: "garbage collection", Value: float64(took), Unit: "ns"})
	b.row(Row{Load: held(k), What: "garbage collection, longest pause", Value: float64(pause), Unit: "ns"})
	runtime.KeepAlive(x)
	runtime.KeepAlive(keys)
}

// collect returns the median time of a collection and the longest pause in one.
func collect() (took, pause time.Duration) {
	const rounds = 5
	var all []time.Duration
	for range rounds {
		start := time.Now()
		runtime.GC()
		all = append(all, time.Since(start))
	}
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	for i := range uint32(rounds) { // the newest is at NumGC+255, modulo 256
		pause = max(pause, time.Duration(m.PauseNs[(m.NumGC+255-i)%256]))
	}
	return median(all), pause
}

// BytesPerHolderBlock builds an index of about the given holder-blocks with k
// replicas a block, and returns what each takes.
func BytesPerHolderBlock(blocks, k int) float64 {
	x := Unbounded()
	Fill(x, Keys(distinct(blocks, k)), Chain, k)
	c := x.Counts()
	return float64(c.Bytes) / float64(c.Entries)
}
