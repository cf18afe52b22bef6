package index

import "sync"

const (
	exactKeys = 2048 // up to so many the victims are the best of all
	clockKeys = 512  // else the best of a window of so many
	clockTake = 32   // at most so many of a window
)

// victims serialises evictions, so that no two go for the same excess.
type victims struct {
	mu      sync.Mutex
	clock   clock      // over all partitions
	coldest *candidate // of a table met by makeRoom, as sample returns it
	heap    []candidate
}

// add an eviction to the sums.
func (a *Applied) add(s *scope, r Reason, entries, keys int) {
	if entries == 0 {
		return
	}
	lfu := s.tenant.limits.Load().LFU
	for i := range a.Evicted {
		if e := &a.Evicted[i]; e.Tenant == s.Tenant && e.LFU == lfu && e.Reason == r {
			e.Entries += entries
			e.Keys += keys
			return
		}
	}
	a.Evicted = append(a.Evicted, Eviction{Tenant: s.Tenant, LFU: lfu, Reason: r, Entries: entries, Keys: keys})
}

// enforce brings keys of the tenant and entries of the index under their
// limits, unless they are over by no more than slack.
func (x *Index) enforce(now tick, name string, slack int64, out *Applied) {
	if t := x.tenant(name); t != nil && !t.probe {
		if l := t.limits.Load(); l.MaxKeys >= 0 && t.keys.Load() > l.MaxKeys+slack {
			x.victims.mu.Lock()
			x.enforceKeys(now, t, l, out)
			x.victims.mu.Unlock()
		}
	}
	if limit := x.config.MaxEntries; limit > 0 && x.live.Load() > limit+slack {
		x.victims.mu.Lock()
		x.enforceEntries(now, limit, out)
		x.victims.mu.Unlock()
	}
}

func (x *Index) enforceKeys(now tick, t *tenant, l *Limits, out *Applied) {
	for idle := 0; idle < 3; idle++ {
		keys := t.keys.Load()
		over := int(keys - l.MaxKeys)
		if over <= 0 {
			return
		}
		window, take := clockKeys, clockTake
		if keys <= exactKeys {
			window, take = int(keys), over
			t.clock = clock{}
		}
		f := x.victims.first(x, min(take, over))
		t.clock.tour(&t.list, window, func(p *partition, tb *table, s *slot) {
			f.offer(keyCandidate(now, l, p, tb, s))
		})
		for _, c := range f.sorted() {
			if x.evictKey(now, c, out) {
				idle = 0
			}
		}
	}
}

func (x *Index) enforceEntries(now tick, limit int64, out *Applied) {
	for idle := 0; idle < 3; idle++ {
		held := x.held.Load()
		over := int(x.live.Load() - limit)
		if over <= 0 {
			return
		}
		window, take := clockKeys, clockTake
		if held <= exactKeys {
			window, take = exactKeys, over
			x.victims.clock = clock{}
		}
		f := x.victims.first(x, min(take, over))
		x.victims.clock.tour(&x.list, window, func(p *partition, t *table, s *slot) {
			f.offerHolders(now, p, t, s, false)
		})
		for _, c := range f.sorted() {
			if x.evictHolder(now, c, out) {
				idle = 0
			}
		}
	}
}

// evictKey takes a key away with all its holders.
func (x *Index) evictKey(now tick, c candidate, out *Applied) bool {
	s := c.p.scope
	s.mu.RLock()
	defer s.mu.RUnlock()
	st := &c.p.stripes[stripeOf(c.place)]
	st.mu.Lock()
	defer st.mu.Unlock()
	t := st.table(c.place)
	if t == nil {
		return false
	}
	i, ok := t.find(c.place)
	if !ok {
		return false
	}
	entries, held := 0, 0
	for _, w := range t.holders(&t.slots[i]) {
		held++
		o := s.ords[ordOf(w)]
		if o.dead {
			continue
		}
		s.count(o, -1)
		if full(now, seenOf(w)) > o.mark {
			entries++
		}
	}
	t.remove(i)
	st.trim(&x.budget, c.place, false)
	c.p.size(-1, -int64(held))
	out.add(s, OverKeys, entries, 1)
	return true
}

// evictHolder takes one entry away.
func (x *Index) evictHolder(now tick, c candidate, out *Applied) bool {
	s := c.p.scope
	s.mu.RLock()
	defer s.mu.RUnlock()
	st := &c.p.stripes[stripeOf(c.place)]
	st.mu.Lock()
	defer st.mu.Unlock()
	if !c.p.drop(st, now, &c, out) {
		return false
	}
	st.trim(&x.budget, c.place, false)
	return true
}

// drop takes the candidate's entry away, with its scope read-locked and its
// stripe locked.
func (p *partition) drop(st *stripe, now tick, c *candidate, out *Applied) bool {
	t, i, j := st.holder(c.place, c.ord)
	if t == nil {
		return false
	}
	s := p.scope
	slot := &t.slots[i]
	o := s.ords[c.ord]
	seen := full(now, seenOf(t.holders(slot)[j]))
	if seen != c.seen {
		return false // reported anew since
	}
	absent := o.dead || seen <= o.mark
	if !o.dead {
		s.count(o, -1)
	}
	gone := t.drop(i, j)
	if gone {
		p.size(-1, -1)
	} else {
		p.size(0, -1)
	}
	if !absent {
		keys := 1
		if !gone && anyCounts(now, s, t.holders(slot)) {
			keys = 0
		}
		out.add(s, OverCap, 1, keys)
	}
	return true
}

// anyCounts says whether one of the holders is neither dead nor cleared.
func anyCounts(now tick, s *scope, holders []uint64) bool {
	for _, w := range holders {
		if o := s.ords[ordOf(w)]; !o.dead && full(now, seenOf(w)) > o.mark {
			return true
		}
	}
	return false
}
