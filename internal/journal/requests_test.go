package journal

import (
	"errors"
	"io"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"inferencecache.io/inferencecache/internal/kv"
	"inferencecache.io/inferencecache/internal/trace"
)

// from reads records, then io.EOF.
func from(records ...Record) func() (Record, error) {
	return func() (Record, error) {
		if len(records) == 0 {
			return nil, io.EOF
		}
		r := records[0]
		records = records[1:]
		return r, nil
	}
}

func all(kv.Partition) bool { return true }

func at(ms int) time.Time { return noon.Add(time.Duration(ms) * time.Millisecond) }

func TestLookupsAndOutcomesBecomeATrace(t *testing.T) {
	t.Parallel()
	acme, lora := kv.Partition{Scope: scope}, kv.Partition{Scope: scope, Adapter: "lora"}
	got, err := NewTrace(from(
		Lookup{At: at(10), Partition: acme, Keys: []kv.Hash{1, 2}, BlockTokens: 16, Tokens: 32, RequestID: "a"},
		Store{At: at(11), Scope: scope, Keys: []kv.Hash{1, 2}},
		Outcome{At: at(40), RequestID: "a", PromptTokens: 40, OutputTokens: 7},
		Lookup{At: at(31), Partition: lora, Keys: []kv.Hash{1}, BlockTokens: 16, Tokens: 16},
		Lookup{At: at(30), Partition: acme, Keys: []kv.Hash{1}, BlockTokens: 16, Tokens: 100, RequestID: "b"},
		Lookup{At: at(35), Partition: acme, Keys: []kv.Hash{5}, BlockTokens: 32, Tokens: 32},
		Lookup{At: at(36), Partition: acme, Keys: []kv.Hash{6}, Tokens: 32},
		Lookup{At: at(50), Partition: acme, Tokens: 3, RequestID: "c"},
		Outcome{At: at(60), RequestID: "c", PromptTokens: 4, OutputTokens: -1},
		Outcome{At: at(61), PromptTokens: 4, OutputTokens: 9}, // of an unknown request
	), all)
	if err != nil {
		t.Fatal(err)
	}
	want := &Trace{
		BlockTokens: 16, Partitions: 2, Otherwise: 2, Unknown: 2, Beyond: 1,
		Requests: []trace.Request{
			{Input: 40, Output: 7, Blocks: []uint64{1, 2, trace.Spread(1<<64 - 1)}},
			{At: 20 * time.Millisecond, Input: 100, Blocks: []uint64{1, trace.Spread(1<<64 - 2)}},
			{At: 21 * time.Millisecond, Input: 16, Blocks: []uint64{1 ^ trace.Spread(1)}},
			{At: 40 * time.Millisecond, Input: 4, Blocks: []uint64{trace.Spread(1<<64 - 6)}},
		},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	chosen, err := NewTrace(from(
		Lookup{At: at(10), Partition: acme, Keys: []kv.Hash{1, 2}, BlockTokens: 16},
		Lookup{At: at(11), Partition: lora, Keys: []kv.Hash{3}, BlockTokens: 32},
	), func(p kv.Partition) bool { return p == lora })
	want = &Trace{BlockTokens: 32, Partitions: 1, Unknown: 1, Requests: []trace.Request{{Blocks: []uint64{3}}}}
	if diff := cmp.Diff(want, chosen); diff != "" || err != nil {
		t.Errorf("%v (-want +got):\n%s", err, diff)
	}
}

func TestTraceSaysWhyThereIsNone(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		read func() (Record, error)
		want string
	}{
		{from(Clear{At: noon}), "no lookups"},
		{from(Lookup{At: noon, Keys: []kv.Hash{1}}), "no lookup says how many tokens its blocks have"},
		{func() (Record, error) { return nil, errors.New("a bad disk") }, "a bad disk"},
	} {
		if _, err := NewTrace(c.read, all); err == nil || err.Error() != c.want {
			t.Errorf("%v, want %s", err, c.want)
		}
	}
}

// public reads a trace that lies beside the project. It is not ours to copy.
func public(tb testing.TB, name string) []trace.Request {
	tb.Helper()
	file, err := os.Open(filepath.Join("../../../shared/data/traces/mooncake", name+"_trace.jsonl"))
	if err != nil {
		tb.Skip(err)
	}
	defer file.Close()
	lines, err := trace.NewReader(file, trace.Mooncake).ReadAll()
	if err != nil {
		tb.Fatal(err)
	}
	return lines
}

// lookups are the requests of a trace as a server would record them, block by
// block of 512 tokens or as many blocks of 16.
func lookups(lines []trace.Request, split int) []Record {
	records := make([]Record, len(lines))
	for i, line := range lines {
		r := Lookup{At: noon.Add(line.At), Partition: kv.Partition{Scope: scope}, BlockTokens: int32(trace.MooncakeBlock / split), Tokens: int32(line.Input), Chosen: "replica-1", Reason: "PREFIX_MATCH"}
		for _, id := range line.Blocks {
			for j := range split {
				r.Keys = append(r.Keys, kv.Hash(trace.Spread(id*64+uint64(j))))
			}
		}
		records[i] = r
	}
	return records
}

func TestPublicTraceComesBackFromAJournal(t *testing.T) {
	t.Parallel()
	lines := public(t, "synthetic")
	var records []Record
	for _, r := range lookups(lines, 1) {
		records = append(records, r)
	}
	file, _ := encode(maxWindow, records)
	r, err := NewReader(strings.NewReader(string(file)))
	if err != nil {
		t.Fatal(err)
	}
	got, err := NewTrace(r.Read, all)
	if err != nil || got.BlockTokens != trace.MooncakeBlock || got.Unknown != len(lines) || got.Otherwise+got.Beyond > 0 {
		t.Fatalf("%+v, %v", got, err)
	}
	for i, line := range lines {
		line.Output = 0
		for j, id := range line.Blocks {
			line.Blocks[j] = trace.Spread(id * 64)
		}
		line.At -= lines[0].At
		if !reflect.DeepEqual(line, got.Requests[i]) {
			t.Fatalf("request %d (-want +got):\n%s", i, cmp.Diff(line, got.Requests[i]))
		}
	}
}

// BenchmarkWrite says what a lookup costs in time and bytes; x-raw is what its
// keys would take unshared, over what the file takes in all.
func BenchmarkWrite(b *testing.B) {
	for _, name := range []string{"conversation", "synthetic"} {
		for _, split := range []int{1, 32} {
			b.Run(name+map[int]string{1: "/512-token blocks", 32: "/16-token blocks"}[split], func(b *testing.B) {
				records := lookups(public(b, name), split)
				var e encoder
				var total, keys int
				entries := make([]entry, len(records))
				for i, r := range records {
					l := r.(Lookup)
					entries[i] = entry{kind: lookup, at: micros(l.At), partition: l.Partition, replica: l.Chosen, reason: l.Reason, numbers: [3]int32{l.Tokens, l.BlockTokens}, keys: l.Keys}
					keys += len(l.Keys)
				}
				b.ReportAllocs()
				for b.Loop() {
					buffer := e.start(nil, maxWindow, noon.UnixMicro())
					total = 0
					for i := range entries {
						buffer = e.record(buffer, &entries[i])
						total += len(buffer)
						buffer = buffer[:0]
					}
				}
				b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N*len(entries)), "ns/lookup")
				b.ReportMetric(float64(total)/float64(len(entries)), "bytes/lookup")
				b.ReportMetric(float64(8*keys)/float64(total), "x-raw")
			})
		}
	}
}
