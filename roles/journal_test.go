package roles

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"inferencecache.io/inferencecache/internal/journal"
	"inferencecache.io/inferencecache/internal/kv"
	"inferencecache.io/inferencecache/internal/trace"
)

var (
	journalNoon  = time.Date(2026, 11, 30, 12, 0, 0, 0, time.UTC)
	journalScope = kv.Scope{Tenant: "acme", Model: "llama", Scheme: "vllm"}
)

// writeJournal lets give record something at path.
func writeJournal(t *testing.T, path string, give func(*journal.Journal)) {
	t.Helper()
	j, err := journal.Open(path, 16<<20)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	give(j) // fits into the queue
	if err := j.Run(ctx); err != nil || j.Dropped() > 0 {
		t.Fatal(err, j.Dropped())
	}
}

// replayed is the report of `inferencecache replay` without the trace's name.
func replayed(t *testing.T, args ...string) map[string]any {
	t.Helper()
	text, err := command(t.Context(), append([]string{"replay", "-o", "json", "--replicas=4", "--cache=300"}, args...)...)
	if err != nil {
		t.Fatalf("%v\n%s", err, text)
	}
	var report map[string]any
	if err := json.Unmarshal([]byte(text), &report); err != nil {
		t.Fatalf("%v\n%s", err, text)
	}
	delete(report, "trace")
	return report
}

// A journal of a trace, its rotation and a restart of the server included,
// gives the results of the trace.
func TestJournalReplaysAsItsTrace(t *testing.T) {
	dir := t.TempDir()
	requests := trace.Generate(5, 1500)
	var lines bytes.Buffer
	for i := range requests {
		r := &requests[i]
		r.At = r.At.Truncate(time.Millisecond)
		ids, _ := json.Marshal(r.Blocks)
		fmt.Fprintf(&lines, `{"timestamp": %d, "input_length": %d, "output_length": %d, "hash_ids": %s}`+"\n", r.At.Milliseconds(), r.Input, r.Output, ids)
	}
	file, path := filepath.Join(dir, "trace.jsonl"), filepath.Join(dir, "journal")
	if err := os.WriteFile(file, lines.Bytes(), 0o600); err != nil {
		t.Fatal(err)
	}
	record := func(requests []trace.Request, from int) {
		writeJournal(t, path, func(j *journal.Journal) {
			for i, r := range requests {
				keys := make([]kv.Hash, len(r.Blocks))
				for k, id := range r.Blocks {
					keys[k] = kv.Hash(trace.Spread(id))
				}
				id := fmt.Sprint(from + i)
				j.Lookup(journal.Lookup{At: journalNoon.Add(r.At), Partition: kv.Partition{Scope: journalScope}, Keys: keys,
					BlockTokens: trace.MooncakeBlock, RequestID: id, Reason: "NO_HINT"})
				j.Outcome(journal.Outcome{At: journalNoon.Add(r.At), RequestID: id, Replica: "a", PromptTokens: int32(r.Input), OutputTokens: int32(r.Output)})
			}
		})
	}
	record(requests[:600], 0)
	if err := os.Rename(path, path+".1"); err != nil {
		t.Fatal(err)
	}
	record(requests[600:900], 600)
	record(requests[900:], 900)
	if diff := cmp.Diff(replayed(t, file), replayed(t, path)); diff != "" {
		t.Errorf("(-trace +journal):\n%s", diff)
	}
}

