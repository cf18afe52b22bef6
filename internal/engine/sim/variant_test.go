package sim

import (
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"inferencecache.io/inferencecache/internal/engine"
	"inferencecache.io/inferencecache/internal/engine/vllm"
)

func withAdapters() Config {
	cfg := quick()
	cfg.LoRA = []string{"sql", "poet"}
	return cfg
}

// decoded takes the events that wait for the event thread, by way of the wire.
func decoded(t *testing.T, e *Engine) []engine.Event {
	t.Helper()
	batch, err := engine.Decode(vllm.Dialect, appendBatch(nil, e.cfg.Encoding, e.current().born, 0, published(e)), engine.DefaultLimits())
	if err != nil {
		t.Fatal(err)
	}
	for _, event := range batch.Events {
		if event.Verdict.Status != engine.OK {
			t.Fatalf("%+v", event)
		}
	}
	return batch.Events
}

func TestSaltsAndAdaptersKeepBlocksApart(t *testing.T) {
	e := newTestEngine(withAdapters())
	f := func(fields string, cached int) {
		t.Helper()
		body := `{"prompt":"` + strings.Repeat("a", 40) + `","max_tokens":1` + fields + `}`
		got := answer[usageAnswer](t, e, "POST", "/v1/completions", body)
		if got.Usage.Details.Cached != cached {
			t.Errorf("%s: %d tokens cached, want %d", fields, got.Usage.Details.Cached, cached)
		}
	}
	for _, fields := range []string{
		``, `,"cache_salt":"s"`, `,"cache_salt":"sql"`, `,"model":"poet"`, `,"model":"poet","cache_salt":"s"`,
	} {
		f(fields, 0)
		f(fields, 32)
	}
	f(`,"model":"sim"`, 32)
	f(`,"cache_salt":null`, 32)
	// The keys of a first block do not say which is which, in vLLM either: a
	// salt that equals an adapter's name shares that block with it.
	f(`,"model":"sql"`, 16)
	e.check(t)
}

func TestStoresSayTheirSaltAndAdapter(t *testing.T) {
	for _, encoding := range []string{EncodingMap, EncodingArray} {
		t.Run(encoding, func(t *testing.T) {
			cfg := withAdapters()
			cfg.Encoding = encoding
			e := newTestEngine(cfg)
			f := func(r Request, tokens int, want string) {
				t.Helper()
				r.Tokens, r.MaxTokens = text('a', tokens), 1
				if _, err := e.Serve(t.Context(), r); err != nil {
					t.Fatal(err)
				}
				events := decoded(t, e)
				var keys []string
				for _, k := range events[0].ExtraKeys {
					keys = append(keys, fmt.Sprintf("%q", []byte(k)))
				}
				got := fmt.Sprintf("%d %q %s apart at %d", events[0].LoraID, events[0].LoraName,
					strings.Join(keys, " "), events[0].FirstApart(events[0].LoraName))
				if len(events) != 1 || got != want {
					t.Errorf("got  %s\nwant %s", got, want)
				}
			}
			f(Request{}, 32, `0 "" "" "" apart at 2`)
			f(Request{Salt: "salt"}, 32, `0 "" "\x91\xa4salt" "" apart at 0`)
			f(Request{Salt: "salt"}, 64, `0 "" "" "" apart at 2`) // goes on behind a salted block
			f(Request{Adapter: "poet"}, 32, `2 "poet" "\x91\xa4poet" "\x91\xa4poet" apart at 2`)
			f(Request{Adapter: "poet"}, 48, `2 "poet" "\x91\xa4poet" apart at 1`)
			f(Request{Adapter: "sql", Salt: "salt"}, 32, `1 "sql" "\x92\xa3sql\xa4salt" "\x91\xa3sql" apart at 0`)
		})
	}
}

func TestAdaptersAreModels(t *testing.T) {
	e := newTestEngine(withAdapters())
	type card struct {
		ID, Root string
		Parent   *string
		MaxLen   *int `json:"max_model_len"`
	}
	sim, length := "sim", 4096*16
	want := []card{{"sim", "sim", nil, &length}, {"sql", "sql", &sim, nil}, {"poet", "poet", &sim, nil}}
	got := answer[struct{ Data []card }](t, e, "GET", "/v1/models", "")
	if diff := cmp.Diff(want, got.Data); diff != "" {
		t.Error(diff)
	}
	reply := answer[struct{ Model string }](t, e, "POST", "/v1/chat/completions", `{"model":"poet","messages":[{"content":"x"}]}`)
	if reply.Model != "poet" {
		t.Errorf("answered by %q", reply.Model)
	}
	for body, says := range map[string]string{
		`{"prompt":"x","cache_salt":""}`: "non-empty",
		`{"prompt":"x","cache_salt":7}`:  "not valid JSON",
	} {
		if status, text := call(t, e, "POST", "/v1/completions", body); status != http.StatusBadRequest || !strings.Contains(text, says) {
			t.Errorf("%s: %d %s", body, status, text)
		}
	}
	if _, err := e.Serve(t.Context(), Request{Tokens: text('a', 1), MaxTokens: 1, Adapter: "none"}); err == nil {
		t.Error("served by an adapter that does not exist")
	}
}

