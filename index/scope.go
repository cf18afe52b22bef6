package index

import (
	"slices"
	"sync"
	"sync/atomic"

	"inferencecache.io/inferencecache/internal/kv"
)

const (
	maxReplicas = 4096    // live ordinals of a scope
	maxOrdinals = 1 << 16 // with the dead ones whose holders are not yet swept
	maxCleared  = 2 * maxReplicas
)

// ordinal is a replica's number within a scope, and what is true of all its
// holders at once. Fields without atomics change under the scope's write lock.
type ordinal struct {
	id      string
	entries atomic.Int64  // live holders
	newest  atomic.Int64  // latest stamp stored
	tail    atomic.Uint64 // key stored last
	lifted  atomic.Bool   // a store at the mark was stamped one tick later
	vouched atomic.Int64  // when all holders were last said to hold still; noTick: never
	dead    bool          // no holder counts any more
	died    uint64        // sweep pass under way at death
	mark    tick          // holders up to this stamp are absent; noTick: none
	cleared tick          // stores before this stamp are stale; noTick: none
}

// scope is the state of a kv.Scope. Whoever changes holders of its partitions
// has mu read-locked; whoever changes what an ordinal means has it locked.
type scope struct {
	kv.Scope
	tenant *tenant
	model  *model
	pins   atomic.Int32 // writers between two locks; a pinned scope is not freed
	live   atomic.Int64 // holders
	keys   atomic.Int64
	reused atomic.Uint64 // ordinals given to another replica

	mu         sync.RWMutex
	byID       map[string]uint16 // live replicas
	ords       []*ordinal
	dead       []uint16        // ordinals by time of death
	cleared    map[string]tick // last clear of a replica
	partitions map[string]*partition

	changes atomic.Uint64 // of the set of members
	members atomic.Pointer[members]
}

type members struct {
	at  uint64 // scope.changes when ids was made
	ids []string
}

// partition holds the keys of a scope and an adapter.
type partition struct {
	scope   *scope
	adapter string
	mu      sync.Mutex // one writer at a time
	stripes [stripes]stripe
	keys    atomic.Int64
	held    atomic.Int64 // holders, dead ones too
}

// count adds to the live holders of one ordinal.
func (s *scope) count(o *ordinal, n int64) {
	if n == 0 {
		return
	}
	now := o.entries.Add(n)
	if was := now - n; (was > 0) != (now > 0) {
		s.changes.Add(1)
	}
	s.live.Add(n)
	s.model.live.Add(n)
	s.tenant.live.Add(n)
	if !s.tenant.probe {
		s.tenant.index.live.Add(n)
	}
}

// size adds to the keys and holders that lie in a partition, dead ones too.
func (p *partition) size(keys, held int64) {
	s := p.scope
	if keys != 0 {
		p.keys.Add(keys)
		s.keys.Add(keys)
		s.model.keys.Add(keys)
		s.tenant.keys.Add(keys)
	}
	p.held.Add(held)
	s.tenant.held.Add(held)
	if !s.tenant.probe {
		s.tenant.index.held.Add(held)
	}
}

// replicaLocked returns the ordinal of a replica, made if there is none; false
// if the scope is full of them.
func (s *scope) replicaLocked(id string) bool {
	if _, ok := s.byID[id]; ok {
		return true
	}
	if len(s.byID) >= maxReplicas {
		return false
	}
	var ord int
	switch {
	case len(s.dead) > 0 && s.ords[s.dead[0]].died < s.tenant.index.passes.Load():
		ord = int(s.dead[0])
		s.dead = s.dead[1:]
		s.reused.Add(1)
	case len(s.ords) < maxOrdinals-1:
		ord = len(s.ords)
		s.ords = append(s.ords, nil)
	default:
		return false
	}
	o := &ordinal{id: id, mark: noTick, cleared: noTick}
	if at, ok := s.cleared[id]; ok {
		o.cleared = at
	}
	o.newest.Store(noTick)
	o.vouched.Store(noTick)
	s.ords[ord] = o
	s.byID[id] = uint16(ord)
	return true
}

// dieLocked makes all holders of a replica absent.
func (s *scope) dieLocked(id string) {
	ord, ok := s.byID[id]
	if !ok {
		return
	}
	o := s.ords[ord]
	delete(s.byID, id)
	o.dead = true
	o.died = s.tenant.index.started.Load()
	s.dead = append(s.dead, ord)
	s.count(o, -o.entries.Load())
}

// clearLocked forgets what the replica reported up to at. If it reported
// something later, or vouched for what it holds, the rest has to stay: then a
// mark hides the holders up to at, and the sweep counts them out.
func (s *scope) clearLocked(id string, at tick) {
	if last, known := s.cleared[id]; known && at > last || !known && len(s.cleared) < maxCleared {
		s.cleared[id] = at
	}
	ord, ok := s.byID[id]
	if !ok {
		return
	}
	o := s.ords[ord]
	if at >= max(o.newest.Load(), o.vouched.Load()) {
		s.dieLocked(id)
		return
	}
	mark := at
	if at >= o.cleared && at <= o.mark && o.lifted.Load() {
		mark = o.mark + 1 // stamps of at were lifted to there
	}
	if mark > o.mark {
		o.mark = mark
		o.lifted.Store(false)
	}
	o.cleared = max(o.cleared, at)
}

// stamp is what a report of this time stores: one that is as old as a late
// clear came after it, and has to lie above the mark.
func (o *ordinal) stamp(at tick) tick {
	if at >= o.cleared && at <= o.mark {
		return o.mark + 1
	}
	return at
}

// absent says whether a holder with this stamp is to be read as none.
func (o *ordinal) absent(now, expired tick, seen uint32) bool {
	return o.dead || full(now, seen) <= o.hides(expired)
}

// list returns the ids with live entries, sorted.
func (s *scope) list() []string {
	at := s.changes.Load()
	if m := s.members.Load(); m != nil && m.at == at {
		return m.ids
	}
	var ids []string
	s.mu.RLock()
	for id, ord := range s.byID {
		if s.ords[ord].entries.Load() > 0 {
			ids = append(ids, id)
		}
	}
	s.mu.RUnlock()
	slices.Sort(ids)
	s.members.Store(&members{at: at, ids: ids})
	return ids
}
