package index

import (
	"fmt"
	"math"
	"math/rand/v2"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	gocmp "github.com/google/go-cmp/cmp"

	"inferencecache.io/inferencecache/internal/kv"
)

var (
	t0   = time.UnixMilli(1_700_000_000_000)
	base = kv.Partition{Scope: testScopes[0]}
)

func unbounded() Config { return Config{Defaults: Limits{MaxKeys: -1}} }

// key undoes place.
func (x *Index) key(place uint64) kv.Hash {
	v := (place ^ place>>31 ^ place>>62) * 0x319642b2d24d8ec3
	v = (v ^ v>>27 ^ v>>54) * 0x96de1b173f119089
	v = v ^ v>>30 ^ v>>60
	return kv.Hash(v ^ x.salt)
}

func seconds(n int) time.Time { return t0.Add(time.Duration(n) * time.Second) }

func store(replica string, seen time.Time, keys ...kv.Hash) *Batch {
	return &Batch{Scope: base.Scope, Replica: replica, Seen: seen, Ops: []Op{{Kind: Store, Tier: kv.T1, Keys: keys, Step: 16}}}
}

func with(b *Batch, s kv.Scope) *Batch {
	b.Scope = s
	return b
}

func seq(from, to int) []kv.Hash {
	var keys []kv.Hash
	for i := from; i < to; i++ {
		keys = append(keys, kv.Hash(i))
	}
	return keys
}

// blocks is the length of each run, as "replica:blocks".
func blocks(x *Index, now time.Time, p kv.Partition, keys ...kv.Hash) string {
	var s Scratch
	var list []string
	for _, r := range x.Lookup(&s, now, p, keys) {
		list = append(list, fmt.Sprint(r.Replica, ":", r.Blocks))
	}
	slices.Sort(list)
	return strings.Join(list, " ")
}

func check(t *testing.T, x *Index) {
	t.Helper()
	if err := x.Check(); err != nil {
		t.Fatal(err)
	}
}

func equal(t *testing.T, what string, got, want any) {
	t.Helper()
	if d := gocmp.Diff(want, got); d != "" {
		t.Fatalf("%s (-want +got):\n%s", what, d)
	}
}

func TestLookupStopsAtHoleAndReportsColdestAndOldest(t *testing.T) {
	x := New(unbounded())
	x.Apply(seconds(9), store("r", seconds(1), seq(1, 6)...))
	x.Apply(seconds(9), &Batch{Scope: base.Scope, Replica: "r", Seen: seconds(2), Ops: []Op{
		{Kind: Store, Tier: kv.T2, Keys: seq(2, 3), Tokens: 16, Step: 16},
		{Kind: Remove, Keys: seq(4, 5)},
	}})
	var s Scratch
	got := x.Lookup(&s, seconds(9), base, seq(1, 6))
	equal(t, "runs", got, []Run{{Replica: "r", Blocks: 3, Warm: [2]int{1, 3}, Tier: kv.T2, Seen: seconds(1), Tokens: 48}})
}

func TestKeyOfOtherLengthIsOfThisIndexAlone(t *testing.T) {
	x, y := New(Config{}), New(Config{})
	equal(t, "8 bytes", x.Key([]byte{0, 0, 0, 0, 0, 0, 1, 2}), kv.Hash(258))
	long := []byte("a block hash of 32 bytes or more")
	if x.Key(long) != x.Key(long) || x.Key(long) == y.Key(long) {
		t.Error("a long key is not hashed with a secret of the index")
	}
	defer func() {
		if r := recover(); r == nil {
			t.Error("empty key accepted")
		}
	}()
	x.Key(nil)
}

func TestPlaceIsBijective(t *testing.T) {
	x := New(Config{})
	for range 1000 {
		k := kv.Hash(rand.Uint64())
		if got := x.key(x.place(k)); got != k {
			t.Fatalf("key %s comes back as %s", k, got)
		}
	}
}