func TestOffloadedBlocksComeBack(t *testing.T) {
	for _, encoding := range []string{EncodingMap, EncodingArray} {
		t.Run(encoding, func(t *testing.T) {
			cfg := quick()
			cfg.Encoding = encoding
			e := newTestEngine(cfg)
			serve := func(tokens, cached int) {
				t.Helper()
				usage, err := e.Complete(t.Context(), text('a', tokens), 1)
				if err != nil || usage.Cached != cached {
					t.Errorf("%d tokens: %d cached, want %d, %v", tokens, usage.Cached, cached, err)
				}
			}
			var events []engine.Event
			f := func(want ...string) {
				t.Helper()
				events = decoded(t, e)
				var got []string
				for _, event := range events {
					got = append(got, fmt.Sprintf("%s %s, %d blocks of %d, %d tokens, parent %v",
						event.Tag, event.Medium, len(event.Hashes), event.BlockSize, len(event.Tokens), event.Has(engine.ParentHash)))
				}
				if diff := cmp.Diff(want, got); diff != "" {
					t.Error(diff)
				}
			}
			removed := func(medium string) string {
				return "BlockRemoved " + medium + ", 1 blocks of 0, 0 tokens, parent false"
			}
			serve(50, 0)
			f("BlockStored GPU, 3 blocks of 16, 48 tokens, parent false")
			first := events[0].Hashes
			if n := e.Offload(2); n != 2 {
				t.Errorf("offloaded %d", n)
			}
			f("BlockStored CPU, 2 blocks of 0, 0 tokens, parent false", removed("GPU"), removed("GPU"))
			if s := e.State(); s.HeldBlocks != 1 || s.HeldCPU != 2 {
				t.Errorf("holds %d and %d", s.HeldBlocks, s.HeldCPU)
			}
			serve(50, 48) // one from the GPU, two from the host
			f("BlockStored GPU, 2 blocks of 16, 32 tokens, parent true")
			if events[0].Hashes[1].ID != first[2].ID || events[0].Parent.ID != first[0].ID {
				t.Errorf("came back as %v behind %v, not as %v", events[0].Hashes, events[0].Parent, first)
			}
			e.Offload(9) // of three blocks the host has two already
			f("BlockStored CPU, 1 blocks of 0, 0 tokens, parent false", removed("GPU"), removed("GPU"), removed("GPU"))
			if n := e.ForgetCPU(); n != 3 || e.State().HeldCPU != 0 {
				t.Errorf("forgot %d", n)
			}
			f(removed("CPU"), removed("CPU"), removed("CPU"))
			serve(50, 0)
			f("BlockStored GPU, 3 blocks of 16, 48 tokens, parent false")
			e.check(t)
		})
	}
}

func TestClearLeavesTheHostAlone(t *testing.T) {
	e := newTestEngine(quick())
	_, _ = e.Complete(t.Context(), text('a', 32), 1)
	e.Offload(1)
	if !e.Clear() || e.State().HeldBlocks != 0 || e.State().HeldCPU != 1 {
		t.Errorf("%+v", e.State())
	}
	e.Restart()
	if e.State().HeldCPU != 0 {
		t.Error("the host's copies outlived the process")
	}
}

func TestOffloadedBlocksTakeNoRoom(t *testing.T) {
	c := newCache(3)
	hold(t, c, 1, 2, 3)
	gone, fresh := c.offload(3)
	if !slices.Equal(gone, []blockHash{3, 2, 1}) || !slices.Equal(fresh, gone) {
		t.Errorf("offloaded %v, %v of it new", gone, fresh)
	}
	if _, evicted := hold(t, c, 11, 12, 13); evicted != nil {
		t.Errorf("evicted %v", evicted)
	}
	l, evicted, ok := c.allocate([]blockHash{1, 2, 4}, 3)
	if !ok || l.matched != 0 || l.loaded != 2 || len(evicted) != 3 {
		t.Errorf("lease %+v after evicting %v", l, evicted)
	}
	c.release(l)
	if err := c.check(); err != nil || len(c.cpu) != 3 {
		t.Errorf("%d with the host, %v", len(c.cpu), err)
	}
}
