package index

import (
	"math"
	"time"

	"inferencecache.io/inferencecache/internal/kv"
)

// Scratch is the memory of lookups; the zero value is ready. It serves one
// lookup at a time, and the result lives until the next.
type Scratch struct {
	alive []alive
	marks []mark // by ordinal
	turn  uint32 // which marks are of this lookup
	runs  []Run
}

// alive is a replica with a run, that may have ended.
type alive struct {
	id      string
	hides   tick // stamps up to it are absent
	vouched tick
	blocks  int
	warm    [2]int // of them, those before one colder than T1, and than T2
	seen    tick
	tokens  int32
	tier    kv.Tier
}

type mark struct {
	turn  uint32
	index int32
}

// Lookup returns for each replica of the partition its longest leading run over
// keys, in no particular order. A holder that expired or was cleared is as
// absent as one never reported. It does not allocate once s has grown.
func (x *Index) Lookup(s *Scratch, now time.Time, p kv.Partition, keys []kv.Hash) []Run {
	s.runs = s.runs[:0]
	sc := x.scope(p.Scope)
	if sc == nil || len(keys) == 0 {
		return nil
	}
	at := ticks(now)
	expired := sc.tenant.limits.Load().expired(at)
	for {
		reused := sc.reused.Load()
		part, n := s.begin(x, sc, at, expired, p.Adapter, keys)
		for from := n; n > 0 && from < len(keys); from += n {
			n = s.piece(x, part, nil, at, 0, keys, from)
		}
		if sc.reused.Load() == reused {
			break
		}
		// An ordinal that the marks speak of is another replica's by now.
	}
	for i := range s.alive {
		a := &s.alive[i]
		s.runs = append(s.runs, Run{Replica: a.id, Blocks: a.blocks, Warm: a.warm, Tier: a.tier, Seen: time.UnixMilli(max(a.seen, a.vouched)), Tokens: a.tokens})
	}
	return s.runs
}

// begin gathers the replicas that hold the first block, with their runs over
// the first n keys.
func (s *Scratch) begin(x *Index, sc *scope, now, expired tick, adapter string, keys []kv.Hash) (p *partition, n int) {
	sc.mu.RLock()
	defer sc.mu.RUnlock()
	s.alive = s.alive[:0]
	p = sc.partitions[adapter]
	if p == nil {
		return nil, 0
	}
	s.newTurn(len(sc.ords))
	return p, s.piece(x, p, sc, now, expired, keys, 0)
}

func (s *Scratch) newTurn(ordinals int) {
	if len(s.marks) < ordinals {
		s.marks = append(s.marks, make([]mark, ordinals-len(s.marks))...)
	}
	if s.turn == math.MaxUint32 {
		clear(s.marks)
		s.turn = 0
	}
	s.turn++
}

// piece lengthens the runs that reach key from by the keys that follow it in
// its segment; n counts those, or is 0 if all runs have ended. With a scope,
// which is then read-locked, runs begin here.
//
// The lock of the stripe is kept while the segment is read: it cannot be freed
// as long as the entry is there that led to it.
func (s *Scratch) piece(x *Index, p *partition, sc *scope, now, expired tick, keys []kv.Hash, from int) (n int) {
	place := x.place(keys[from])
	tag := tagOf(place)
	st := &p.stripes[stripeOf(place)]
	rlock(&st.mu)
	defer st.mu.RUnlock()
	t := st.table(tag)
	if t == nil {
		return 0
	}
	for i := t.at(tag); t.entries[i] != 0 && t.entries[i].tag() == tag; i++ {
		r, off := t.entries[i].ref(), t.entries[i].off()
		mu := x.guards.of(r)
		rlock(mu)
		g := x.heap.segment(r)
		if off < g.n() {
			n = match(g, off, keys[from:])
		}
		if n > 0 {
			l := x.heap.spans(g)
			if sc != nil {
				s.start(sc, l, off, now, expired)
			}
			if s.lengthen(l, off, n, now, from) == 0 {
				n = 0
			}
			mu.RUnlock()
			return n
		}
		mu.RUnlock()
	}
	return 0
}

// start a run for every replica with a live span over an offset.
func (s *Scratch) start(sc *scope, l spans, off int, now, expired tick) {
	for i := range l.len() {
		sp := l.at(i)
		if off < sp.from() || off >= sp.to() {
			continue
		}
		o := sc.ords[ordOf(sp.who)]
		if o.absent(now, expired, seenOf(sp.who)) {
			continue
		}
		s.marks[ordOf(sp.who)] = mark{turn: s.turn, index: int32(len(s.alive))}
		s.alive = append(s.alive, alive{id: o.id, hides: o.hides(expired), vouched: o.vouched.Load(), seen: math.MaxInt64})
	}
}

// lengthen the runs of from blocks by up to n, along the spans of a segment
// whose offset off is key from; left counts those that go on behind.
func (s *Scratch) lengthen(l spans, off, n int, now tick, from int) (left int) {
	for i := range l.len() {
		sp := l.at(i)
		o := int(ordOf(sp.who))
		if sp.to() <= off || sp.from() >= off+n || o >= len(s.marks) || s.marks[o].turn != s.turn {
			continue
		}
		a := &s.alive[s.marks[o].index]
		at := off + a.blocks - from
		if a.blocks < from || at < sp.from() || at >= sp.to() {
			continue
		}
		seen := full(now, seenOf(sp.who))
		if seen <= a.hides {
			continue
		}
		end := min(sp.to(), off+n)
		a.blocks += end - at
		a.seen = min(a.seen, seen)
		if a.tier = max(a.tier, tierOf(sp.who)); a.tier <= kv.T2 {
			a.warm[1] = a.blocks
			if a.tier == kv.T1 {
				a.warm[0] = a.blocks
			}
		}
		a.tokens = sp.tokens(end - 1)
		if end == off+n {
			left++
		}
	}
	return left
}
