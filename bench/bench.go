// Package bench measures the index on the machine it runs on, against the goals
// of the project and against the same work done block by block on a plain map.
// It is no test: it judges figures, not answers. The command `inferencecache
// bench` prints its rows; the benchmarks beside the index share its loads.
package bench

import (
	"context"
	"fmt"
	"time"

	"inferencecache.io/inferencecache/internal/trace"
)

// Million is the size that the goals are set for.
const Million = 1 << 20

// Options of Run. The zero value is the short version, about a minute.
type Options struct {
	Blocks   int             // holder-blocks (replica x block); 0: a million
	Holders  []int           // replicas that hold a block; none: 1 and 8
	Full     bool            // measure longer, and again with ten times the blocks
	Trace    []trace.Request // none: a generated one
	Each     time.Duration   // for one figure; 0: 0.2 s, or 1 s if Full
	Progress func(what string)
}

func (o Options) sane() Options {
	if o.Blocks <= 0 {
		o.Blocks = Million
	}
	if len(o.Holders) == 0 {
		o.Holders = []int{1, 8}
	}
	if o.Each <= 0 {
		o.Each = 200 * time.Millisecond
		if o.Full {
			o.Each = time.Second
		}
	}
	if o.Trace == nil {
		o.Trace = trace.Generate(1, 12031)
	}
	if o.Progress == nil {
		o.Progress = func(string) {}
	}
	return o
}

// Run measures everything, one after the other. When ctx ends it stops, with an
// error and the rows so far. Nothing else should run in the process meanwhile.
func Run(ctx context.Context, o Options) (rows []Row, err error) {
	o = o.sane()
	sizes := []int{o.Blocks}
	if o.Full {
		sizes = append(sizes, 10*o.Blocks)
	}
	for _, blocks := range sizes {
		b := bench{ctx: ctx, blocks: blocks, each: o.Each, progress: o.Progress}
		b.all(o)
		if blocks > Million { // the goals do not speak of that many
			for i := range b.rows {
				b.rows[i].Bound = ""
			}
		}
		rows = append(rows, b.rows...)
		if err := ctx.Err(); err != nil {
			return rows, err
		}
	}
	return rows, nil
}

// bench is one run at one size.
type bench struct {
	ctx      context.Context
	blocks   int
	each     time.Duration
	progress func(string)
	rows     []Row
}

func (b *bench) all(o Options) {
	b.step("the machine", b.machine)
	for _, k := range o.Holders {
		b.step(fmt.Sprintf("build, %s", held(k)), func() { b.build(k) })
		for _, d := range []int{64, 1024, 16384} {
			if d > distinct(b.blocks, k) {
				continue
			}
			b.step(fmt.Sprintf("lookup of %d blocks, %s", d, held(k)), func() { b.lookup(d, k) })
		}
	}
	b.step("remove", b.remove)
	b.step("clear", b.clear)
	b.step("add at the budget", b.budget)
	for _, load := range Loads(b.blocks) {
		b.step(fmt.Sprintf("readers, %s", load.Name), func() { b.readers(load) })
	}
	b.step("trace", func() { b.trace(o.Trace) })
}

// machine measures how long it keeps a loop that does nothing from running: no
// pause below can be told from that.
func (b *bench) machine() {
	var longest time.Duration
	start := time.Now()
	for last := start; last.Sub(start) < 5*b.each; {
		now := time.Now()
		longest = max(longest, now.Sub(last))
		last = now
	}
	b.row(Row{Load: "machine", What: "longest pause of a loop that does nothing", Value: float64(longest), Unit: "ns"})
}

func (b *bench) step(what string, measure func()) {
	if b.ctx.Err() != nil {
		return
	}
	b.progress(fmt.Sprintf("%s holder-blocks: %s", count(float64(b.blocks)), what))
	measure()
}

func (b *bench) row(r Row) {
	b.rows = append(b.rows, r)
}

func held(k int) string { return fmt.Sprintf("K=%d", k) }
