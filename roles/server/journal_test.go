package server

import (
	"context"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"inferencecache.io/inferencecache/internal/journal"
	pb "inferencecache.io/inferencecache/proto/inferencecache/v1alpha1"
)

func TestJournalHasWhatWasToldAndAsked(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "journal")
	j, err := journal.Open(path, 1<<20)
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	done := make(chan error)
	go func() { done <- j.Run(ctx) }()
	r := newFleet(t, 2)
	r.Keep(j)
	keys := chainOf(span(0, 640))
	r.store("r-1", 0, 40)
	answer := r.ask(packed(0, 640))
	r.takeOutcome(time.Now(), &pb.Outcome{RequestId: answer.GetRequestId(), ReplicaId: "r-1", CachedTokens: 624, PromptTokens: 650, OutputTokens: 7})
	r.operate("r-1", pb.CacheOperation_REMOVE, keys[30:]...)
	r.applyEvent(time.Now(), &pb.CacheEvent{Type: pb.CacheEvent_PREFIX_EVICTED, TenantId: "t", ModelId: "m", ReplicaId: "r-1", PrefixHash: keys[29].Bytes()})
	r.applyEvent(time.Now(), &pb.CacheEvent{Type: pb.CacheEvent_ALL_CLEARED, TenantId: "t", ModelId: "m", ReplicaId: "r-1"})
	stop()
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	files, err := journal.OpenFiles(path)
	if err != nil {
		t.Fatal(err)
	}
	defer files.Close()
	var got []string
	for {
		record, err := files.Read()
		if err != nil {
			if !errors.Is(err, io.EOF) {
				t.Error(err)
			}
			break
		}
		switch record := record.(type) {
		case journal.Lookup:
			got = append(got, fmt.Sprintf("lookup %s %s %d %d %d", record.Chosen, record.Reason, len(record.Keys), record.BlockTokens, record.Tokens))
		case journal.Outcome:
			got = append(got, fmt.Sprintf("outcome %s %d %d %d", record.Replica, record.CachedTokens, record.PromptTokens, record.OutputTokens))
		case journal.Store:
			got = append(got, fmt.Sprintf("store %s %d %d %s", record.Replica, len(record.Keys), record.Step, record.Tier))
		case journal.Remove:
			got = append(got, fmt.Sprintf("remove %s %d", record.Replica, len(record.Keys)))
		case journal.Clear:
			got = append(got, "clear "+record.Replica)
		}
	}
	want := []string{"store r-1 40 16 T1", "lookup r-1 PREFIX_MATCH 40 16 640", "outcome r-1 624 650 7", "remove r-1 10", "remove r-1 1", "clear r-1"}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}
