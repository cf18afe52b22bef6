package index

import (
	"cmp"
	"fmt"
	"maps"
	"math"
	"math/rand/v2"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	gocmp "github.com/google/go-cmp/cmp"

	"inferencecache.io/inferencecache/internal/kv"
)

// each shows all entries that count.
func (x *Index) each(show func(oracleKey, string, held)) {
	now := x.lastTick()
	for i := 0; ; i++ {
		p := x.list.at(i)
		if p == nil {
			return
		}
		key := oracleKey{Partition: kv.Partition{Scope: p.scope.Scope, Adapter: p.adapter}}
		p.scan(0, math.MaxInt, func(r ref) {
			g := x.heap.segment(r)
			l := x.heap.spans(g)
			for i := range l.len() {
				sp := l.at(i)
				o := p.scope.ords[ordOf(sp.who)]
				seen := full(now, seenOf(sp.who))
				if o.dead || seen <= o.mark {
					continue
				}
				for off := sp.from(); off < sp.to(); off++ {
					key.key = kv.Hash(g.keys()[off])
					show(key, o.id, held{seen, tierOf(sp.who), sp.tokens(off), useOf(sp.who)})
				}
			}
		})
	}
}

// dump reads all entries that count out of the index.
func (x *Index) dump() map[oracleKey]map[string]held {
	all := map[oracleKey]map[string]held{}
	x.each(func(key oracleKey, replica string, e held) {
		if all[key] == nil {
			all[key] = map[string]held{}
		}
		all[key][replica] = e
	})
	return all
}

// lastTick is a time near all stamps of the index.
func (x *Index) lastTick() tick {
	last := tick(0)
	for _, t := range x.all() {
		for _, s := range t.scopes {
			for _, o := range s.ords {
				last = max(last, o.newest.Load())
			}
		}
	}
	return last
}

// knows says whether the index has an ordinal for a replica.
func (x *Index) knows(name kv.Scope, replica string) bool {
	s := x.scope(name)
	if s == nil {
		return false
	}
	_, ok := s.byID[replica]
	return ok
}

// near lets stamps differ by the ticks that stores after late clears are lifted.
var near = gocmp.Options{
	gocmp.AllowUnexported(held{}, oracleKey{}),
	gocmp.Comparer(func(a, b tick) bool { return a-b <= 3 && b-a <= 3 }),
	gocmp.Comparer(func(a, b time.Time) bool { return a.Sub(b).Abs() <= 3*time.Millisecond }),
}

// pair is an index and an oracle that live through the same.
type pair struct {
	t       testing.TB
	rand    *rand.Rand
	seed    uint64
	x       *Index
	o       *oracle
	now     tick
	scratch Scratch
	marks   bool // entries may be hidden, not yet counted out
	dead    bool // keys may be counted that nobody holds
	log     []func() string
}

func newPair(t testing.TB, r *rand.Rand, c Config, limits map[string]Limits) *pair {
	p := &pair{t: t, rand: r, x: New(c), now: 1_700_000_000_000 + tick(r.IntN(1000))*10_000_000}
	p.x.SetLimits(c.Defaults, limits)
	p.o = &oracle{
		config: c, limits: limits,
		entries: map[oracleKey]map[string]held{},
		clears:  map[oracleReplica]tick{},
		vouches: map[oracleReplica]tick{},
		exists:  func(s kv.Scope) bool { return p.x.scope(s) != nil },
		known:   func(s kv.Scope, replica string) bool { return p.x.knows(s, replica) },
	}
	return p
}

func (p *pair) time() time.Time { return time.UnixMilli(p.now) }

func (p *pair) logf(format string, args ...any) {
	p.log = append(p.log, func() string { return fmt.Sprintf(format, args...) })
}

func (p *pair) fatal(format string, args ...any) {
	p.t.Helper()
	for _, line := range p.log[max(0, len(p.log)-12):] {
		p.t.Log(line())
	}
	p.t.Logf("seed %d", p.seed)
	p.t.Fatalf(format, args...)
}

func (p *pair) diff(what string, got, want any) {
	p.t.Helper()
	if reflect.DeepEqual(got, want) {
		return
	}
	if d := gocmp.Diff(want, got, near); d != "" {
		p.fatal("%s (-want +got):\n%s", what, d)
	}
}

