package subscriber

import (
	"maps"
	"math/rand/v2"

	"inferencecache.io/inferencecache/internal/kv"
)

// model stands in for a residency: what is held, in chains, and random steps.
type model struct {
	rng    *rand.Rand
	held   heldBlocks
	chains [][]Change // one Change a block, each with its parent
	next   kv.Hash
}

func newModel(seed uint64) *model {
	return &model{rng: rand.New(rand.NewPCG(seed, 1)), held: heldBlocks{}, next: 1}
}

const modelBlockSize = 16

// step is a random change of what is held: mostly stores and removals from a
// chain's end, as engines do, seldom others.
func (m *model) step() []Change {
	switch n := m.rng.IntN(100); {
	case n < 1:
		m.chains = nil
		clear(m.held)
		return []Change{{Kind: Clear}}
	case n < 55 || len(m.chains) == 0:
		return m.grow()
	case n < 90:
		return m.shrink()
	}
	return m.move()
}

func (m *model) grow() []Change {
	if len(m.chains) == 0 || m.rng.IntN(4) == 0 {
		m.chains = append(m.chains, nil)
	}
	i := m.rng.IntN(len(m.chains))
	c := Change{Kind: Store, Adapter: []string{"", "lora"}[i%2], Tier: kv.T1, BlockSize: modelBlockSize}
	if n := len(m.chains[i]); n > 0 {
		last := m.chains[i][n-1]
		c.Parent, c.HasParent, c.Tokens, c.Adapter = last.Hashes[0], true, n*modelBlockSize, last.Adapter
	}
	parent, hasParent := c.Parent, c.HasParent
	for range 1 + m.rng.IntN(5) {
		h := m.next * 0x9e3779b97f4a7c15
		m.next++
		c.Hashes = append(c.Hashes, h)
		m.held[heldBlock{c.Adapter, h}] = kv.T1
		m.chains[i] = append(m.chains[i], Change{
			Kind: Store, Adapter: c.Adapter, Tier: kv.T1, BlockSize: modelBlockSize, Hashes: []kv.Hash{h},
			Parent: parent, HasParent: hasParent, Tokens: len(m.chains[i]) * modelBlockSize,
		})
		parent, hasParent = h, true
	}
	return []Change{c}
}

func (m *model) shrink() (changes []Change) {
	i := m.rng.IntN(len(m.chains))
	for range 1 + m.rng.IntN(4) {
		n := len(m.chains[i])
		if n == 0 {
			break
		}
		last := m.chains[i][n-1]
		m.chains[i] = m.chains[i][:n-1]
		delete(m.held, heldBlock{last.Adapter, last.Hashes[0]})
		changes = append(changes, Change{Kind: Remove, Adapter: last.Adapter, Hashes: last.Hashes})
	}
	if len(m.chains[i]) == 0 {
		m.chains = append(m.chains[:i], m.chains[i+1:]...)
	}
	return changes
}

// move puts one block into the lower tier.
func (m *model) move() []Change {
	chain := m.chains[m.rng.IntN(len(m.chains))]
	if len(chain) == 0 {
		return nil
	}
	c := &chain[m.rng.IntN(len(chain))]
	c.Tier = kv.T2
	m.held[heldBlock{c.Adapter, c.Hashes[0]}] = kv.T2
	return []Change{*c}
}

// yield is what Residency.Held is for a residency.
func (m *model) yield(yield func(Change) bool) {
	for _, chain := range m.chains {
		for _, c := range chain {
			if !yield(c) {
				return
			}
		}
	}
}

func (m *model) now() heldBlocks { return maps.Clone(m.held) }
