package rank

import (
	"cmp"
	"math"
	"slices"
	"strings"
)

// survey sums up the fleet.
func (c Cost) survey(s *Scratch, candidates []Candidate) (f Fleet) {
	s.values = s.values[:0]
	recent := 0.0
	for i := range candidates {
		recent += candidates[i].Recent
		if candidates[i].Loaded {
			s.values = append(s.values, candidates[i].Backlog)
		}
	}
	f.Loaded = len(s.values) > 0
	f.Backlog = median(s.values)
	sum := 0.0
	for i := range candidates {
		sum += candidates[i].backlog(&f)
	}
	if n := float64(len(candidates)); n > 0 {
		if c.Horizon > 0 {
			f.U = min(1, sum/n/c.Horizon)
		}
		f.bound = math.Ceil(c.Bound * (recent + 1) / n)
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

// median of values, which it moves about; 0 without any.
func median(values []float64) float64 {
	if len(values) == 0 {
		return 0
	}
	return nth(values, len(values)/2)
}

// nth smallest of values, by Hoare's selection.
func nth(values []float64, n int) float64 {
	for low, high := 0, len(values)-1; low < high; {
		pivot := values[(low+high)/2]
		i, j := low, high
		for i <= j {
			for values[i] < pivot {
				i++
			}
			for values[j] > pivot {
				j--
			}
			if i <= j {
				values[i], values[j] = values[j], values[i]
				i++
				j--
			}
		}
		switch {
		case n <= j:
			high = j
		case n >= i:
			low = i
		default:
			return values[n]
		}
	}
	return values[n]
}

// gain takes from each candidate's finish what others save by it. It looks at
// what is held, not at what is expected: copies under way are enough.
func (c *Cost) gain(s *Scratch, f *Fleet) {
	if f.Held == 0 || c.Spread <= 0 {
		return
	}
	// Those that hold something by how much, most first; the others after them.
	s.held = s.held[:0]
	for i := range s.ranked {
		if held := s.ranked[i].Held; held > 0 {
			s.held = append(s.held, uint64(math.MaxInt32-held)<<32|uint64(i))
		}
	}
	slices.Sort(s.held)      // numbers: with a function it takes three times as long
	holders, waits := 0, 0.0 // of those that hold more
	for from, to := 0, 0; from < len(s.held); from = to {
		for to = from; to < len(s.held) && s.held[to]>>32 == s.held[from]>>32; to++ {
			c.spare(&s.ranked[uint32(s.held[to])], f, holders, waits)
		}
		for _, at := range s.held[from:to] {
			holders++
			waits += s.ranked[uint32(at)].Terms.Backlog
		}
	}
	for i := range s.ranked {
		if s.ranked[i].Held == 0 {
			c.spare(&s.ranked[i], f, holders, waits)
		}
	}
}

// spare sets the gain of a candidate, given how many hold more and how long
// these keep a prompt waiting, all together.
func (c *Cost) spare(r *Ranked, f *Fleet, holders int, waits float64) {
	if holders == 0 || r.Asked <= 0 || r.Reusable > r.Held {
		return
	}
	spared := max(0, waits/float64(holders)-r.Terms.Backlog) / float64(holders+1)
	others := float64(f.Held-r.Held) / r.rate(f)
	r.Gain = min(r.Asked*c.Spread*spared, others)
	r.Finish -= r.Gain
	r.Value -= r.Gain
}

// sort fills s.sorted with the q.Top best.
func (c *Cost) sort(s *Scratch, f *Fleet, q *Query) {
	top := q.Top
	if top <= 0 || top > len(s.ranked) {
		top = len(s.ranked)
	}
	s.order = s.order[:0]
	if top > len(s.ranked)/4 {
		for i := range s.ranked {
			s.order = append(s.order, int32(i))
		}
		slices.SortFunc(s.order, func(i, j int32) int { return better(&s.ranked[i], &s.ranked[j], f) })
		s.order = s.order[:top]
	} else {
		for i := range s.ranked { // most do not get beyond the first comparison
			r := &s.ranked[i]
			if len(s.order) == top && better(r, &s.ranked[s.order[top-1]], f) >= 0 {
				continue
			}
			if len(s.order) < top {
				s.order = append(s.order, 0)
			}
			at := len(s.order) - 1
			for ; at > 0 && better(r, &s.ranked[s.order[at-1]], f) < 0; at-- {
				s.order[at] = s.order[at-1]
			}
			s.order[at] = int32(i)
		}
	}
	s.keepOneWithout(f, top)
	s.sorted = s.sorted[:0]
	for _, i := range s.order {
		s.sorted = append(s.sorted, s.ranked[i])
	}
}

// keepOneWithout puts the best of those that hold nothing last, if none is among
// the first: a gateway should see what the choice without any cache is.
func (s *Scratch) keepOneWithout(f *Fleet, top int) {
	if top < 2 || top == len(s.ranked) {
		return
	}
	for _, i := range s.order {
		if s.ranked[i].Held == 0 {
			return
		}
	}
	best := int32(-1)
	for i := range s.ranked {
		if s.ranked[i].Held == 0 && (best < 0 || better(&s.ranked[i], &s.ranked[best], f) < 0) {
			best = int32(i)
		}
	}
	if best >= 0 {
		s.order[top-1] = best
	}
}

// better is negative if a should get the prompt rather than b. Of those that
// meet a wanted time to first token the one goes first that has the least to do
// for it, as the backlog then does not matter.
func better(a, b *Ranked, f *Fleet) int {
	if a.Late != b.Late {
		return order(a.Late, b.Late)
	}
	if f.Blind {
		if a.Over != b.Over {
			return order(a.Over, b.Over)
		}
	} else if a.Value != b.Value {
		return cmp.Compare(a.Value, b.Value)
	} else if a.Finish != b.Finish {
		return cmp.Compare(a.Finish, b.Finish)
	}
	if a.Held != b.Held { // rather known than expected
		return cmp.Compare(b.Held, a.Held)
	}
	if a.Lot != b.Lot {
		return cmp.Compare(b.Lot, a.Lot)
	}
	return strings.Compare(a.Replica, b.Replica)
}

func order(a, b bool) int {
	if b && !a {
		return -1
	}
	return 1
}
