package index

import (
	"testing"
	"time"

	"inferencecache.io/inferencecache/internal/kv"
)

// vouchRig is an index in which r holds a chain of three keys since start.
func vouchRig(t *testing.T) (x *Index, start time.Time, ask func(now time.Time) []Run) {
	t.Helper()
	x = New(Config{Defaults: Limits{TTL: time.Hour, MaxKeys: -1}})
	start = time.UnixMilli(1_700_000_000_000)
	x.Apply(start, &Batch{Scope: testScopes[0], Replica: "r", Seen: start,
		Ops: []Op{{Kind: Store, Tier: kv.T1, Keys: []kv.Hash{1, 2, 3}, Step: 16}}})
	var scratch Scratch
	return x, start, func(now time.Time) []Run {
		t.Helper()
		if err := x.Check(); err != nil {
			t.Fatal(err)
		}
		return x.Lookup(&scratch, now, kv.Partition{Scope: testScopes[0]}, []kv.Hash{1, 2, 3})
	}
}

func TestVouchedHoldersAgeFromTheVouch(t *testing.T) {
	t.Parallel()
	x, start, ask := vouchRig(t)
	vouch := start.Add(50 * time.Minute)
	x.Vouch(vouch, testScopes[0], "r", vouch)
	x.Vouch(vouch, testScopes[0], "r", start)      // an older one changes nothing
	x.Vouch(vouch, testScopes[0], "nobody", vouch) // nor does one of a stranger
	x.Vouch(vouch, testScopes[3], "r", vouch)
	later := vouch.Add(59 * time.Minute)
	x.Sweep(later, 1<<20)
	if runs := ask(later); len(runs) != 1 || runs[0].Blocks != 3 || !runs[0].Seen.Equal(vouch) {
		t.Errorf("%+v, want a run of 3 seen at %v", runs, vouch)
	}
	if r := x.Replicas(); len(r) != 1 || !r[0].Last.Equal(vouch) {
		t.Errorf("%+v, want r last heard of at %v", r, vouch)
	}
	later = vouch.Add(time.Hour)
	if runs := ask(later); len(runs) != 0 {
		t.Errorf("an hour after the vouch: %+v", runs)
	}
	if out := x.Sweep(later, 1<<20); len(out.Evicted) != 1 || out.Evicted[0].Entries != 3 {
		t.Errorf("swept %+v", out)
	}
}

func TestLateClearHidesVouchedHoldersByTheirStamps(t *testing.T) {
	t.Parallel()
	x, start, ask := vouchRig(t)
	vouch := start.Add(10 * time.Minute)
	x.Vouch(vouch, testScopes[0], "r", vouch)
	x.Apply(vouch, &Batch{Scope: testScopes[0], Replica: "r", Seen: start, Ops: []Op{{Kind: Clear}}})
	if runs := ask(vouch); len(runs) != 0 {
		t.Errorf("after a clear of the time of the store: %+v", runs)
	}
	x.Sweep(vouch, 1<<20)
	if c := x.Counts(); c.Entries != 0 {
		t.Errorf("%d entries", c.Entries)
	}
	// The vouch is newer than the clear: it goes on for what came in between.
	between := start.Add(time.Minute)
	x.Apply(vouch, &Batch{Scope: testScopes[0], Replica: "r", Seen: between,
		Ops: []Op{{Kind: Store, Tier: kv.T1, Keys: []kv.Hash{1}, Step: 16}}})
	if runs := ask(between.Add(time.Hour)); len(runs) != 1 || !runs[0].Seen.Equal(vouch) {
		t.Errorf("stored between clear and vouch: %+v", runs)
	}
}

// What is vouched for goes behind what has expired, however old its stamp.
func TestEvictionSparesVouchedHolders(t *testing.T) {
	t.Parallel()
	for name, config := range map[string]Config{
		"entries": {MaxEntries: 4, Defaults: Limits{TTL: time.Hour, MaxKeys: -1}},
		"keys":    {Defaults: Limits{TTL: time.Hour, MaxKeys: 4}},
	} {
		x := New(config)
		now := time.UnixMilli(1_700_000_000_000)
		store := func(replica string, keys ...kv.Hash) Applied {
			return x.Apply(now, &Batch{Scope: testScopes[0], Replica: replica, Seen: now,
				Ops: []Op{{Kind: Store, Tier: kv.T1, Keys: keys, Step: 16}}})
		}
		store("vouched", 1, 2)
		now = now.Add(time.Minute)
		store("gone", 11, 12)
		now = now.Add(50 * time.Minute)
		x.Vouch(now, testScopes[0], "vouched", now)
		now = now.Add(50 * time.Minute)
		store("new", 21, 22)
		var scratch Scratch
		if runs := x.Lookup(&scratch, now, kv.Partition{Scope: testScopes[0]}, []kv.Hash{1, 2}); len(runs) != 1 || runs[0].Blocks != 2 {
			t.Errorf("%s: of what is vouched for is left %+v", name, runs)
		}
	}
}

func TestClearEndsVouch(t *testing.T) {
	t.Parallel()
	x, start, ask := vouchRig(t)
	vouch := start.Add(10 * time.Minute)
	x.Vouch(vouch, testScopes[0], "r", vouch)
	x.Apply(vouch, &Batch{Scope: testScopes[0], Replica: "r", Seen: vouch, Ops: []Op{{Kind: Clear}}})
	if c := x.Counts(); c.Entries != 0 {
		t.Errorf("%d entries at once", c.Entries)
	}
	if runs := ask(vouch); len(runs) != 0 {
		t.Errorf("%+v", runs)
	}
}

// Stamps have 32 bits, enough for 24 days either way.
func TestVouchedHolderOutlivesTheRangeOfStamps(t *testing.T) {
	t.Parallel()
	x, start, ask := vouchRig(t)
	now := start
	for range 4 * 35 { // beyond 50 days a stamp looks right again
		now = now.Add(6 * time.Hour)
		x.Vouch(now, testScopes[0], "r", now)
		x.Sweep(now, 1<<20)
		if runs := ask(now); len(runs) != 1 || runs[0].Blocks != 3 {
			t.Fatalf("after %v: %+v", now.Sub(start), runs)
		}
	}
	out := x.Apply(now, &Batch{Scope: testScopes[0], Replica: "r", Seen: now,
		Ops: []Op{{Kind: Remove, Keys: []kv.Hash{1, 2, 3}}}})
	if out.Removed != 3 {
		t.Errorf("removal of them: %+v", out)
	}
}
