package engine_test

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"inferencecache.io/inferencecache/internal/engine"
	"inferencecache.io/inferencecache/internal/engine/sglang"
	"inferencecache.io/inferencecache/internal/engine/trtllm"
	"inferencecache.io/inferencecache/internal/engine/vllm"
)

const samplesDir = "../../testdata/kvevents"

// sample is an entry of the manifest, as far as a decoder is concerned.
type sample struct {
	File     string
	Kind     string
	Engine   string
	MustFail *string `json:"must_fail"`
	Decoded  struct {
		TS       float64
		Rank     *int `json:"dp_rank"`
		Events   []map[string]any
		Rejected []int `json:"rejected_events"`
		Unknown  []string
		Summary  *struct {
			Events    int
			Hashes    int
			Tokens    int
			BlockSize int `json:"block_size"`
		}
	}
	payload []byte
}

// unlisted are fields that samples carry and the manifest leaves out.
var unlisted = map[string][]string{
	"14": {"kv_cache_spec_kind"},
	"27": {"kv_cache_spec_kind", "extra_keys"},
}

func (s sample) dialect() engine.Dialect {
	switch s.Engine {
	case "sglang":
		return sglang.Dialect
	case "trtllm":
		return trtllm.Dialect
	}
	return vllm.Dialect
}

// payloadSamples are all samples that are one payload.
func payloadSamples(t testing.TB) []sample {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(samplesDir, "manifest.json"))
	if err != nil {
		t.Fatal(err)
	}
	var manifest struct{ Samples []sample }
	if err := json.Unmarshal(text, &manifest); err != nil {
		t.Fatal(err)
	}
	var payloads []sample
	for _, s := range manifest.Samples {
		if s.Kind != "payload" {
			continue
		}
		if s.payload, err = os.ReadFile(filepath.Join(samplesDir, s.File)); err != nil {
			t.Fatal(err)
		}
		payloads = append(payloads, s)
	}
	if len(payloads) < 30 {
		t.Fatalf("only %d payload samples", len(payloads))
	}
	return payloads
}

func TestDecodeReadsEverySample(t *testing.T) {
	for _, s := range payloadSamples(t) {
		t.Run(strings.TrimSuffix(s.File, ".bin"), func(t *testing.T) {
			batch, err := engine.Decode(s.dialect(), s.payload, engine.DefaultLimits())
			if s.MustFail != nil {
				if err == nil {
					t.Fatalf("decoded, want failure: %s", *s.MustFail)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			s.check(t, batch)
		})
	}
}

func (s sample) check(t *testing.T, batch *engine.Batch) {
	t.Helper()
	want := s.Decoded
	if batch.TS != want.TS {
		t.Errorf("ts = %v, want %v", batch.TS, want.TS)
	}
	if batch.HasRank != (want.Rank != nil) || want.Rank != nil && batch.Rank != *want.Rank {
		t.Errorf("rank = %d (%t), want %v", batch.Rank, batch.HasRank, want.Rank)
	}
	if diff := cmp.Diff(want.Unknown, batch.UnknownTags()); diff != "" {
		t.Errorf("unknown tags (-want +got):\n%s", diff)
	}
	var rejected []int
	var decoded []map[string]any
	for i := range batch.Events {
		e := &batch.Events[i]
		if e.Index != i {
			t.Errorf("event %d has index %d", i, e.Index)
		}
		switch e.Verdict.Status {
		case engine.OK:
			decoded = append(decoded, plain(t, e))
		case engine.Rejected:
			rejected = append(rejected, i)
		}
	}
	if diff := cmp.Diff(want.Rejected, rejected); diff != "" {
		t.Errorf("rejected events (-want +got):\n%s", diff)
	}
	if sum := want.Summary; sum != nil {
		e := batch.Events[0]
		if len(batch.Events) != sum.Events || len(e.Hashes) != sum.Hashes || len(e.Tokens) != sum.Tokens || e.BlockSize != sum.BlockSize {
			t.Errorf("got %d events, %d hashes, %d tokens of %d, want %+v",
				len(batch.Events), len(e.Hashes), len(e.Tokens), e.BlockSize, *sum)
		}
		return
	}
	for i, e := range want.Events {
		dropNulls(e)
		if i < len(decoded) {
			for _, name := range unlisted[s.File[:2]] {
				delete(decoded[i], name)
			}
		}
	}
	if len(decoded)+len(want.Events) > 0 {
		if diff := cmp.Diff(want.Events, decoded); diff != "" {
			t.Errorf("events (-want +got):\n%s", diff)
		}
	}
}

// plain is an event's document as the manifest writes events: no index, and no
// distinction between null and absent, which the manifest does not keep.
func plain(t *testing.T, e *engine.Event) map[string]any {
	t.Helper()
	text, err := json.Marshal(e.Document())
	if err != nil {
		t.Fatal(err)
	}
	var m map[string]any
	if err := json.Unmarshal(text, &m); err != nil {
		t.Fatal(err)
	}
	delete(m, "index")
	dropNulls(m)
	return m
}

func dropNulls(m map[string]any) {
	for name, value := range m {
		if value == nil {
			delete(m, name)
		}
	}
}
