package server

import (
	"cmp"
	"hash/fnv"
	"hash/maphash"
	"slices"
	"sync"
	"time"

	"inferencecache.io/inferencecache/internal/kv"
	"inferencecache.io/inferencecache/internal/rank"
	pb "inferencecache.io/inferencecache/proto/inferencecache/v1alpha1"
)

const (
	// hintLife is how long a hint of ours counts as load that no report shows yet.
	hintLife = 5 * time.Second
	// staleReports in a row that did not come make a load unknown.
	staleReports = 3
	// graveTime is how long a dead replica is remembered, to explain.
	graveTime = 30 * time.Minute
)

// fleets is who can get prompts: the replicas of each scope that reported
// anything, whether they hold blocks or not. Safe for concurrent use.
type fleets struct {
	limit   int
	suspect time.Duration // silence that makes a replica suspect
	dead    time.Duration // and dead
	seed    maphash.Seed
	started time.Time // some time ago, so that no time is zero

	mu    sync.RWMutex // guards what follows
	by    map[kv.Scope]*fleet
	count int
}

// fleet is the replicas of one scope.
type fleet struct {
	scope kv.Scope
	salt  uint64 // of its prompts in the forecast

	mu       sync.Mutex // guards what follows, members too
	members  []*member  // by name
	byName   map[string]*member
	byNumber map[uint32]*member
	next     uint32
	work     float64 // mean seconds of prefill that a hinted prompt took; 0: none yet
	gain     gain
}

// member is a replica of a fleet. Its mutable state is guarded by the fleet's
// mu.
type member struct {
	name   string
	number uint32 // never given to another replica of the fleet
	hash   uint64 // the same on every server, so that lots are

	heard     time.Time     // when the last sign of life came, by our clock
	promise   time.Duration // within which another one follows; 0: none
	state     pb.StreamState
	asleep    bool
	gone      time.Time // when it was taken for dead; zero: it lives
	cause     string    // of its death
	stored    bool      // it reported blocks since
	changed   time.Time // when its last report of blocks came, by our clock
	cleared   time.Time // when it last dropped all it held, if it held any
	blockSize int32     // of the blocks it stored last; 0: not known
	load      work
	truth     truth
	audited   audited
	hinted    minute // prompts sent there by hints

	told   [3]int64  // blocks that it holds, by its own last word
	toldAt time.Time // zero: it does not say

	slot int32 // of the lookup that has the lock
}

func newFleets(c *Config) *fleets {
	return &fleets{
		limit: c.MaxReplicas, suspect: c.ReplicaSuspectAfter, dead: c.ReplicaDeadAfter,
		seed: maphash.MakeSeed(), started: time.Now().Add(-time.Hour), by: map[kv.Scope]*fleet{},
	}
}

// seconds on the fleets' clock.
func (f *fleets) seconds(t time.Time) float64 { return t.Sub(f.started).Seconds() }

// salt keeps prompts of a fleet's adapter apart from all others.
func (f *fleets) salt(fl *fleet, adapter string) uint64 {
	return fl.salt ^ maphash.String(f.seed, adapter)
}

// of returns the fleet of a scope, or nil.
func (f *fleets) of(scope kv.Scope) *fleet {
	f.mu.RLock()
	defer f.mu.RUnlock()
	return f.by[scope]
}

