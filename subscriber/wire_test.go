package subscriber

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"testing"
	"time"

	"github.com/go-zeromq/zmq4"

	"inferencecache.io/inferencecache/internal/kv"
)

func TestFollowsGoPublisher(t *testing.T) {
	t.Parallel()
	pub := newZMQ4Peer(t, "tcp://127.0.0.1:0")
	r := newRig(t, "tcp://"+pub.Addr().String())
	until(t, "the connection", func() bool { return r.one.receiver.metrics.connects.Get() == 1 })
	until(t, "the subscription", func() bool { return len(pub.(zmq4.Topics).Topics()) > 0 })
	send := func(sequence uint64, payload []byte) {
		t.Helper()
		if err := pub.Send(zmq4.NewMsgFrom(nil, sequenceFrame(sequence), payload)); err != nil {
			t.Fatal(err)
		}
	}
	chain := prefixes(1, 2, 3)
	send(0, storedBatch(0, []uint64{11, 12}, []uint32{1, 2}))
	send(1, storedBatch(12, []uint64{13}, []uint32{3}))
	r.expectHeld(t, "after two stores", inT1(chain...))
	send(2, removedBatch(13))
	r.expectHeld(t, "after the removal", inT1(chain[:2]...))
	if !r.Ready() {
		t.Error("running, but not ready")
	}
	r.stop()
	if r.Ready() || r.State() != Stale {
		t.Errorf("stopped: ready %v, state %s", r.Ready(), r.State())
	}
}

func TestFollowsLibzmqOverIPC(t *testing.T) {
	t.Parallel()
	dir, err := os.MkdirTemp("", "ipc") // t.TempDir is too long for a socket's name
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	peer := newLibzmqPeer(t, "--bind", "ipc://"+filepath.Join(dir, "e"))
	r := newRig(t, peer.endpoint)
	peer.expectSubscription(t)
	peer.publish(t, 0, storedBatch(0, []uint64{11}, []uint32{1}))
	r.expectHeld(t, "over ipc", inT1(prefixes(1)...))
}

// libzmq cuts a link whose heartbeats are not answered within the interval and
// the timeout.
func TestSurvivesHeartbeats(t *testing.T) {
	t.Parallel()
	peer := newLibzmqPeer(t, "--heartbeat", "100", "--heartbeat-timeout", "3000")
	r := newRig(t, peer.endpoint)
	peer.expectSubscription(t)
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	hashes, tokens := chainOf(1, 75)
	for i := range hashes {
		parent := uint64(0)
		if i > 0 {
			parent = hashes[i-1]
		}
		peer.publish(t, uint64(i), storedBatch(parent, hashes[i:i+1], tokens[i:i+1]))
		<-tick.C
	}
	r.expectHeld(t, "after 3.7 s of heartbeats", inT1(prefixes(tokens...)...))
	if n := r.one.receiver.metrics.connects.Get(); n != 1 {
		t.Errorf("connected %d times, want once", n)
	}
}

func TestFiltersTopicsLocally(t *testing.T) {
	t.Parallel()
	peer := newRawPeer(t) // sends what nobody asked for
	r := newRig(t, peer.endpoint, func(c *Config) { c.Topic = "kv@" })
	conn := peer.accept(t)
	write := func(topic string, sequence uint64, payload []byte) {
		t.Helper()
		wire := bytes.Join([][]byte{frame(flagMore, []byte(topic)), frame(flagMore, sequenceFrame(sequence)), frame(0, payload)}, nil)
		if _, err := conn.Write(wire); err != nil {
			t.Fatal(err)
		}
	}
	write("other", 0, storedBatch(0, []uint64{11}, []uint32{1}))
	write("kv@pod@model", 0, storedBatch(0, []uint64{12}, []uint32{2}))
	write("kv", 1, storedBatch(0, []uint64{13}, []uint32{3}))
	write("kv@pod\x00sgl-kv-epoch=1", 1, storedBatch(0, []uint64{14}, []uint32{4}))
	r.expectHeld(t, "of the topic", inT1(prefixes(2)[0], prefixes(4)[0]))
	if n := r.refused(badTopic); n != 2 {
		t.Errorf("%d messages of other topics counted, want 2", n)
	}
}

