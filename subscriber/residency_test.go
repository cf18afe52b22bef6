package subscriber

import (
	"fmt"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"inferencecache.io/inferencecache/internal/engine"
	"inferencecache.io/inferencecache/internal/engine/vllm"
	"inferencecache.io/inferencecache/internal/fingerprint"
	"inferencecache.io/inferencecache/internal/kv"
)

// prompt is the tokens of so many blocks of 4.
func prompt(blocks int) []uint32 {
	tokens := make([]uint32, 4*blocks)
	for i := range tokens {
		tokens[i] = uint32(100 + i)
	}
	return tokens
}

func prefixChain(tokens []uint32, size int) []kv.Hash { return fingerprint.Append(nil, tokens, size) }

func names(hashes ...uint64) []engine.BlockHash {
	list := make([]engine.BlockHash, len(hashes))
	for i, h := range hashes {
		list[i].ID = h
	}
	return list
}

type edit func(*engine.Event)

func after(parent uint64) edit {
	return func(e *engine.Event) { e.Parent.ID = parent; e.Mark(engine.ParentHash) }
}

func inGroup(index int) edit {
	return func(e *engine.Event) { e.GroupIdx = index; e.Mark(engine.GroupIdx) }
}

func withLoraID(id int64) edit {
	return func(e *engine.Event) { e.LoraID = id; e.Mark(engine.LoraID) }
}

func on(medium string) edit      { return func(e *engine.Event) { e.Medium = medium } }
func called(name string) edit    { return func(e *engine.Event) { e.LoraName = name } }
func salted(e *engine.Event)     { e.CacheSalt = "tenant" }
func kindOf(kind string) edit    { return func(e *engine.Event) { e.SpecKind = kind } }
func origin(name string) edit    { return func(e *engine.Event) { e.Origin = name } }
func leaving(copies ...int) edit { return func(e *engine.Event) { e.Remaining = copies } }
func badlyDecoded(e *engine.Event) {
	e.Verdict = engine.Verdict{Status: engine.Rejected, Reason: engine.WrongType}
}

func made(kind engine.Kind, hashes []engine.BlockHash, edits []edit) engine.Event {
	e := engine.Event{Kind: kind, FirstString: -1, Hashes: hashes}
	for _, edit := range edits {
		edit(&e)
	}
	return e
}

// stores is a BlockStored whose block size follows from its tokens.
func stores(hashes []engine.BlockHash, tokens []uint32, edits ...edit) engine.Event {
	e := made(engine.Stored, hashes, edits)
	e.Tokens, e.BlockSize = tokens, len(tokens)/max(len(hashes), 1)
	return e
}

func removes(hashes []engine.BlockHash, edits ...edit) engine.Event {
	return made(engine.Removed, hashes, edits)
}

func clears() engine.Event { return made(engine.Cleared, nil, nil) }

// residencyBench is a residency, what its server believes, and the test.
type residencyBench struct {
	*testing.T
	*Residency
	server replayed
}

func newResidencyBench(t *testing.T, config ResidencyConfig) *residencyBench {
	return &residencyBench{t, NewResidency(config), replayed{}}
}

// do applies events on a rank and returns changes and verdicts, the latter as
// "status:reason" in one line.
func (b *residencyBench) do(rank int, events ...engine.Event) ([]Change, string) {
	b.Helper()
	changes, tally := b.Apply(rank, &engine.Batch{Events: events})
	b.server.apply(b, changes)
	if diff := cmp.Diff(b.server, heldBy(b, b.Residency)); diff != "" {
		b.Fatalf("(-server +held):\n%s", diff)
	}
	if err := b.check(); err != nil {
		b.Fatal(err)
	}
	var verdicts []string
	for _, v := range tally.Verdicts {
		verdicts = append(verdicts, strings.TrimSuffix(v.Status.String()+":"+string(v.Reason), ":"))
	}
	return changes, strings.Join(verdicts, " ")
}

// expect is do with an expectation of verdicts.
func (b *residencyBench) expect(want string, rank int, events ...engine.Event) []Change {
	b.Helper()
	changes, got := b.do(rank, events...)
	if got != want {
		b.Errorf("verdicts %q, want %q", got, want)
	}
	return changes
}

