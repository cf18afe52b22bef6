package subscriber

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	pb "inferencecache.io/inferencecache/proto/inferencecache/v1alpha1"
)

// publishBlocks stores n single blocks, each a prompt of its own, one a batch,
// and is what a server should hold then.
func publishBlocks(t *testing.T, peer *libzmqPeer, from, n int) heldBlocks {
	t.Helper()
	want := heldBlocks{}
	for i := from; i < from+n; i++ {
		token := uint32(i + 1)
		peer.publish(t, uint64(i), storedBatch(0, []uint64{uint64(i + 1)}, []uint32{token}))
		for b, tier := range inT1(prefixes(token)...) {
			want[b] = tier
		}
	}
	return want
}

func join(parts ...heldBlocks) heldBlocks {
	all := heldBlocks{}
	for _, part := range parts {
		for b, tier := range part {
			all[b] = tier
		}
	}
	return all
}

func TestServerDownThenUp(t *testing.T) {
	t.Parallel()
	peer := newLibzmqPeer(t)
	r := newRig(t, peer.endpoint)
	peer.expectSubscription(t)
	first := publishBlocks(t, peer, 0, 20)
	r.expectHeld(t, "before", first)

	r.server.set(func(s *fakeServer) { s.failing = errDown })
	second := publishBlocks(t, peer, 20, 50)
	peer.publish(t, 70, removedBatch(1, 2, 3))
	for _, token := range []uint32{1, 2, 3} {
		delete(first, heldBlock{Hash: prefixes(token)[0]})
	}
	failures := r.server.count(func(s *fakeServer) int { return s.entered }) + 3
	until(t, "retries", func() bool { return r.server.count(func(s *fakeServer) int { return s.entered }) >= failures })
	// Lost acks on the way up: what was applied comes again and is ignored.
	r.server.set(func(s *fakeServer) { s.failing, s.deaf = nil, true })
	until(t, "an update that comes again", func() bool { return r.server.count(func(s *fakeServer) int { return s.ignored }) > 0 })
	r.server.set(func(s *fakeServer) { s.deaf = false })
	r.expectHeld(t, "after", join(first, second))
	if n := r.replica.outboxes[0].meters.resyncs[causeOverflow].Get() + r.replica.outboxes[0].meters.resyncs[causeRestart].Get(); n != 0 {
		t.Errorf("%d resyncs, want none", n)
	}
}

func TestServerRestartBringsEverythingBack(t *testing.T) {
	t.Parallel()
	peer := newLibzmqPeer(t)
	r := newRig(t, peer.endpoint)
	peer.expectSubscription(t)
	before := publishBlocks(t, peer, 0, 100)
	r.expectHeld(t, "before", before)
	r.server.restart()
	after := publishBlocks(t, peer, 100, 1)
	r.expectHeld(t, "after", join(before, after))
}

// A server that takes seconds for each report costs nothing at the socket: the
// outbox overflows instead, and the server gets everything held in the end.
func TestSlowServerNeverBlocksSocket(t *testing.T) {
	t.Parallel()
	peer := newLibzmqPeer(t)
	r := newRig(t, peer.endpoint, func(c *Config) { c.OutboxBytes = 4096 })
	peer.expectSubscription(t)
	r.expectHeld(t, "at start", publishBlocks(t, peer, 0, 1))
	gate := make(chan struct{})
	r.server.set(func(s *fakeServer) { s.gate = gate })
	want := publishBlocks(t, peer, 1, 500)
	until(t, "all batches", func() bool { return r.judged(verdictNext) == 500 })
	r.server.set(func(s *fakeServer) { s.gate = nil })
	close(gate)
	r.expectHeld(t, "in the end", join(inT1(prefixes(1)...), want))
	if r.replica.outboxes[0].meters.resyncs[causeOverflow].Get() == 0 {
		t.Error("no overflow, so the test shows nothing")
	}
	if n := r.one.receiver.metrics.queueDropped.Get(); n != 0 {
		t.Errorf("%d batches dropped in the queue", n)
	}
}

