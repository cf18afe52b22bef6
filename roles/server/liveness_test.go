package server

import (
	"bytes"
	"context"
	"log/slog"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"inferencecache.io/inferencecache/internal/kv"
	pb "inferencecache.io/inferencecache/proto/inferencecache/v1alpha1"
)

// start of the tests' explicit clocks.
var start = time.UnixMilli(1_700_000_000_000)

// producer is one ordered source of updates.
type producer struct {
	*rig
	replica  string
	epoch    uint64
	sequence uint64
	state    pb.StreamState
	promise  uint32 // ms
}

func (r *rig) producer(replica string) *producer {
	return &producer{rig: r, replica: replica, epoch: 7, state: pb.StreamState_STREAM_EXACT, promise: 10_000}
}

// send the next update at now.
func (p *producer) send(now time.Time, operations ...*pb.CacheOperation) *pb.Ack {
	p.t.Helper()
	p.sequence++
	return p.ingest(now, p.update(now, operations...))
}

func (p *producer) update(now time.Time, operations ...*pb.CacheOperation) *pb.CacheStateUpdate {
	u := update(p.replica)
	u.SourceEpoch, u.Sequence, u.TimestampUs = p.epoch, p.sequence, now.UnixMicro()
	u.StreamState, u.HeartbeatMs, u.Operations = p.state, p.promise, operations
	u.EngineUrl = "http://engine"
	return u
}

var (
	storeChain = &pb.CacheOperation{Kind: pb.CacheOperation_STORE, PackedHashes: kv.Pack(chainOf(span(0, 64))), BlockSize: 16}
	clearAll   = &pb.CacheOperation{Kind: pb.CacheOperation_CLEAR}
)

// holders of the chain at a time.
func (r *rig) holders(now time.Time) (replicas []string) {
	at := kv.Partition{Scope: kv.Scope{Tenant: "t", Model: "m", Scheme: "vllm"}}
	l := &lookup{}
	for _, run := range r.index.Lookup(&l.scratch, now, at, chainOf(span(0, 64))) {
		replicas = append(replicas, run.Replica)
	}
	return replicas
}

func TestHeartbeatsKeepEntriesAlive(t *testing.T) {
	t.Parallel()
	for _, v := range []struct {
		state   pb.StreamState
		promise uint32
		alive   bool
	}{
		{pb.StreamState_STREAM_EXACT, 10_000, true},
		{pb.StreamState_STREAM_DEGRADED, 10_000, true},
		{pb.StreamState_STREAM_BOOTSTRAPPING, 10_000, true},
		{pb.StreamState_STREAM_STALE, 10_000, false},
		{pb.StreamState_STREAM_CONNECTING, 10_000, false},
		{pb.StreamState_STREAM_STATE_UNSPECIFIED, 10_000, false},
		{pb.StreamState_STREAM_EXACT, 0, false},
	} {
		r := newRig(t)
		p := r.producer("r-1")
		p.state, p.promise = v.state, v.promise
		now := start
		p.send(now, clearAll, storeChain)
		for range 400 { // well over an hour, twice the TTL
			now = now.Add(10 * time.Second)
			p.send(now)
			r.sweep(now)
		}
		if alive := len(r.holders(now)) == 1; alive != v.alive {
			t.Errorf("%v with a promise of %d ms: alive %t", v.state, v.promise, alive)
		}
	}
}

func TestUnorderedUpdatesDoNotVouch(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	p := r.producer("r-1")
	now := start
	for range 400 {
		u := p.update(now, storeChain)
		if now != start {
			u.Operations = nil
		}
		u.SourceEpoch, u.Sequence = 0, 0
		r.ingest(now, u)
		now = now.Add(10 * time.Second)
	}
	if got := r.holders(now); len(got) != 0 {
		t.Errorf("held by %q", got)
	}
}