// tiers compares what is held of the base model's prompt, block by block:
// "1 2 -" is T1, T2, nothing.
func (b *residencyBench) tiers(blocks int, want string) {
	b.Helper()
	var got []string
	for _, hash := range prefixChain(prompt(blocks), 4) {
		tier := "-"
		if t, ok := b.server[partitionHash{"", hash}]; ok {
			tier = fmt.Sprint(uint8(t))
		}
		got = append(got, tier)
	}
	if line := strings.Join(got, " "); line != want {
		b.Errorf("tiers are %q, want %q", line, want)
	}
}

func TestResidencyReportsChains(t *testing.T) {
	b := newResidencyBench(t, ResidencyConfig{BlockSize: 4})
	tokens := prompt(4)
	chain := prefixChain(tokens, 4)
	got, _ := b.do(0,
		stores(names(1, 2), tokens[:8]),
		stores(names(3), tokens[8:12], after(2)), // goes on: one Change
		stores(names(4), tokens[12:], after(3), on("CPU")),
		removes(names(2)), removes(names(4), on("CPU")),
	)
	want := []Change{
		{Kind: Store, Tier: kv.T1, Hashes: chain[:3], BlockSize: 4},
		{Kind: Store, Tier: kv.T2, Hashes: chain[3:], Parent: chain[2], HasParent: true, Tokens: 12, BlockSize: 4},
		{Kind: Remove, Hashes: []kv.Hash{chain[1], chain[3]}},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("changes (-want +got):\n%s", diff)
	}
	b.expect("applied", 0, stores(names(4), tokens[12:], after(3)))
	var held []Change
	b.Held(func(c Change) bool { held = append(held, c); return true })
	want = []Change{
		{Kind: Store, Tier: kv.T1, Hashes: chain[:1], BlockSize: 4},
		{Kind: Store, Tier: kv.T1, Hashes: chain[2:], Parent: chain[1], HasParent: true, Tokens: 8, BlockSize: 4},
	}
	if diff := cmp.Diff(want, held); diff != "" {
		t.Errorf("held (-want +got):\n%s", diff)
	}
	held = nil
	b.Held(func(c Change) bool { held = append(held, c); return false })
	if len(held) != 1 {
		t.Errorf("Held went on after false: %d changes", len(held))
	}
}

func TestResidencyCutsLongRuns(t *testing.T) {
	b := newResidencyBench(t, ResidencyConfig{})
	const blocks = 2*maxRun + 10
	hashes := make([]uint64, blocks)
	for i := range hashes {
		hashes[i] = uint64(i + 1)
	}
	f := func(what string, changes []Change) {
		t.Helper()
		var lengths []int
		for _, c := range changes {
			lengths = append(lengths, len(c.Hashes))
		}
		if diff := cmp.Diff([]int{maxRun, maxRun, 10}, lengths); diff != "" {
			t.Errorf("%s (-want +got):\n%s", what, diff)
		}
	}
	f("stored", b.expect("applied", 0, stores(names(hashes...), prompt(blocks))))
	var held []Change
	b.Held(func(c Change) bool { held = append(held, c); return true })
	f("held", held)
	f("removed", b.expect("applied", 0, removes(names(hashes...))))
	if b.Len() != 0 {
		t.Errorf("%d blocks left", b.Len())
	}
}

func TestResidencyCountsCopiesByTier(t *testing.T) {
	b := newResidencyBench(t, ResidencyConfig{})
	tokens := prompt(1)
	b.expect("applied applied", 0, stores(names(1), tokens), stores(names(1), tokens))
	b.expect("applied", 0, stores(names(1), nil, on("CPU"))) // a placeholder
	b.tiers(1, "1")
	b.expect("applied", 0, removes(names(1)))
	b.tiers(1, "1")
	b.expect("applied", 0, removes(names(1)))
	b.tiers(1, "2")
	b.expect("skipped:no_copy", 0, removes(names(1)))
	b.tiers(1, "2")
	b.expect("applied skipped:unknown_block", 0, removes(names(1), on("CPU")), removes(names(1), on("CPU")))
	b.tiers(1, "-")
	b.expect("skipped:unknown_block", 0, stores(names(1), nil, on("CPU")))
	b.expect("skipped:no_hashes skipped:no_hashes", 0, stores(nil, nil), removes(nil))
}

