package sim

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// report is what testdata/peer.py prints.
type report struct {
	Received    int
	Contiguous  bool
	Frames      []int
	Topics      []string
	End         []string
	Disconnects int
	Batches     []any
	LibZMQ      string
}

const python = "/usr/bin/python3"

// pythonPeer starts testdata/peer.py; the function it returns waits for the
// report. Where libzmq is missing the test is skipped, except in CI.
func pythonPeer(t *testing.T, args ...string) func() report {
	t.Helper()
	if out, err := exec.Command(python, "-c", "import zmq, msgpack").CombinedOutput(); err != nil {
		message := fmt.Sprintf("needs python3-zmq and python3-msgpack for %s: %v %s", python, err, out)
		if os.Getenv("CI") == "true" {
			t.Fatal(message)
		}
		t.Skip(message)
	}
	cmd := exec.CommandContext(t.Context(), python, append([]string{"testdata/peer.py"}, args...)...)
	var stdout, stderr strings.Builder
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	return func() (r report) {
		t.Helper()
		if err := cmd.Wait(); err != nil {
			t.Fatalf("peer.py: %v\n%s", err, stderr.String())
		}
		if err := json.Unmarshal([]byte(stdout.String()), &r); err != nil {
			t.Fatalf("peer.py: %v in %q", err, stdout.String())
		}
		return r
	}
}

// fill publishes n batches of about 1 KiB.
func fill(e *Engine, n int) {
	for i := range n {
		e.current().feed.put([]event{{
			kind: blockStored, hashes: []blockHash{blockHash(i)}, tokens: text(200, 450), blockSize: 450,
		}})
	}
}

func TestLibzmqSubscriberReadsOnWhileAnotherStalls(t *testing.T) {
	const batches = 4000
	cfg := quick()
	cfg.Topic = "kv@sim-0@sim"
	e := start(t, cfg)
	wait := pythonPeer(t, "live", e.EventsEndpoint(), "kv@sim", fmt.Sprint(batches))
	eventually(t, "two subscribers", func() bool { return e.State().Subscribers == 2 })
	fill(e, batches)
	got := wait()
	t.Logf("libzmq %s received %d", got.LibZMQ, got.Received)
	got.Batches, got.LibZMQ = nil, ""
	want := report{Received: batches, Contiguous: true, Frames: []int{3}, Topics: []string{cfg.Topic}}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}

func TestLibzmqDealerReplays(t *testing.T) {
	const batches, from = 1500, 7
	for _, c := range []struct {
		layout string
		want   report
	}{
		{LayoutOld, report{Frames: []int{3}, Topics: []string{}, End: []string{"", "ffffffffffffffff", ""}}},
		{LayoutNew, report{Frames: []int{4}, Topics: []string{"kv"}, End: []string{"", "", "ffffffffffffffff", ""}}},
	} {
		t.Run(c.layout, func(t *testing.T) {
			cfg := quick()
			cfg.Topic, cfg.ReplayLayout = "kv", c.layout
			e := start(t, cfg)
			fill(e, batches)
			eventually(t, "all buffered", func() bool { return e.State().BufferedBatches == batches })
			got := pythonPeer(t, "replay", e.ReplayEndpoint(), fmt.Sprint(from))()
			got.Batches, got.LibZMQ = nil, ""
			c.want.Received, c.want.Contiguous = batches-from, true
			if diff := cmp.Diff(c.want, got); diff != "" {
				t.Error(diff)
			}
		})
	}
}

func TestMsgpackReadsBothEncodings(t *testing.T) {
	tokens := func(letter byte, n int) (list []any) {
		for range n {
			list = append(list, float64(letter))
		}
		return list
	}
	root := newRoot(1)
	a := root.chain(text('a', 32), 16)
	number := func(h blockHash) any { return float64(h) } // JSON has no 64-bit integers
	for _, c := range []struct {
		encoding string
		want     []any // the events of three batches
	}{
		{EncodingArray, []any{
			[]any{[]any{
				"BlockStored", []any{number(a[0])}, nil, tokens('a', 16), 16.0, nil, "GPU", nil,
				[]any{nil}, 0.0, "full_attention", nil,
			}},
			[]any{[]any{
				"BlockStored", []any{number(a[1])}, number(a[0]), tokens('a', 16), 16.0, nil, "GPU", nil,
				[]any{nil}, 0.0, "full_attention", nil,
			}},
			[]any{
				[]any{"BlockRemoved", []any{number(a[1])}, "GPU", 0.0},
				[]any{"BlockRemoved", []any{number(a[0])}, "GPU", 0.0},
			},
			[]any{[]any{"AllBlocksCleared"}},
		}},
		{EncodingMap, []any{
			[]any{map[string]any{
				"type": "BlockStored", "block_hashes": []any{number(a[0])}, "parent_block_hash": nil,
				"token_ids": tokens('a', 16), "block_size": 16.0, "lora_id": nil, "medium": "GPU", "lora_name": nil,
				"extra_keys": []any{nil}, "group_idx": 0.0, "kv_cache_spec_kind": "full_attention",
			}},
			[]any{map[string]any{
				"type": "BlockStored", "block_hashes": []any{number(a[1])}, "parent_block_hash": number(a[0]),
				"token_ids": tokens('a', 16), "block_size": 16.0, "lora_id": nil, "medium": "GPU", "lora_name": nil,
				"extra_keys": []any{nil}, "group_idx": 0.0, "kv_cache_spec_kind": "full_attention",
			}},
			[]any{
				map[string]any{"type": "BlockRemoved", "block_hashes": []any{number(a[1])}, "medium": "GPU", "group_idx": 0.0},
				map[string]any{"type": "BlockRemoved", "block_hashes": []any{number(a[0])}, "medium": "GPU", "group_idx": 0.0},
			},
			[]any{map[string]any{"type": "AllBlocksCleared"}},
		}},
	} {
		t.Run(c.encoding, func(t *testing.T) {
			cfg := quick()
			cfg.Encoding = c.encoding
			e := start(t, cfg)
			for _, n := range []int{17, 40} { // one block, then a second behind it
				if _, err := e.Complete(t.Context(), text('a', n), 1); err != nil {
					t.Fatal(err)
				}
			}
			e.Evict(2)
			e.Clear()
			eventually(t, "all buffered", func() bool { return e.State().BufferedBatches == 4 })
			got := pythonPeer(t, "replay", e.ReplayEndpoint(), "0")()
			var events []any
			for _, batch := range got.Batches {
				envelope := batch.([]any)
				if len(envelope) != 3 || envelope[0].(float64) < 1.7e9 || envelope[2] != 0.0 {
					t.Errorf("envelope %v", envelope)
				}
				events = append(events, envelope[1])
			}
			if diff := cmp.Diff(c.want, events); diff != "" {
				t.Error(diff)
			}
		})
	}
}