func TestQuotaTakesTailOfOldestChain(t *testing.T) {
	x := New(unbounded())
	x.SetLimits(Limits{MaxKeys: 8}, nil)
	x.Apply(t0, store("r", t0, seq(1, 5)...))
	x.Apply(t0, with(store("r", t0, seq(11, 15)...), testScopes[1]))
	out := x.Apply(seconds(1), store("r", seconds(1), 21))
	// Keys 4 and 14 are as old and as deep; the first scheme goes first.
	equal(t, "evicted", out.Evicted, []Eviction{{Tenant: "a", Reason: OverKeys, Entries: 1, Keys: 1}})
	equal(t, "first chain", blocks(x, seconds(1), base, seq(1, 5)...), "r:3")
	equal(t, "second chain", blocks(x, seconds(1), kv.Partition{Scope: testScopes[1]}, seq(11, 15)...), "r:4")
	equal(t, "new chain", blocks(x, seconds(1), base, 21), "r:1")
	check(t, x)
}

func TestLargeQuotaEndsExactly(t *testing.T) {
	x := New(unbounded())
	x.SetLimits(Limits{MaxKeys: 5000}, nil)
	for i := range 20 {
		x.Apply(seconds(i), store("r", seconds(i), seq(1000*i, 1000*i+1000)...))
	}
	equal(t, "keys", x.Counts().Keys, int64(5000))
	var s Scratch
	if runs := x.Lookup(&s, seconds(20), base, seq(19_000, 19_500)); len(runs) == 0 || runs[0].Blocks < 400 {
		t.Errorf("newest chain was evicted: %v", runs)
	}
	check(t, x)
}

func TestLFUKeepsOldHotEntry(t *testing.T) {
	for _, lfu := range []bool{true, false} {
		x := New(Config{MaxEntries: 2, Defaults: Limits{MaxKeys: -1, LFU: lfu}})
		x.Apply(t0, store("r", t0, 1))
		x.Credit(base, "r", []kv.Hash{1})
		x.Apply(seconds(1), store("r", seconds(1), 2))
		out := x.Apply(seconds(2), store("r", seconds(2), 3))
		want := map[bool]string{true: "r:1", false: ""}[lfu]
		equal(t, "hot entry", blocks(x, seconds(2), base, 1), want)
		equal(t, "evicted", out.Evicted, []Eviction{{Tenant: "a", LFU: lfu, Reason: OverCap, Entries: 1, Keys: 1}})
	}
}

func TestProbeTenantIsOutsideOfCountsAndCaps(t *testing.T) {
	probe := kv.Partition{Scope: kv.Scope{Tenant: kv.ProbeTenant, Model: "m", Scheme: "s"}}
	x := New(Config{MaxEntries: 3, Defaults: Limits{MaxKeys: 3}})
	x.Apply(t0, with(store("r", t0, seq(1, 11)...), probe.Scope))
	equal(t, "lookup", blocks(x, t0, probe, seq(1, 11)...), "r:10")
	equal(t, "miss elsewhere", x.Miss(base.Scope), Empty)
	equal(t, "miss", x.Miss(probe.Scope), KnownScope)
	c := x.Counts()
	equal(t, "keys", c.Keys, int64(0))
	equal(t, "entries", c.Entries, int64(0))
	equal(t, "lists", len(x.Replicas())+len(x.Tenants())+len(x.Models()), 0)
	out := x.Apply(seconds(1), store("r", seconds(1), seq(1, 6)...))
	equal(t, "evicted", out.Evicted, []Eviction{{Tenant: "a", Reason: OverKeys, Entries: 2, Keys: 2}})
	equal(t, "lookup", blocks(x, seconds(1), probe, seq(1, 11)...), "r:10")
	out = x.Sweep(t0.Add(DefaultTTL), math.MaxInt)
	equal(t, "expired", out.Evicted, []Eviction{{Tenant: kv.ProbeTenant, Reason: Expired, Entries: 10, Keys: 10}})
	check(t, x)
}