func TestResidencyDoesNotCountWhatIsReannounced(t *testing.T) {
	b := newResidencyBench(t, ResidencyConfig{})
	tokens := prompt(2)
	b.expect("applied skipped:reannounced", 0, stores(names(1, 2), tokens), stores(names(1, 2), tokens))
	b.expect("applied", 0, removes(names(1, 2)))
	b.tiers(2, "- -")
	b.expect("applied applied", 0, stores(names(1, 2), tokens), stores(names(1, 2), tokens, origin("NEW")))
	b.expect("applied", 0, removes(names(1, 2)))
	b.tiers(2, "1 1")
	b.expect("skipped:reannounced", 0, stores(names(1), tokens[:4], origin("REUSED")))
	b.expect("applied", 0, removes(names(1)))
	b.tiers(2, "- 1")
	for range 20 {
		b.expect("applied", 0, stores(names(2), tokens[4:], after(1)))
	}
	b.expect("applied", 0, removes(names(2), leaving(1)))
	b.tiers(2, "- 1")
	b.expect("applied", 0, removes(names(2), leaving(0)))
	b.tiers(2, "- -")
	for range 20 {
		b.do(0, stores(names(1), tokens[:4]))
	}
	for range maxCopies {
		b.tiers(1, "1")
		b.expect("applied", 0, removes(names(1)))
	}
	b.tiers(1, "-")
}

func TestResidencyJoinsRanksAndGroups(t *testing.T) {
	b := newResidencyBench(t, ResidencyConfig{})
	tokens := prompt(2)
	b.expect("applied", 0, stores(names(1, 2), tokens, inGroup(0)))
	b.expect("applied", 0, stores(names(1, 2), tokens, inGroup(1)))
	b.expect("applied", 3, stores(names(8), tokens[:4], on("DISK")))
	if b.Len() != 2 {
		t.Errorf("%d blocks held, want 2", b.Len())
	}
	b.expect("applied", 0, removes(names(1, 2), inGroup(0)))
	b.tiers(2, "1 1")
	changes := b.expect("applied", 0, clears()) // rank 3 still has one
	b.tiers(2, "2 -")
	if len(changes) != 2 || changes[0].Kind == Clear || changes[1].Kind == Clear {
		t.Errorf("clearing one rank gives %+v", changes)
	}
	changes = b.expect("applied", 3, clears())
	if diff := cmp.Diff([]Change{{Kind: Clear}}, changes); diff != "" {
		t.Errorf("clearing the last rank (-want +got):\n%s", diff)
	}
}

func TestResidencyClearsOnCommand(t *testing.T) {
	b := newResidencyBench(t, ResidencyConfig{})
	tokens := prompt(2)
	b.do(0, stores(names(1), tokens[:4]), stores(names(9), tokens[4:], after(5)))
	b.do(1, stores(names(1, 2), tokens))
	f := func(changes []Change, want string) {
		t.Helper()
		b.server.apply(t, changes)
		b.tiers(2, want)
		if err := b.check(); err != nil {
			t.Error(err)
		}
	}
	f(b.ClearRank(7), "1 1")
	f(b.ClearRank(0), "1 1")
	if s := b.Stats(); s.Orphans != 0 || s.Ranks != 1 {
		t.Errorf("after clearing rank 0: %+v", s)
	}
	f(b.ClearAll(), "- -")
	if diff := cmp.Diff([]Change{{Kind: Clear}}, b.ClearRank(1)); diff != "" {
		t.Errorf("clearing nothing (-want +got):\n%s", diff)
	}
	if s := b.Stats(); s != (Stats{}) {
		t.Errorf("after clearing all: %+v", s)
	}
	b.expect("applied", 0, stores(names(1), tokens[:4]))
}

