package server

import "time"

const (
	truthFade  = 0.98 // weight of older outcomes at each new one
	truthPrior = 4    // outcomes' worth of trust that every replica begins with
	// A replica lies if over so many outcomes it was found to hold less than a
	// share of what it was trusted with, and is believed again at another.
	liarOutcomes  = 10
	liarShare     = 0.3
	honestShare   = 0.6
	quarantineEnd = 10 * time.Minute // after which it gets another chance
)

// truth is how far a replica was found to hold what it reported: the audit of
// promised tokens against those that its engine found in its cache. The zero
// value trusts.
type truth struct {
	outcomes float64 // fading
	kept     float64 // of them the shares that were found, 0 to 1 each
	liar     bool    // what it reports counts for nothing
	since    time.Time
}

// audited sums up the outcomes of promises, over the replica's lives.
type audited struct{ outcomes, promised, found int64 }

func (a *audited) add(promised, found int32) {
	a.outcomes++
	a.promised += int64(promised)
	a.found += int64(min(promised, max(0, found)))
}

// audit takes in one outcome and says whether it changed the verdict.
func (t *truth) audit(now time.Time, promised, found int32) (changed bool) {
	share := min(1, float64(max(0, found))/float64(promised))
	t.outcomes = t.outcomes*truthFade + 1
	t.kept = t.kept*truthFade + share
	mean := t.kept / t.outcomes
	switch {
	case !t.liar && t.outcomes >= liarOutcomes && mean < liarShare, t.liar && mean > honestShare:
		t.liar, t.since = !t.liar, now
		return true
	}
	return false
}

// parole ends a quarantine that has lasted: nothing can be found out about a
// replica that gets no prompts.
func (t *truth) parole(now time.Time) (changed bool) {
	if !t.liar || now.Sub(t.since) < quarantineEnd {
		return false
	}
	*t = truth{outcomes: liarOutcomes / 2, kept: liarOutcomes / 2 * liarShare}
	return true
}

// share of promised tokens that are likely there.
func (t *truth) share() float32 {
	return float32((t.kept + truthPrior) / (t.outcomes + truthPrior))
}
