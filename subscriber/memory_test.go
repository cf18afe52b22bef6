package subscriber

import (
	"runtime"
	"testing"
	"time"

	"inferencecache.io/inferencecache/internal/engine"
	"inferencecache.io/inferencecache/internal/engine/vllm"
)

// maxHeapHeld is what half a million blocks may take, so that a subscriber
// stays below 128 MiB with its buffers.
const maxHeapHeld = 60 << 20

func TestHalfAMillionBlocksFitInMemory(t *testing.T) {
	const blocks, chain = DefaultMaxBlocks, 100
	var before, after runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)
	r := NewResidency(ResidencyConfig{})
	for first := 1; first < blocks; first += chain {
		hashes, tokens := chainOf(first, chain)
		b, err := engine.Decode(vllm.Dialect, storedBatch(0, hashes, tokens), engine.DefaultLimits())
		if err != nil {
			t.Fatal(err)
		}
		r.Apply(0, b)
	}
	runtime.GC()
	runtime.ReadMemStats(&after)
	if r.Len() != blocks {
		t.Fatalf("%d blocks held, want %d", r.Len(), blocks)
	}
	heap := after.HeapAlloc - before.HeapAlloc
	t.Logf("%d bytes a block", heap/blocks)
	if heap > maxHeapHeld {
		t.Errorf("%d MiB of heap", heap>>20)
	}
	started := time.Now()
	n := 0
	r.Held(func(c Change) bool { n += len(c.Hashes); return true })
	t.Logf("%d blocks listed in %s", n, time.Since(started))
	runtime.KeepAlive(r)
}