func TestResidencyNeverTakesAnOrphanForARoot(t *testing.T) {
	b := newResidencyBench(t, ResidencyConfig{})
	tokens := prompt(4)
	b.expect("orphan:unknown_parent", 0, stores(names(3, 4), tokens[8:], after(2)))
	b.expect("orphan:unknown_parent", 0, stores(names(4), nil, on("CPU"))) // its copies count, too
	b.tiers(4, "- - - -")
	b.expect("orphan:unknown_parent", 0, stores(names(2), tokens[4:8], after(1)))
	b.expect("applied", 0, removes(names(3)))
	b.tiers(4, "- - - -")
	b.expect("applied", 0, stores(names(1), tokens[:4]))
	b.tiers(4, "1 1 - -") // 3 is gone, so 4 still waits
	b.expect("applied applied", 0, stores(names(3), tokens[8:12], after(2)), removes(names(4)))
	b.tiers(4, "1 1 1 2")
	_, tally := b.Apply(0, &engine.Batch{Events: []engine.Event{removes(names(9))}})
	if b.Stats().Orphans != 0 || tally.OrphansAttached != 0 {
		t.Errorf("%+v, %+v", b.Stats(), tally)
	}
}

func TestResidencyKnowsABlockWhoseParentIsGone(t *testing.T) {
	b := newResidencyBench(t, ResidencyConfig{})
	tokens := prompt(3)
	b.do(0, stores(names(1, 2), tokens[:8]), removes(names(1)))
	b.expect("applied", 0, stores(names(2, 3), tokens[4:], after(1)))
	b.tiers(3, "- 1 1")
	b.expect("applied", 0, removes(names(2)))
	b.tiers(3, "- 1 1") // it had two copies
}

func TestResidencyBoundsOrphans(t *testing.T) {
	b := newResidencyBench(t, ResidencyConfig{MaxOrphans: 2})
	tokens := prompt(4)
	b.do(0, stores(names(2), tokens[4:8], after(1)), stores(names(3), tokens[8:12], after(2)), stores(names(4), tokens[12:], after(3)))
	if s := b.Stats(); s.Orphans != 2 || s.OrphanLoss != 1 {
		t.Errorf("%+v, want 2 orphans, 1 lost", s)
	}
	b.do(0, stores(names(1, 2), tokens[:8]))
	b.tiers(4, "1 1 1 1")

	b = newResidencyBench(t, ResidencyConfig{})
	large := make([]uint32, maxOrphanTokens/2+4)
	b.do(0, stores(names(2), large, after(1)), stores(names(3), large, after(1)))
	b.do(0, stores(names(4), make([]uint32, maxOrphanTokens+1), after(1)))
	if s := b.Stats(); s.Orphans != 1 || s.OrphanLoss != 2 {
		t.Errorf("%+v, want 1 orphan, 2 lost", s)
	}
}

func TestResidencyKeepsSaltedBlocksApart(t *testing.T) {
	b := newResidencyBench(t, ResidencyConfig{})
	tokens := prompt(4)
	b.expect("orphan:unknown_parent", 0, stores(names(3), tokens[8:12], after(2)))
	b.expect("skipped:separate_space", 0, stores(names(1), tokens[:4], salted))
	// A child that does not repeat the salt is neither a root nor an orphan, and
	// an orphan that waited for it stays apart as well.
	b.expect("skipped:separate_space", 0, stores(names(2), tokens[4:8], after(1)))
	b.expect("skipped:separate_space", 0, stores(names(4), tokens[12:], after(3)))
	if s := b.Stats(); b.Len() != 0 || s.Separate != 4 || s.Orphans != 0 {
		t.Errorf("held %d, %+v; want 0 and 4 separate", b.Len(), s)
	}
	b.expect("skipped:reannounced", 0, stores(names(1, 2), tokens[:8]))
	b.expect("skipped:separate_space", 0, stores(names(1), tokens[:4])) // not even if it forgets the salt
	b.expect("applied applied", 0, removes(names(1, 2, 3, 4)), removes(names(1)))
	if s := b.Stats(); s.Holdings != 0 {
		t.Errorf("%+v, want nothing", s)
	}
	// The same tokens without a salt are another block under another name.
	b.expect("applied skipped:separate_space", 0, stores(names(11, 12), tokens[:8]), stores(names(1), tokens[:4], salted))
	b.tiers(2, "1 1")
	// A plain name that turns out to be salted is taken back.
	b.expect("skipped:separate_space", 0, stores(names(12), tokens[4:8], after(11), salted))
	b.tiers(2, "1 -")
	// A salt on an unknown parent's child settles it at once.
	b.expect("skipped:separate_space", 0, stores(names(21), tokens[4:8], after(20), salted))
	b.expect("orphan:unknown_parent skipped:separate_space", 0,
		stores(names(31), tokens[4:8], after(30)), stores(names(31), tokens[4:8], after(30), salted))
}

