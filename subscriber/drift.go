package subscriber

import (
	"context"
	"time"
)

const (
	// driftSlack is how much more may be held than the metrics say there is room
	// for: ranks may differ a little, and the page gives them together.
	driftSlack = 1.1
	// driftPages is how many pages in a row must show it, so that one of an
	// engine that has just restarted with less room does not count.
	driftPages = 2
	// driftPause is how long a stream is left alone after it started over.
	driftPause = 10 * time.Minute
)

// drift is what metrics pages have shown of one stream: whether more is held in
// T1 than its engine has room for. That cannot be, so removals are missing. The
// other side, too little held, no page shows: the usage that engines tell leaves
// out blocks that are cached and not in use (vLLM block_pool.get_usage).
//
// The stats loop owns it.
type drift struct {
	pages int       // in a row that showed it
	last  time.Time // when the stream was last told
}

// judge takes in what is held and what there is room for, in tokens, and says
// whether the stream should start over.
func (d *drift) judge(held, room int64, now time.Time) bool {
	if room <= 0 || float64(held) <= driftSlack*float64(room) {
		d.pages = 0
		return false
	}
	d.pages++
	if d.pages < driftPages || !d.last.IsZero() && now.Sub(d.last) < driftPause {
		return false
	}
	d.pages, d.last = 0, now
	return true
}

// tellDrift has streams start over that hold more than fits. All ranks behind a
// page have equal room.
func (s *Subscriber) tellDrift(f facts, now time.Time) {
	room := f.Capacity / int64(max(1, f.Engines))
	for _, one := range s.sources.list() {
		if one.drift.judge(s.replica.warmTokens(one.Rank), room, now) {
			one.queue.push(batch{mark: markDrifted, arrived: now})
		}
	}
}

// drifted starts over: what is held is read anew from the engine's history.
func (s *stream) drifted(ctx context.Context, now time.Time) {
	s.meters.drifts.Inc()
	s.account.drifted(now)
	s.log.Warn("more is held than the engine has room for, starting over without it")
	s.forget(now)
	s.read(ctx)
}
