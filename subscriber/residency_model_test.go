package subscriber

import (
	"fmt"
	"hash/fnv"
	"maps"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"inferencecache.io/inferencecache/internal/engine"
	"inferencecache.io/inferencecache/internal/fingerprint"
	"inferencecache.io/inferencecache/internal/kv"
)

// The model is an honest engine and a residency without any cleverness. A path
// such as "a/01" is a chain of blocks: its first part names the adapter or the
// separate space it lives in, each further letter a block.

const modelBlock = 4 // tokens a block

// modelSpaces are the first parts of paths; "salt" is out of reach.
var modelSpaces = []string{"", "sql", "salt"}

type modelPath string

func (p modelPath) space() string { return string(p)[:strings.IndexByte(string(p), '/')] }
func (p modelPath) letters() string {
	return string(p)[strings.IndexByte(string(p), '/')+1:]
}
func (p modelPath) parent() modelPath { return p[:len(p)-1] }
func (p modelPath) isRoot() bool      { return len(p.letters()) == 1 }
func (p modelPath) apart() bool       { return p.space() == "salt" }

func (p modelPath) adapter() string {
	if p.apart() {
		return ""
	}
	return p.space()
}

// hash is the engine's name of the last block of p.
func (p modelPath) hash() engine.BlockHash {
	h := fnv.New64a()
	h.Write([]byte(p))
	return engine.BlockHash{ID: h.Sum64()}
}

func (p modelPath) tokens() []uint32 {
	var tokens []uint32
	for _, letter := range p.letters() {
		for i := range modelBlock {
			tokens = append(tokens, uint32(letter)*10+uint32(i))
		}
	}
	return tokens
}

// name is what the server calls the last block of p.
func (p modelPath) name() partitionHash {
	hashes := fingerprint.Append(nil, p.tokens(), modelBlock)
	return partitionHash{p.adapter(), hashes[len(hashes)-1]}
}

type modelKey struct {
	rank, group int
	path        modelPath
}

type modelRecord struct {
	placed  bool // it, and all before it, have been known at some moment
	assumed bool
	copies  [3]int
}

func (m *modelRecord) gone() bool { return m.copies == [3]int{} }

type naiveModel struct {
	hasLowerTier bool
	lower        map[int]bool
	records      map[modelKey]*modelRecord
	names        map[modelPath]partitionHash // as made before
}

func newNaiveModel(hasLowerTier bool) *naiveModel {
	return &naiveModel{
		hasLowerTier: hasLowerTier,
		lower:        map[int]bool{},
		records:      map[modelKey]*modelRecord{},
		names:        map[modelPath]partitionHash{},
	}
}

func (m *naiveModel) witness(rank, tier int) {
	if tier == 0 || m.lower[rank] {
		return
	}
	m.lower[rank] = true
	for key, rec := range m.records {
		if key.rank == rank && rec.assumed {
			rec.copies[1], rec.assumed = 0, false
		}
	}
	m.settle()
}

// store takes in a chain of paths, each the parent of the next.
func (m *naiveModel) store(rank, group, tier int, chain []modelPath) {
	m.witness(rank, tier)
	again := chain[0].isRoot() && len(chain) > 1
	for _, p := range chain {
		rec := m.records[modelKey{rank, group, p}]
		again = again && rec != nil && rec.placed && rec.copies[tier] > 0
	}
	if again {
		return
	}
	for _, p := range chain {
		key := modelKey{rank, group, p}
		if m.records[key] == nil {
			m.records[key] = &modelRecord{}
		}
		rec := m.records[key]
		rec.copies[tier] = min(rec.copies[tier]+1, maxCopies)
		rec.placed = rec.placed || p.isRoot() || p.apart()
		m.settle()
	}
}

func (m *naiveModel) move(rank, group, tier int, p modelPath) {
	m.witness(rank, tier)
	if rec := m.records[modelKey{rank, group, p}]; rec != nil {
		rec.copies[tier] = min(rec.copies[tier]+1, maxCopies)
	}
}