func TestResidencySeparatesFromTheFirstImageOn(t *testing.T) {
	b := newResidencyBench(t, ResidencyConfig{})
	tokens := prompt(3)
	image := func(e *engine.Event) { e.FirstString = 5 }
	b.expect("applied", 0, stores(names(1, 2, 3), tokens, image))
	b.tiers(3, "1 - -")
	if s := b.Stats(); s.Separate != 2 {
		t.Errorf("%+v, want 2 separate", s)
	}
}

func TestResidencyFailsClosedOnAdapters(t *testing.T) {
	b := newResidencyBench(t, ResidencyConfig{Adapters: map[int64]string{1: "sql"}})
	tokens := prompt(2)
	b.expect("applied", 0, stores(names(1), tokens[:4], withLoraID(1)))
	b.expect("rejected:unmapped_adapter", 0, stores(names(2), tokens[:4], withLoraID(2)))
	b.expect("applied", 0, stores(names(3), tokens[:4], withLoraID(2), called("chat")))
	b.expect("rejected:adapter_mismatch", 0, stores(names(4), tokens[4:], after(1)))
	b.expect("rejected:adapter_refused", 0, stores(names(5), tokens[:4], called(strings.Repeat("x", maxAdapterName+1))))
	b.expect("applied", 0, stores(names(6), tokens[:4]))
	name := prefixChain(tokens, 4)[0]
	want := replayed{{"sql", name}: kv.T1, {"chat", name}: kv.T1, {"", name}: kv.T1}
	if diff := cmp.Diff(want, b.server); diff != "" {
		t.Errorf("held (-want +got):\n%s", diff)
	}
	b.expect("applied", 0, removes(names(6))) // the base model's only
	delete(want, partitionHash{"", name})
	if diff := cmp.Diff(want, b.server); diff != "" {
		t.Errorf("held (-want +got):\n%s", diff)
	}
	// An orphan of another adapter than its late parent is dropped.
	b.expect("orphan:unknown_parent applied", 0, stores(names(8), tokens[4:], after(7), called("chat")), stores(names(7), tokens[:4]))
	if s := b.Stats(); s.Orphans != 0 || s.OrphanLoss != 1 {
		t.Errorf("%+v, want the orphan lost", s)
	}
}

func TestResidencyBoundsAdapters(t *testing.T) {
	b := NewResidency(ResidencyConfig{})
	tokens := prompt(1)
	store := func(i int) engine.Status {
		_, tally := b.Apply(0, &engine.Batch{Events: []engine.Event{stores(names(uint64(i)), tokens, called(fmt.Sprint(i)))}})
		return tally.Verdicts[0].Status
	}
	for i := range maxAdapters {
		if store(i) != engine.Applied {
			t.Fatalf("adapter %d was refused", i)
		}
	}
	if store(maxAdapters) != engine.Rejected {
		t.Error("one adapter too many was taken")
	}
	b.Apply(0, &engine.Batch{Events: []engine.Event{removes(names(77))}})
	if store(maxAdapters) != engine.Applied {
		t.Error("the place of an adapter without blocks was not used again")
	}
	if err := b.check(); err != nil {
		t.Error(err)
	}
}

func TestResidencyNamesABlockSizeMismatch(t *testing.T) {
	b := newResidencyBench(t, ResidencyConfig{BlockSize: 4})
	tokens := prompt(4)
	b.expect("rejected:block_size_mismatch", 0, stores(names(1), tokens[:8]))
	b.expect("rejected:block_size_mismatch", 0, stores(names(1), tokens[:2]))
	b.expect("applied", 0, stores(names(1), tokens[:4]))
	b.expect("skipped:partial_block", 0, stores(names(2), tokens[4:6], after(1)))
	b.expect("rejected:block_size_mismatch", 0, stores(names(2), tokens[4:12], after(1)))
	b.expect("skipped:secondary_group", 0, stores(names(2), tokens[:8], inGroup(1)))
	zero := stores(names(1), tokens[:4])
	zero.BlockSize = 0
	odd := stores(names(1, 2), tokens[:8])
	odd.Hashes = odd.Hashes[:1]
	b.expect("rejected:zero_block_size skipped:tokens_mismatch", 0, zero, odd)
	b.tiers(2, "1 -")
}