func TestGoodbyeForgetsTheReplica(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	p, other := r.producer("r-1"), r.producer("r-2")
	p.send(start, clearAll, storeChain)
	other.send(start, clearAll, storeChain)
	stats := update("r-1")
	stats.Stats = &pb.ReplicaStats{Pressure: 0.5}
	r.ingest(start, stats)

	now := start.Add(time.Second)
	p.sequence++
	last := p.update(now)
	last.Goodbye = true
	if ack := r.ingest(now, last); ack.Sequence != 2 || ack.Resync {
		t.Errorf("goodbye acknowledged with %v", ack)
	}
	r.ingest(now, last) // its ack got lost
	if got := r.holders(now); len(got) != 1 || got[0] != "r-2" {
		t.Errorf("held by %q, want r-2 alone", got)
	}
	if n := r.replicas.len(); n != 1 {
		t.Errorf("%d rows, want that of r-2", n)
	}
	if n := r.metric(`inferencecache_replica_deaths_total{cause="goodbye"}`); n != 1 {
		t.Errorf("%v goodbyes counted", n)
	}
	r.checkDead(now.Add(time.Hour))
	if n := r.metric(`inferencecache_replica_deaths_total{cause="silence"}`); n != 1 {
		t.Errorf("%v died of silence, want r-2 alone", n)
	}
	again := r.producer("r-1")
	again.epoch = 8
	if ack := again.send(now, clearAll, storeChain); ack.Resync {
		t.Errorf("the next life is acknowledged with %v", ack)
	}
	if got := r.holders(now); len(got) != 1 || got[0] != "r-1" {
		t.Errorf("held by %q, want r-1", got)
	}
}

func TestSilenceIsDeath(t *testing.T) {
	t.Parallel()
	for _, v := range []struct {
		promise uint32
		after   time.Duration // 0: never
	}{
		{10_000, 90 * time.Second},
		{60_000, 180 * time.Second},
		{0, 0},
	} {
		r := newRig(t)
		p := r.producer("r-1")
		p.promise = v.promise
		p.send(start, clearAll, storeChain)
		if v.after == 0 {
			if r.checkDead(start.Add(10 * time.Minute)); len(r.holders(start.Add(10*time.Minute))) != 1 {
				t.Error("one that promised nothing is dead")
			}
			continue
		}
		if r.checkDead(start.Add(v.after - time.Millisecond)); len(r.holders(start)) != 1 {
			t.Errorf("promise of %d ms: dead before %v", v.promise, v.after)
		}
		r.checkDead(start.Add(v.after))
		r.checkDead(start.Add(v.after + time.Hour))
		if len(r.holders(start)) != 0 || r.replicas.len() != 0 || r.index.Counts().Entries != 0 {
			t.Errorf("promise of %d ms: alive after %v", v.promise, v.after)
		}
		if n := r.metric(`inferencecache_replica_deaths_total{cause="silence"}`); n != 1 {
			t.Errorf("%v deaths counted", n)
		}
	}
}

func TestTheDeadHaveToReportEverythingAgain(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	p := r.producer("r-1")
	p.send(start, clearAll, storeChain)
	now := start.Add(2 * time.Minute)
	r.checkDead(now)
	for range 2 {
		if ack := p.send(now); !ack.Resync {
			t.Errorf("a heartbeat of the dead is acknowledged with %v", ack)
		}
	}
	if ack := p.ingest(now, p.update(now)); !ack.Resync || ack.Sequence != p.sequence {
		t.Errorf("a repeated one is acknowledged with %v", ack)
	}
	if ack := p.send(now, clearAll, storeChain); ack.Resync {
		t.Errorf("after a CLEAR: %v", ack)
	}
	if ack := p.send(now); ack.Resync || len(r.holders(now)) != 1 {
		t.Errorf("alive again: %v, held by %q", ack, r.holders(now))
	}
}

