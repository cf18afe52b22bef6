package index

import (
	"math"
	"slices"
	"time"

	"inferencecache.io/inferencecache/internal/kv"
)

const (
	firstWindow = 64 // keys probed at once: most chains that end, end early
	maxWindow   = 256
	maxCopied   = 1 << 15 // words copied a window, but for a single key
)

// group sorts places by stripe, to take each lock once.
type group struct {
	places [maxWindow]uint64
	order  [maxWindow]uint8
	start  [stripes + 1]int
}

// fill with the places of at most maxWindow keys; order is stable.
func (g *group) fill(x *Index, keys []kv.Hash) {
	var n [stripes]int
	for i, k := range keys {
		at := x.place(k)
		g.places[i] = at
		n[stripeOf(at)]++
	}
	sum := 0
	for i := range n {
		g.start[i] = sum
		sum += n[i]
		n[i] = g.start[i]
	}
	g.start[stripes] = sum
	for i := range keys {
		st := stripeOf(g.places[i])
		g.order[n[st]] = uint8(i)
		n[st]++
	}
}

// in lists which keys fell to a stripe.
func (g *group) in(st int) []uint8 { return g.order[g.start[st]:g.start[st+1]] }

// touch reads the homes of places. The searches that follow branch on what
// they read, one after the other; these reads wait for memory all at once.
func (st *stripe) touch(places *[maxWindow]uint64, in []uint8) (sum uint64) {
	if st.dir == nil {
		return 0
	}
	for _, k := range in {
		place := places[k]
		if t := st.dir[st.slotOf(place)]; t.main > 0 {
			sum ^= t.slots[home(place, t.depth, t.main)].place
		}
	}
	return sum
}

// Scratch is the memory of lookups; the zero value is ready. It serves one
// lookup at a time, and the result lives until the next.
type Scratch struct {
	group  group
	found  [maxWindow]found
	words  []uint64 // holders found in the window
	tokens []int32  // their tokens, where they differ
	alive  []alive
	marks  []mark // by ordinal
	turn   uint32 // which marks are of this lookup
	runs   []Run

	touched uint64 // keeps reads ahead from being optimised away
}

// found is where in Scratch the holders of a key are; n == 0: there are none.
type found struct {
	off, n int32
	wide   int32 // offset in tokens, or -1
	tokens int32
}

// alive is a replica that held every block so far.
type alive struct {
	id     string
	hides  tick // stamps up to it are absent
	blocks int
	seen   tick
	tokens int32
	tier   kv.Tier
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
		part := s.begin(sc, at, expired, p.Adapter, x.place(keys[0]))
		if part == nil {
			return nil
		}
		s.follow(x, part, at, keys)
		if sc.reused.Load() == reused {
			break
		}
		// An ordinal that the marks speak of is another replica's by now.
	}
	for i := range s.alive {
		a := &s.alive[i]
		s.runs = append(s.runs, Run{Replica: a.id, Blocks: a.blocks, Tier: a.tier, Seen: time.UnixMilli(a.seen), Tokens: a.tokens})
	}
	return s.runs
}