func (p *pair) apply(b *Batch) {
	p.t.Helper()
	p.logf("apply %+v at %d (now %d)", *b, ticks(b.Seen), p.now)
	for _, op := range b.Ops {
		if op.Kind == Clear {
			p.marks, p.dead = true, true
		}
	}
	want := p.o.apply(p.now, b)
	got := p.x.Apply(p.time(), b)
	if p.x.config.MemoryBytes > 0 {
		p.adopt(&got, OverCap)
		// Nobody can say what had to go before which step.
		got = Applied{Removed: got.Removed + got.Unknown}
		want = Applied{Removed: want.Removed + want.Unknown}
	}
	for _, e := range [][]Eviction{got.Evicted, want.Evicted} {
		slices.SortFunc(e, func(a, b Eviction) int {
			return cmp.Or(strings.Compare(a.Tenant, b.Tenant), cmp.Compare(a.Reason, b.Reason))
		})
	}
	p.diff("applied", got, want)
	p.check()
}

// adopt lets the oracle lose what the index chose to evict or refuse, after making sure
// that it had been there.
func (p *pair) adopt(got *Applied, r Reason) {
	p.t.Helper()
	lost, evicted := 0, 0
	dump := p.x.dump()
	for key, holders := range p.o.entries {
		for replica, e := range holders {
			if _, ok := dump[key][replica]; ok {
				continue
			}
			if r == Expired && e.seen > p.o.expiredOf(p.now, key.Scope, replica) {
				p.fatal("a live entry was swept: %v %v", key, e)
			}
			lost++
			p.o.drop(key, replica)
		}
	}
	for _, e := range got.Evicted {
		evicted += e.Entries
	}
	// An entry may be evicted within the batch that adds or re-adds it.
	if r == Expired && evicted != lost || lost > evicted+got.Refused {
		p.fatal("%d entries are gone, %d were evicted and %d refused", lost, evicted, got.Refused)
	}
}

func (p *pair) sweep(slots int) {
	p.t.Helper()
	p.logf("sweep %d (now %d)", slots, p.now)
	got := p.x.Sweep(p.time(), slots)
	p.adopt(&got, Expired)
	if slots >= math.MaxInt32 {
		got = p.x.Sweep(p.time(), slots) // the first may only have ended a pass
		p.adopt(&got, Expired)
		if n := p.o.sweep(p.now); n != 0 {
			p.fatal("%d expired entries survived a sweep", n)
		}
		p.marks, p.dead = false, false
	}
	p.check()
}

// same says whether index and oracle hold the same entries.
func (p *pair) same() bool {
	n, same := 0, true
	p.x.each(func(key oracleKey, replica string, got held) {
		want, ok := p.o.entries[key][replica]
		if want.seen-got.seen <= 3 && got.seen-want.seen <= 3 {
			got.seen = want.seen
		}
		same = same && ok && got == want
		n++
	})
	for _, holders := range p.o.entries {
		n -= len(holders)
	}
	return same && n == 0
}

// check compares all that can be asked without keys.
func (p *pair) check() {
	p.t.Helper()
	if err := p.x.Check(); err != nil {
		p.fatal("check: %v", err)
	}
	if !p.same() {
		p.diff("entries", p.x.dump(), p.o.entries)
	}
	p.counts()
}

