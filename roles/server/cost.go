package server

import (
	"sync"

	"inferencecache.io/inferencecache/index"
	"inferencecache.io/inferencecache/internal/kv"
	"inferencecache.io/inferencecache/internal/rank"
)

const (
	guessBits    = 16 // places of the forecast and of popularity, as a power of two
	popularFade  = 30 // seconds
	affinityKeys = 4  // blocks of a prompt that its lot is drawn by
)

// guesses is what lookups leave behind for later ones: where prompts were sent,
// and what is asked for often. Both are small and soft. Safe for concurrent use.
type guesses struct {
	mu      sync.Mutex // guards both
	soon    *rank.Forecast
	popular *rank.Popularity
}

func newGuesses() *guesses {
	return &guesses{soon: rank.NewForecast(guessBits, hintLife.Seconds()), popular: rank.NewPopularity(guessBits, popularFade)}
}

// rate is how many prompts a second begin with the blocks up to key.
func (g *guesses) rate(now float64, salt uint64, key kv.Hash) float64 {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.popular.Rate(now, salt, key)
}

// side is what a lookup keeps beside a candidate.
type side struct {
	member      *member // guarded by its fleet
	held        int32   // tokens of its run, whatever they are worth
	blocks      int
	tier        kv.Tier
	prob        float32 // share of promised tokens that it is found to hold
	quarantined bool
}

// expected is a prefix that a replica will hold soon.
type expected struct {
	replica uint32
	blocks  int32
}

// rankByCost fills l.scored with the replicas that should get the prompt, best
// first, and says why. A prompt below the policy's minimum is placed as if no
// replica held any of it.
func (l *lookup) rankByCost(short bool) string {
	if !l.at.Complete() || len(l.input.keys) == 0 {
		return noHint
	}
	if l.home == nil {
		return l.miss()
	}
	l.salt = l.server.fleets.salt(l.home, l.at.Adapter)
	if !short {
		l.runs = l.server.index.Lookup(&l.scratch, l.now, l.at, l.input.keys)
		l.foresee()
	}
	l.server.fleets.gather(l, l.home)
	if len(l.candidates) == 0 {
		return l.miss()
	}
	l.ranked, l.fleet = l.server.config.Cost.Rank(&l.ranking, l.candidates, l.query())
	reason := l.reason()
	if reason == affinityHint && !l.policy.Affinity {
		return noHint
	}
	if k := l.most(); k > 0 {
		l.ranked = l.ranked[:min(k, len(l.ranked))]
	}
	l.row()
	return reason
}

// most is how many replicas the answer may name; 0: all.
func (l *lookup) most() int {
	if k := int(l.request.GetTopK()); k > 0 {
		return k
	}
	return int(l.policy.TopK)
}

// query is the ranking's question. The ranking cuts the list and keeps the best
// replica that holds nothing in it. Two are ranked at least: the reason depends
// on whether the second is equal.
func (l *lookup) query() rank.Query {
	q := rank.Query{
		Prompt: clampInt32(l.input.tokens), Least: l.input.last(),
		TTFT: float64(l.request.GetSlo().GetTtftMs()) / 1000,
	}
	if k := l.most(); k > 0 {
		q.Top = max(2, k)
	}
	if !l.input.chain { // what is held is known, the prompt's length only if the client says it
		for i := range l.sides {
			q.Prompt = max(q.Prompt, l.sides[i].held)
		}
	}
	return q
}

// foresee asks what is expected soon, and how often the prompt is asked for.
func (l *lookup) foresee() {
	g, now := l.server.guesses, l.server.fleets.seconds(l.now)
	g.mu.Lock()
	defer g.mu.Unlock()
	if !l.dry {
		g.popular.Ask(now, l.salt, l.input.keys)
	}
	l.asked = g.popular.Rates(now, l.salt, l.input.keys)
	g.soon.Soon(now, l.salt, l.input.keys, func(replica uint32, blocks int) {
		l.soon = append(l.soon, expected{replica, int32(blocks)})
	})
}

