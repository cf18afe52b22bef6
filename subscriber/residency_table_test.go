package subscriber

import (
	"math/rand/v2"
	"testing"
)

// TestTableFindsWhatWasPutAndNotDropped compares a table with a map, where many
// names have the same hash or one next to it.
func TestTableFindsWhatWasPutAndNotDropped(t *testing.T) {
	t.Parallel()
	random := rand.New(rand.NewPCG(1, 2))
	for _, spread := range []uint32{3, 64, 1 << 31} {
		var table table
		hashes := map[uint32]uint32{} // by place
		for step := range 20_000 {
			at := 1 + random.Uint32N(600)
			hash, held := hashes[at]
			switch {
			case !held && step < 19_000:
				hashes[at] = random.Uint32N(spread) - spread/2 // on both sides of the wrap
				table.put(hashes[at], at)
			case held && random.IntN(4) > 0:
				table.drop(hash, at)
				delete(hashes, at)
			}
			if step%100 != 0 {
				continue
			}
			for at := uint32(1); at <= 600; at++ {
				hash, held := hashes[at]
				if got := table.find(hash, func(other uint32) bool { return other == at }); (got == at) != held {
					t.Fatalf("spread %d, step %d: place %d found: %v, want %v", spread, step, at, got == at, held)
				}
			}
			if table.count != len(hashes) {
				t.Fatalf("spread %d, step %d: %d counted, want %d", spread, step, table.count, len(hashes))
			}
		}
	}
}