func (p *pair) counts() {
	p.t.Helper()
	type model struct{ tenant, model string }
	live := int64(0)
	keys := map[string]int64{}
	models := map[model]int64{}
	members := map[kv.Scope]map[string]bool{}
	replicas := map[ReplicaCount]int64{}
	for _, s := range testScopes {
		members[s] = map[string]bool{}
	}
	for key, holders := range p.o.entries {
		models[model{key.Tenant, key.Model}]++
		for replica := range holders {
			members[key.Scope][replica] = true
		}
		if key.Tenant == kv.ProbeTenant {
			continue
		}
		keys[key.Tenant]++
		live += int64(len(holders))
		for replica := range holders {
			replicas[ReplicaCount{Tenant: key.Tenant, Model: key.Model, Replica: replica}]++
		}
	}
	c := p.x.Counts()
	if c.Entries < live || !p.marks && c.Entries != live {
		p.fatal("%d entries, want %d", c.Entries, live)
	}
	if max := p.x.config.MaxEntries; max > 0 && c.Entries > max {
		p.fatal("%d entries over the cap of %d", c.Entries, max)
	}
	sum := int64(0)
	for _, n := range keys {
		sum += n
	}
	if c.Keys < sum || !p.dead && c.Keys != sum {
		p.fatal("%d keys, want %d", c.Keys, sum)
	}
	for m, n := range models {
		if got := p.x.Keys(m.tenant, m.model); got < n || !p.dead && got != n {
			p.fatal("%d keys of %v, want %d", got, m, n)
		}
	}
	for _, s := range testScopes {
		want := slices.Sorted(maps.Keys(members[s]))
		got := p.x.Members(s)
		if !p.marks {
			p.diff(fmt.Sprintf("members of %v", s), got, want)
		}
		miss := UnknownTenant
		tenant, mod := false, false
		for m := range models {
			tenant = tenant || m.tenant == s.Tenant
			mod = mod || m == model{s.Tenant, s.Model}
		}
		switch {
		case len(want) > 0:
			miss = KnownScope
		case mod:
			miss = UnknownScheme
		case tenant:
			miss = UnknownModel
		case live == 0:
			miss = Empty
		}
		if got := p.x.Miss(s); !p.marks && got != miss {
			p.fatal("miss of %v is %d, want %d", s, got, miss)
		}
	}
	if p.marks {
		return
	}
	got := map[ReplicaCount]int64{}
	for _, r := range p.x.Replicas() {
		got[ReplicaCount{Tenant: r.Tenant, Model: r.Model, Replica: r.Replica}] = r.Entries
	}
	p.diff("replicas", got, replicas)
	if !p.dead {
		tenants := map[string]int64{}
		for _, t := range p.x.Tenants() {
			tenants[t.Tenant] = t.Keys
		}
		p.diff("tenants", tenants, keys)
	}
}

func (p *pair) vouch(s kv.Scope, replica string, at tick) {
	p.t.Helper()
	p.logf("vouch %v %s at %d (now %d)", s, replica, at, p.now)
	p.o.vouch(s, replica, min(at, p.now))
	p.x.Vouch(p.time(), s, replica, time.UnixMilli(at))
	p.check()
}

func (p *pair) lookup(part kv.Partition, keys []kv.Hash) {
	p.t.Helper()
	sorted := func(runs []Run) []Run {
		runs = slices.Clone(runs)
		slices.SortFunc(runs, func(a, b Run) int { return strings.Compare(a.Replica, b.Replica) })
		return runs
	}
	got := sorted(p.x.Lookup(&p.scratch, p.time(), part, keys))
	want := sorted(p.o.lookup(p.now, part, keys))
	if len(got)+len(want) > 0 {
		p.diff(fmt.Sprintf("lookup of %v %v at %d", part, keys, p.now), got, want)
	}
}

var testScopes = []kv.Scope{
	{Tenant: "a", Model: "m", Scheme: "s"},
	{Tenant: "a", Model: "m", Scheme: "t"},
	{Tenant: "a", Model: "n", Scheme: "s"},
	{Tenant: "b", Model: "m", Scheme: "s"},
	{Tenant: kv.ProbeTenant, Model: "m", Scheme: "s"},
}

// chains the random operations are about; they share prefixes.
func testChain(r *rand.Rand, most int) []kv.Hash {
	n := 1 + r.IntN(most)
	chain := make([]kv.Hash, n)
	branch, fork := r.IntN(3), 2+r.IntN(8)
	for i := range chain {
		b := 0
		if i >= fork {
			b = branch
		}
		chain[i] = kv.Hash(i*10 + b + 1)
	}
	if r.IntN(20) == 0 && n > 2 {
		chain[n-1] = chain[r.IntN(n)] // a key twice
	}
	return chain
}

type flavour struct {
	Config
	limits   map[string]Limits
	inTime   bool // no late clear within a batch: see lifted
	most     int
	replicas int
}

