package subscriber

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"inferencecache.io/inferencecache/internal/kv"
	pb "inferencecache.io/inferencecache/proto/inferencecache/v1alpha1"
)

func chainStore(tokens int, parent kv.Hash, hashes ...kv.Hash) Change {
	return Change{Kind: Store, Tier: kv.T1, BlockSize: 16, Tokens: tokens, Parent: parent, HasParent: tokens > 0, Hashes: hashes}
}

func removal(hashes ...kv.Hash) Change { return Change{Kind: Remove, Hashes: hashes} }

func describe(operations []*pb.CacheOperation) string {
	var parts []string
	for _, op := range operations {
		hashes, _ := kv.Unpack(nil, op.PackedHashes)
		var names []string
		for _, h := range hashes {
			names = append(names, fmt.Sprint(uint64(h)))
		}
		part := strings.ToLower(op.Kind.String()) + " " + strings.Join(names, ",")
		if op.Kind == pb.CacheOperation_STORE {
			part += fmt.Sprintf(" at %d", op.ParentTokens)
			if len(op.ParentHash) > 0 {
				parent, _ := kv.ParseHash(op.ParentHash)
				part += fmt.Sprintf(" after %d", uint64(parent))
			}
		}
		parts = append(parts, strings.TrimSpace(part))
	}
	return strings.Join(parts, "; ")
}

func TestPendingJoinsChanges(t *testing.T) {
	t.Parallel()
	lora := chainStore(16, 1, 2)
	lora.Adapter = "lora"
	lower := chainStore(16, 1, 2)
	lower.Tier = kv.T2
	for _, tc := range []struct {
		name    string
		changes []Change
		want    string
	}{
		{"a chain that goes on", []Change{chainStore(0, 0, 1, 2), chainStore(32, 2, 3)}, "store 1,2,3 at 0"},
		{"another chain", []Change{chainStore(0, 0, 1), chainStore(0, 0, 5)}, "store 1 at 0; store 5 at 0"},
		{"same parent, other position", []Change{chainStore(0, 0, 1), chainStore(32, 1, 2)}, "store 1 at 0; store 2 at 32 after 1"},
		{"other adapter", []Change{chainStore(0, 0, 1), lora}, "store 1 at 0; store 2 at 16 after 1"},
		{"other tier", []Change{chainStore(0, 0, 1), lower}, "store 1 at 0; store 2 at 16 after 1"},
		{"removals", []Change{removal(1), removal(2, 3)}, "remove 1,2,3"},
		{"a store taken back, last block first", []Change{chainStore(0, 0, 1, 2, 3), removal(3), removal(2)}, "store 1 at 0; remove 3,2"},
		{"a store taken back whole", []Change{chainStore(0, 0, 1, 2), removal(2, 1)}, "remove 2,1"},
		{"a block from the middle goes after the store", []Change{chainStore(0, 0, 1, 2, 3), removal(2)}, "store 1,2,3 at 0; remove 2"},
		{"removed and stored again", []Change{chainStore(0, 0, 1), removal(1), chainStore(0, 0, 1)}, "remove 1; store 1 at 0"},
		{"a block that a later store builds on", []Change{chainStore(0, 0, 1), removal(9), chainStore(16, 1, 2), removal(1)}, "store 1 at 0; remove 9; store 2 at 16 after 1; remove 1"},
		{"clear", []Change{chainStore(0, 0, 1), removal(7), {Kind: Clear}, chainStore(0, 0, 4)}, "clear; store 4 at 0"},
	} {
		var p pending
		for _, c := range tc.changes {
			p.add(c, time.Time{}, time.Time{})
		}
		got := describe(p.take())
		if got != tc.want {
			t.Errorf("%s: got %q, want %q", tc.name, got, tc.want)
		}
		if !p.empty() || p.bytes != 0 {
			t.Errorf("%s: %d bytes left over", tc.name, p.bytes)
		}
	}
}

func TestPendingSplitsLargeChains(t *testing.T) {
	t.Parallel()
	chain := make([]kv.Hash, 100_000)
	for i := range chain {
		chain[i] = kv.Hash(i + 1)
	}
	var p pending
	p.add(chainStore(0, 0, chain...), time.Time{}, time.Time{})
	var got []kv.Hash
	updates := 0
	for !p.empty() {
		bytes := 0
		for _, op := range p.take() {
			if want := int32(16 * len(got)); op.ParentTokens != want {
				t.Fatalf("operation starts at token %d, want %d", op.ParentTokens, want)
			}
			bytes += len(op.PackedHashes)
			got, _ = kv.Unpack(got, op.PackedHashes)
		}
		if bytes > updateBytes+operationBytes {
			t.Errorf("update of %d bytes", bytes)
		}
		updates++
	}
	if diff := cmp.Diff(chain, got); diff != "" || updates < 3 {
		t.Errorf("%d updates, chain (-want +got):\n%s", updates, diff)
	}
}

// Whatever is joined or taken back, applying what is left has the effect of
// applying every change, on any server state before it.
func TestPendingHasTheEffectOfItsChanges(t *testing.T) {
	t.Parallel()
	for seed := range uint64(300) {
		m := newModel(seed)
		for range m.rng.IntN(40) {
			m.step()
		}
		server := newFakeServer()
		server.held = m.now()
		var p pending
		for range 1 + m.rng.IntN(60) {
			for _, c := range m.step() {
				p.add(c, time.Time{}, time.Time{})
			}
		}
		for !p.empty() {
			for _, op := range p.take() {
				server.operateLocked(op)
			}
		}
		if diff := cmp.Diff(m.now(), server.now()); diff != "" {
			t.Fatalf("seed %d (-want +got):\n%s", seed, diff)
		}
		if p.bytes != 0 {
			t.Fatalf("seed %d: %d bytes left over", seed, p.bytes)
		}
	}
}
