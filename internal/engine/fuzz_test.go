package engine_test

import (
	"encoding/json"
	"math"
	"runtime"
	"testing"

	"github.com/google/go-cmp/cmp"

	"inferencecache.io/inferencecache/internal/engine"
	"inferencecache.io/inferencecache/internal/engine/sglang"
	"inferencecache.io/inferencecache/internal/engine/trtllm"
	"inferencecache.io/inferencecache/internal/engine/vllm"
)

// FuzzDecode proves that no payload makes Decode panic, allocate out of
// proportion, or hand out more than its limits allow, and that memory which had
// another batch makes no difference.
func FuzzDecode(f *testing.F) {
	samples := payloadSamples(f)
	for _, s := range samples {
		if len(s.payload) < 10_000 {
			f.Add(s.payload)
		}
	}
	f.Add(storedMap(nums(1, 2), array(num(1), text("x"), num(2), num(3)), text("mm_keys"), array(array(object(text("type"), null())))))
	f.Fuzz(func(t *testing.T, payload []byte) {
		limits := engine.Limits{Payload: 1 << 20, Events: 50, Hashes: 40, Tokens: 60, String: 100}
		used := usedScratch(samples)
		for _, d := range []engine.Dialect{vllm.Dialect, sglang.Dialect, trtllm.Dialect} {
			var before, after runtime.MemStats
			runtime.ReadMemStats(&before)
			b, err := engine.Decode(d, payload, limits)
			runtime.ReadMemStats(&after)
			// An event of one byte costs its struct twice, while the list grows, and a verdict.
			if spent := after.TotalAlloc - before.TotalAlloc; spent > uint64(1500*len(payload)+64<<10) {
				t.Errorf("%d bytes allocated for %d", spent, len(payload))
			}
			again, errAgain := used.Decode(d, payload, limits)
			if (err == nil) != (errAgain == nil) {
				t.Fatalf("%v, and %v in used memory", err, errAgain)
			}
			if err != nil {
				continue
			}
			checkLimits(t, b, limits)
			if want, got := asJSON(t, b), asJSON(t, again); want != got {
				t.Errorf("used memory makes a difference: %s", cmp.Diff(want, got))
			}
		}
	})
}

// usedScratch is memory that had all kinds of batches.
func usedScratch(samples []sample) *engine.Scratch {
	used := new(engine.Scratch)
	for _, s := range samples {
		if len(s.payload) < 10_000 {
			_, _ = used.Decode(vllm.Dialect, s.payload, engine.DefaultLimits()) // some must fail
		}
	}
	return used
}

func asJSON(t *testing.T, b *engine.Batch) string {
	text, err := json.Marshal(b.Document())
	if err != nil {
		t.Errorf("document: %v", err)
	}
	return string(text)
}

func checkLimits(t *testing.T, b *engine.Batch, limits engine.Limits) {
	t.Helper()
	if len(b.Events) > limits.Events || b.Rank < 0 || b.Rank > math.MaxInt32 {
		t.Fatalf("%d events, rank %d", len(b.Events), b.Rank)
	}
	for i := range b.Events {
		e := &b.Events[i]
		if len(e.Hashes) > limits.Hashes || len(e.Tokens) > limits.Tokens || len(e.ExtraKeys) > 2*limits.Hashes ||
			len(e.MMKeys) > 2*limits.Hashes || len(e.LoraName) > limits.String || len(e.Tag) > limits.String ||
			e.BlockSize < 0 || e.GroupIdx < 0 || e.FirstString >= len(e.Tokens) {
			t.Fatalf("event %d is over the limits: %+v", i, e)
		}
		if first := e.FirstApart(e.LoraName); first < 0 || first > len(e.Hashes) {
			t.Fatalf("event %d: first apart is %d of %d", i, first, len(e.Hashes))
		}
		if e.Verdict.Status == engine.OK && e.Kind == engine.Unknown {
			t.Fatalf("event %d is fine and unknown", i)
		}
	}
}

// BenchmarkDecode reads batches of one block of 16 tokens, the commonest frame
// of a busy vLLM, as an array and as a map.
func BenchmarkDecode(b *testing.B) {
	for name, s := range map[string]string{"array": "06", "map": "11"} {
		b.Run(name, func(b *testing.B) {
			for _, sample := range payloadSamples(b) {
				if sample.File[:2] != s {
					continue
				}
				b.ReportAllocs()
				b.SetBytes(int64(len(sample.payload)))
				for b.Loop() {
					if _, err := engine.Decode(vllm.Dialect, sample.payload, engine.DefaultLimits()); err != nil {
						b.Fatal(err)
					}
				}
			}
		})
	}
}