func TestResidencyMixesNoBlockSizes(t *testing.T) {
	b := newResidencyBench(t, ResidencyConfig{})
	tokens := prompt(4)
	b.expect("applied", 0, stores(names(1), tokens[:4]))
	b.expect("skipped:partial_block", 0, stores(names(2), tokens[4:6], after(1)))
	b.expect("rejected:mixed_block_size", 0, stores(names(2), tokens[4:12], after(1)))
	b.expect("orphan:unknown_parent applied", 0, stores(names(4), tokens[8:16], after(3)), stores(names(3), tokens[4:8], after(1)))
	if s := b.Stats(); s.OrphanLoss != 1 {
		t.Errorf("%+v, want the orphan lost", s)
	}
}

func TestResidencyTakesOnlyDenseGroups(t *testing.T) {
	b := newResidencyBench(t, ResidencyConfig{})
	tokens := prompt(4)
	b.expect("applied skipped:secondary_group skipped:secondary_group skipped:secondary_group", 0,
		stores(names(1), tokens[:4], inGroup(0), kindOf("mla_attention")),
		stores(names(1), tokens[:4], inGroup(1), kindOf("mamba")),
		stores(names(1), tokens[:4], inGroup(1)), // known by now
		removes(names(1), inGroup(1)))
	b.tiers(1, "1")

	// Before engines said kinds, the larger blocks are the dense ones.
	b = newResidencyBench(t, ResidencyConfig{})
	b.expect("applied applied skipped:secondary_group", 0,
		stores(names(1, 2), tokens[:8], inGroup(1)),
		stores(names(2), tokens[:8], inGroup(0)),
		stores(names(3, 4), tokens[8:], inGroup(1), after(2)))
	want := replayed{{"", prefixChain(tokens[:8], 8)[0]}: kv.T1}
	if diff := cmp.Diff(want, b.server); diff != "" {
		t.Errorf("held (-want +got):\n%s", diff)
	}
}

func TestResidencyFindsTheGroupOfAnEventWithoutOne(t *testing.T) {
	b := newResidencyBench(t, ResidencyConfig{})
	tokens := prompt(2)
	b.expect("applied", 0, stores(names(1), tokens[:4], inGroup(2)))
	b.expect("applied applied", 0, stores(names(1), nil, on("CPU")), removes(names(1)))
	b.tiers(1, "2")
	b.expect("applied", 0, stores(names(2), tokens[4:], after(1)))
	b.tiers(2, "2 1")
	b.expect("orphan:unknown_parent applied", 0, stores(names(5), tokens[4:], after(4), inGroup(2)), removes(names(5)))
}

func TestResidencyBoundsGroupsAndRanks(t *testing.T) {
	r := NewResidency(ResidencyConfig{})
	store := func(rank, group int) engine.Status {
		_, tally := r.Apply(rank, &engine.Batch{Events: []engine.Event{stores(names(1), prompt(1), inGroup(group))}})
		return tally.Verdicts[0].Status
	}
	for i := range maxGroups {
		if store(i%64, i/64) != engine.Applied {
			t.Fatalf("group %d was refused", i)
		}
	}
	if store(0, maxGroups) != engine.Rejected || store(64, 0) != engine.Rejected {
		t.Error("a group too many was taken")
	}
	for rank := range 1000 {
		r.Apply(100+rank, &engine.Batch{Events: []engine.Event{removes(names(1))}})
	}
	if s := r.Stats(); s.Ranks != 64 {
		t.Errorf("%d ranks are kept, 64 have something", s.Ranks)
	}
	r.ClearRank(0)
	if store(64, 0) != engine.Applied {
		t.Error("the place of a cleared rank's group was not used again")
	}
	if err := r.check(); err != nil {
		t.Error(err)
	}
}

