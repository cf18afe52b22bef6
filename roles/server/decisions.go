package server

import (
	"math/rand/v2"
	"strconv"
	"sync"
	"time"

	"inferencecache.io/inferencecache/internal/kv"
	"inferencecache.io/inferencecache/internal/policy"
	"inferencecache.io/inferencecache/internal/rank"
)

const (
	maxRequestID = 128 // bytes
	maxRemarked  = 8   // ranked replicas that a decision remembers
	maxHeld      = 256 // holders
)

// decisions are the latest answers, by request id, in a ring. They hold names,
// counts and few hashes, no prompts. Safe for concurrent use.
type decisions struct {
	mu   sync.Mutex // guards what follows
	ring []decision
	next int
	by   map[string]int // place in ring
}

// decision is what one lookup led to.
type decision struct {
	id      string
	at      time.Time
	where   kv.Partition
	profile policy.Profile
	shadow  bool
	reason  string
	tokens  int32 // of the prompt
	blocks  int32
	block   int32 // tokens of its last block, which is computed in any case
	fleet   rank.Fleet
	ranked  []remark  // the best few
	held    []holder  // by whom, whether ranked or not
	marks   []kv.Hash // of the prompt after 1, 2, 4, ... blocks
	members int       // candidates
	done    bool      // its outcome is known
}

// remark is a ranked replica as a decision remembers it.
type remark struct {
	rank.Ranked
	rank.Scored
	blocks      int
	quarantined bool
}

// holder is how many of a prompt's tokens a replica was said to hold.
type holder struct {
	replica string
	tokens  int32
}

func newDecisions(size int) *decisions {
	return &decisions{ring: make([]decision, size), by: make(map[string]int, size)}
}

// drawID makes a request id that no other server is likely to make.
func drawID() string { return strconv.FormatUint(rand.Uint64()|1<<63, 36) }

// add calls fill with the place of the oldest decision, whose slices may be
// used again.
func (d *decisions) add(id string, fill func(*decision)) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if len(d.ring) == 0 {
		return
	}
	old := &d.ring[d.next]
	if at, ok := d.by[old.id]; ok && at == d.next {
		delete(d.by, old.id)
	}
	*old = decision{id: id, ranked: old.ranked[:0], held: old.held[:0], marks: old.marks[:0]}
	fill(old)
	d.by[id] = d.next
	d.next = (d.next + 1) % len(d.ring)
}

// with calls read for a decision that is remembered, or returns false.
func (d *decisions) with(id string, read func(*decision)) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	at, ok := d.by[id]
	if ok {
		read(&d.ring[at])
	}
	return ok
}

// heldBy returns how many tokens a replica was said to hold.
func (d *decision) heldBy(replica string) int32 {
	for i := range d.held {
		if d.held[i].replica == replica {
			return d.held[i].tokens
		}
	}
	return 0
}

// promised is how many of the prompt's tokens a replica should find that holds
// so many.
func (d *decision) promised(tokens int32) int32 { return max(0, min(tokens, d.tokens-d.block)) }

// record keeps what was decided, for Explain and for the outcome.
func (l *lookup) record(id, reason string) {
	l.server.decisions.add(id, func(d *decision) {
		d.at, d.where, d.reason, d.profile, d.shadow = l.now, l.at, reason, l.policy.Profile, l.policy.Shadow
		d.tokens, d.blocks, d.block = clampInt32(l.input.tokens), int32(len(l.input.keys)), l.input.last()
		for depth := 1; depth <= len(l.input.keys); depth *= 2 {
			d.marks = append(d.marks, l.input.keys[depth-1])
		}
		d.fleet, d.members = l.fleet, len(l.candidates)
		for i := range l.ranked[:min(len(l.ranked), maxRemarked)] {
			s := &l.sides[l.ranked[i].Number]
			d.ranked = append(d.ranked, remark{
				Ranked: l.ranked[i], Scored: l.scored[i], blocks: s.blocks, quarantined: s.quarantined,
			})
		}
		for i := range l.scored[:min(len(l.scored), maxRemarked)] {
			if len(l.ranked) == 0 { // profile Compat: there is only the score
				d.ranked = append(d.ranked, remark{Scored: l.scored[i]})
			}
		}
		for i := range l.holds[:min(len(l.holds), maxHeld)] { // of profile Compat
			d.held = append(d.held, holder{l.holds[i].Replica, l.holds[i].Tokens})
		}
		for i := range l.sides {
			if s := &l.sides[i]; s.held > 0 && len(d.held) < maxHeld {
				d.held = append(d.held, holder{l.candidates[i].Replica, s.held})
			}
		}
	})
}
