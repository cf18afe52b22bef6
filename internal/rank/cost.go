package rank

// Cost ranks by expected finish: the seconds until a replica would have the
// prompt's first token, and what that costs the fleet.
//
//	finish = backlog + prefill + miss + load time + penalty - gain
//	prefill = (prompt - reusable) / prefill rate
//	miss   = u x prefill + max(0, Copy x copies - u) x under way / prefill rate
//	u      = min(1, mean backlog / Horizon)
//	gain   = asked x Spread x max(0, mean backlog of those that hold more - backlog) / (their number + 1)
//
// A miss keeps the next prompts waiting, so its price rises with the load of
// the fleet; on an idle fleet finish is what is expected and nothing else. What
// others have under way already, because its like was hinted there a moment ago,
// has a price whatever the load, and a higher one with each copy: so a burst of
// one cold prompt is computed where it began, and elsewhere when that pays.
//
// But what is computed stays: if many prompts ask for what a replica lacks, and
// the replicas that hold it are the busy ones, the prompts of the next Spread
// seconds gain from a further copy. The gain is at most the time that the part
// takes which others hold: such a copy is free, and never more than that.
type Cost struct {
	Horizon float64 // seconds of mean backlog at which a miss costs twice
	Spread  float64 // seconds in which a further copy has to pay
	Rate    float64 // prompt tokens a second, where nothing is known of any replica
	Penalty float64 // seconds, of a replica that has been silent for too long
	Copy    float64 // price of a miss with one copy under way; with n of them n times that, up to 1
	Bound   float64 // without loads: how far recent hints to a replica may exceed the mean
	// LoadRate is how many tokens a second come from T2 and T3; 0: as good as absent.
	LoadRate [2]float64
}

// CostDefaults suit a GPU of today and a model of some tens of billions.
func CostDefaults() Cost {
	return Cost{Horizon: 2, Spread: 30, Rate: 8000, Penalty: 5, Copy: 1.0 / 3, Bound: 1.25, LoadRate: [2]float64{40_000, 20_000}}
}

// Candidate is a live replica, whether it holds anything or not.
type Candidate struct {
	Replica string
	// Tokens of the leading run by the coldest tier on the way to there: those in
	// T1, those behind them that need T2, and those behind them that need T3.
	Tokens  [3]int32
	Soon    int32   // tokens of a like prompt hinted there a moment ago: held soon, if not yet
	Backlog float64 // seconds of prefill before a new prompt; unless Loaded only of what was hinted there
	Loaded  bool    // Backlog is all there is
	Rate    float64 // prompt tokens a second; 0: unknown
	Suspect bool    // silent for too long, but not yet dead
	Asked   float64 // prompts a second that ask for the first of what the replica lacks, see Popularity
	Recent  float64 // prompts hinted there within the last seconds
	Lot     uint64  // breaks ties, the highest wins, see Lot
	Number  int32   // the caller's own
}

// Query is what a ranking is about.
type Query struct {
	Prompt int32   // tokens
	Least  int32   // tokens of it that an engine computes even if it holds all
	TTFT   float64 // wanted seconds to the first token; 0: not said
	Top    int     // how many to rank; 0: all
}

// Terms are the parts of a candidate's cost, in seconds unless said otherwise.
type Terms struct {
	Backlog  float64
	Prefill  float64 // of what has to be computed
	Miss     float64 // what the fleet pays for it
	Load     float64 // of colder tiers
	Penalty  float64
	Gain     float64 // what it saves others
	Held     int32   // tokens, of them those that are worth loading
	Reusable int32   // tokens, with those expected soon
	Finish   float64
	Value    float64 // what the order goes by, lowest first: finish, or the work alone where the wanted time is met
	Late     bool    // it is not expected to meet the wanted time to first token
	Over     bool    // it had more than its share of recent hints
}

// Ranked is a candidate with its terms.
type Ranked struct {
	Candidate
	Terms
}