func TestRefusesHugeFramesAndGoesOn(t *testing.T) {
	t.Parallel()
	peer := newRawPeer(t)
	r := newRig(t, peer.endpoint)
	var before, after runtime.MemStats
	for i, announced := range []uint64{64<<20 + 1, 1 << 50, 1<<64 - 1} {
		conn := peer.accept(t)
		sequence := uint64(10 * i)
		if _, err := conn.Write(liveWire(sequence, storedBatch(0, []uint64{11}, []uint32{uint32(i + 1)}))); err != nil {
			t.Fatal(err)
		}
		r.expectHeld(t, "before the huge frame", inT1(prefixes(uint32(i+1))...))
		runtime.ReadMemStats(&before)
		huge := append(append(frame(flagMore, nil), frame(flagMore, sequenceFrame(sequence+1))...), longFrame(0, announced)...)
		_, _ = conn.Write(huge) // the connection may be reset before all of it is written
		until(t, "the refusal", func() bool { return r.one.receiver.metrics.disconnects.Get() == uint64(i+1) })
		runtime.ReadMemStats(&after)
		if grew := after.TotalAlloc - before.TotalAlloc; grew > 16<<20 {
			t.Errorf("%d bytes announced: %d allocated", announced, grew)
		}
	}
	conn := peer.accept(t)
	if _, err := conn.Write(liveWire(0, storedBatch(0, []uint64{11}, []uint32{9}))); err != nil {
		t.Fatal(err)
	}
	r.expectHeld(t, "after all", inT1(prefixes(9)...))
}

func TestTakesFrameOfExactlyTheLimit(t *testing.T) {
	t.Parallel()
	const limit = 1 << 20
	peer := newRawPeer(t)
	r := newRig(t, peer.endpoint, func(c *Config) { c.MaxFrameBytes = limit })
	conn := peer.accept(t)
	if _, err := conn.Write(liveWire(0, make([]byte, limit))); err != nil {
		t.Fatal(err)
	}
	until(t, "the batch", func() bool { return r.one.stream.meters.undecodable.Get() == 1 })
	// The connection may be reset before all of it is written.
	_, _ = conn.Write(liveWire(1, make([]byte, limit+1)))
	until(t, "the refusal", func() bool { return r.one.receiver.metrics.disconnects.Get() == 1 })
}

func TestCountsHostileBytes(t *testing.T) {
	t.Parallel()
	peer := newLibzmqPeer(t)
	r := newRig(t, peer.endpoint)
	peer.expectSubscription(t)
	peer.publish(t, 0, []byte{0xdd, 0xff, 0xff, 0xff, 0xff})
	peer.publish(t, 1, storedBatch(0, []uint64{11}, []uint32{1}))
	r.expectHeld(t, "after five hostile bytes", inT1(prefixes(1)...))
	if n := r.one.stream.meters.undecodable.Get(); n != 1 {
		t.Errorf("%d undecodable batches counted, want 1", n)
	}
	if r.State() != Degraded {
		t.Errorf("state %s: the batch may have been a removal", r.State())
	}
}

// A listener that accepts and says nothing is given up, and a shutdown does
// not wait for it.
func TestSilentListener(t *testing.T) {
	t.Parallel()
	peer := newRawPeer(t)
	r := newRig(t, peer.endpoint)
	for range 2 {
		select {
		case conn := <-peer.conns:
			t.Cleanup(func() { _ = conn.Close() })
		case <-time.After(patience):
			t.Fatal("no further try")
		}
	}
	if n := r.one.receiver.metrics.connects.Get(); n != 0 {
		t.Errorf("a silent listener counts as %d connections", n)
	}
	started := time.Now()
	r.stop()
	if took := time.Since(started); took > handshakeTimeout {
		t.Errorf("shutdown took %s", took)
	}
}

