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

	Header  []any
	Records []any
	Barrier []any
}

const python = "/usr/bin/python3"

// pythonPeer starts testdata/peer.py; the function it returns writes the line
// that some kinds wait for, and waits for the report. Where libzmq is missing
// the test is skipped, except in CI.
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
	stdin, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	return func() (r report) {
		t.Helper()
		_, _ = fmt.Fprintln(stdin, "go") // a peer that does not read it has ended
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
	a := root.chain(text('a', 32), 16, variant{})
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

// TestMsgpackReadsAdaptersSaltsAndPlaceholders: one event of each kind.
func TestMsgpackReadsAdaptersSaltsAndPlaceholders(t *testing.T) {
	number := func(h blockHash) any { return float64(h) }
	v := variant{adapter: "poet", adapterID: 2, salt: "salt"}
	chain := newRoot(1).chain(text('a', 2), 1, v)
	first, second := number(chain[0]), number(chain[1])
	tokens := []any{97.0, 97.0}
	for _, c := range []struct {
		encoding string
		want     []any // the events of four batches
	}{
		{EncodingArray, []any{
			[]any{[]any{
				"BlockStored", []any{first, second}, nil, tokens, 1.0, 2.0, "GPU", "poet",
				[]any{[]any{"poet", "salt"}, []any{"poet"}}, 0.0, "full_attention", nil,
			}},
			[]any{
				[]any{"BlockStored", []any{second}, nil, []any{}, 0.0, nil, "CPU", nil, nil, 0.0, nil, nil},
				[]any{"BlockRemoved", []any{second}, "GPU", 0.0},
			},
			[]any{[]any{"BlockRemoved", []any{second}, "CPU", 0.0}},
			[]any{[]any{"TierBlocksCleared", "CPU"}},
		}},
		{EncodingMap, []any{
			[]any{map[string]any{
				"type": "BlockStored", "block_hashes": []any{first, second}, "parent_block_hash": nil,
				"token_ids": tokens, "block_size": 1.0, "lora_id": 2.0, "medium": "GPU", "lora_name": "poet",
				"extra_keys": []any{[]any{"poet", "salt"}, []any{"poet"}}, "group_idx": 0.0, "kv_cache_spec_kind": "full_attention",
			}},
			[]any{
				map[string]any{
					"type": "BlockStored", "block_hashes": []any{second}, "parent_block_hash": nil, "token_ids": []any{},
					"block_size": 0.0, "lora_id": nil, "medium": "CPU", "lora_name": nil, "group_idx": 0.0,
				},
				map[string]any{"type": "BlockRemoved", "block_hashes": []any{second}, "medium": "GPU", "group_idx": 0.0},
			},
			[]any{map[string]any{"type": "BlockRemoved", "block_hashes": []any{second}, "medium": "CPU", "group_idx": 0.0}},
			[]any{map[string]any{"type": "TierBlocksCleared", "medium": "CPU"}},
		}},
	} {
		t.Run(c.encoding, func(t *testing.T) {
			cfg := withAdapters()
			cfg.Encoding, cfg.BlockSize = c.encoding, 1
			e := start(t, cfg)
			if _, err := e.Serve(t.Context(), Request{Tokens: text('a', 2), MaxTokens: 1, Adapter: "poet", Salt: "salt"}); err != nil {
				t.Fatal(err)
			}
			e.Offload(1)
			e.ForgetCPU()
			e.Unknown()
			eventually(t, "all buffered", func() bool { return e.State().BufferedBatches == 4 })
			var events []any
			for _, batch := range pythonPeer(t, "replay", e.ReplayEndpoint(), "0")().Batches {
				events = append(events, batch.([]any)[1])
			}
			if diff := cmp.Diff(c.want, events); diff != "" {
				t.Error(diff)
			}
		})
	}
}

func TestLibzmqDealerThatDoesNotReadLosesTheEnd(t *testing.T) {
	const batches = 500
	cfg := quick()
	cfg.ReplayHWM = 20
	e := start(t, cfg)
	bulky(t, e, batches)
	wait := pythonPeer(t, "slow", e.ReplayEndpoint(), "0")
	eventually(t, "replies are lost", func() bool { return e.State().LostReplies > 0 })
	got := wait()
	if want := batches + 1 - int(e.State().LostReplies); got.Received != want || !got.Contiguous || got.End != nil {
		t.Errorf("received %d of %d, in order: %v, end %q", got.Received, want, got.Contiguous, got.End)
	}
	if got := pythonPeer(t, "replay", e.ReplayEndpoint(), "0")(); got.Received != batches || got.End == nil {
		t.Errorf("a client that reads received %d, end %q", got.Received, got.End)
	}
}

func TestLibzmqDealerTakesASnapshot(t *testing.T) {
	e := start(t, withSnapshots())
	wait := pythonPeer(t, "snapshot", e.SnapshotEndpoint(), e.EventsEndpoint())
	eventually(t, "subscribed", func() bool { return e.State().Subscribers == 1 })
	if _, err := e.Complete(t.Context(), text('a', 32), 1); err != nil {
		t.Fatal(err)
	}
	got := wait()
	signed := func(h blockHash) string { return fmt.Sprint(int64(h)) }
	chain := newRoot(1).chain(text('a', 32), 16, variant{})
	epoch, id := e.State().Epoch, ""
	if len(got.Header) == 7 {
		id, _ = got.Header[5].(string)
	}
	want := report{
		LibZMQ:  got.LibZMQ,
		Header:  []any{1.0, epoch, 0.0, 2.0, 1.0, id, 2.0},
		Records: []any{[]any{"None", []any{signed(chain[0])}}, []any{signed(chain[0]), []any{signed(chain[1])}}},
		End:     []string{"", "end", ""},
		Barrier: []any{"kv" + epochTag + epoch + barrierTag + id, 1.0, []any{[]any{}, 0.0}},
	}
	if diff := cmp.Diff(want, got); diff != "" || id == "" {
		t.Error(diff)
	}
}
