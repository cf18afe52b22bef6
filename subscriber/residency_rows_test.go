package subscriber

import (
	"testing"

	"inferencecache.io/inferencecache/internal/engine"
)

// What the fields of an event do not tell: one case for each fact that engines
// are known for, with what it must end as.
func TestResidencyKnowsWhatFieldsDoNotTell(t *testing.T) {
	t.Parallel()
	p := prompt(4)
	bigram := func(e *engine.Event) { e.Bigram, e.BigramTail = true, 999 }
	withKeys := func(keys ...engine.Keys) edit {
		return func(e *engine.Event) { e.ExtraKeys = keys }
	}
	placeholder := func(hash uint64) engine.Event {
		e := stores(names(hash), nil, on("CPU"))
		e.BlockSize = 0
		return e
	}
	sized := func(size int, e engine.Event) engine.Event { e.BlockSize = size; return e }
	for _, tc := range []struct {
		name   string
		config ResidencyConfig
		events []engine.Event
		want   string // verdict of the last
		tiers  string // of the prompt's four blocks
	}{
		{"masked blocks are left out of the hashes, not of the tokens", ResidencyConfig{},
			[]engine.Event{sized(4, stores(names(1, 2, 4), p))}, "skipped:tokens_mismatch", "- - - -"},
		{"a parent that was never announced makes no root", ResidencyConfig{},
			[]engine.Event{stores(names(3, 4), p[8:], after(2))}, "orphan:unknown_parent", "- - - -"},
		{"it may be announced later", ResidencyConfig{},
			[]engine.Event{stores(names(3, 4), p[8:], after(2)), stores(names(1, 2), p[:8])}, "applied", "1 1 1 1"},
		{"a partial entry is no block", ResidencyConfig{BlockSize: 4},
			[]engine.Event{stores(names(1, 2), p[:8]), sized(2, stores(names(9), p[8:10], after(2)))}, "skipped:partial_block", "1 1 - -"},
		{"a short last page neither", ResidencyConfig{},
			[]engine.Event{stores(names(1, 2), p[:8]), sized(2, stores(names(9), p[8:10], after(2)))}, "skipped:partial_block", "1 1 - -"},
		{"a sliding window says nothing about a prefix", ResidencyConfig{},
			[]engine.Event{stores(names(1, 2, 3, 4), p, kindOf("sliding_window"), inGroup(1))}, "skipped:secondary_group", "- - - -"},
		{"nor takes its removal anything", ResidencyConfig{},
			[]engine.Event{
				stores(names(1, 2, 3, 4), p, kindOf("full_attention"), inGroup(0)),
				stores(names(1, 2, 3, 4), p, kindOf("mamba"), inGroup(1)),
				removes(names(1, 2, 3, 4), inGroup(1)),
			}, "skipped:secondary_group", "1 1 1 1"},
		{"two physical copies, one evicted", ResidencyConfig{},
			[]engine.Event{stores(names(1), p[:4]), stores(names(1), p[:4]), removes(names(1))}, "applied", "1 - - -"},
		{"a re-announced prompt adds no copy", ResidencyConfig{},
			[]engine.Event{stores(names(1, 2), p[:8]), stores(names(1, 2), p[:8]), removes(names(2)), removes(names(1))}, "applied", "- - - -"},
		{"a placeholder moves a known block down", ResidencyConfig{},
			[]engine.Event{stores(names(1, 2), p[:8]), placeholder(2), removes(names(2), on("GPU"))}, "applied", "1 2 - -"},
		{"a placeholder of an unknown block is none", ResidencyConfig{},
			[]engine.Event{placeholder(2)}, "skipped:unknown_block", "- - - -"},
		{"a removal from the CPU leaves the GPU alone", ResidencyConfig{},
			[]engine.Event{stores(names(1), p[:4]), placeholder(1), removes(names(1), on("CPU"))}, "applied", "1 - - -"},
		{"an offloaded chunk names all its blocks", ResidencyConfig{},
			[]engine.Event{stores(names(1, 2, 3, 4), p, on("CPU_PINNED"))}, "applied", "2 2 2 2"},
		{"what others reach too is not this replica's memory", ResidencyConfig{},
			[]engine.Event{stores(names(1), p[:4], on("EXTERNAL"))}, "applied", "3 - - -"},
		{"a clear takes all tiers, for the engine does not say which", ResidencyConfig{},
			[]engine.Event{stores(names(1, 2), p[:8]), placeholder(1), clears()}, "applied", "- - - -"},
		{"a salt sets a prompt apart", ResidencyConfig{},
			[]engine.Event{stores(names(1, 2), p[:8], salted)}, "skipped:separate_space", "- - - -"},
		{"and all that builds on it", ResidencyConfig{},
			[]engine.Event{stores(names(1, 2), p[:8], salted), stores(names(3), p[8:12], after(2))}, "skipped:separate_space", "- - - -"},
		{"a name that is also the salt is taken out once", ResidencyConfig{},
			[]engine.Event{stores(names(1), p[:4], called("same"), withKeys(engine.Keys(pack{}.array(2).text("same").text("same"))))}, "skipped:separate_space", "- - - -"},
		{"pairs of a speculative engine stand for their first tokens", ResidencyConfig{},
			[]engine.Event{stores(names(1, 2), p[:8], bigram)}, "applied", "1 1 - -"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			b := newResidencyBench(t, tc.config)
			last := ""
			for _, e := range tc.events {
				_, last = b.do(0, e)
			}
			if last != tc.want {
				t.Errorf("verdict %q, want %q", last, tc.want)
			}
			b.tiers(4, tc.tiers)
		})
	}
}