// When the worker stands still, the receiver goes on reading and drops the
// oldest batches; the worker finds the mark, and what was held is cleared.
func TestStalledWorkerNeverBlocksSocket(t *testing.T) {
	t.Parallel()
	peer := newLibzmqPeer(t)
	r := newRig(t, peer.endpoint, func(c *Config) { c.QueueBytes = 64 << 10 })
	peer.expectSubscription(t)
	r.expectHeld(t, "at start", publishBlocks(t, peer, 0, 1))

	// The worker waits for this lock when it hands over its next change.
	r.replica.outboxes[0].mu.Lock()
	peer.tell(t, "flood 20000 1000") // sequence 0 again: a duplicate, then on
	publishBlocks(t, peer, 20_000, 1)
	until(t, "all bytes", func() bool { return r.one.receiver.metrics.receivedBytes.Get() > 20_000*1000 })
	_, bytes := r.one.queue.size()
	r.replica.outboxes[0].mu.Unlock()
	if bytes > 64<<10 {
		t.Errorf("%d bytes queued", bytes)
	}
	r.expectHeld(t, "in the end", inT1(prefixes(20_001)...))
	if dropped := r.one.receiver.metrics.queueDropped.Get(); dropped < 10_000 {
		t.Errorf("%d batches dropped, so the test shows nothing", dropped)
	}
	if r.judged(verdictGap) == 0 || r.State() != Degraded {
		t.Errorf("%d gaps, state %s", r.judged(verdictGap), r.State())
	}
}

func TestShutdownSendsWhatIsQueued(t *testing.T) {
	t.Parallel()
	peer := newLibzmqPeer(t)
	r := newRig(t, peer.endpoint, func(c *Config) { c.Window = time.Hour })
	peer.expectSubscription(t)
	want := publishBlocks(t, peer, 0, 10)
	until(t, "all batches", func() bool { return r.judged(verdictNext) == 9 })
	r.stop()
	r.server.set(func(s *fakeServer) {
		if diff := cmp.Diff(want, s.told); diff != "" {
			t.Errorf("held at the goodbye (-want +got):\n%s", diff)
		}
	})
}

func TestShutdownDoesNotWaitForServer(t *testing.T) {
	t.Parallel()
	peer := newLibzmqPeer(t)
	r := newRig(t, peer.endpoint)
	r.server.set(func(s *fakeServer) { s.gate = make(chan struct{}) })
	peer.expectSubscription(t)
	publishBlocks(t, peer, 0, 10)
	started := time.Now()
	r.stop()
	if took := time.Since(started); took > shutdownGrace+2*time.Second {
		t.Errorf("shutdown took %s", took)
	}
}

func TestUpdatesCarryIdentity(t *testing.T) {
	t.Parallel()
	peer := newLibzmqPeer(t)
	r := newRig(t, peer.endpoint, func(c *Config) { c.EngineURL = "http://pod:8000/" })
	peer.expectSubscription(t)
	r.expectHeld(t, "one block", publishBlocks(t, peer, 0, 1))
	r.server.set(func(s *fakeServer) {
		var last *pb.CacheStateUpdate
		for i, u := range s.updates {
			if u.ReplicaId != "replica" || u.ModelId != "model" || u.TenantId != "tenant" || u.HashScheme != "vllm" ||
				u.EngineUrl != "http://pod:8000" || u.Sequence != uint64(i+1) || (last != nil && u.SourceEpoch != last.SourceEpoch) {
				t.Errorf("update %d: %v", i, u)
			}
			if age := time.Since(time.UnixMicro(u.TimestampUs)); age < 0 || age > time.Minute {
				t.Errorf("update %d is %s old", i, age)
			}
			last = u
		}
		if len(s.updates) == 0 || s.updates[0].Operations[0].Kind != pb.CacheOperation_CLEAR {
			t.Errorf("the first update is no CLEAR: %v", s.updates)
		}
	})
}
