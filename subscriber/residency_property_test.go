package subscriber

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"testing"

	"github.com/google/go-cmp/cmp"

	"inferencecache.io/inferencecache/internal/engine"
)

func TestResidencyAgreesWithANaiveModel(t *testing.T) {
	for seed := range uint64(40) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			t.Parallel()
			left := 150
			history(t, rand.New(rand.NewPCG(seed, 1)), seed%2 == 1, func() bool { left--; return left < 0 })
		})
	}
}

// A residency that must forget cannot agree with a model, but it must agree
// with what it told the server.
func TestResidencyTellsWhatItForgets(t *testing.T) {
	for seed := range uint64(20) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			t.Parallel()
			c := rand.New(rand.NewPCG(seed, 2))
			r := NewResidency(ResidencyConfig{MaxBlocks: 1 + int(seed), MaxOrphans: 1 + int(seed)%5, HasLowerTier: seed%2 == 1})
			server, m := replayed{}, newNaiveModel(false)
			for i := range 300 {
				rank, b := step(c, m)
				changes, _ := r.Apply(rank, b)
				server.apply(t, changes)
				if held := heldBy(t, r); !maps.Equal(server, held) {
					t.Fatalf("batch %d (-server +held):\n%s", i, cmp.Diff(server, held))
				}
				if err := r.check(); err != nil {
					t.Fatalf("batch %d: %v", i, err)
				}
			}
			if s := r.Stats(); s.Evicted == 0 || s.OrphanLoss == 0 {
				t.Errorf("nothing was forgotten: %+v", s)
			}
		})
	}
}

// Parts of what is held, with the changes that come in between, make up what is
// held in the end.
func TestResidencyIsHandedOverInParts(t *testing.T) {
	for seed := range uint64(40) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			t.Parallel()
			c := rand.New(rand.NewPCG(seed, 3))
			r := NewResidency(ResidencyConfig{HasLowerTier: seed%2 == 1})
			m := newNaiveModel(false)
			for range 100 {
				rank, b := step(c, m)
				r.Apply(rank, b)
			}
			server := replayed{}
			hear := func(change Change) {
				if change.Kind == Clear {
					clear(server)
				}
				for _, hash := range change.Hashes {
					name := partitionHash{change.Adapter, hash}
					if delete(server, name); change.Kind == Store {
						server[name] = change.Tier
					}
				}
			}
			parts := 0
			for from := uint32(1); from != 0; parts++ {
				from = r.HeldFrom(from, 3, hear)
				for range c.IntN(3) {
					rank, b := step(c, m)
					changes, _ := r.Apply(rank, b)
					for _, change := range changes {
						hear(change)
					}
				}
			}
			if held := heldBy(t, r); !maps.Equal(server, held) {
				t.Errorf("after %d parts (-server +held):\n%s", parts, cmp.Diff(server, held))
			}
		})
	}
}

// bytesChooser decides by the bytes of a fuzz input, then always 0.
type bytesChooser struct{ left []byte }

func (c *bytesChooser) IntN(n int) int {
	if len(c.left) == 0 {
		return 0
	}
	b := c.left[0]
	c.left = c.left[1:]
	return int(b) % n
}

// FuzzResidency compares histories with the model.
func FuzzResidency(f *testing.F) {
	for seed := range uint64(8) {
		c := rand.New(rand.NewPCG(seed, 3))
		history := make([]byte, 200)
		for i := range history {
			history[i] = byte(c.Uint32())
		}
		f.Add(history)
	}
	f.Fuzz(func(t *testing.T, input []byte) {
		if len(input) == 0 || len(input) > 600 {
			return
		}
		c := &bytesChooser{input[1:]}
		history(t, c, input[0]%2 == 1, func() bool { return len(c.left) == 0 })
	})
}

// FuzzResidencyPayload applies payloads as they come: what is said to the
// server must stay what is held, whatever an engine sends.
func FuzzResidencyPayload(f *testing.F) {
	for _, s := range loadResidencySamples(f) {
		if len(s.payload) < 10_000 {
			f.Add(s.payload, uint8(0))
			f.Add(s.payload, uint8(5))
		}
	}
	f.Fuzz(func(t *testing.T, payload []byte, mode uint8) {
		limits := engine.Limits{Payload: 1 << 16, Events: 100, Hashes: 100, Tokens: 1000, String: 1000}
		dialect := residencySample{Engine: [...]string{"vllm", "sglang"}[mode>>7]}.dialect()
		b, err := engine.Decode(dialect, payload, limits)
		if err != nil {
			return
		}
		r := NewResidency(ResidencyConfig{
			MaxBlocks: 1 + int(mode)%32, MaxOrphans: 1 + int(mode)%7, HasLowerTier: mode&8 != 0,
			Adapters: map[int64]string{1: "one"},
		})
		server := replayed{}
		for rank := range 3 { // 0, 1, 0
			changes, tally := r.Apply(rank%2, b)
			if len(tally.Verdicts) != len(b.Events) {
				t.Fatalf("%d verdicts for %d events", len(tally.Verdicts), len(b.Events))
			}
			server.apply(t, changes)
			if err := r.check(); err != nil {
				t.Fatal(err)
			}
			if held := heldBy(t, r); !maps.Equal(server, held) {
				t.Fatalf("(-server +held):\n%s", cmp.Diff(server, held))
			}
		}
		server.apply(t, r.ClearRank(0))
		server.apply(t, r.ClearRank(1))
		if len(server) != 0 || r.Len() != 0 || r.Stats().Holdings != 0 || r.Stats().Orphans != 0 {
			t.Fatalf("%d blocks left after clearing: %+v", len(server), r.Stats())
		}
	})
}