func TestLateClearKeepsNewerAdds(t *testing.T) {
	x := New(unbounded())
	x.Apply(seconds(9), store("r", seconds(1), 1, 2, 3))
	x.Apply(seconds(9), store("r", seconds(5), 1, 2))
	x.Clear(seconds(9), "a", "m", "r", seconds(3))
	equal(t, "after a late clear", blocks(x, seconds(9), base, 1, 2, 3), "r:2")
	out := x.Apply(seconds(9), store("r", seconds(2), 3))
	equal(t, "older than the clear", out, Applied{Stale: 1})
	out = x.Apply(seconds(9), store("r", seconds(3), 3))
	equal(t, "as old as the clear", out, Applied{Added: 1})
	equal(t, "stored again", blocks(x, seconds(9), base, 1, 2, 3), "r:3")
	x.Clear(seconds(9), "a", "m", "r", seconds(3))
	equal(t, "cleared again", blocks(x, seconds(9), base, 1, 2, 3), "r:2")
	x.Sweep(seconds(9), math.MaxInt)
	equal(t, "entries", x.Counts().Entries, int64(2))
	check(t, x)
}

func TestClearOnTimeIsRememberedBeyondTheReplica(t *testing.T) {
	x := New(unbounded())
	x.Apply(seconds(9), store("r", seconds(1), 1, 2))
	x.Clear(seconds(9), "a", "m", "r", seconds(3))
	equal(t, "entries", x.Counts().Entries, int64(0))
	equal(t, "miss", x.Miss(base.Scope), Empty)
	equal(t, "older", x.Apply(seconds(9), store("r", seconds(2), 1)), Applied{Stale: 1})
	equal(t, "newer", x.Apply(seconds(9), store("r", seconds(4), 1)), Applied{Added: 1})
	check(t, x)
}

func TestOrdinalIsReusedOnlyBehindAFullPass(t *testing.T) {
	x := New(unbounded())
	x.Apply(t0, store("old", t0, seq(1, 100)...))
	x.Apply(t0, store("stays", t0, 1))
	x.Sweep(t0, 10) // a pass is under way
	x.Kill("a", "old")
	s := x.scope(base.Scope)
	x.Sweep(t0, math.MaxInt)
	x.Apply(t0, store("second", t0, 1))
	equal(t, "ordinals before a full pass", len(s.ords), 3)
	x.Sweep(t0, math.MaxInt)
	x.Apply(t0, store("third", t0, 1))
	equal(t, "ordinals behind a full pass", len(s.ords), 3)
	equal(t, "lookup", blocks(x, t0, base, 1, 2), "second:1 stays:1 third:1")
	equal(t, "reused", s.reused.Load(), uint64(1))
	check(t, x)
}

func TestScopeTakes4096Replicas(t *testing.T) {
	x := New(unbounded())
	for i := range maxReplicas {
		out := x.Apply(t0, store(fmt.Sprintf("r%04d", i), t0, seq(1, 2+i%3)...))
		equal(t, "refused", out.Refused, 0)
	}
	equal(t, "one more", x.Apply(t0, store("more", t0, 1, 2)), Applied{Refused: 2})
	equal(t, "members", len(x.Members(base.Scope)), maxReplicas)
	var s Scratch
	runs := x.Lookup(&s, t0, base, seq(1, 5))
	equal(t, "runs", len(runs), maxReplicas)
	check(t, x)
	x.Kill("a", "r0007")
	equal(t, "in its place", x.Apply(t0, store("more", t0, 1, 2)), Applied{Added: 2})
	check(t, x)
}

func TestMemoryIsGivenBack(t *testing.T) {
	x := New(unbounded())
	for i := range 3 {
		x.Apply(t0, store(fmt.Sprint("r", i), t0, seq(1, 24_000)...))
	}
	full := x.Counts().Bytes
	for i := range 3 {
		x.Apply(t0, &Batch{Scope: base.Scope, Replica: fmt.Sprint("r", i), Seen: t0, Ops: []Op{{Kind: Remove, Keys: seq(1, 22_000)}}})
	}
	check(t, x)
	if left := x.Counts().Bytes; left > full/5 {
		t.Errorf("%d of %d bytes left with a twelfth of the entries", left, full)
	}
	x.Kill("a", "r0")
	x.Sweep(t0.Add(DefaultTTL), math.MaxInt)
	check(t, x)
	equal(t, "counts", x.Counts(), Counts{})
	x.Sweep(t0.Add(2*DefaultTTL), math.MaxInt)
	equal(t, "tenants", len(x.tenants), 0)
}