// Metadata of a length that its frame does not have makes the library panic.
func TestSurvivesMalformedHandshake(t *testing.T) {
	t.Parallel()
	peer := newRawPeer(t)
	r := newRig(t, peer.endpoint)
	conn := <-peer.conns
	t.Cleanup(func() { _ = conn.Close() })
	if _, err := conn.Write(append(greeting(), command("READY", []byte("\x03abc\x00"))...)); err != nil {
		t.Fatal(err)
	}
	conn = peer.accept(t)
	if _, err := conn.Write(liveWire(0, storedBatch(0, []uint64{11}, []uint32{1}))); err != nil {
		t.Fatal(err)
	}
	r.expectHeld(t, "after a malformed handshake", inT1(prefixes(1)...))
}

func TestFollowsPublisherThroughFiveRestarts(t *testing.T) {
	t.Parallel()
	peer := newLibzmqPeer(t)
	endpoint := peer.endpoint
	r := newRig(t, endpoint)
	for life := range 6 {
		if life > 0 {
			peer.stop()
			r.waitState(t, Stale)
			peer = newLibzmqPeer(t, "--bind", endpoint)
		}
		peer.expectSubscription(t)
		first := uint32(100*life + 1)
		peer.publish(t, 0, storedBatch(0, []uint64{1}, []uint32{first}))
		peer.publish(t, 1, storedBatch(1, []uint64{2}, []uint32{first + 1}))
		r.expectHeld(t, "of life "+strconv.Itoa(life), inT1(prefixes(first, first+1)...))
	}
	// A publisher that is slow to come back has been given up before.
	counted := r.one.stream.meters.restarts
	if n := counted[causeUnproven].Get() + counted[causeAway].Get(); n < 5 {
		t.Errorf("%d restarts counted, want 5", n)
	}
}

// transcript reads a container of messages: u32be count, for each u32be frame
// count, for each u32be length and the bytes.
func transcript(t *testing.T, file string) (messages [][][]byte) {
	t.Helper()
	b, err := os.ReadFile(filepath.Join("../testdata/kvevents", file))
	if err != nil {
		t.Fatal(err)
	}
	number := func() int {
		n := binary.BigEndian.Uint32(b)
		b = b[4:]
		return int(n)
	}
	for range number() {
		var frames [][]byte
		for range number() {
			n := number()
			frames, b = append(frames, b[:n]), b[n:]
		}
		messages = append(messages, frames)
	}
	return messages
}

func TestTranscripts(t *testing.T) {
	t.Parallel()
	const p0, p1 kv.Hash = 0x1ac9d45fb5b734f5, 0x33fe5d4b05b3ccd5 // the manifest's
	for _, tc := range []struct {
		file  string
		want  heldBlocks
		check func(*testing.T, *rig)
	}{
		{"46_live_three_frames.bin", inT1(p0), func(t *testing.T, r *rig) {
			until(t, "all batches", func() bool { return r.judged(verdictNext) >= 2 })
		}},
		// What was held before the gap is dropped: the missing batch may have
		// removed it.
		{"47_live_gap.bin", heldBlocks{}, func(t *testing.T, r *rig) {
			until(t, "the gap", func() bool { return r.judged(verdictGap) == 1 })
			if n := r.one.stream.meters.missing.Get(); n != 1 {
				t.Errorf("%d batches missing, want 1", n)
			}
			r.waitState(t, Degraded)
		}},
		{"49_live_duplicate.bin", inT1(p0, p1), func(t *testing.T, r *rig) {
			until(t, "the duplicate", func() bool { return r.judged(verdictDuplicate) == 1 })
			// The last batch may still be on its way.
			until(t, "two of three events", func() bool { return applied(r) == 2 })
		}},
		// The good one is a block whose parent nobody announced.
		{"50_live_bad_frames.bin", heldBlocks{}, func(t *testing.T, r *rig) {
			until(t, "the good message", func() bool { return r.judged(verdictFirst) == 1 })
			if frames, sequence := r.refused(badFrames), r.refused(badSequence); frames != 3 || sequence != 1 {
				t.Errorf("refused %d for frames and %d for sequence, want 3 and 1", frames, sequence)
			}
		}},
	} {
		t.Run(tc.file, func(t *testing.T) {
			t.Parallel()
			peer := newLibzmqPeer(t)
			r := newRig(t, peer.endpoint)
			peer.expectSubscription(t)
			for _, frames := range transcript(t, tc.file) {
				peer.send(t, frames...)
			}
			tc.check(t, r)
			r.expectHeld(t, tc.file, tc.want)
		})
	}
}

