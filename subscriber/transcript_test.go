package subscriber

import (
	"context"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"inferencecache.io/inferencecache/internal/engine"
	"inferencecache.io/inferencecache/internal/engine/vllm"
	"inferencecache.io/inferencecache/internal/kv"
)

// recorded answers every request with the same transcript, and notes what was
// asked for.
type recorded struct {
	t       *testing.T
	replies [][][]byte
	starts  []uint64
}

func (r *recorded) replay(_ context.Context, start uint64, yield func(uint64, []byte) bool) (ended bool, err error) {
	r.starts = append(r.starts, start)
	for _, frames := range r.replies {
		sequence, payload, ok := parseReply(frames)
		switch {
		case !ok:
			r.t.Errorf("malformed: %x", frames)
			return false, errMalformedReply
		case sequence == reservedSequence:
			return true, nil
		case sequence >= start && !yield(sequence, payload):
			return false, nil
		}
	}
	return false, errSilent
}

// A stream that has seen sample 47, batches 0 and 2 of three, asks for what is
// missing before it applies batch 2.
func TestReplayTranscripts(t *testing.T) {
	t.Parallel()
	const p0 kv.Hash = 0x1ac9d45fb5b734f5
	for _, tc := range []struct {
		file   string
		starts []uint64
		want   heldBlocks
		state  State
	}{
		{"51_replay_old_vllm_or_sglang.bin", []uint64{0, 1}, inT1(p0), Exact},
		{"52_replay_new_vllm_or_trtllm.bin", []uint64{0, 1}, inT1(p0), Exact},
		// Batch 1 is all that comes, whatever is asked for; batch 2 follows live.
		{"53_replay_truncated_no_end.bin", []uint64{0, 1, 2, 2, 2, 3}, inT1(p0), Exact},
		// The live gap says that there was a batch: it is lost for good.
		{"56_replay_empty.bin", []uint64{0, 1}, heldBlocks{}, Degraded},
	} {
		t.Run(tc.file, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				history := &recorded{t: t, replies: [][][]byte{{{}, sequenceFrame(reservedSequence), {}}}}
				s := bareStream(t, history)
				connection := s.state.connect()
				take := func(b batch) {
					b.connection, b.arrived = connection, time.Now()
					s.take(t.Context(), b)
				}
				take(batch{mark: markConnected})
				history.replies = transcript(t, tc.file)
				for _, frames := range transcript(t, "47_live_gap.bin") {
					sequence, payload, bad := parseLive(frames, "")
					if bad != "" {
						t.Fatal(bad)
					}
					take(batch{sequence: sequence, payload: payload})
				}
				if diff := cmp.Diff(tc.starts, history.starts); diff != "" {
					t.Errorf("asked for (-want +got):\n%s", diff)
				}
				if diff := cmp.Diff(tc.want, everything(s.replica.residency)); diff != "" || s.state.now() != tc.state {
					t.Errorf("state %s, want %s; held (-want +got):\n%s", s.state.now(), tc.state, diff)
				}
			})
		})
	}
}

// bareStream is a stream without a receiver and without servers.
func bareStream(t testing.TB, history replayer) *stream {
	meters := testSourceMeters()
	return &stream{
		dialect: vllm.Dialect, limits: engine.DefaultLimits(), state: &machine{}, account: newAccount(), meters: meters,
		log: quiet, history: history, queue: newQueue(1<<10, 1<<20), at: newPosition(), logged: map[string]bool{},
		replica: &replica{meters: meters.meters, residency: NewResidency(ResidencyConfig{})},
	}
}

func TestReplayRequestIsTheSample(t *testing.T) {
	t.Parallel()
	want := transcript(t, "57_replay_request_dealer.bin")[0]
	if got := replayRequest(1).Frames; !slices.EqualFunc(want, got, slices.Equal) {
		t.Errorf("frames %x, want %x", got, want)
	}
}

func TestParseReplyRefusesOtherShapes(t *testing.T) {
	t.Parallel()
	seven := sequenceFrame(7)
	for _, frames := range [][][]byte{
		nil, {{}}, {{}, {}}, {{}, seven}, {seven}, {{}, {1, 2}, {3}}, {{}, {}, {}, seven, {1}},
		{{}, seven, {}}, // no payload
		{{}, sequenceFrame(reservedSequence), {1}}, // an end with one
	} {
		if _, _, ok := parseReply(frames); ok {
			t.Errorf("%x is taken for a reply", frames)
		}
	}
	if sequence, payload, ok := parseReply([][]byte{{}, seven, {1}}); !ok || sequence != 7 || len(payload) != 1 {
		t.Errorf("sequence %d, payload %x, ok %v", sequence, payload, ok)
	}
}

func TestSnapshotTranscript(t *testing.T) {
	t.Parallel()
	var records int
	s := &snapshot{blocks: map[uint64]struct{}{}}
	messages := transcript(t, "58_sglang_snapshot_v1.bin")
	for i, frames := range messages {
		done, err := s.take(frames, &records)
		if err != nil || done != (i == len(messages)-1) {
			t.Fatalf("message %d: done %v, err %v", i, done, err)
		}
	}
	if s.Resume != 42 || len(s.blocks) != 2 {
		t.Errorf("resume at %d with %d blocks, want 42 and 2", s.Resume, len(s.blocks))
	}
	short := &snapshot{SnapshotHeader: engine.SnapshotHeader{Records: 5}, blocks: map[uint64]struct{}{}}
	records = 2
	if _, err := short.take(messages[2], &records); err == nil {
		t.Error("an answer without all its records is taken")
	}
}

// What a snapshot does not have is dropped, unless it has changed since.
func TestSnapshotRefutes(t *testing.T) {
	t.Parallel()
	r := NewResidency(ResidencyConfig{})
	store := func(hash uint64, token uint32) {
		b, err := engine.Decode(vllm.Dialect, storedBatch(0, []uint64{hash}, []uint32{token}), engine.DefaultLimits())
		if err != nil {
			t.Fatal(err)
		}
		r.Apply(0, b)
	}
	store(11, 1)
	store(12, 2)
	store(13, 3)
	r.Watch(0, true)
	store(13, 3) // a second copy, after the snapshot's cut or before it
	store(14, 4)
	changes, refuted, unknown := r.Confirm(0, map[uint64]struct{}{11: {}, 99: {}})
	if refuted != 1 || unknown != 1 || len(changes) != 1 || changes[0].Kind != Remove {
		t.Errorf("refuted %d, unknown %d, changes %v; want block 12 gone and one unknown", refuted, unknown, changes)
	}
	if diff := cmp.Diff(inT1(prefixes(1)[0], prefixes(3)[0], prefixes(4)[0]), everything(r)); diff != "" {
		t.Errorf("held (-want +got):\n%s", diff)
	}
	if _, refuted, _ := r.Confirm(0, nil); refuted != 0 {
		t.Error("a snapshot that nobody waits for refutes")
	}
}