func TestStoreOfManyPartitionsKeepsTheBudget(t *testing.T) {
	const budget = 300_000
	x := New(Config{MemoryBytes: budget, Defaults: Limits{MaxKeys: -1}})
	for i := range 2000 {
		at := t0.Add(time.Duration(i) * time.Millisecond)
		b := store("r", at, kv.Hash(i))
		b.Ops[0].Adapter = fmt.Sprint(i)
		if out := x.Apply(at, b); out.Refused > 0 {
			t.Fatalf("store %d refused: %+v", i, out)
		}
	}
	check(t, x)
	p := base
	p.Adapter = "1999"
	equal(t, "last", blocks(x, seconds(2), p, 1999), "r:1")
}

func TestNewTenantFindsRoomAtTheBudget(t *testing.T) {
	x := New(Config{MemoryBytes: 1 << 20, Defaults: Limits{MaxKeys: -1}})
	for i := range 100 {
		x.Apply(seconds(i), store("r", seconds(i), seq(1000*i, 1000*i+1000)...))
	}
	check(t, x)
	equal(t, "refused", x.Apply(seconds(100), with(store("r", seconds(100), seq(1, 2000)...), testScopes[3])).Refused, 0)
	check(t, x)
	equal(t, "lookup", blocks(x, seconds(100), kv.Partition{Scope: testScopes[3]}, seq(1, 2000)...), "r:1999")
	if n := x.Counts().Entries; n < 20_000 {
		t.Errorf("only %d entries in 1 MiB", n)
	}
}

func TestIdleTenantMakesRoomForABusyOne(t *testing.T) {
	x := New(Config{MemoryBytes: 4 << 20, Defaults: Limits{MaxKeys: -1}})
	idle, busy := testScopes[3], testScopes[0]
	held := func(s kv.Scope, now time.Time, from, to int) (n int) {
		var scratch Scratch
		for ; from < to; from += 500 {
			for _, r := range x.Lookup(&scratch, now, kv.Partition{Scope: s}, seq(from, from+500)) {
				n += r.Blocks
			}
		}
		return n
	}
	for i := range 100 {
		x.Apply(t0, with(store("r", t0, seq(500*i, 500*i+500)...), idle))
	}
	old := held(idle, t0, 0, 50_000)
	if old < 45_000 {
		t.Fatalf("only %d entries held before", old)
	}
	for i := range 400 {
		now := seconds(i + 1)
		if i%8 == 0 {
			x.Apply(now, with(store("r", now, seq(1_000_000, 1_050_000)...), busy)) // again and again
		}
		x.Apply(now, with(store("r", now, seq(2_000_000+500*i, 2_000_500+500*i)...), busy))
	}
	now := seconds(401)
	if left := held(idle, now, 0, 50_000); left > old/10 {
		t.Errorf("%d of %d idle entries left", left, old)
	}
	if hot := held(busy, now, 1_000_000, 1_050_000); hot < 47_000 {
		t.Errorf("%d of 50,000 busy entries held", hot)
	}
	check(t, x)
}

func TestBudgetOfNothingRefuses(t *testing.T) {
	x := New(Config{MemoryBytes: 100, Defaults: Limits{MaxKeys: -1}})
	equal(t, "applied", x.Apply(t0, store("r", t0, 1, 2)), Applied{Refused: 2})
	check(t, x)
}

// A table splits, its arena holds blocks of all sizes and both forms, and
// places crowd where chance would never put them.
func TestTablesUnderCrowding(t *testing.T) {
	r := rand.New(rand.NewPCG(rand.Uint64(), 0))
	p := newPair(t, r, unbounded(), nil)
	places := []func() uint64{
		func() uint64 { return r.Uint64() >> 4 },
		func() uint64 { return r.Uint64() >> 14 },
		func() uint64 { return r.Uint64() | 0xfff<<52 },
		func() uint64 { return math.MaxUint64 - r.Uint64()>>14 },
	}
	var keys []kv.Hash
	for i := range 24_000 {
		keys = append(keys, p.x.key(places[i%len(places)]()))
	}
	for i := range 60 {
		replica := fmt.Sprint("r", i%40)
		from := r.IntN(len(keys) - 2000)
		some := keys[from : from+r.IntN(2000)]
		b := store(replica, p.time(), some...)
		if i%5 == 4 {
			b.Ops[0].Kind = Remove
		}
		b.Ops[0].Step = int32(i % 3 / 2)
		equal(t, "applied", p.x.Apply(p.time(), b), p.o.apply(p.now, b))
		if i%20 == 19 {
			p.check()
		}
	}
	for range 40 {
		p.x.Kill("a", fmt.Sprint("r", r.IntN(40)))
	}
	p.x.Sweep(p.time(), math.MaxInt)
	if err := p.x.Check(); err != nil {
		t.Fatal(err)
	}
}

