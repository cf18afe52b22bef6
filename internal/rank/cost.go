package rank

import (
	"cmp"
	"slices"
	"strings"
)

// Cost ranks by expected finish: the seconds until a replica would have the
// prompt's first token, and what that costs the fleet.
//
//	finish = backlog + (1 + u) x (prompt - reusable) / prefill rate + load time + penalty - gain
//	u      = min(1, mean backlog / Horizon)
//	gain   = asked x Spread x max(0, mean backlog of those that hold more - backlog) / (their number + 1)
//
// A miss keeps the next prompts waiting, so its price rises with the load of
// the fleet; on an idle fleet finish is what is expected and nothing else. But
// what is computed stays: if many prompts ask for what a replica lacks, and the
// replicas that hold it are the busy ones, the prompts of the next Spread
// seconds gain from a further copy. The gain is at most the time that the part
// takes which others hold: such a copy is free, and never more than that.
type Cost struct {
	Horizon float64 // seconds of mean backlog at which a miss costs twice
	Spread  float64 // seconds in which a further copy has to pay
	Rate    float64 // prompt tokens a second, where nothing is known of any replica
	Penalty float64 // seconds, of a replica that has been silent for too long
	// LoadRate is how many tokens a second come from T2 and T3; 0: as good as absent.
	LoadRate [2]float64
}

// CostDefaults suit a GPU of today and a model of some tens of billions.
func CostDefaults() Cost {
	return Cost{Horizon: 2, Spread: 30, Rate: 8000, Penalty: 5, LoadRate: [2]float64{40_000, 20_000}}
}

// Candidate is a live replica, whether it holds anything or not.
type Candidate struct {
	Replica string
	// Tokens of the leading run by the coldest tier on the way to there: those in
	// T1, those behind them that need T2, and those behind them that need T3.
	Tokens  [3]int32
	Backlog float64 // seconds of prefill before a new prompt; meaningless unless Loaded
	Loaded  bool    // Backlog is known
	Rate    float64 // prompt tokens a second; 0: unknown
	Suspect bool    // silent for too long, but not yet dead
	Asked   float64 // prompts a second that ask for the first of what the replica lacks, see Popularity
}

// Terms are the parts of a candidate's cost, in seconds unless said otherwise.
type Terms struct {
	Backlog  float64
	Prefill  float64 // of what has to be computed
	Miss     float64 // u x Prefill: what the fleet pays
	Load     float64 // of colder tiers
	Penalty  float64
	Gain     float64 // what it saves others
	Reusable int32   // tokens
	Finish   float64
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
}

// Scratch is the memory of a ranking; the zero value is ready. It serves one
// ranking at a time.
type Scratch struct {
	values []float64
	order  []int32
	ranked []Ranked
	sorted []Ranked
}

// survey sums up the fleet.
func (c Cost) survey(s *Scratch, candidates []Candidate) (f Fleet) {
	s.values = s.values[:0]
	for i := range candidates {
		if candidates[i].Loaded {
			s.values = append(s.values, candidates[i].Backlog)
		}
	}
	f.Backlog = median(s.values)
	sum := 0.0
	for i := range candidates {
		sum += candidates[i].backlog(f)
	}
	if n := len(candidates); n > 0 && c.Horizon > 0 {
		f.U = min(1, sum/float64(n)/c.Horizon)
	}
	s.values = s.values[:0]
	for i := range candidates {
		if candidates[i].Rate > 0 {
			s.values = append(s.values, candidates[i].Rate)
		}
	}
	f.Rate = cmp.Or(median(s.values), c.Rate)
	return f
}

// median of values, which it sorts; 0 without any.
func median(values []float64) float64 {
	if len(values) == 0 {
		return 0
	}
	slices.Sort(values)
	return values[len(values)/2]
}

func (c *Candidate) backlog(f Fleet) float64 {
	if c.Loaded {
		return c.Backlog
	}
	return f.Backlog
}

// of returns the terms of one candidate for a prompt of so many tokens, but for
// the gain.
func (c Cost) of(f Fleet, one *Candidate, prompt int32) (t Terms) {
	rate := one.Rate
	if rate <= 0 {
		rate = f.Rate
	}
	t.Backlog = one.backlog(f)
	t.Reusable, t.Load = c.reusable(one, rate)
	t.Prefill = float64(max(0, prompt-t.Reusable)) / rate
	t.Miss = f.U * t.Prefill
	if one.Suspect {
		t.Penalty = c.Penalty
	}
	t.Finish = t.Backlog + t.Prefill + t.Miss + t.Load + t.Penalty
	return t
}

// reusable is how many tokens need not be computed, and how long their loading
// takes. A tier that loads slower than the engine computes ends the run.
func (c Cost) reusable(one *Candidate, rate float64) (tokens int32, seconds float64) {
	tokens = one.Tokens[0]
	for i, speed := range c.LoadRate {
		n := one.Tokens[i+1]
		if n == 0 {
			continue
		}
		if speed <= rate {
			break
		}
		tokens += n
		seconds += float64(n) / speed
	}
	return tokens, seconds
}

// Rank orders the candidates for a prompt of so many tokens, cheapest first;
// equal ones by compare, or by name if it is nil. The result lives until the
// next ranking with s.
func (c Cost) Rank(s *Scratch, candidates []Candidate, prompt int32, compare func(a, b string) int) ([]Ranked, Fleet) {
	if compare == nil {
		compare = strings.Compare
	}
	f := c.survey(s, candidates)
	s.ranked, s.order = s.ranked[:0], s.order[:0]
	for i := range candidates {
		s.ranked = append(s.ranked, Ranked{candidates[i], c.of(f, &candidates[i], prompt)})
		s.order = append(s.order, int32(i))
	}
	c.gain(s, f)
	slices.SortFunc(s.order, func(i, j int32) int {
		a, b := &s.ranked[i], &s.ranked[j]
		if a.Finish != b.Finish {
			return cmp.Compare(a.Finish, b.Finish)
		}
		return compare(a.Replica, b.Replica)
	})
	s.sorted = s.sorted[:0]
	for _, i := range s.order {
		s.sorted = append(s.sorted, s.ranked[i])
	}
	return s.sorted, f
}

// gain takes from each candidate's finish what others save by it. It orders by
// what is held.
func (c Cost) gain(s *Scratch, f Fleet) {
	asked := false
	for i := range s.ranked {
		asked = asked || s.ranked[i].Asked > 0
	}
	if !asked || c.Spread <= 0 {
		return
	}
	slices.SortFunc(s.order, func(i, j int32) int { return cmp.Compare(s.ranked[j].Reusable, s.ranked[i].Reusable) })
	most := s.ranked[s.order[0]].Reusable
	holders, waits := 0, 0.0 // of those that hold more
	for from, to := 0, 0; from < len(s.order); from = to {
		for to = from; to < len(s.order) && s.ranked[s.order[to]].Reusable == s.ranked[s.order[from]].Reusable; to++ {
		}
		for _, i := range s.order[from:to] {
			one := &s.ranked[i]
			if holders > 0 {
				spared := max(0, waits/float64(holders)-one.Terms.Backlog) / float64(holders+1)
				held := float64(most-one.Reusable) / cmp.Or(one.Rate, f.Rate)
				one.Gain = min(one.Asked*c.Spread*spared, held)
				one.Finish -= one.Gain
			}
		}
		for _, i := range s.order[from:to] {
			holders++
			waits += s.ranked[i].Terms.Backlog
		}
	}
}

// Score is higher for a lower finish, in (0, 1], comparable within one answer.
func (t *Terms) Score() float32 { return float32(1 / (1 + t.Finish)) }