func TestUnknownSourcesHaveToReportEverythingAgain(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	for _, v := range []struct {
		name     string
		epoch    uint64
		sequence uint64
		first    []*pb.CacheOperation
		resync   bool
	}{
		{"first", 1, 1, nil, false},
		{"first with a store", 2, 1, []*pb.CacheOperation{storeChain}, false},
		{"in the middle", 3, 5, []*pb.CacheOperation{storeChain}, true},
		{"a heartbeat in the middle", 4, 5, nil, true},
		{"in the middle with CLEAR", 5, 5, []*pb.CacheOperation{clearAll, storeChain}, false},
	} {
		p := r.producer(v.name)
		p.epoch, p.sequence = v.epoch, v.sequence-1
		if ack := p.send(start, v.first...); ack.Resync != v.resync || ack.Sequence != v.sequence {
			t.Errorf("%s: %v", v.name, ack)
		}
	}
	// A number left out: what it said is missing.
	p := r.producer("hole")
	p.send(start, clearAll)
	p.sequence++
	if ack := p.send(start, storeChain); !ack.Resync {
		t.Errorf("behind a hole: %v", ack)
	}
	p.sequence++
	if ack := p.send(start, clearAll); ack.Resync {
		t.Errorf("a CLEAR behind a hole: %v", ack)
	}
	// Another life of a source that is known.
	p.epoch++
	if ack := p.send(start); !ack.Resync {
		t.Errorf("another epoch in the middle: %v", ack)
	}
	// What has a hole is not vouched for.
	lost := r.producer("lost")
	lost.sequence = 3
	now := start
	lost.send(now, storeChain)
	for range 400 {
		now = now.Add(10 * time.Second)
		lost.send(now)
	}
	if got := r.holders(now); len(got) != 0 {
		t.Errorf("held by %q", got)
	}
}

// A flood of sources costs those in use nothing.
func TestSourcesInUseKeepTheirPlace(t *testing.T) {
	t.Parallel()
	r := newRig(t, func(c *Config) { c.MaxReplicas = 3 })
	var live []*producer
	for _, replica := range []string{"a", "b", "c"} {
		p := r.producer(replica)
		p.send(start, clearAll)
		live = append(live, p)
	}
	for i := range 100 {
		p := r.producer("flood-" + strconv.Itoa(i))
		p.sequence = 4
		if ack := p.send(start, storeChain); ack.Resync || ack.Sequence != 5 {
			t.Fatalf("one too many: %v", ack)
		}
	}
	for _, p := range live {
		if ack := p.send(start); ack.Resync {
			t.Errorf("%s lost its place", p.replica)
		}
	}
	later := r.producer("later")
	later.send(start.Add(idleAfter), clearAll)
	if ack := later.send(start.Add(idleAfter)); ack.Resync || len(r.sources.by) != 3 || r.sources.by[source{kv.Scope{Tenant: "t", Model: "m", Scheme: "vllm"}, "later"}] == nil {
		t.Errorf("no idle source gave way: %v", ack)
	}
}

func TestServerLooksForTheDeadInTime(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, func(c *Config) { c.ReplicaDeadAfter = 20 * time.Second })
		var log bytes.Buffer
		r.log = slog.New(slog.NewTextHandler(&log, nil))
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			_ = r.Run(ctx)
		}()
		p, other := r.producer("r-1"), r.producer("r-2")
		p.promise, other.promise = 1000, 1000
		p.send(time.Now(), clearAll, storeChain)
		other.send(time.Now(), clearAll, storeChain)
		for range 22 {
			time.Sleep(time.Second)
			other.send(time.Now())
		}
		synctest.Wait()
		if got := r.holders(time.Now()); len(got) != 1 || got[0] != "r-2" {
			t.Errorf("held by %q, want r-2 alone", got)
		}
		cancel()
		<-ended
		if n := strings.Count(log.String(), "replica is dead"); n != 1 || !strings.Contains(log.String(), "level=INFO") {
			t.Errorf("logged:\n%s", log.String())
		}
	})
}

func TestReplicasAreCountedByState(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	for i, state := range []pb.StreamState{1, 3, 3, 4, 99} {
		p := r.producer(string(rune('a' + i)))
		p.state = state
		p.send(start)
	}
	r.report(update("silent")) // no row: it says nothing of itself
	for state, want := range map[string]float64{"connecting": 1, "exact": 2, "degraded": 1, "unknown": 1, "stale": 0, "bootstrapping": 0} {
		if got := r.metric(`inferencecache_replicas{state="` + state + `"}`); got != want {
			t.Errorf("%v %s, want %v", got, state, want)
		}
	}
}
