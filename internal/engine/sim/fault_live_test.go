package sim

import (
	"encoding/binary"
	"slices"
	"testing"

	"inferencecache.io/inferencecache/internal/engine"
	"inferencecache.io/inferencecache/internal/engine/vllm"
)

// replayed asks for a replay from start on and returns the numbers up to the
// end marker.
func (c *client) replayed(start uint64) (sequences []uint64) {
	c.t.Helper()
	c.ask(start)
	for {
		seq := c.sequence()
		if seq == endMarker {
			return sequences
		}
		sequences = append(sequences, seq)
	}
}

func TestLiveFaultsLeaveTheReplayBufferInOrder(t *testing.T) {
	clear := func(e *Engine, n int) {
		for range n {
			e.Clear()
		}
	}
	for name, c := range map[string]struct {
		act      func(e *Engine)
		live     []uint64
		buffered []uint64
	}{
		"duplicate": {func(e *Engine) { e.Duplicate(2); clear(e, 3) }, []uint64{0, 0, 1, 1, 2}, []uint64{0, 1, 2}},
		"reorder":   {func(e *Engine) { e.Reorder(); clear(e, 3) }, []uint64{1, 0, 2}, []uint64{0, 1, 2}},
		"skip":      {func(e *Engine) { clear(e, 1); e.Skip(5); clear(e, 2) }, []uint64{0, 6, 7}, []uint64{0, 6, 7}},
		"tail":      {func(e *Engine) { clear(e, 1); e.Drop(2); clear(e, 3) }, []uint64{0, 3}, []uint64{0, 1, 2, 3}},
		"drop and duplicate": {
			func(e *Engine) { e.Drop(1); e.Duplicate(2); clear(e, 3) }, []uint64{1, 1, 2}, []uint64{0, 1, 2},
		},
		"reorder, twice": {
			func(e *Engine) { e.Reorder(); e.Duplicate(1); clear(e, 1); e.Reorder(); clear(e, 2) },
			[]uint64{2, 0, 0, 1}, []uint64{0, 1, 2},
		},
	} {
		t.Run(name, func(t *testing.T) {
			e := start(t, quick())
			s := subscribe(t, e, "")
			c.act(e)
			var live []uint64
			for range c.live {
				live = append(live, s.sequence())
			}
			if !slices.Equal(live, c.live) {
				t.Errorf("live %d, want %d", live, c.live)
			}
			if got := join(t, e.ReplayEndpoint(), "DEALER").replayed(0); !slices.Equal(got, c.buffered) {
				t.Errorf("buffered %d, want %d", got, c.buffered)
			}
		})
	}
}

func TestGarbageTakesANumberAndIsReplayed(t *testing.T) {
	e := start(t, quick())
	s := subscribe(t, e, "")
	e.Garbage()
	e.Clear()
	live := s.message()
	if _, err := engine.Decode(vllm.Dialect, live[2], engine.DefaultLimits()); err == nil || binary.BigEndian.Uint64(live[1]) != 0 {
		t.Errorf("message %q is readable: %v", live, err)
	}
	if got := s.sequence(); got != 1 {
		t.Errorf("got %d after the garbage", got)
	}
	r := join(t, e.ReplayEndpoint(), "DEALER")
	r.ask(0)
	if again := r.message(); !slices.Equal(again[len(again)-1], live[2]) {
		t.Errorf("replayed %q", again)
	}
}

func TestUnknownTagIsSkippedInBothEncodings(t *testing.T) {
	for _, encoding := range []string{EncodingMap, EncodingArray} {
		cfg := quick()
		cfg.Encoding = encoding
		e := start(t, cfg)
		s := subscribe(t, e, "")
		e.Unknown()
		batch, err := engine.Decode(vllm.Dialect, s.message()[2], engine.DefaultLimits())
		if err != nil {
			t.Fatal(err)
		}
		if tags := batch.UnknownTags(); !slices.Equal(tags, []string{"TierBlocksCleared"}) {
			t.Errorf("%s: unknown tags %q", encoding, tags)
		}
	}
}

func TestBadFramesTakeNoNumber(t *testing.T) {
	cfg := quick()
	cfg.Topic = "kv"
	e := start(t, cfg)
	s := subscribe(t, e, "kv")
	e.Duplicate(1) // a fault of a batch, which this is not
	e.BadFrames()
	e.Clear()
	if bad := s.message(); len(bad) != 2 || string(bad[0]) != "kv" || binary.BigEndian.Uint64(bad[1]) != 0 {
		t.Errorf("message %q", bad)
	}
	if a, b := s.sequence(), s.sequence(); a != 0 || b != 0 {
		t.Errorf("then %d and %d", a, b)
	}
	if got := join(t, e.ReplayEndpoint(), "DEALER").replayed(0); !slices.Equal(got, []uint64{0}) {
		t.Errorf("replayed %d", got)
	}
}