// begin gathers the replicas that hold the first block; nil without any.
func (s *Scratch) begin(sc *scope, now, expired tick, adapter string, place uint64) *partition {
	sc.mu.RLock()
	defer sc.mu.RUnlock()
	p := sc.partitions[adapter]
	if p == nil {
		return nil
	}
	s.newTurn(len(sc.ords))
	s.words, s.tokens, s.alive = s.words[:0], s.tokens[:0], s.alive[:0]
	f := &s.found[0]
	st := &p.stripes[stripeOf(place)]
	st.mu.RLock()
	s.locate(st, place, f)
	s.copy(st, place, f, math.MaxInt)
	st.mu.RUnlock()
	for j := range int(f.n) {
		w := s.words[int(f.off)+j]
		o := sc.ords[ordOf(w)]
		if o.absent(now, expired, seenOf(w)) {
			continue
		}
		s.marks[ordOf(w)] = mark{turn: s.turn, index: int32(len(s.alive))}
		s.alive = append(s.alive, alive{
			id: o.id, hides: o.hides(expired), blocks: 1,
			seen: full(now, seenOf(w)), tokens: s.tokensAt(f, j), tier: tierOf(w),
		})
	}
	if len(s.alive) == 0 {
		return nil
	}
	return p
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

func (s *Scratch) tokensAt(f *found, j int) int32 {
	if f.wide < 0 {
		return f.tokens
	}
	return s.tokens[int(f.wide)+j]
}

// locate finds the slot of a place, for copy, and touches its block. The
// stripe is read-locked.
func (s *Scratch) locate(st *stripe, place uint64, f *found) {
	*f = found{wide: -1}
	t := st.table(place)
	if t == nil {
		return
	}
	i, ok := t.find(place)
	if !ok {
		return
	}
	f.off, f.n = int32(i), int32(t.slots[i].n)
	if f.n > 1 {
		s.touched ^= t.arena[t.slots[i].word[0]]
	}
}

// copy takes the holders of a located place out of the stripe, which has been
// locked since. If they are more than most, those that are not alive are left
// out.
func (s *Scratch) copy(st *stripe, place uint64, f *found, most int) {
	if f.n == 0 {
		return
	}
	t := st.table(place)
	sl := &t.slots[f.off]
	f.off, f.tokens = int32(len(s.words)), sl.tokens
	if sl.n == 1 {
		s.words = append(s.words, sl.word[0])
		return
	}
	holders := t.holders(sl)
	few := int(sl.n) > most
	if !few && !sl.wide {
		s.words = append(s.words, holders...)
		return
	}
	if sl.wide {
		f.wide = int32(len(s.tokens))
	}
	for j, w := range holders {
		if o := ordOf(w); few && (int(o) >= len(s.marks) || s.marks[o].turn != s.turn) {
			continue
		}
		s.words = append(s.words, w)
		if sl.wide {
			s.tokens = append(s.tokens, t.tokensOf(sl, j))
		}
	}
	f.n = int32(len(s.words)) - f.off
}

// follow lengthens the runs of the replicas alive after block 0.
func (s *Scratch) follow(x *Index, p *partition, now tick, keys []kv.Hash) {
	left := len(s.alive)
	for from, size := 1, firstWindow; from < len(keys) && left > 0; size = maxWindow {
		size = min(size, max(1, maxCopied/left), len(keys)-from)
		s.window(x, p, keys[from:from+size], left)
		left = s.walk(now, from, size, left)
		from += size
	}
}

// window probes keys, stripe by stripe.
func (s *Scratch) window(x *Index, p *partition, keys []kv.Hash, left int) {
	s.words, s.tokens = s.words[:0], s.tokens[:0]
	s.group.fill(x, keys)
	most := 4*left + 16
	for i := range p.stripes {
		in := s.group.in(i)
		if len(in) == 0 {
			continue
		}
		st := &p.stripes[i]
		st.mu.RLock()
		s.touched ^= st.touch(&s.group.places, in)
		for _, k := range in {
			s.locate(st, s.group.places[k], &s.found[k])
		}
		for _, k := range in {
			s.copy(st, s.group.places[k], &s.found[k], most)
		}
		st.mu.RUnlock()
	}
}

// walk goes through a window in order and returns how many are still alive at
// its end. Most blocks of a chain are held just as the block before: they are
// counted, and added to the runs at once.
func (s *Scratch) walk(now tick, from, size, left int) int {
	var last []uint64 // holders of the block before; all alive are among them
	same, tokens := 0, int32(0)
	for i := range size {
		f := &s.found[i]
		words := s.words[f.off:][:f.n]
		if f.n > 0 && f.wide < 0 && slices.Equal(words, last) {
			same, tokens = same+1, f.tokens
			continue
		}
		s.lengthen(from+i-same, same, tokens)
		same = 0
		left = s.step(now, from+i, f, words)
		if left == 0 {
			return 0
		}
		last = words
	}
	s.lengthen(from+size-same, same, tokens)
	return left
}

// lengthen the runs of the first blocks by n.
func (s *Scratch) lengthen(blocks, n int, tokens int32) {
	if n == 0 {
		return
	}
	for i := range s.alive {
		if a := &s.alive[i]; a.blocks == blocks {
			a.blocks += n
			a.tokens = tokens
		}
	}
}

// step is one block of the walk.
func (s *Scratch) step(now tick, block int, f *found, words []uint64) (left int) {
	for j, w := range words {
		o := int(ordOf(w))
		if o >= len(s.marks) || s.marks[o].turn != s.turn {
			continue
		}
		a := &s.alive[s.marks[o].index]
		if a.blocks != block {
			continue
		}
		seen := full(now, seenOf(w))
		if seen <= a.hides {
			continue
		}
		a.blocks++
		a.seen = min(a.seen, seen)
		a.tier = max(a.tier, tierOf(w))
		a.tokens = s.tokensAt(f, j)
		left++
	}
	return left
}