func TestResidencyPlacesTiers(t *testing.T) {
	f := func(medium, locality string, want kv.Tier) {
		t.Helper()
		if got := tierOf(&engine.Event{Medium: medium, Locality: locality}); got != want {
			t.Errorf("tier of %q %q is %v, want %v", medium, locality, got, want)
		}
	}
	for _, medium := range []string{"", "GPU", "gpu", "cuda:0"} {
		f(medium, "", kv.T1)
		f(medium, "LOCAL", kv.T1)
		f(medium, "REMOTE", kv.T3)
	}
	for _, medium := range []string{"CPU", "CPU_PINNED", "CPU_TIER1", "CPU_TIER2", "DISK", "STORAGE", "disk", "device(type='cpu')"} {
		f(medium, "", kv.T2)
		f(medium, "LOCAL", kv.T2)
		f(medium, "REMOTE", kv.T3)
	}
	for _, medium := range []string{"EXTERNAL", "SHARED_STORAGE", "TAPE"} {
		f(medium, "", kv.T3)
	}
	f("GPU", "SOMEWHERE", kv.T3)
}

func TestResidencyAssumesALowerTierUntilOneIsSeen(t *testing.T) {
	b := newResidencyBench(t, ResidencyConfig{HasLowerTier: true})
	tokens := prompt(3)
	b.expect("applied applied", 0, stores(names(1, 2, 3), tokens), removes(names(1, 2)))
	b.tiers(3, "2 2 1")
	b.expect("skipped:no_copy", 0, removes(names(1)))
	b.expect("applied applied", 0, stores(names(1), tokens[:4]), removes(names(1)))
	b.tiers(3, "2 2 1")
	b.do(1, stores(names(2), nil, on("CPU"))) // another rank's stream says nothing of this one
	b.tiers(3, "2 2 1")
	b.expect("applied", 0, stores(names(3), nil, on("CPU")))
	b.tiers(3, "- - 1")
	b.expect("applied", 0, removes(names(3)))
	b.tiers(3, "- - 2")
}

func TestResidencyReplacesANameUsedAgain(t *testing.T) {
	b := newResidencyBench(t, ResidencyConfig{})
	tokens := prompt(2)
	b.expect("applied applied", 0, stores(names(1), tokens[:4]), stores(names(1), tokens[4:]))
	want := replayed{{"", prefixChain(tokens[4:], 4)[0]}: kv.T1}
	if diff := cmp.Diff(want, b.server); diff != "" {
		t.Errorf("held (-want +got):\n%s", diff)
	}
}

func TestResidencyCountsPossibleInvalidations(t *testing.T) {
	b := NewResidency(ResidencyConfig{})
	unknown := made(engine.Unknown, nil, nil)
	unknown.Verdict = engine.Verdict{Status: engine.Skipped, Reason: engine.UnknownTag}
	_, tally := b.Apply(0, &engine.Batch{Events: []engine.Event{
		removes(nil, badlyDecoded), stores(nil, nil, badlyDecoded), unknown, clears(),
	}})
	if tally.Invalidations != 2 || tally.Rejected != 2 || tally.Skipped != 1 || tally.Applied != 1 {
		t.Errorf("%+v", tally)
	}
}

func TestResidencyEvictsTheLeastUseful(t *testing.T) {
	b := newResidencyBench(t, ResidencyConfig{MaxBlocks: 4})
	tokens := prompt(5)
	b.do(0, stores(names(1, 2, 3), tokens[:12]), stores(names(9), prompt(1), salted))
	changes, _ := b.do(0, stores(names(4), tokens[12:16], after(3)))
	b.tiers(5, "1 1 1 1 -")
	if len(changes) != 1 || b.Stats().Separate != 0 {
		t.Errorf("the separate block was not the first to go: %+v", changes)
	}
	b.do(0, stores(names(2), nil, on("CPU")), removes(names(2)))
	b.do(0, stores(names(5), tokens[16:], after(4)))
	b.tiers(5, "1 - 1 1 1")
	_, tally := b.Apply(0, &engine.Batch{Events: []engine.Event{stores(names(8), []uint32{1, 2, 3, 4})}})
	if tally.Evicted != 1 || b.Stats().Evicted != 3 || b.held(b.groups[1], 5) != 0 {
		t.Errorf("the longest prefix was not the one to go: %+v, %+v", tally, b.Stats())
	}
}