func TestReadersBesideWriters(t *testing.T) {
	x := New(Config{MemoryBytes: 1 << 20, MaxEntries: 20_000, Defaults: Limits{MaxKeys: 15_000, TTL: time.Minute}})
	var readers, writers sync.WaitGroup
	stop := make(chan struct{})
	for i := range 2 {
		readers.Go(func() {
			var s Scratch
			for n := i; ; n++ {
				select {
				case <-stop:
					return
				default:
				}
				from := n * 97 % 9000
				for _, run := range x.Lookup(&s, seconds(n%50), base, seq(from, from+300)) {
					if run.Blocks < 1 || run.Blocks > 300 || run.Tokens != int32(16*run.Blocks) && run.Tokens <= 0 {
						panic(fmt.Sprint("impossible run ", run))
					}
				}
				x.Members(base.Scope)
				x.Miss(base.Scope)
				x.Counts()
				x.Replicas()
				x.Models()
			}
		})
		writers.Go(func() {
			r := rand.New(rand.NewPCG(uint64(i), 0))
			for n := range 120 {
				now, replica := seconds(n), fmt.Sprint("r", r.IntN(5))
				from := r.IntN(9000)
				x.Apply(now, store(replica, now, seq(from, from+500)...))
				switch r.IntN(6) {
				case 0:
					x.Clear(now, "a", "m", replica, seconds(n-r.IntN(3)))
				case 1:
					x.Kill("a", replica)
				case 2:
					x.Remove(now, "a", "m", replica, "", kv.Hash(from), now)
				case 3:
					x.Credit(base, replica, seq(from, from+50))
				case 4:
					x.Apply(now, with(store(replica, now, seq(from, from+100)...), testScopes[3]))
				}
				x.Sweep(now, 2000)
			}
		})
	}
	writers.Wait()
	close(stop)
	readers.Wait()
	check(t, x)
	x.Sweep(seconds(1000), math.MaxInt)
	x.Sweep(seconds(1000), math.MaxInt)
	check(t, x)
	equal(t, "counts", x.Counts(), Counts{})
}

func TestLookupDoesNotAllocate(t *testing.T) {
	x := New(unbounded())
	for i := range 8 {
		x.Apply(t0, store(fmt.Sprint("r", i), t0, seq(0, 2000-100*i)...))
	}
	keys := seq(0, 2000)
	var s Scratch
	if n := testing.AllocsPerRun(50, func() { x.Lookup(&s, t0, base, keys) }); n != 0 {
		t.Errorf("%v allocations a lookup", n)
	}
}

func TestMembersAreSharedWhileUnchanged(t *testing.T) {
	x := New(unbounded())
	x.Apply(t0, store("b", t0, 1))
	x.Apply(t0, store("a", t0, 1))
	first := x.Members(base.Scope)
	equal(t, "members", first, []string{"a", "b"})
	x.Apply(t0, store("a", t0, 2))
	if n := testing.AllocsPerRun(10, func() { x.Members(base.Scope) }); n != 0 {
		t.Errorf("%v allocations for the same members", n)
	}
	x.Kill("a", "b")
	equal(t, "members", x.Members(base.Scope), []string{"a"})
}

func TestCollectorSeesNoEntries(t *testing.T) {
	objects := func() int {
		var m runtime.MemStats
		runtime.GC()
		runtime.GC()
		runtime.ReadMemStats(&m)
		return int(m.HeapObjects)
	}
	empty := objects()
	x := New(unbounded())
	for from := 0; from < 400_000; from += 1000 {
		x.Apply(t0, store("r", t0, seq(from, from+1000)...))
	}
	if n := objects() - empty; n > 300 {
		t.Errorf("%d objects for 400,000 entries", n)
	}
	runtime.KeepAlive(x)
}
