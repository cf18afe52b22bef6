package index

import (
	"time"

	"inferencecache.io/inferencecache/internal/kv"
)

// Entry is what is stored of one key for one replica.
type Entry struct {
	Replica string
	Tier    kv.Tier
	Seen    time.Time // its stamp, or when the replica last vouched for it
	Expired bool      // older than the TTL: absent, but not yet swept
}

// Entries lists what is stored under a key, with what has expired and is not
// yet swept. It allocates: it is for people, not for lookups.
func (x *Index) Entries(now time.Time, p kv.Partition, key kv.Hash) (entries []Entry) {
	sc := x.scope(p.Scope)
	if sc == nil {
		return nil
	}
	at := ticks(now)
	expired := sc.tenant.limits.Load().expired(at)
	sc.mu.RLock()
	defer sc.mu.RUnlock()
	part := sc.partitions[p.Adapter]
	if part == nil {
		return nil
	}
	place := x.place(key)
	tag := tagOf(place)
	st := &part.stripes[stripeOf(place)]
	st.mu.RLock()
	defer st.mu.RUnlock()
	t := st.table(tag)
	if t == nil {
		return nil
	}
	for i := t.at(tag); t.entries[i] != 0 && t.entries[i].tag() == tag; i++ {
		r, off := t.entries[i].ref(), t.entries[i].off()
		mu := x.guards.of(r)
		mu.RLock()
		if g := x.heap.segment(r); off < g.n() && g.keys()[off] == uint64(key) {
			entries = sc.entries(entries, x.heap.spans(g), off, at, expired)
		}
		mu.RUnlock()
	}
	return entries
}

// entries appends those of an offset in a segment.
func (s *scope) entries(list []Entry, l spans, off int, now, expired tick) []Entry {
	for i := range l.len() {
		sp := l.at(i)
		if off < sp.from() || off >= sp.to() {
			continue
		}
		o := s.ords[ordOf(sp.who)]
		seen := full(now, seenOf(sp.who))
		if o.dead || seen <= o.mark {
			continue
		}
		list = append(list, Entry{
			Replica: o.id, Tier: tierOf(sp.who), Seen: time.UnixMilli(max(seen, o.vouched.Load())),
			Expired: o.absent(now, expired, seenOf(sp.who)),
		})
	}
	return list
}

// Partitions lists a tenant's partitions, in no order.
func (x *Index) Partitions(tenant string) (list []kv.Partition) {
	t := x.tenant(tenant)
	if t == nil {
		return nil
	}
	for _, s := range t.every(func(scopeName) bool { return true }) {
		s.mu.RLock()
		for adapter := range s.partitions {
			list = append(list, kv.Partition{Scope: s.Scope, Adapter: adapter})
		}
		s.mu.RUnlock()
		s.unpin()
	}
	return list
}
