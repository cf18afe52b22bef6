package sim

import (
	"encoding/binary"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"

	"inferencecache.io/inferencecache/internal/engine"
	"inferencecache.io/inferencecache/internal/engine/vllm"
)

// follower is a consumer at its simplest: what it holds is what it was told.
type follower struct {
	t    *testing.T
	held map[uint64][]uint32 // whole prefix of each block on the GPU, by hash
	cpu  map[uint64]bool     // blocks in the host's memory
}

func (f *follower) hear(payload []byte) {
	f.t.Helper()
	batch, err := engine.Decode(vllm.Dialect, payload, engine.DefaultLimits())
	if err != nil {
		f.t.Fatal(err)
	}
	if _, ok := batch.Time(); !ok || !batch.HasRank || batch.Rank != 0 {
		f.t.Fatalf("envelope of %+v", batch)
	}
	for _, e := range batch.Events {
		if e.Verdict.Status != engine.OK {
			f.t.Fatalf("event %d: %+v", e.Index, e.Verdict)
		}
		switch e.Kind {
		case engine.Stored:
			f.stored(e)
		case engine.Removed:
			if e.Medium == "CPU" && f.cpu[e.Hashes[0].ID] {
				delete(f.cpu, e.Hashes[0].ID)
				continue
			}
			if _, ok := f.held[e.Hashes[0].ID]; !ok || len(e.Hashes) != 1 {
				f.t.Fatalf("removal of %+v", e.Hashes)
			}
			delete(f.held, e.Hashes[0].ID)
		case engine.Cleared:
			clear(f.held)
		default:
			f.t.Fatalf("event of kind %d", e.Kind)
		}
	}
}

func (f *follower) stored(e engine.Event) {
	f.t.Helper()
	if e.Medium == "CPU" && len(e.Tokens) == 0 && e.BlockSize == 0 {
		for _, hash := range e.Hashes {
			if f.cpu[hash.ID] || f.held[hash.ID] == nil {
				f.t.Fatalf("block %x went to the host, which has it: %v", hash.ID, f.cpu[hash.ID])
			}
			f.cpu[hash.ID] = true
		}
		return
	}
	if len(e.Tokens) != len(e.Hashes)*e.BlockSize || e.Medium != "GPU" || e.GroupIdx != 0 ||
		e.SpecKind != "full_attention" || e.FirstApart("") != len(e.Hashes) {
		f.t.Fatalf("store %+v", e)
	}
	var prefix []uint32
	if e.Has(engine.ParentHash) {
		var ok bool
		if prefix, ok = f.held[e.Parent.ID]; !ok {
			f.t.Fatalf("store behind %x, which is not held", e.Parent.ID)
		}
	}
	for i, hash := range e.Hashes {
		if _, ok := f.held[hash.ID]; ok {
			f.t.Fatalf("block %x was stored twice", hash.ID)
		}
		prefix = slices.Concat(prefix, e.Tokens[i*e.BlockSize:(i+1)*e.BlockSize])
		f.held[hash.ID] = prefix
	}
}

// TestFollowerHoldsWhatTheEngineHolds sends random prompts with shared
// prefixes to a small cache, and follows its events over the wire.
func TestFollowerHoldsWhatTheEngineHolds(t *testing.T) {
	for _, encoding := range []string{EncodingMap, EncodingArray} {
		t.Run(encoding, func(t *testing.T) {
			cfg := quick()
			cfg.Encoding, cfg.Blocks, cfg.BlockSize = encoding, 40, 4
			e := start(t, cfg)
			c := subscribe(t, e, "")
			f := &follower{t: t, held: map[uint64][]uint32{}, cpu: map[uint64]bool{}}
			random := rand.New(rand.NewPCG(3, 5))
			heard := uint64(0)
			for range 300 {
				prompt := text('a', 1+random.IntN(100))
				for i := random.IntN(len(prompt)); i < len(prompt); i++ {
					prompt[i] = uint32(random.IntN(3) * 1000) // ids of one and two bytes
				}
				if _, err := e.Complete(t.Context(), prompt, 1); err != nil {
					t.Fatal(err)
				}
				switch random.IntN(20) {
				case 0:
					e.Clear()
				case 1:
					e.Evict(random.IntN(10))
				case 2, 3:
					e.Offload(random.IntN(10))
				case 4:
					if random.IntN(5) == 0 {
						e.ForgetCPU()
					}
				}
				for ; heard < e.State().NextSequence; heard++ {
					frames := c.message()
					if got := binary.BigEndian.Uint64(frames[1]); got != heard {
						t.Fatalf("sequence %d, want %d", got, heard)
					}
					f.hear(frames[2])
				}
			}
			// The engine's own hash of what the follower knows must be the same.
			held := map[uint64]uint64{}
			for hash, prefix := range f.held {
				chain := newRoot(1).chain(prefix, cfg.BlockSize, variant{})
				held[hash] = uint64(chain[len(chain)-1])
			}
			host := map[uint64]bool{}
			for hash := range e.current().cache.cpu {
				host[uint64(hash)] = true
			}
			if diff := cmp.Diff(host, f.cpu); diff != "" {
				t.Error(diff)
			}
			want := map[uint64]uint64{}
			for hash := range e.current().cache.held {
				want[uint64(hash)] = uint64(hash)
			}
			if diff := cmp.Diff(want, held); diff != "" || len(want) == 0 {
				t.Errorf("%d blocks: %s", len(want), diff)
			}
			e.check(t)
		})
	}
}
