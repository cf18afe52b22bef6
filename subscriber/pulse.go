package subscriber

import (
	"math"
	"time"
)

const (
	// stateCheck is the least time between two updates that say nothing but a
	// new state.
	stateCheck = 250 * time.Millisecond
	// historyWait is how long the first CLEAR waits for the engine's history:
	// what a server still knows of an earlier subscriber of the engine is better
	// than nothing, but not for long.
	historyWait = 5 * time.Second
	// troubleAfter failures for so long, a server may have moved.
	troubleAfter = 5 * time.Second
)

// pulse knows when an update is due although nothing has changed: a server
// takes silence for death.
type pulse struct {
	interval time.Duration // between two updates at most; 0: any
	sent     time.Time     // when the last update was made; zero: none yet
	said     State         // in that update
}

// note says that an update was made.
func (p *pulse) note(now time.Time, said State) { p.sent, p.said = now, said }

// wait is how long until the next one is due if the state is what it is; not
// positive: now.
func (p *pulse) wait(now time.Time, is State) time.Duration {
	left := p.sent.Add(p.interval).Sub(now)
	if is != p.said {
		left = min(left, p.sent.Add(stateCheck).Sub(now))
	}
	return left
}

// promise is the interval as updates say it, in whole milliseconds.
func (p *pulse) promise() uint32 {
	return uint32(min(max(0, (p.interval+time.Millisecond-1).Milliseconds()), math.MaxUint32))
}

// history is how long the first update of an outbox that began to run at begun
// is to wait for the engine's history; not positive: no longer.
func (p *pulse) history(now, begun time.Time, is State) time.Duration {
	if !p.sent.IsZero() || is != Connecting && is != Bootstrapping {
		return 0
	}
	return begun.Add(historyWait).Sub(now)
}

// trouble follows whether a server can be reached.
type trouble struct {
	since time.Time // of the first failure in a row; zero: none
	cried bool      // it was said that it lasts
}

// note takes the outcome of a try: first and over are news, lasting is said
// once while failures go on.
func (t *trouble) note(now time.Time, err error) (first, over, lasting bool) {
	if err == nil {
		over = !t.since.IsZero()
		*t = trouble{}
		return false, over, false
	}
	if t.since.IsZero() {
		t.since = now
		return true, false, false
	}
	lasting = !t.cried && now.Sub(t.since) >= troubleAfter
	t.cried = t.cried || lasting
	return false, false, lasting
}
