package sim

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"net/http"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// transcript reads messages as testdata/kvevents keeps them: every count and
// length is 4 bytes, big-endian.
func transcript(t *testing.T, path string) (messages [][][]byte) {
	t.Helper()
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	next := func() int {
		n := binary.BigEndian.Uint32(data)
		data = data[4:]
		return int(n)
	}
	for range next() {
		var frames [][]byte
		for range next() {
			n := next()
			frames = append(frames, data[:n])
			data = data[n:]
		}
		messages = append(messages, frames)
	}
	return messages
}

func TestSnapshotIsWrittenAsSGLangDoes(t *testing.T) {
	messages := transcript(t, "../../../testdata/kvevents/58_sglang_snapshot_v1.bin")
	header := appendSnapshotHeader(nil, snapshotHeader{
		version: 1, epoch: "5f0c1d5a8a7f4b0f9c1e2d3c4b5a6978", resume: 42, barrier: 41,
		barrierID: "0123456789abcdef0123456789abcdef", records: 2,
	})
	chunk := appendSnapshotChunk(nil, []record{
		{hash: 0xa5a5a5a5a5a5a5a5},
		{hash: 0x23374afabbea5a08, parent: 0xa5a5a5a5a5a5a5a5, hasParent: true},
	})
	want := [][][]byte{
		{{}, []byte("header"), header},
		{{}, []byte("chunk"), chunk},
		{{}, []byte("end"), {}},
	}
	if diff := cmp.Diff(want, messages); diff != "" {
		t.Error(diff)
	}
}

func withSnapshots() Config {
	cfg := quick()
	cfg.Topic, cfg.Snapshot = "kv", "tcp://127.0.0.1:0"
	return cfg
}

func (c *client) askSnapshot() { c.send(appendMessage(nil, nil, []byte(snapshotCommand))) }

func (c *client) expect(kind string, payload []byte) {
	c.t.Helper()
	if got := c.message(); !slices.EqualFunc(got, [][]byte{nil, []byte(kind), payload}, bytes.Equal) {
		c.t.Errorf("got %x, want %s %x", got, kind, payload)
	}
}

func TestSnapshotIsCutByABarrier(t *testing.T) {
	e := start(t, withSnapshots())
	s := subscribe(t, e, "kv")
	prefix := "kv" + epochTag + e.State().Epoch
	for _, letter := range []byte("ab") {
		if _, err := e.Complete(t.Context(), text(letter, 48), 1); err != nil {
			t.Fatal(err)
		}
	}
	e.Offload(2) // of the first prompt's three blocks
	e.Drop(1)    // what is lost live is in the snapshot all the same
	e.Evict(1)
	c := join(t, e.SnapshotEndpoint(), "DEALER")
	c.askSnapshot()
	for range 3 {
		if m := s.message(); string(m[0]) != prefix {
			t.Errorf("topic %q, want %q", m[0], prefix)
		}
	}
	m := s.message()
	id, ok := strings.CutPrefix(string(m[0]), prefix+barrierTag)
	// The batch ends with no events, of rank 0.
	if !ok || len(id) != 32 || sequenceOf(m) != 4 || !bytes.HasSuffix(m[2], []byte{0x90, 0}) {
		t.Errorf("barrier %q", m)
	}
	c.expect("header", appendSnapshotHeader(nil, snapshotHeader{
		version: 1, epoch: e.State().Epoch, resume: 5, barrier: 4, barrierID: id, records: 3,
	}))
	b := newRoot(1).chain(text('b', 48), 16, variant{})
	c.expect("chunk", appendSnapshotChunk(nil, []record{
		{hash: b[0]}, {hash: b[1], parent: b[0], hasParent: true}, {hash: b[2], parent: b[1], hasParent: true},
	}))
	c.expect("end", nil)
	if got := join(t, e.ReplayEndpoint(), "DEALER").replayed(3); !slices.Equal(got, []uint64{3, 4}) {
		t.Errorf("the barrier is not replayed: %d", got)
	}
}

func TestSnapshotComesInChunks(t *testing.T) {
	e := start(t, withSnapshots())
	hashes := make([]blockHash, snapshotRecords+1)
	for i := range hashes {
		hashes[i] = blockHash(i + 1)
	}
	e.current().feed.put([]event{{kind: blockStored, hashes: hashes, parent: 0, hasParent: true, blockSize: 16}})
	c := join(t, e.SnapshotEndpoint(), "REQ")
	c.askSnapshot()
	c.message()
	c.message()
	c.expect("chunk", appendSnapshotChunk(nil, []record{{hash: snapshotRecords + 1, parent: snapshotRecords, hasParent: true}}))
	c.expect("end", nil)
	e.Clear()
	c.askSnapshot()
	c.message()
	c.expect("end", nil)
}

func TestSnapshotErrors(t *testing.T) {
	e := start(t, withSnapshots())
	c := join(t, e.SnapshotEndpoint(), "DEALER")
	c.send(appendMessage(nil, []byte(snapshotCommand))) // no empty frame: ignored
	c.send(appendMessage(nil, nil, []byte("snapshot-v2")))
	c.expect("error", []byte("invalid snapshot-v1 request"))
	answer[any](t, e, "POST", "/sim/fault?kind=snapshot-error&text=snapshot+provider+busy", "")
	c.askSnapshot()
	c.expect("error", []byte("snapshot provider busy"))
	if got := e.State().NextSequence; got != 0 {
		t.Errorf("%d barriers of refused requests", got)
	}
	c.askSnapshot()
	if m := c.message(); string(m[1]) != "header" {
		t.Errorf("then %q", m)
	}
}

func TestEpochNamesTheProcess(t *testing.T) {
	cfg := quick()
	cfg.Epoch, cfg.Ranks, cfg.Topic = true, 2, "kv"
	e := start(t, cfg)
	seen := map[string]bool{}
	for _, r := range e.Ranks() {
		seen[r.State().Epoch] = true
		r.Restart()
		seen[r.State().Epoch] = true
	}
	if len(seen) != 4 || seen[""] {
		t.Errorf("epochs %v", seen)
	}
	s := subscribe(t, e, "kv")
	e.Clear()
	if m := s.message(); string(m[0]) != "kv"+epochTag+e.State().Epoch || len(e.State().Epoch) != 32 {
		t.Errorf("topic %q", m[0])
	}
}

func TestServerInfoTellsTheFirstPort(t *testing.T) {
	cfg := quick()
	cfg.Epoch, cfg.Ranks, cfg.Topic = true, 3, "kv"
	e := start(t, cfg)
	_, port := e.live.address()
	want := fmt.Sprintf(`{"kv_events":{"block_size":16,"dp_size":3,"endpoint_host":"127.0.0.1",`+
		`"endpoint_port_base":%d,"publisher":"zmq","topic":"kv"}}`+"\n", port)
	if _, got := call(t, e, "GET", "/server_info", ""); got != want {
		t.Errorf("got %s, want %s", got, want)
	}
	for i, endpoint := range e.EventsEndpoints() {
		if endpoint != fmt.Sprintf("tcp://127.0.0.1:%d", port+i) {
			t.Errorf("rank %d at %s", i, endpoint)
		}
	}
	if status, _ := call(t, newTestEngine(quick()), "GET", "/server_info", ""); status != http.StatusNotFound {
		t.Errorf("a vLLM answers %d", status)
	}
}
