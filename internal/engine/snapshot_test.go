package engine_test

import (
	"encoding/binary"
	"os"
	"testing"

	"github.com/google/go-cmp/cmp"

	"inferencecache.io/inferencecache/internal/engine"
)

// snapshotSample is the transcript of a snapshot: u32be count of messages, for
// each u32be count of frames, for each u32be length and the bytes.
func snapshotSample(t testing.TB) (frames [][]byte) {
	t.Helper()
	b, err := os.ReadFile("../../testdata/kvevents/58_sglang_snapshot_v1.bin")
	if err != nil {
		t.Fatal(err)
	}
	number := func() int {
		n := binary.BigEndian.Uint32(b)
		b = b[4:]
		return int(n)
	}
	for range number() {
		for range number() {
			n := number()
			frames, b = append(frames, b[:n]), b[n:]
		}
	}
	return frames
}

func TestDecodeSnapshot(t *testing.T) {
	t.Parallel()
	frames := snapshotSample(t) // three messages of three frames
	if string(frames[1]) != engine.SnapshotHead || string(frames[4]) != engine.SnapshotChunk || string(frames[7]) != engine.SnapshotEnd {
		t.Fatalf("messages %q, %q, %q", frames[1], frames[4], frames[7])
	}
	header, err := engine.DecodeSnapshotHeader(frames[2])
	want := engine.SnapshotHeader{Epoch: "5f0c1d5a8a7f4b0f9c1e2d3c4b5a6978", Resume: 42, Barrier: 41, Records: 2}
	if diff := cmp.Diff(want, header); diff != "" || err != nil {
		t.Errorf("header, err %v (-want +got):\n%s", err, diff)
	}
	var ids []uint64
	n, err := engine.DecodeSnapshotChunk(frames[5], func(id uint64) { ids = append(ids, id) })
	if diff := cmp.Diff([]uint64{0xa5a5a5a5a5a5a5a5, 0x23374afabbea5a08}, ids); diff != "" || n != 2 || err != nil {
		t.Errorf("%d records, err %v (-want +got):\n%s", n, err, diff)
	}
}

func FuzzDecodeSnapshot(f *testing.F) {
	frames := snapshotSample(f)
	f.Add(frames[2])
	f.Add(frames[5])
	f.Add([]byte{0xdd, 0xff, 0xff, 0xff, 0xff})
	f.Fuzz(func(t *testing.T, payload []byte) {
		_, _ = engine.DecodeSnapshotHeader(payload)
		yielded := 0
		records, _ := engine.DecodeSnapshotChunk(payload, func(uint64) { yielded++ })
		if records > len(payload) || yielded > len(payload) {
			t.Errorf("%d records and %d hashes from %d bytes", records, yielded, len(payload))
		}
	})
}