func (m *naiveModel) remove(rank, group, tier int, p modelPath) {
	m.witness(rank, tier)
	rec := m.records[modelKey{rank, group, p}]
	if rec == nil || rec.copies[tier] == 0 {
		return
	}
	rec.copies[tier]--
	if rec.gone() && tier == 0 && m.hasLowerTier && !m.lower[rank] && rec.placed && !p.apart() {
		rec.copies[1], rec.assumed = 1, true
	}
	m.settle()
}

func (m *naiveModel) clear(rank int) {
	for key := range m.records {
		if key.rank == rank {
			delete(m.records, key)
		}
	}
}

// settle forgets what is gone and places what has a placed parent.
func (m *naiveModel) settle() {
	for key, rec := range m.records {
		if rec.gone() {
			delete(m.records, key)
		}
	}
	for again := true; again; {
		again = false
		for key, rec := range m.records {
			if rec.placed || key.path.isRoot() {
				continue
			}
			parent := m.records[modelKey{key.rank, key.group, key.path.parent()}]
			if parent != nil && parent.placed {
				rec.placed, again = true, true
			}
		}
	}
}

// held is the answer: the best tier of every block in reach.
func (m *naiveModel) held() replayed {
	held := replayed{}
	for key, rec := range m.records {
		if !rec.placed || key.path.apart() {
			continue
		}
		for i, n := range rec.copies {
			name, ok := m.names[key.path]
			if !ok {
				name = key.path.name()
				m.names[key.path] = name
			}
			if tier := kv.T1 + kv.Tier(i); n > 0 && (held[name] == 0 || tier < held[name]) {
				held[name] = tier
			}
		}
	}
	return held
}

// replayed is a server that believes every Change.
type replayed map[partitionHash]kv.Tier

func (s replayed) apply(t testing.TB, changes []Change) {
	t.Helper()
	for _, c := range changes {
		switch c.Kind {
		case Store:
			checkRun(t, c)
			for _, hash := range c.Hashes {
				s[partitionHash{c.Adapter, hash}] = c.Tier
			}
		case Remove:
			for _, hash := range c.Hashes {
				if _, ok := s[partitionHash{c.Adapter, hash}]; !ok {
					t.Errorf("removed %v, which was not stored", hash)
				}
				delete(s, partitionHash{c.Adapter, hash})
			}
		case Clear:
			clear(s)
		default:
			t.Fatalf("change of kind %d", c.Kind)
		}
	}
}

func checkRun(t testing.TB, c Change) {
	t.Helper()
	if len(c.Hashes) == 0 || len(c.Hashes) > maxRun || !c.Tier.Known() || c.BlockSize <= 0 || c.Tokens < 0 ||
		c.HasParent != (c.Tokens > 0) {
		t.Errorf("malformed store %+v", c)
	}
}

// heldBy collects what r would send again.
func heldBy(t testing.TB, r *Residency) replayed {
	t.Helper()
	held := replayed{}
	r.Held(func(c Change) bool {
		if c.Kind != Store {
			t.Errorf("Held yields kind %d", c.Kind)
		}
		for _, hash := range c.Hashes {
			if _, twice := held[partitionHash{c.Adapter, hash}]; twice {
				t.Errorf("Held yields %v twice", hash)
			}
		}
		held.apply(t, []Change{c})
		return true
	})
	return held
}