// with calls change for a replica, which is made if there is room; else it
// returns false.
func (f *fleets) with(scope kv.Scope, replica string, change func(*fleet, *member)) bool {
	if fl := f.of(scope); fl != nil && fl.with(replica, change) {
		return true
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	fl := f.by[scope]
	if f.count >= f.limit {
		return fl != nil && fl.with(replica, change)
	}
	if fl == nil {
		fl = &fleet{scope: scope, salt: maphash.Comparable(f.seed, scope), byName: map[string]*member{}, byNumber: map[uint32]*member{}}
		f.by[scope] = fl
	}
	f.count += fl.join(replica)
	return fl.with(replica, change)
}

// with calls change for a member, or returns false.
func (fl *fleet) with(replica string, change func(*fleet, *member)) bool {
	fl.mu.Lock()
	defer fl.mu.Unlock()
	m := fl.byName[replica]
	if m == nil {
		return false
	}
	change(fl, m)
	return true
}

// join makes a member and returns how many it made.
func (fl *fleet) join(replica string) int {
	fl.mu.Lock()
	defer fl.mu.Unlock()
	if fl.byName[replica] != nil {
		return 0
	}
	hash := fnv.New64a()
	_, _ = hash.Write([]byte(replica)) // never fails
	m := &member{name: replica, number: fl.next, hash: hash.Sum64()}
	fl.next++
	fl.byName[replica], fl.byNumber[m.number] = m, m
	at, _ := slices.BinarySearchFunc(fl.members, replica, func(m *member, name string) int { return cmp.Compare(m.name, name) })
	fl.members = slices.Insert(fl.members, at, m)
	return 1
}

// every fleet of a tenant's model.
func (f *fleets) every(tenant, model string) (all []*fleet) {
	f.mu.RLock()
	defer f.mu.RUnlock()
	for scope, fl := range f.by {
		if scope.Tenant == tenant && scope.Model == model {
			all = append(all, fl)
		}
	}
	return all
}

// hear takes in what an update says of its replica besides what it holds.
func (f *fleets) hear(now, seen time.Time, u *pb.CacheStateUpdate) (ok bool) {
	scope := kv.Scope{Tenant: u.GetTenantId(), Model: u.GetModelId(), Scheme: u.GetHashScheme()}
	take := func(fl *fleet, m *member) {
		if !seen.After(m.gone) {
			return
		}
		m.alive(now)
		m.promise = time.Duration(u.GetHeartbeatMs()) * time.Millisecond
		if state := u.GetStreamState(); state != pb.StreamState_STREAM_STATE_UNSPECIFIED {
			m.state = state
		}
		if stats := u.GetStats(); stats != nil {
			m.asleep = stats.GetAsleep()
			m.load.report(f.seconds(now), fl.work, stats)
		}
		m.holds(now, seen, u)
	}
	if scope.Scheme != "" {
		return f.with(scope, u.GetReplicaId(), take)
	}
	// Stats of older producers have no scheme: they are the replica's, whatever it is known under.
	for _, fl := range f.every(scope.Tenant, scope.Model) {
		fl.with(u.GetReplicaId(), take)
	}
	return true
}

// alive notes a sign of life; it ends a death. It goes by when that came: the
// clock of a producer may be wrong.
func (m *member) alive(now time.Time) { m.heard, m.gone, m.cause = now, time.Time{}, "" }

// holds notes what explains misses: clears, and the size of blocks; and how many
// the replica says to hold.
func (m *member) holds(now, seen time.Time, u *pb.CacheStateUpdate) {
	if len(u.GetOperations())+len(u.GetPrefixes()) > 0 {
		m.changed = now
	}
	for _, o := range u.GetOperations() {
		switch o.GetKind() {
		case pb.CacheOperation_CLEAR:
			if m.stored {
				m.cleared, m.stored = seen, false
			}
			m.truth = truth{} // another life of the engine, or of its producer
			m.toldAt = time.Time{}
		case pb.CacheOperation_STORE:
			m.blockSize, m.stored = o.GetBlockSize(), true
		}
	}
	for _, e := range u.GetPrefixes() {
		m.stored = true
		if size := e.GetPackedBlockSize(); size > 0 {
			m.blockSize = size
		} else if counts := e.GetBlockTokenCounts(); len(counts) > 0 {
			m.blockSize = counts[0]
		}
	}
	if h := u.GetHeld(); h != nil {
		m.told, m.toldAt = [3]int64{max(0, h.GetT1()), max(0, h.GetT2()), max(0, h.GetT3())}, now
	}
}

// touch notes a sign of life of a replica under every scheme, if it is known.
func (f *fleets) touch(now time.Time, tenant, model, replica string, seen time.Time) {
	for _, fl := range f.every(tenant, model) {
		fl.with(replica, func(_ *fleet, m *member) {
			if seen.After(m.gone) {
				m.alive(now)
			}
		})
	}
}

// clear notes that a replica dropped all, under every scheme.
func (f *fleets) clear(tenant, model, replica string, seen time.Time) {
	for _, fl := range f.every(tenant, model) {
		fl.with(replica, func(_ *fleet, m *member) { m.cleared, m.stored, m.truth, m.toldAt = seen, false, truth{}, time.Time{} })
	}
}

// bury takes a replica for dead, until it says more after seen.
func (f *fleets) bury(scope kv.Scope, replica string, seen time.Time, cause string) {
	if fl := f.of(scope); fl != nil {
		fl.with(replica, func(_ *fleet, m *member) { m.gone, m.cause, m.load, m.toldAt = seen, cause, work{}, time.Time{} })
	}
}

// excluded says why a replica cannot get prompts; "" if it can.
func (f *fleets) excluded(now time.Time, m *member) string {
	switch {
	case !m.gone.IsZero():
		return m.cause
	case m.asleep:
		return causeAsleep
	case now.Sub(m.heard) >= max(f.dead, missedHeartbeats*m.promise):
		return causeSilence
	}
	return ""
}

// suspicious replicas live, but not surely.
func (f *fleets) suspicious(now time.Time, m *member) bool {
	return m.state == pb.StreamState_STREAM_STALE || now.Sub(m.heard) >= max(f.suspect, missedHeartbeats*m.promise)
}

// expire forgets replicas that have been dead for long. Lookups go on meanwhile:
// the list of fleets is locked only where one has shrunk.
func (f *fleets) expire(now time.Time) {
	for _, fl := range f.all() {
		gone := fl.expire(now)
		if gone == 0 {
			continue
		}
		f.mu.Lock()
		f.count -= gone
		if fl.empty() {
			delete(f.by, fl.scope)
		}
		f.mu.Unlock()
	}
}

func (fl *fleet) expire(now time.Time) (gone int) {
	fl.mu.Lock()
	defer fl.mu.Unlock()
	before := len(fl.members)
	fl.members = slices.DeleteFunc(fl.members, func(m *member) bool {
		old := now.Sub(m.heard) >= max(graveTime, missedHeartbeats*m.promise)
		if old {
			delete(fl.byName, m.name)
			delete(fl.byNumber, m.number)
		}
		return old
	})
	return before - len(fl.members)
}

func (fl *fleet) empty() bool {
	fl.mu.Lock()
	defer fl.mu.Unlock()
	return len(fl.members) == 0
}

// gather fills in the live replicas as candidates, with a side for each.
func (f *fleets) gather(l *lookup, fl *fleet) {
	now := f.seconds(l.now)
	seed := l.lot()
	fl.mu.Lock()
	defer fl.mu.Unlock()
	for _, m := range fl.members {
		m.slot = -1
		if f.excluded(l.now, m) != "" {
			continue
		}
		m.slot = int32(len(l.candidates))
		backlog, loaded := m.load.backlog(now)
		l.candidates = append(l.candidates, rank.Candidate{
			Replica: m.name, Backlog: backlog, Loaded: loaded, Rate: m.load.rate,
			Suspect: f.suspicious(l.now, m), Recent: m.load.recent(now), Asked: l.asked.Behind(0),
			Lot: rank.Lot(seed, m.hash), Number: m.slot,
		})
		l.sides = append(l.sides, side{member: m, prob: m.truth.share(), quarantined: m.truth.liar})
	}
	for i := range l.runs {
		if m := fl.byName[l.runs[i].Replica]; m != nil && m.slot >= 0 {
			l.hold(int(m.slot), &l.runs[i])
		}
	}
	for _, s := range l.soon {
		if m := fl.byNumber[s.replica]; m != nil && m.slot >= 0 {
			c := &l.candidates[m.slot]
			c.Soon = max(c.Soon, l.input.covered(int(s.blocks)))
		}
	}
}
