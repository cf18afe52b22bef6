package server

import (
	"math"

	pb "inferencecache.io/inferencecache/proto/inferencecache/v1alpha1"
)

const (
	// runningSeconds is what a running request adds to the wait of a new prompt:
	// its decoding shares every step. It matters where nothing waits.
	runningSeconds = 0.005
	// promptSeconds is taken for the prefill of a waiting prompt before any was
	// hinted.
	promptSeconds = 0.25
	// pressureSeconds is the backlog of a replica whose older producer reports
	// full pressure.
	pressureSeconds = 10

	firstGap = 10.0 // seconds between reports, before there are two
	maxGap   = 90.0
	learning = 0.3 // weight of the latest speed
	minRate  = 10  // prompt tokens a second; less is a broken counter
	maxRate  = 1e7
)

// work is what is known of the load of a replica. Times are seconds on the
// fleets' clock; the zero value knows nothing.
type work struct {
	known   bool
	at      float64 // of the last report; 0: none
	gap     float64 // between the last two
	pressed bool    // its pressure was once above zero, so it is a number and not a default

	level  float64 // backlog, with what was hinted since the last report
	hinted float64 // as of when

	rate   float64 // learned prefill tokens a second; 0: unknown
	hints  float64 // prompts hinted, fading
	fading float64 // as of when
}

// report takes in a replica's stats; each is how long a prompt of the fleet
// takes.
func (w *work) report(now, each float64, s *pb.ReplicaStats) {
	if speed := s.PrefillTokensPerSecond; speed != nil && *speed >= minRate && *speed <= maxRate {
		if w.rate == 0 {
			w.rate = *speed
		}
		w.rate += learning * (*speed - w.rate)
	}
	w.level, w.known = w.read(s, each)
	w.gap = firstGap
	if w.at != 0 {
		w.gap = min(maxGap, max(1, now-w.at))
	}
	w.at, w.hinted = now, now
}

// read makes seconds of prefill from the engine's own numbers. Those that wait
// have all of it before them; where only the pressure of older producers is
// known, it will do.
func (w *work) read(s *pb.ReplicaStats, each float64) (backlog float64, known bool) {
	running, waiting := plausible(s.RunningRequests, maxEngineStat), plausible(s.WaitingRequests, maxEngineStat)
	if waiting != nil {
		if each == 0 {
			each = promptSeconds
		}
		backlog = *waiting * each
		if running != nil {
			backlog += *running * runningSeconds
		}
		return backlog, true
	}
	pressure := float64(s.GetPressure())
	if !(pressure >= 0 && pressure <= 1) {
		return 0, false
	}
	w.pressed = w.pressed || pressure > 0
	return pressure * pressureSeconds, w.pressed
}

// backlog in seconds, with what was hinted since the last report. It is not
// known where no report is recent: then it is what was hinted within the last
// seconds, as nothing tells whether gateways follow.
func (w *work) backlog(now float64) (seconds float64, known bool) {
	known = w.known && now-w.at <= staleReports*w.gap
	if !known && now-w.hinted > hintLife.Seconds() {
		return 0, false
	}
	return max(0, w.level-(now-w.hinted)), known
}

// hint adds a prompt that was sent there, with so many seconds of prefill.
func (w *work) hint(now, seconds float64) {
	level, _ := w.backlog(now)
	w.level, w.hinted = level+seconds, now
	w.hints, w.fading = w.recent(now)+1, now
}

// recent is how many prompts were hinted there within some seconds.
func (w *work) recent(now float64) float64 {
	if w.hints == 0 {
		return 0
	}
	return w.hints * math.Exp((w.fading-now)/hintLife.Seconds())
}
