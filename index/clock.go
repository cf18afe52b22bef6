package index

// clock is where a search for victims goes on.
type clock struct {
	part  int
	place uint64
}

// scan shows the segments whose first key has an entry at or behind place, up
// to n entries further; next is where to go on, 0 behind the last. The scope is
// read-locked and the partition locked; show must not change entries.
func (p *partition) scan(place uint64, n int, show func(r ref)) (next uint64, seen int) {
	for {
		tag := tagOf(place)
		t := p.stripes[stripeOf(place)].table(tag)
		if t == nil {
			t = &table{} // as wide as the stripe
		} else {
			last := tag
			for i := t.at(tag); i < len(t.entries); i++ {
				e := t.entries[i]
				if e == 0 {
					continue
				}
				if seen >= n && e.tag() != last {
					return place>>(64-stripeBits)<<(64-stripeBits) | e.tag()<<(64-stripeBits-tagBits), seen
				}
				last = e.tag()
				seen++
				if e.off() == 0 {
					show(e.ref())
				}
			}
		}
		var more bool
		if place, more = t.after(place); !more || seen >= n {
			return place, seen
		}
	}
}

// after is the first place behind the table t of place; ok is false behind the
// last table of all.
func (t *table) after(place uint64) (next uint64, ok bool) {
	shift := 64 - stripeBits - t.depth
	next = (place>>shift + 1) << shift
	return next, next != 0
}

// tour scans n entries from the clock on, over partitions that are not the
// probe's, at most one lap of them.
func (c *clock) tour(l *list, n int, show func(p *partition, r ref)) {
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
			p.mu.Lock()
			c.place, seen = p.scan(c.place, n, func(r ref) { show(p, r) })
			p.mu.Unlock()
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