func applied(r *rig) uint64 {
	return r.one.stream.meters.counter("events_total", `rank="0",verdict="applied",reason=""`).Get()
}

// wireSample is a payload of the manifest.
type wireSample struct {
	File, Kind, Engine, Topic string
	Prefixes                  map[string][]string `json:"prefix_hashes_be_hex"`
}

// gone are the samples' blocks that do not stay: removed, cleared, or moved.
var gone = map[string][]string{
	"02": {"b06d5595cd565588"},
	"03": {"33fe5d4b05b3ccd5"},
	"08": {"1ac9d45fb5b734f5"},
	"10": {"1ac9d45fb5b734f5"},
	"15": {"1ac9d45fb5b734f5"},
	"19": {"1ac9d45fb5b734f5"},
	"23": {"1ac9d45fb5b734f5"},
}

// Every payload sample, published by libzmq, ends as exactly the manifest's
// prefix hashes at the server.
func TestSamplesReachServer(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile("../testdata/kvevents/manifest.json")
	if err != nil {
		t.Fatal(err)
	}
	var manifest struct{ Samples []wireSample }
	if err := json.Unmarshal(text, &manifest); err != nil {
		t.Fatal(err)
	}
	for _, scheme := range []string{"vllm", "sglang"} {
		t.Run(scheme, func(t *testing.T) {
			t.Parallel()
			peer := newLibzmqPeer(t)
			r := newRig(t, peer.endpoint, func(c *Config) { c.HashScheme = scheme })
			peer.expectSubscription(t)
			sequence, tested := uint64(1<<20), 0
			for _, s := range manifest.Samples {
				if s.Kind != "payload" || (s.Engine == "sglang") != (scheme == "sglang") {
					continue
				}
				payload, err := os.ReadFile(filepath.Join("../testdata/kvevents", s.File))
				if err != nil {
					t.Fatal(err)
				}
				// A lower number than before is a restarted engine: nothing
				// stays from sample to sample. The marker shows that the
				// sample is through.
				sequence -= 10
				peer.send(t, []byte(s.Topic), sequenceFrame(sequence), payload)
				marker := uint32(1_000_000 + tested)
				peer.publish(t, sequence+1, storedBatch(0, []uint64{uint64(marker)}, []uint32{marker}))
				key := prefixes(marker)[0]
				until(t, "the marker after "+s.File, func() bool { return r.server.now()[heldBlock{Hash: key}] == kv.T1 })
				tested++
				s.check(t, r.server.now(), key)
			}
			if tested < 6 {
				t.Errorf("only %d samples", tested)
			}
			r.expectNoFaults(t)
		})
	}
}

// check compares what a server holds, apart from the marker, with the manifest.
func (s wireSample) check(t *testing.T, held heldBlocks, marker kv.Hash) {
	t.Helper()
	got := map[string]bool{}
	for b := range held {
		if b.Hash != marker {
			got[b.Hash.String()] = true
		}
	}
	if first := s.Prefixes["first"]; first != nil { // a long chain, of which the ends are given
		if len(got) != 4375 || !got[first[0]] || !got[s.Prefixes["last"][0]] {
			t.Errorf("%s: %d blocks held, want 4375 with both ends", s.File, len(got))
		}
		return
	}
	want := map[string]bool{}
	for _, hashes := range s.Prefixes {
		for _, h := range hashes {
			want[h] = true
		}
	}
	for _, h := range gone[s.File[:2]] {
		if !want[h] {
			t.Fatalf("%s: %s is not in the manifest", s.File, h)
		}
		delete(want, h)
	}
	if len(got) != len(want) || !containsAll(got, want) {
		t.Errorf("%s: held %v, want %v", s.File, got, want)
	}
}

func containsAll(all, some map[string]bool) bool {
	for k := range some {
		if !all[k] {
			return false
		}
	}
	return true
}