func TestResidencyJoinsBothSpellingsOfAHash(t *testing.T) {
	digest := slices.Concat(make([]byte, 24), []byte{0, 0, 0, 0, 0, 0, 0, 7})
	payload := slices.Concat([]byte("\x92\x01\x92\x95\xabBlockStored\x91\xc4\x20"), digest,
		[]byte("\xc0\x92\x01\x02\x02\x92\xacBlockRemoved\x91\x07"))
	doc := Inspect(vllm.Dialect, payload)
	if doc.Error != "" || len(doc.PrefixHashes["event0"]) != 1 || len(doc.Resident) != 0 {
		t.Errorf("got %+v", doc)
	}
}

// TestResidencyIsSmall holds the memory of a full residency against the promise
// of its configuration.
func TestResidencyIsSmall(t *testing.T) {
	const blocks = 100_000
	var before, after runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)
	r := NewResidency(ResidencyConfig{})
	fillResidency(r, blocks)
	runtime.GC()
	runtime.ReadMemStats(&after)
	if r.Len() != blocks {
		t.Fatalf("%d blocks held, want %d", r.Len(), blocks)
	}
	each := float64(after.HeapAlloc-before.HeapAlloc) / blocks
	t.Logf("%.0f bytes a block", each)
	if each > 190 {
		t.Errorf("%.0f bytes a block", each)
	}
	runtime.KeepAlive(r)
}

// fillResidency stores chains of 50 blocks of 16 tokens.
func fillResidency(r *Residency, blocks int) {
	tokens := make([]uint32, 16*50)
	hashes := make([]uint64, 50)
	for n := 0; n < blocks; n += 50 {
		tokens[0] = uint32(n)
		for i := range hashes {
			hashes[i] = uint64(n+i) * 0x9e3779b97f4a7c15
		}
		r.Apply(0, &engine.Batch{Events: []engine.Event{stores(names(hashes...), tokens)}})
	}
}

// BenchmarkResidency decodes and applies a stream of events of one block of 16
// tokens, half stores and half removals, one event a batch.
func BenchmarkResidency(b *testing.B) {
	const window = 4096 // blocks alive
	frames := make([][]byte, 2*window)
	for i := range frames {
		frames[i] = eventFrame(uint64(i/2), i%2 == 1)
	}
	r := NewResidency(ResidencyConfig{BlockSize: 16})
	limits := engine.DefaultLimits()
	b.ReportAllocs()
	n := 0
	for b.Loop() {
		batch, err := engine.Decode(vllm.Dialect, frames[n%len(frames)], limits)
		if err != nil {
			b.Fatal(err)
		}
		r.Apply(0, batch)
		n++
	}
	b.ReportMetric(float64(n)/b.Elapsed().Seconds(), "events/s")
}

// eventFrame is a batch with one map event of vLLM, about block n.
func eventFrame(n uint64, removal bool) []byte {
	be := func(b []byte, n uint64, width int) []byte {
		for i := width - 1; i >= 0; i-- {
			b = append(b, byte(n>>(8*i)))
		}
		return b
	}
	str := func(b []byte, s string) []byte {
		if len(s) > 31 {
			b = append(b, 0xd9, byte(len(s)))
		} else {
			b = append(b, 0xa0|byte(len(s)))
		}
		return append(b, s...)
	}
	b := be([]byte{0x93, 0xcb}, 0x41da85c93c600000, 8)
	hash := be([]byte{0x91, 0xcf}, n*0x9e3779b97f4a7c15, 8)
	if removal {
		b = str(str(append(b, 0x91, 0x84), "type"), "BlockRemoved")
		b = append(str(b, "block_hashes"), hash...)
		b = str(str(b, "medium"), "GPU")
		return append(str(b, "group_idx"), 0, 0)
	}
	b = str(str(append(b, 0x91, 0x89), "type"), "BlockStored")
	b = append(str(b, "block_hashes"), hash...)
	b = append(str(b, "parent_block_hash"), 0xc0)
	b = append(str(b, "token_ids"), 0xdc, 0, 16)
	for i := range uint64(16) {
		b = be(append(b, 0xce), n*16+i+100_000, 4)
	}
	b = append(str(b, "block_size"), 16)
	b = append(str(b, "lora_id"), 0xc0)
	b = str(str(b, "medium"), "GPU")
	b = append(str(b, "group_idx"), 0)
	return append(str(str(b, "kv_cache_spec_kind"), "full_attention"), 0)
}
