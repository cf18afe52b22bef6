package index

const (
	roomKeys   = 1024 // window of the keys that may go
	roomSample = 64   // keys by which a table is compared with another
	maxTries   = 256  // rounds of makeRoom for one key
)

// makeRoom evicts a few entries for the key at place, which p (nil if it could
// not be made) had no room for; false if that got nowhere. No lock may be held.
//
// With bytes at the budget a table cannot grow. Its own coldest entries go,
// which costs no more than a look at a window of it, unless another table
// has much colder ones: then that is packed, and the bytes are free for all.
// So the tables of a busy tenant take over those of an idle one.
func (x *Index) makeRoom(now tick, p *partition, place uint64, out *Applied) bool {
	x.victims.mu.Lock()
	defer x.victims.mu.Unlock()
	if x.held.Load() <= exactKeys {
		return x.makeRoomExact(now, out)
	}
	v := &x.victims
	x.look(now)
	if p != nil && x.thin(now, p, place, v.coldest, false, out) {
		return true
	}
	c := v.coldest
	if c == nil {
		return false
	}
	v.coldest = c.p.sample(x, now, c.place)
	if v.coldest == nil || x.before(c, v.coldest) < 0 {
		return true // reported anew since: the next round compares again
	}
	x.thin(now, c.p, c.place, nil, true, out)
	return true
}

// look compares the next table with the coldest that was met so far.
func (x *Index) look(now tick) {
	v := &x.victims
	var next *candidate
	v.clock.tour(&x.list, 1, func(p *partition, t *table, s *slot) {
		next = &candidate{p: p, place: s.place}
	})
	if next == nil {
		return
	}
	v.clock.skip(&x.list)
	next = next.p.sample(x, now, next.place)
	if next != nil && (v.coldest == nil || x.before(next, v.coldest) < 0) {
		v.coldest = next
	}
}

// sample looks at a few keys from place on and returns the holder that a
// quarter of their holders would go before, but with that place; nil if there is none.
func (p *partition) sample(x *Index, now tick, place uint64) *candidate {
	p.scope.mu.RLock()
	defer p.scope.mu.RUnlock()
	f := x.victims.first(x, roomSample/4)
	p.scan(place, roomSample, func(t *table, s *slot) { f.offerHolders(now, p, t, s, true) })
	if len(f.heap) == 0 {
		return nil
	}
	c := f.heap[0]
	c.place = place
	return &c
}

// makeRoomExact takes the first sixteenth of all entries.
func (x *Index) makeRoomExact(now tick, out *Applied) bool {
	before := x.budget.used.Load()
	f := x.victims.first(x, max(1, int(x.held.Load()/16)))
	c := clock{}
	c.tour(&x.list, exactKeys, func(p *partition, t *table, s *slot) {
		f.offerHolders(now, p, t, s, true)
	})
	any := false
	for _, c := range f.sorted() {
		any = x.evictHolder(now, c, out) || any
	}
	x.sweeper.mu.Lock()
	defer x.sweeper.mu.Unlock()
	for i := 0; ; {
		p := x.list.at(i)
		if p == nil {
			break
		}
		p.squeeze(&x.budget)
		if p.keys.Load() > 0 || !x.free(p) {
			i++
		}
	}
	return any || x.budget.used.Load() < before
}

// squeeze packs all tables of a small partition.
func (p *partition) squeeze(b *budget) {
	p.scope.mu.RLock()
	defer p.scope.mu.RUnlock()
	for place, more := uint64(0), true; more; {
		st := &p.stripes[stripeOf(place)]
		st.mu.Lock()
		st.trim(b, place, true)
		t := st.table(place)
		if t == nil {
			t = &table{}
		}
		place, more = t.after(place)
		st.mu.Unlock()
	}
}

// thin takes the first sixteenth of a window in the table of place, and then
// packs the table if asked to; false if there is nothing, or if all of it
// would go after other.
func (x *Index) thin(now tick, p *partition, place uint64, other *candidate, pack bool, out *Applied) bool {
	s := p.scope
	if s.tenant.probe {
		return false
	}
	s.mu.RLock()
	defer s.mu.RUnlock()
	st := &p.stripes[stripeOf(place)]
	st.mu.Lock()
	defer st.mu.Unlock()
	t := st.table(place)
	if t == nil || t.used == 0 {
		return false
	}
	f := x.victims.first(x, max(1, min(t.held, t.held*roomKeys/t.used)/16))
	i, _ := t.find(place)
	for range min(t.used, roomKeys) {
		if i = t.next(i); i == len(t.slots) {
			i = t.next(0)
		}
		f.offerHolders(now, p, t, &t.slots[i], true)
		i++
	}
	victims := f.sorted()
	if other != nil && x.before(other, &victims[0]) < 0 {
		return false
	}
	any := false
	for i := range victims {
		any = p.drop(st, now, &victims[i], out) || any
	}
	if pack {
		st.trim(&x.budget, place, true)
	}
	return any
}