// check proves that what r keeps fits together.
func (r *Residency) check() error {
	holders := map[uint32][3]uint32{}
	var want Stats
	holdings, orphans, tokens := 0, 0, 0
	for _, rs := range r.ranks {
		assumed := 0
		for _, g := range rs.order {
			plain := 0
			if r.groups[g.id] != g || g.owner != rs {
				return fmt.Errorf("group %d is not in its place", g.id)
			}
			held := 0
			for at := uint32(1); at <= r.holdings.used; at++ {
				h := r.holdings.at(at)
				if h.group != g.id {
					continue
				}
				if r.held(g, h.hash) != at || h.copies.sum() == 0 {
					return fmt.Errorf("holding %+v is not found", *h)
				}
				held++
				holdings++
				if h.assumed {
					assumed++
				}
				if h.copies.sum() > 1 {
					want.Multiple++
				}
				if h.block == 0 {
					want.Separate++
					continue
				}
				plain++
				n := holders[h.block]
				for i := range n {
					if h.copies[i] > 0 {
						n[i]++
					}
				}
				holders[h.block] = n
			}
			if held != g.held || plain != g.plain {
				return fmt.Errorf("group counts %d holdings, %d of them plain, has %d and %d", g.held, g.plain, held, plain)
			}
			for hash, o := range g.orphans {
				orphans++
				tokens += len(o.tokens)
				if o.hash != hash || o.group != g || o.copies.sum() == 0 || r.held(g, hash) != 0 {
					return fmt.Errorf("orphan %x is %+v", hash, *o)
				}
			}
			waiting := 0
			for parent, o := range g.waiting {
				if o.prev != nil || r.held(g, parent) != 0 {
					return fmt.Errorf("children wait for %x, which is held", parent)
				}
				for ; o != nil; o = o.next {
					waiting++
					if o.parent != parent || g.orphans[o.hash] != o {
						return fmt.Errorf("child of %x is %+v", parent, *o)
					}
				}
			}
			if waiting != len(g.orphans) {
				return fmt.Errorf("%d of %d orphans wait", waiting, len(g.orphans))
			}
		}
		if assumed != rs.assumed {
			return fmt.Errorf("rank counts %d assumed holdings, has %d", rs.assumed, assumed)
		}
	}
	if holdings != r.holdings.len() || holdings != r.byHash.count || holdings > r.config.MaxBlocks {
		return fmt.Errorf("%d holdings are in groups, %d in the slab", holdings, r.holdings.len())
	}
	queued := 0
	for o := r.orphans.oldest; o != nil; o = o.newer {
		queued++
		if o.newer == nil && r.orphans.newest != o {
			return fmt.Errorf("the queue of orphans does not end at its newest")
		}
	}
	if queued != orphans || orphans != r.orphans.count || tokens != r.orphans.tokens || orphans > r.config.MaxOrphans {
		return fmt.Errorf("%d orphans in groups, %d queued, %d counted", orphans, queued, r.orphans.count)
	}
	return r.checkBlocks(holders, want)
}

func (r *Residency) checkBlocks(holders map[uint32][3]uint32, want Stats) error {
	named := 0
	byAdapter := make([]int, len(r.adapters.list))
	for at := uint32(1); at <= r.blocks.used; at++ {
		b := r.blocks.at(at)
		if b.size == 0 {
			continue
		}
		if r.named(b.adapter, b.prefix) != at || b.holders != holders[at] {
			return fmt.Errorf("block %+v is not found, or its holders are not %v", *b, holders[at])
		}
		named++
		byAdapter[b.adapter]++
		want.Held[slot(b.tier())]++
	}
	for id, a := range r.adapters.list {
		if a.blocks != byAdapter[id] {
			return fmt.Errorf("adapter %d counts %d blocks, has %d", id, a.blocks, byAdapter[id])
		}
	}
	if named != r.blocks.len() || named != r.byPrefix.count || named != len(holders) {
		return fmt.Errorf("%d blocks have names, %d places, %d holders", named, r.blocks.len(), len(holders))
	}
	got := r.stats
	if got.Held != want.Held || got.Multiple != want.Multiple || got.Separate != want.Separate {
		return fmt.Errorf("stats are %+v, want %+v", got, want)
	}
	return nil
}

// chooser makes the decisions of a random history.
type chooser interface {
	IntN(n int) int
}

var modelTiers = []struct{ medium, locality string }{{"GPU", ""}, {"CPU", ""}, {"CPU", "REMOTE"}}

