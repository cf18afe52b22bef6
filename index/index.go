package index

import (
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"inferencecache.io/inferencecache/internal/kv"
)

// Config fixes the size of an index for its life.
type Config struct {
	MemoryBytes int64  // hard budget over all that grows with entries; 0: none
	MaxEntries  int64  // hard cap on holder entries (replica x key); 0: none
	Defaults    Limits // for tenants that SetLimits does not name
	// Seed makes the salts, so that a sequence of calls lays out memory the same
	// way each time it is run. 0, as wherever keys come from others: random.
	Seed uint64
}

// Limits is what a tenant's entries live under.
type Limits struct {
	TTL     time.Duration // an entry this old is absent; <= 0: DefaultTTL
	LFU     bool          // victims by credit first, then age; else by age alone
	MaxKeys int64         // distinct keys; negative: unbounded; 0: nothing is kept
}

// DefaultTTL of an entry that no policy speaks about.
const DefaultTTL = 30 * time.Minute

// Kind of an Op.
type Kind uint8

const (
	Store  Kind = iota + 1 // the replica holds Keys in Tier
	Remove                 // it does not hold Keys any more, in any tier
	Clear                  // it holds nothing in the batch's scope, any adapter
)

// Op is one step of a Batch.
type Op struct {
	Kind    Kind
	Adapter string
	Tier    kv.Tier // Store; kv.TierUnknown is not allowed
	Keys    []kv.Hash
	// Store: the keys form a chain. Parent, if HasParent, is the key before
	// the first, Tokens what lies before the first key; each key adds Step
	// tokens, or Counts[i] where Counts is set (then as long as Keys).
	Parent    kv.Hash
	HasParent bool
	Tokens    int32
	Step      int32
	Counts    []int32
}

// Batch is what one replica says of one scope, to be applied in order.
type Batch struct {
	Scope   kv.Scope
	Replica string
	Seen    time.Time // by the producer's clock; later than now is read as now
	Ops     []Op
}

// Applied says what became of a batch, in holder entries.
type Applied struct {
	Added     int // new entries
	Refreshed int // entries held already, stamped anew
	Removed   int // entries taken away by Remove (Clear counts nothing)
	Unknown   int // keys of Remove that the replica did not hold
	Stale     int // dropped: older than what is stored, than a clear, or than the TTL
	Refused   int // dropped: no room (quota 0, too many replicas, budget with nothing to evict)
	Evicted   []Eviction
}

// Reason of an Eviction.
type Reason uint8

const (
	Expired  Reason = iota + 1 // older than the TTL
	OverCap                    // MaxEntries or MemoryBytes
	OverKeys                   // the tenant's MaxKeys
)

// Eviction sums up what was taken to keep a limit.
type Eviction struct {
	Tenant  string
	LFU     bool
	Reason  Reason
	Entries int // holder entries
	Keys    int // distinct keys that vanished with them
}

// Run is one replica's longest leading run over the keys of a lookup.
type Run struct {
	Replica string
	Blocks  int       // length of the run, at least 1
	Warm    [2]int    // of these, the leading ones that are all in T1, and in T1 or T2
	Tier    kv.Tier   // coldest tier in the run
	Seen    time.Time // oldest stamp in the run, or when the replica last vouched for it
	Tokens  int32     // cumulative tokens stored with the last block of the run
}

// Miss says how much of a scope is known, outermost name first.
type Miss uint8

const (
	Empty         Miss = iota // nobody reported anything (the probe tenant does not count)
	UnknownTenant             // no live entry for the tenant
	UnknownModel              // none for tenant and model
	UnknownScheme             // none for the scope
	KnownScope                // the scope has live entries
)

// Index maps block keys to the replicas that hold them. All methods may be
// called at the same time.
type Index struct {
	config       Config
	salt, secret uint64
	budget       budget
	heap         *heap
	guards       guards
	live         atomic.Int64  // live holders, all tenants but the probe's
	held         atomic.Int64  // with dead ones
	started      atomic.Uint64 // sweep passes begun
	passes       atomic.Uint64 // and ended

	mu       sync.RWMutex
	tenants  map[string]*tenant
	defaults Limits
	limits   map[string]Limits

	list    list // partitions of all tenants
	sweeper sweeper
	victims victims
}

// New returns an empty index. It starts nothing: call Sweep now and then.
func New(c Config) *Index {
	salts := rand.Uint64
	if c.Seed != 0 {
		salts = rand.New(rand.NewPCG(c.Seed, c.Seed)).Uint64
	}
	x := &Index{
		config:   c,
		salt:     salts(),
		secret:   salts(),
		budget:   budget{limit: c.MemoryBytes},
		tenants:  map[string]*tenant{},
		defaults: c.Defaults.sane(),
	}
	x.heap = newHeap(&x.budget)
	return x
}

// SetLimits replaces the limits of all tenants. A lower MaxKeys takes effect
// with the tenant's next Apply, all else at once.
func (x *Index) SetLimits(defaults Limits, tenants map[string]Limits) {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.defaults = defaults.sane()
	x.limits = make(map[string]Limits, len(tenants))
	for name, l := range tenants {
		x.limits[name] = l.sane()
	}
	for name, t := range x.tenants {
		l := x.limitsLocked(name)
		t.limits.Store(&l)
	}
}

func (x *Index) limitsLocked(tenant string) Limits {
	l, ok := x.limits[tenant]
	if !ok {
		l = x.defaults
	}
	if tenant == kv.ProbeTenant {
		l.MaxKeys = -1
	}
	return l
}

func (l Limits) sane() Limits {
	if l.TTL <= 0 {
		l.TTL = DefaultTTL
	}
	l.TTL = min(l.TTL, maxTTL)
	return l
}

// expired is the latest stamp that is too old at now.
func (l *Limits) expired(now tick) tick { return now - l.TTL.Milliseconds() }
