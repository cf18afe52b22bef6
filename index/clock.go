package index

// clock is where a search for victims goes on.
type clock struct {
	part  int
	place uint64
}

// skip moves the clock to the next table.
func (c *clock) skip(l *list) {
	p := l.at(c.part)
	if p == nil || c.place == 0 {
		return
	}
	st := &p.stripes[stripeOf(c.place)]
	st.mu.RLock()
	t := st.table(c.place)
	if t == nil {
		t = &table{}
	}
	st.mu.RUnlock()
	next, more := t.after(c.place)
	if !more {
		c.part++
	}
	c.place = next
}

// scan shows up to n used slots of a partition from place on; next is where to
// go on, 0 behind the last. The scope is read-locked.
func (p *partition) scan(place uint64, n int, show func(*table, *slot)) (next uint64, seen int) {
	for {
		st := &p.stripes[stripeOf(place)]
		st.mu.RLock()
		t := st.table(place)
		if t == nil {
			st.mu.RUnlock()
			t = &table{} // as wide as the stripe
		} else {
			for i := t.seek(place); i < len(t.slots); i = t.next(i + 1) {
				if seen == n {
					next = t.slots[i].place
					st.mu.RUnlock()
					return next, seen
				}
				show(t, &t.slots[i])
				seen++
			}
			st.mu.RUnlock()
		}
		var more bool
		if place, more = t.after(place); !more || seen == n {
			return place, seen
		}
	}
}

// tour scans n used slots from the clock on, over partitions that are not the
// probe's, at most one lap of them.
func (c *clock) tour(l *list, n int, show func(p *partition, t *table, s *slot)) {
	laps := l.len()
	if c.place != 0 {
		laps++ // to come back to what lies before it
	}
	for n > 0 && laps > 0 {
		p := l.at(c.part)
		if p == nil {
			c.part, c.place = 0, 0
			if l.len() == 0 {
				return
			}
			continue
		}
		if !p.scope.tenant.probe {
			var seen int
			p.scope.mu.RLock()
			c.place, seen = p.scan(c.place, n, func(t *table, s *slot) { show(p, t, s) })
			p.scope.mu.RUnlock()
			n -= seen
		} else {
			c.place = 0
		}
		if c.place == 0 {
			c.part++
			laps--
		}
	}
}