func TestReplayOfAJournalSaysWhatIsMissing(t *testing.T) {
	path := filepath.Join(t.TempDir(), "journal")
	writeJournal(t, path, func(j *journal.Journal) {
		look := func(tenant string, step int32) {
			p := kv.Partition{Scope: kv.Scope{Tenant: tenant, Model: "llama", Scheme: "vllm"}}
			j.Lookup(journal.Lookup{At: journalNoon, Partition: p, Keys: []kv.Hash{1, 2}, BlockTokens: step, Tokens: 100})
		}
		look("acme", 16)
		look("acme", 16)
		look("other", 16)
		look("other", 8)
	})
	all, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, append(all, 0), 0o600); err != nil {
		t.Fatal(err)
	}
	text, err := command(t.Context(), "replay", "--policy=cost", "--capacity=0", path)
	for _, want := range []string{
		"note: not read to its end: " + path + ": byte ", "note: prompts of 2 tenants, models or adapters", "note: 1 lookups left out: their blocks are not of 16 tokens",
		"note: 3 of 3 requests have no outcome", "note: 3 prompts are longer than the blocks asked for", "journal, 3 requests",
	} {
		if err != nil || !strings.Contains(text, want) {
			t.Errorf("%v, no %q in\n%s", err, want, text)
		}
	}
	text, err = command(t.Context(), "replay", "--policy=cost", "--capacity=0", "--tenant=acme", path)
	if err != nil || !strings.Contains(text, "journal, 2 requests") || strings.Contains(text, "tenants") {
		t.Errorf("%v\n%s", err, text)
	}
	if _, err = command(t.Context(), "replay", "--model=none", path); err == nil || err.Error() != "read "+path+": no lookups" {
		t.Error(err)
	}
	file := filepath.Join(t.TempDir(), "trace.jsonl")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err = command(t.Context(), "replay", "--tenant=acme", file); err == nil || !strings.Contains(err.Error(), "choose from a journal") {
		t.Error(err)
	}
}

func TestJournalPrintsRecords(t *testing.T) {
	path := filepath.Join(t.TempDir(), "journal")
	writeJournal(t, path, func(j *journal.Journal) {
		j.Lookup(journal.Lookup{At: journalNoon, Partition: kv.Partition{Scope: journalScope, Adapter: "lora"}, Keys: []kv.Hash{1, 0xea06fc71a5ee6e88},
			BlockTokens: 16, Tokens: 40, RequestID: "r-1", Chosen: "gpu-0", Reason: "PREFIX_MATCH"})
		j.Outcome(journal.Outcome{At: journalNoon.Add(1500 * time.Millisecond), RequestID: "r-1", Replica: "gpu-0", CachedTokens: 32, PromptTokens: 40, OutputTokens: 7})
		j.Store(journal.Store{At: journalNoon, Scope: journalScope, Replica: "gpu-0", Parent: 1, HasParent: true, Keys: []kv.Hash{2}, Tier: kv.T1, Step: 16})
		j.Remove(journal.Remove{At: journalNoon, Scope: journalScope, Replica: "gpu-0"})
		j.Clear(journal.Clear{At: journalNoon, Scope: journalScope, Replica: "gpu-0"})
	})
	const where = `"tenant":"acme","model":"llama","scheme":"vllm"`
	want := `{"record":"lookup","at":"2026-11-30T12:00:00Z",` + where + `,"adapter":"lora","request_id":"r-1","chosen":"gpu-0","reason":"PREFIX_MATCH","tokens":40,"block_tokens":16,"keys":["0000000000000001","ea06fc71a5ee6e88"]}
{"record":"outcome","at":"2026-11-30T12:00:01.5Z","request_id":"r-1","replica":"gpu-0","cached_tokens":32,"prompt_tokens":40,"output_tokens":7}
{"record":"store","at":"2026-11-30T12:00:00Z",` + where + `,"replica":"gpu-0","tier":"T1","step":16,"parent":"0000000000000001","keys":["0000000000000002"]}
{"record":"remove","at":"2026-11-30T12:00:00Z",` + where + `,"replica":"gpu-0","keys":[]}
{"record":"clear","at":"2026-11-30T12:00:00Z",` + where + `,"replica":"gpu-0"}
`
	text, err := command(t.Context(), "journal", path)
	if diff := cmp.Diff(want, text); diff != "" || err != nil {
		t.Errorf("%v (-want +got):\n%s", err, diff)
	}

	// A torn end is a note, a wrong byte a failure, after all that can be read.
	all, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, all[:len(all)-1], 0o600); err != nil {
		t.Fatal(err)
	}
	text, err = command(t.Context(), "journal", path)
	if err != nil || strings.Count(text, "\n") != 5 || !strings.Contains(text, "note: "+path+": byte ") {
		t.Errorf("%v\n%s", err, text)
	}
	all[len(all)-6]++
	if err := os.WriteFile(path, all, 0o600); err != nil {
		t.Fatal(err)
	}
	text, err = command(t.Context(), "journal", path)
	if err == nil || !strings.HasPrefix(err.Error(), path+": byte ") || strings.Count(text, "\n") != 4 {
		t.Errorf("%v\n%s", err, text)
	}
	if _, err = command(t.Context(), "journal", path+".none"); err == nil {
		t.Error("a file that is not there was read")
	}
}