// lot of the prompt: prompts that begin alike share it.
func (l *lookup) lot() uint64 {
	return uint64(l.input.keys[min(affinityKeys, len(l.input.keys))-1])
}

// hold gives a candidate the run that the index found.
func (l *lookup) hold(i int, run *index.Run) {
	c, s := &l.candidates[i], &l.sides[i]
	s.held, s.blocks, s.tier = l.tokens(run, run.Blocks), run.Blocks, run.Tier
	c.Asked = l.asked.Behind(run.Blocks)
	if s.quarantined {
		return
	}
	c.Tokens[0] = l.tokens(run, run.Warm[0])
	c.Tokens[1] = l.tokens(run, run.Warm[1]) - c.Tokens[0]
	c.Tokens[2] = s.held - c.Tokens[0] - c.Tokens[1]
	if run.Tier > kv.T3 {
		c.Tokens[2] = 0 // a tier that nothing is known of
	}
}

// tokens in the first blocks of a run: a chain counts the request's own blocks,
// an exact key what was stored with it.
func (l *lookup) tokens(run *index.Run, blocks int) int32 {
	if blocks == 0 {
		return 0
	}
	if l.input.chain {
		return l.input.covered(blocks)
	}
	return run.Tokens
}

// reason says what decided about the first replica. Choices that only rest on
// where like prompts went before are affinity, which older clients follow.
func (l *lookup) reason() string {
	top := &l.ranked[0]
	held := l.sides[top.Number].held
	switch {
	case held >= max(1, l.policy.MinMatchedTokens) && !l.sides[top.Number].quarantined:
		return prefixMatch
	case l.fleet.Blind, top.Reusable > top.Held, len(l.candidates) == 1:
		return affinityHint
	case l.fleet.Held == top.Held && l.ranked[1].Finish == top.Finish:
		return affinityHint // the lot decided
	}
	return loadHint
}

// row makes the answer's rows. Scores fall with the order, also where a wanted
// time to first token has put another one first.
func (l *lookup) row() {
	score := float32(1)
	for i := range l.ranked {
		r, s := &l.ranked[i], &l.sides[l.ranked[i].Number]
		score = min(score, r.Score())
		one := rank.Scored{Replica: r.Replica, Score: score, Tokens: s.held, Tier: s.tier}
		if s.quarantined {
			one.Tokens, one.Tier = 0, kv.TierUnknown
		} else if s.held > 0 {
			one.Prob = s.prob
		}
		l.scored = append(l.scored, one)
	}
}

// follow notes the lookup and, unless nobody was named, that the prompt goes to
// the first replica of the answer.
func (l *lookup) follow() {
	fl := l.home
	if fl == nil {
		return
	}
	sent := len(l.ranked) > 0 && !l.policy.Shadow
	now, number := l.server.fleets.seconds(l.now), uint32(0)
	fl.mu.Lock()
	fl.gain.lookups[shadowIndex(l.policy.Shadow)]++
	if sent {
		m := l.sides[l.ranked[0].Number].member
		m.load.hint(now, l.ranked[0].Prefill)
		m.hinted.add(now)
		fl.learn(l.ranked[0].Prefill)
		number = m.number
	} else if len(l.scored) > 0 && !l.policy.Shadow { // profile Compat
		if m := fl.byName[l.scored[0].Replica]; m != nil {
			m.hinted.add(now)
		}
	}
	fl.mu.Unlock()
	if sent {
		g := l.server.guesses
		g.mu.Lock()
		g.soon.Sent(now, l.salt, l.input.keys, number)
		g.mu.Unlock()
	}
}

// learn how long prompts take, from what is expected of one.
func (fl *fleet) learn(seconds float64) {
	const weight = 0.02
	if fl.work == 0 {
		fl.work = promptSeconds
	}
	fl.work += weight * (seconds - fl.work)
}
