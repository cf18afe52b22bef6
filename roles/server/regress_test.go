package server

import (
	"testing"
	"time"

	pb "inferencecache.io/inferencecache/proto/inferencecache/v1alpha1"
)

// The engine's clock is 30 s ahead of the subscriber's; the subscriber
// crashes and starts again.
func TestNewSourceClearsWhatTheLastOneStampedLater(t *testing.T) {
	r := newRig(t)
	p := r.producer("r-1")
	now := start
	u := func(stamp time.Time, ops ...*pb.CacheOperation) {
		p.sequence++
		x := p.update(stamp, ops...)
		r.ingest(now, x)
	}
	skew := 30 * time.Second // server and engine agree, the subscriber is behind
	u(now.Add(-skew), clearAll)
	u(now, storeChain) // engine's stamp
	now = now.Add(5 * time.Second)
	p.epoch, p.sequence = 8, 0 // subscriber starts again
	u(now.Add(-skew), clearAll)
	for range 400 {
		now = now.Add(10 * time.Second)
		u(now.Add(-skew))
		r.sweep(now)
	}
	if got := r.holders(now); len(got) != 0 {
		t.Errorf("held by %q an hour after a CLEAR", got)
	}
}

// Stale for longer than the TTL, then exact again.
func TestEntriesComeBackAfterALongStaleTime(t *testing.T) {
	r := newRig(t)
	p := r.producer("r-1")
	now := start
	p.send(now, clearAll, storeChain)
	p.state = pb.StreamState_STREAM_STALE
	for range 400 {
		now = now.Add(10 * time.Second)
		p.send(now)
		r.sweep(now)
	}
	p.state = pb.StreamState_STREAM_EXACT
	resync := false
	for range 10 {
		now = now.Add(10 * time.Second)
		resync = p.send(now).GetResync() || resync
	}
	if len(r.holders(now)) == 0 && !resync {
		t.Error("entries are gone for good, and the source is not told")
	}
}