// Fleet is what all candidates have in common.
type Fleet struct {
	U       float64 // price of a miss, 0 to 1
	Backlog float64 // median of the known ones, in seconds: what unknown counts as
	Rate    float64 // median of the known ones, tokens a second
	Loaded  bool    // some load is known
	// Blind is set if no load is known and no replica holds any of the prompt, nor
	// will soon: then lots decide, within Cost.Bound.
	Blind bool

	Held   int32   // most tokens of any replica
	soon   int32   // and with those expected soon
	copies int     // replicas that will soon hold more than any does
	bound  float64 // most recent hints
}

// Scratch is the memory of a ranking; the zero value is ready. It serves one
// ranking at a time.
type Scratch struct {
	values []float64
	order  []int32
	held   []uint64 // MaxInt32 less the tokens held, above the place in ranked
	ranked []Ranked
	sorted []Ranked
}

// Rank orders the candidates for a prompt, best first, and cuts the list; equal
// ones by lot, then by name. The last of a cut list is the best of those that
// hold nothing, if no other in it is one. The result lives until the next
// ranking with s.
func (c Cost) Rank(s *Scratch, candidates []Candidate, q Query) ([]Ranked, Fleet) {
	f := c.survey(s, candidates)
	s.ranked = s.ranked[:0]
	for i := range candidates {
		s.ranked = append(s.ranked, Ranked{Candidate: candidates[i]})
		c.hold(&s.ranked[i], &f, &q)
		f.Held = max(f.Held, s.ranked[i].Held)
		f.soon = max(f.soon, s.ranked[i].Reusable)
	}
	for i := range s.ranked {
		if s.ranked[i].Reusable > f.Held {
			f.copies++
		}
	}
	f.Blind = !f.Loaded && f.soon == 0
	for i := range s.ranked {
		c.price(&s.ranked[i], &f, &q)
	}
	c.gain(s, &f)
	c.sort(s, &f, &q)
	return s.sorted, f
}

// hold sets what a replica need not compute, and how long loading it takes. A
// tier that loads slower than the engine computes ends the run.
func (c *Cost) hold(r *Ranked, f *Fleet, q *Query) {
	rate := r.rate(f)
	most := max(0, q.Prompt-q.Least)
	r.Held = min(r.Tokens[0], most)
	for i, speed := range c.LoadRate {
		n := min(r.Tokens[i+1], most-r.Held)
		if n == 0 {
			continue
		}
		if speed <= rate {
			break
		}
		r.Held += n
		r.Load += float64(n) / speed
	}
	r.Reusable = max(r.Held, min(r.Soon, most))
}

// price sets the other terms, but for the gain.
func (c *Cost) price(r *Ranked, f *Fleet, q *Query) {
	rate := r.rate(f)
	r.Terms.Backlog = r.backlog(f)
	r.Prefill = float64(max(0, q.Prompt-r.Reusable)) / rate
	underWay := float64(max(0, f.soon-max(r.Reusable, f.Held))) / rate
	r.Miss = f.U*r.Prefill + max(0, min(1, c.Copy*float64(f.copies))-f.U)*underWay
	if r.Suspect {
		r.Penalty = c.Penalty
	}
	expected := r.Terms.Backlog + r.Prefill + r.Load + r.Penalty
	r.Finish = expected + r.Miss
	r.Value = r.Finish
	if q.TTFT > 0 {
		if r.Late = expected > q.TTFT; !r.Late {
			r.Value -= r.Terms.Backlog
		}
	}
	r.Over = f.Blind && r.Recent >= f.bound
}

func (c *Candidate) backlog(f *Fleet) float64 {
	if c.Loaded {
		return c.Backlog
	}
	return f.Backlog + c.Backlog
}

// rate is what it computes, in tokens a second; its own if that is known.
func (c *Candidate) rate(f *Fleet) float64 {
	if c.Rate != 0 {
		return c.Rate
	}
	return f.Rate
}

// Score is higher for a lower finish, in (0, 1], comparable within one answer.
func (t *Terms) Score() float32 { return float32(1 / (1 + max(0, t.Finish))) }