func (p *pair) step(f *flavour) {
	r := p.rand
	scope := testScopes[r.IntN(len(testScopes))]
	replica := fmt.Sprint("r", r.IntN(f.replicas))
	adapter := []string{"", "", "", "lora"}[r.IntN(4)]
	part := kv.Partition{Scope: scope, Adapter: adapter}
	chain := testChain(r, f.most)
	at := p.now - tick(r.IntN(4))*20
	if r.IntN(30) == 0 {
		at = p.now - tick(r.IntN(200_000))*10
	}
	if r.IntN(30) == 0 {
		at = p.now + 5000
	}
	if f.MemoryBytes > 0 {
		at = p.now // an evicted stamp makes no older one stale
	}
	switch r.IntN(20) {
	case 0:
		late := at - 5
		if r.IntN(2) == 0 {
			late = p.now
		}
		p.logf("clear %v %s at %d (now %d)", scope, replica, late, p.now)
		for _, s := range testScopes {
			if s.Tenant == scope.Tenant && s.Model == scope.Model && p.o.exists(s) {
				p.o.remember(s, replica, min(late, p.now))
			}
		}
		p.o.clear(func(s kv.Scope) bool { return s.Tenant == scope.Tenant && s.Model == scope.Model }, replica, min(late, p.now))
		p.x.Clear(p.time(), scope.Tenant, scope.Model, replica, time.UnixMilli(late))
		p.marks, p.dead = true, true
		p.check()
	case 1:
		p.logf("kill %v %s", scope.Tenant, replica)
		p.o.clear(func(s kv.Scope) bool { return s.Tenant == scope.Tenant }, replica, math.MaxInt64)
		p.x.Kill(scope.Tenant, replica)
		p.dead = true
		p.check()
	case 2:
		key := chain[r.IntN(len(chain))]
		p.logf("remove %v %s %d at %d (now %d)", part, replica, key, at, p.now)
		want := p.o.removeAll(p.now, scope.Tenant, scope.Model, replica, adapter, key, at)
		got := p.x.Remove(p.time(), scope.Tenant, scope.Model, replica, adapter, key, time.UnixMilli(at))
		p.diff("removed", got, want)
		p.check()
	case 3, 4:
		p.now += []tick{10, 20, 600_000, 1_700_000}[r.IntN(4)]
	case 5:
		slots := math.MaxInt
		if r.IntN(2) == 0 {
			slots = r.IntN(40)
		}
		p.sweep(slots)
	case 6:
		p.vouch(scope, replica, at)
	case 7:
		p.logf("credit %v %s %v", part, replica, chain)
		p.o.credit(part, replica, chain)
		p.x.Credit(part, replica, chain)
		p.check()
	default:
		b := &Batch{Scope: scope, Replica: replica, Seen: time.UnixMilli(at)}
		for range 1 + r.IntN(3) {
			op := Op{Kind: Store, Adapter: adapter, Tier: []kv.Tier{kv.T1, kv.T1, kv.T2, kv.T3, 7, kv.Coldest}[r.IntN(6)], Keys: testChain(r, f.most), Step: 16}
			switch r.IntN(10) {
			case 0:
				op.Kind = Clear
				if f.inTime {
					b.Seen = p.time()
				}
			case 1, 2:
				op.Kind = Remove
				op.Keys = op.Keys[len(op.Keys)/2:]
			case 3:
				op.Keys = op.Keys[len(op.Keys)-1:]
				op.Tokens = int32(r.IntN(1000)) - 10
			case 4:
				op.Counts = make([]int32, len(op.Keys))
				for i := range op.Counts {
					op.Counts[i] = int32(r.IntN(math.MaxInt32/8)) - 5
				}
			}
			b.Ops = append(b.Ops, op)
		}
		p.apply(b)
	}
	for range 3 {
		p.lookup(part, testChain(r, f.most))
	}
}

var flavours = map[string]flavour{
	"Unbounded": {most: 20, replicas: 6},
	"Long":      {most: 150, replicas: 3},
	"Quota": {most: 20, replicas: 4, inTime: true, limits: map[string]Limits{
		"a": {MaxKeys: 25},
		"b": {MaxKeys: 15, LFU: true},
	}},
	"Cap": {most: 20, replicas: 6, inTime: true, Config: Config{MaxEntries: 60}, limits: map[string]Limits{
		"a": {MaxKeys: -1},
		"b": {MaxKeys: 40, LFU: true},
	}},
	"Nothing": {most: 10, replicas: 3, inTime: true, limits: map[string]Limits{"b": {MaxKeys: 0}}},
	"Bytes":   {most: 60, replicas: 12, Config: Config{MemoryBytes: 24_000}},
}

func TestOracle(t *testing.T) {
	for name, f := range flavours {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f.Defaults.MaxKeys = -1
			for range 2 {
				seed := rand.Uint64()
				p := newPair(t, rand.New(rand.NewPCG(seed, 0)), f.Config, f.limits)
				p.seed = seed
				for range 60 {
					p.step(&f)
				}
				p.sweep(math.MaxInt)
			}
		})
	}
}