const modelRanks, modelGroups = 2, 2

// step makes a random batch for a random rank, tells the model, and returns it.
func step(c chooser, m *naiveModel) (rank int, b *engine.Batch) {
	rank, b = c.IntN(modelRanks), &engine.Batch{}
	for range 1 + c.IntN(3) {
		e := engine.Event{Index: len(b.Events), FirstString: -1, GroupIdx: c.IntN(modelGroups)}
		e.Mark(engine.GroupIdx)
		tier := 0
		odds := 3
		if m.hasLowerTier {
			odds = 100 // the first one ends the assumption
		}
		if c.IntN(odds) == 0 {
			tier = c.IntN(len(modelTiers))
		}
		e.Medium, e.Locality = modelTiers[tier].medium, modelTiers[tier].locality
		path := modelPath(modelSpaces[c.IntN(len(modelSpaces))] + "/")
		for range 1 + c.IntN(5) {
			path += modelPath('0' + rune(c.IntN(2)))
		}
		switch op := c.IntN(16); {
		case op < 8:
			chain := []modelPath{path}
			for len(chain) < 4 && !chain[0].isRoot() && c.IntN(4) > 0 {
				chain = append([]modelPath{chain[0].parent()}, chain...)
			}
			fillStore(&e, chain)
			m.store(rank, e.GroupIdx, tier, chain)
		case op < 14:
			e.Kind, e.Hashes = engine.Removed, []engine.BlockHash{path.hash()}
			m.remove(rank, e.GroupIdx, tier, path)
		case op < 15:
			e.Kind, e.Hashes = engine.Stored, []engine.BlockHash{path.hash()}
			m.move(rank, e.GroupIdx, tier, path)
		case c.IntN(4) == 0:
			e.Kind = engine.Cleared
			m.clear(rank)
		default: // sliding windows are nobody's business
			fillStore(&e, []modelPath{path})
			e.SpecKind, e.GroupIdx = "sliding_window", modelGroups
			m.witness(rank, tier)
		}
		b.Events = append(b.Events, e)
	}
	return rank, b
}

func fillStore(e *engine.Event, chain []modelPath) {
	first, last := chain[0], chain[len(chain)-1]
	e.Kind, e.BlockSize, e.SpecKind, e.LoraName = engine.Stored, modelBlock, "full_attention", first.adapter()
	for _, p := range chain {
		e.Hashes = append(e.Hashes, p.hash())
	}
	if !first.isRoot() {
		e.Parent = first.parent().hash()
		e.Mark(engine.ParentHash)
	}
	e.Tokens = last.tokens()[modelBlock*(len(first.letters())-1):]
	if first.apart() {
		e.CacheSalt = "tenant"
	}
}

// history runs batches until stop, comparing with the model after every one.
func history(t testing.TB, c chooser, hasLowerTier bool, stop func() bool) {
	t.Helper()
	m := newNaiveModel(hasLowerTier)
	r := NewResidency(ResidencyConfig{HasLowerTier: hasLowerTier})
	server := replayed{}
	for i := 0; !stop(); i++ {
		rank, b := step(c, m)
		changes, _ := r.Apply(rank, b)
		server.apply(t, changes)
		if c.IntN(60) == 0 {
			m.clear(rank)
			delete(m.lower, rank)
			server.apply(t, r.ClearRank(rank))
		}
		want := m.held()
		if !maps.Equal(want, server) {
			t.Fatalf("batch %d, the server (-model +server):\n%s", i, cmp.Diff(want, server))
		}
		if held := heldBy(t, r); !maps.Equal(want, held) {
			t.Fatalf("batch %d, Held (-model +held):\n%s", i, cmp.Diff(want, held))
		}
		if r.Len() != len(want) {
			t.Fatalf("batch %d: Len is %d, want %d", i, r.Len(), len(want))
		}
		if err := r.check(); err != nil {
			t.Fatalf("batch %d: %v", i, err)
		}
	}
}
