package bench

import (
	"bytes"
	"context"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"

	"inferencecache.io/inferencecache/internal/trace"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// The figures of a run this short mean nothing, but all must be there.
func TestRunYieldsEveryFigure(t *testing.T) {
	steps := 0
	rows, err := Run(t.Context(), Options{
		Blocks: 4096, Each: time.Millisecond, Trace: trace.Generate(1, 200), Progress: func(string) { steps++ },
	})
	if err != nil {
		t.Fatal(err)
	}
	got := map[string]bool{}
	for _, r := range rows {
		name := r.Load + ": " + r.What
		if got[name] {
			t.Errorf("%s: twice", name)
		}
		got[name] = true
		mayBeZero := strings.Contains(r.What, "allocations") || strings.Contains(r.What, "heap objects") || strings.Contains(r.What, "pause")
		if r.Value < 0 || r.Value == 0 && !mayBeZero || math.IsNaN(r.Value) || math.IsInf(r.Value, 0) || math.IsNaN(r.XMap) || math.IsInf(r.XMap, 0) {
			t.Errorf("%s: %+v", name, r)
		}
		if strings.Contains(r.What, "allocations") && r.Value >= 1 {
			t.Errorf("%s: %v", name, r.Value)
		}
		if strings.Contains(r.What, "memory") && (r.Value < 1 || r.Value > 400) {
			t.Errorf("%s: %v", name, r.Value)
		}
	}
	for _, want := range []string{
		"machine: longest pause of a loop that does nothing",
		"K=1: memory of a holder-block", "K=8: memory of a holder-block",
		"K=1: add, holder-blocks a second", "K=1: heap objects", "K=1: garbage collection", "K=1: garbage collection, longest pause",
		"K=1: lookup, 64 blocks", "K=1: lookup, 1024 blocks", "K=8: lookup, 64 blocks", "K=8: allocations of a lookup, 64 blocks",
		"K=1: remove a block, random order", "K=1: remove a block, from the head", "K=1: remove a block, from the tail",
		"K=5: clear a replica that holds all", "K=5: kill a replica that holds all",
		"at the budget: add, holder-blocks a second, median batch", "at the budget: batch of 512, p99.9, with what the machine adds", "at the budget: batch of 512, slowest of 100, each at its best of 5 turns",
		"uniform: lookups a second, 1024 blocks, 1 readers", "zipf: lookups a second, 1024 blocks, 2 readers",
		"root: lookups a second, 1024 blocks, 8 readers, with a writer / without",
		"trace: lookups and events, block-ops a second",
	} {
		if !got[want] {
			t.Errorf("no %q", want)
		}
	}
	if steps == 0 {
		t.Error("no progress")
	}
}

func TestRunStopsWithItsContext(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	_, err := Run(ctx, Options{Blocks: 4096, Each: time.Millisecond, Trace: trace.Generate(1, 200), Progress: func(string) { cancel() }})
	if err != context.Canceled {
		t.Error(err)
	}
}

func TestPrintShowsWhatIsMissed(t *testing.T) {
	rows := []Row{
		{Load: "K=1", What: "lookup, 64 blocks", Value: 2300, Unit: "ns", XMap: 0.5, Bound: AtMost, Must: 1000},
		{Load: "K=1", What: "add", Value: 1_500_000, Bound: AtLeast, Must: 1_500_000},
		{Load: "K=1", What: "memory", Value: 29.81, Unit: "B"},
	}
	var out bytes.Buffer
	if err := Print(&out, rows); err != nil {
		t.Fatal(err)
	}
	want := `load  what               value    x-map  must             met
K=1   lookup, 64 blocks  2.30 us  0.50   at most 1 us     NO
K=1   add                1.50 M          at least 1.50 M  yes
K=1   memory             29.8 B                           
`
	if diff := cmp.Diff(want, out.String()); diff != "" {
		t.Error(diff)
	}
	if Missed(rows) != 1 {
		t.Errorf("%d missed", Missed(rows))
	}
}

func TestReadersMustKeepWhatTheMachineLeavesThem(t *testing.T) {
	for machine, want := range map[float64]float64{1: 0.7, 1.3: 0.7, 0.5: 0.35} {
		if got := besideWriter(machine); math.Abs(got-want) > 1e-9 {
			t.Errorf("%v left: %v, want %v", machine, got, want)
		}
	}
}

func TestSizing(t *testing.T) {
	got := NewSizing(64, 500_000, 8, 13.2)
	// 32 M holder-blocks x 14 bytes x 1.25 = 534.06 MiB.
	want := Sizing{Engines: 64, Blocks: 500_000, Holders: 8, BytesPerBlock: 13.2, IndexMemory: 535 << 20, PodMemory: 1070 << 20}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
	var out bytes.Buffer
	if err := got.Print(&out); err != nil || !strings.Contains(out.String(), "--index-memory=560988160") || !strings.Contains(out.String(), "1070Mi") {
		t.Errorf("%v\n%s", err, &out)
	}
}

func TestReplayEvictsAndNeverTwice(t *testing.T) {
	p := NewReplay(trace.Generate(1, 12031))
	type place struct {
		engine int
		key    uint64
	}
	held, removed := map[place]bool{}, 0
	for _, e := range p.events {
		for _, op := range e.batch.Ops {
			for _, key := range op.Keys {
				at := place{e.engine, uint64(key)}
				if op.HasParent && !held[place{e.engine, uint64(op.Parent)}] {
					t.Fatal("stored below what is not held")
				}
				switch add := len(op.Counts) > 0 || op.Step > 0; {
				case add:
					held[at] = true
				case !held[at]:
					t.Fatal("evicted twice")
				default:
					delete(held, at)
					removed++
				}
			}
		}
	}
	if len(held) > engines*engineBlocks || removed == 0 {
		t.Errorf("%d held, %d removed", len(held), removed)
	}
	x := Unbounded()
	p.Index(x)
	if got := x.Counts().Entries; got != int64(len(held)) {
		t.Errorf("index holds %d, engines %d", got, len(held))
	}
}

func TestHistogramQuantile(t *testing.T) {
	var h histogram
	for i := range 1000 {
		h.add(time.Duration(i+1) * time.Microsecond)
	}
	for share, want := range map[float64]time.Duration{0.5: 500 * time.Microsecond, 0.99: 990 * time.Microsecond} {
		if got := h.quantile(share); got < want || got > want*107/100 {
			t.Errorf("%v: %v", share, got)
		}
	}
}

func TestSoakKeepsToItsBudget(t *testing.T) {
	rows, err := Soak(t.Context(), 4<<20, time.Second)
	if err != nil {
		t.Fatal(err)
	}
	value := map[string]float64{}
	for _, r := range rows {
		value[r.What] = r.Value
	}
	if value["bytes / budget"] > 1 || value["holder-blocks"] < 1000 || value["lookups that found a run"] < 0.1 {
		t.Errorf("%v", value)
	}
	// A slow machine may not get there.
	if value["holder-blocks added"] > 4<<20/4 && value["holder-blocks evicted"] == 0 {
		t.Errorf("more added than there is room for, and nothing evicted: %v", value)
	}
	if _, err := Soak(t.Context(), 0, time.Second); err == nil {
		t.Error("no error without a budget")
	}
}
