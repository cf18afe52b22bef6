package subscriber

import (
	"context"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"inferencecache.io/inferencecache/internal/kv"
	pb "inferencecache.io/inferencecache/proto/inferencecache/v1alpha1"
)

const (
	testWindow    = 100 * time.Millisecond
	testHeartbeat = 10 * time.Second
)

// bench is an outbox between a model and a fake server, inside a bubble.
type bench struct {
	*model
	server *fakeServer
	outbox *outbox
	state  atomic.Uint32
	mu     sync.Mutex // over model, and over its hand-over
}

func newBench(seed uint64, maxBytes int) *bench {
	b := &bench{model: newModel(seed), server: newFakeServer()}
	b.state.Store(uint32(Exact))
	b.outbox = newOutbox(outboxConfig{
		server: "fake", reporter: b.server, identity: &pb.CacheStateUpdate{ReplicaId: "replica"},
		window: testWindow, heartbeat: testHeartbeat, maxBytes: maxBytes, holder: b, log: quiet,
		state: func() State { return State(b.state.Load()) },
	}, testMeters())
	return b
}

// refill answers the outbox, as a replica does.
func (b *bench) refill(o *outbox) {
	b.mu.Lock()
	defer b.mu.Unlock()
	o.refill(func(_ uint32, yield func(Change)) uint32 {
		b.yield(func(c Change) bool { yield(c); return true })
		return 0
	}, time.Now())
}

func (b *bench) held() (count [3]int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, tier := range b.now() {
		count[slot(tier)]++
	}
	return count
}

// change makes n random changes.
func (b *bench) change(n int) {
	for range n {
		b.mu.Lock()
		b.outbox.add(b.step(), time.Now(), time.Now())
		b.mu.Unlock()
	}
}

// settle lets d pass.
func (b *bench) settle(d time.Duration) {
	time.Sleep(d)
	synctest.Wait()
}

// expectEqual checks that the server holds what the model holds and was never
// told something out of order.
func (b *bench) expectEqual(t *testing.T) {
	t.Helper()
	if diff := cmp.Diff(b.now(), b.server.now()); diff != "" {
		t.Errorf("held (-want +got):\n%s", diff)
	}
	if len(b.server.faults) > 0 {
		t.Errorf("broken promises: %q", b.server.faults)
	}
}

// inBench runs an outbox in a bubble.
func inBench(t *testing.T, maxBytes int, f func(*testing.T, *bench)) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(1, maxBytes)
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		go b.outbox.run(ctx)
		f(t, b)
	})
}

func TestOutboxStartsWithClear(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := newBench(1, 1<<20)
		b.server.held[heldBlock{Hash: 99}] = kv.T1 // of an earlier life of the replica
		b.change(20)                               // before the server was heard of
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		go b.outbox.run(ctx)
		b.settle(time.Second)
		b.expectEqual(t)
		if got := describe(b.server.updates[0].Operations); got != "clear" {
			t.Errorf("first update is %q", got)
		}
	})
}

func TestOutboxCollectsForOneWindow(t *testing.T) {
	t.Parallel()
	inBench(t, 1<<20, func(t *testing.T, b *bench) {
		b.settle(time.Second)
		before := len(b.server.updates)
		for range 5 {
			b.change(1)
			time.Sleep(testWindow / 10)
		}
		b.settle(time.Second)
		if got := len(b.server.updates) - before; got != 1 {
			t.Errorf("five changes in half a window took %d updates", got)
		}
		b.expectEqual(t)
	})
}

func TestOutboxDoesNotWaitWhenFull(t *testing.T) {
	t.Parallel()
	inBench(t, 64<<20, func(t *testing.T, b *bench) {
		b.settle(time.Second)
		before := len(b.server.updates)
		b.outbox.add([]Change{chainStore(0, 0, make([]kv.Hash, updateBytes/kv.HashSize)...)}, time.Now(), time.Now())
		synctest.Wait()
		if len(b.server.updates) == before {
			t.Error("a full update waited for the window")
		}
	})
}

func TestOutboxKeepsOrderOverServerFailure(t *testing.T) {
	t.Parallel()
	inBench(t, 1<<20, func(t *testing.T, b *bench) {
		b.change(50)
		b.settle(time.Second)
		b.server.set(func(s *fakeServer) { s.failing = errDown })
		b.change(200)
		b.settle(time.Minute)
		b.server.set(func(s *fakeServer) { s.failing = nil })
		b.settle(10 * time.Second)
		b.expectEqual(t)
		if n := b.outbox.meters.resyncs[causeOverflow].Get() + b.outbox.meters.resyncs[causeRestart].Get(); n != 0 {
			t.Errorf("%d resyncs, want none: nothing was lost", n)
		}
	})
}

func TestOutboxRepeatsNothingAfterLostAck(t *testing.T) {
	t.Parallel()
	inBench(t, 1<<20, func(t *testing.T, b *bench) {
		b.settle(time.Second)
		b.server.set(func(s *fakeServer) { s.deaf = true })
		b.change(30)
		b.settle(10 * time.Second)
		b.server.set(func(s *fakeServer) { s.deaf = false })
		b.settle(10 * time.Second)
		b.expectEqual(t)
		if b.server.ignored == 0 {
			t.Error("no update came again, so the test shows nothing")
		}
	})
}

func TestOutboxTakesRefusalForFailure(t *testing.T) {
	t.Parallel()
	inBench(t, 1<<20, func(t *testing.T, b *bench) {
		b.server.set(func(s *fakeServer) { s.refusing = true })
		b.settle(time.Second)
		b.change(10)
		b.settle(time.Minute)
		b.server.set(func(s *fakeServer) { s.refusing = false })
		b.settle(10 * time.Second)
		b.expectEqual(t)
	})
}

func TestOutboxStartsOverAfterOverflow(t *testing.T) {
	t.Parallel()
	inBench(t, 10_000, func(t *testing.T, b *bench) {
		b.settle(time.Second)
		b.server.set(func(s *fakeServer) { s.failing = errDown })
		for range 1000 {
			b.change(1)
			if _, bytes := b.outbox.size(); bytes > 10_000 {
				t.Fatalf("%d bytes pending", bytes)
			}
		}
		b.settle(time.Minute)
		b.server.set(func(s *fakeServer) { s.failing = nil })
		b.settle(10 * time.Second)
		b.change(20)
		b.settle(time.Second)
		b.expectEqual(t)
		if b.outbox.meters.resyncs[causeOverflow].Get() == 0 {
			t.Error("no overflow, so the test shows nothing")
		}
	})
}

func TestOutboxStartsOverAfterServerRestart(t *testing.T) {
	t.Parallel()
	inBench(t, 1<<20, func(t *testing.T, b *bench) {
		b.change(300)
		b.settle(time.Second)
		b.server.restart()
		b.change(1)
		b.settle(time.Second)
		b.expectEqual(t)
	})
}

// An idle stream notices the restart by the ack of a load report.
func TestOutboxLearnsOfRestartFromStats(t *testing.T) {
	t.Parallel()
	inBench(t, 1<<20, func(t *testing.T, b *bench) {
		b.change(300)
		b.settle(time.Second)
		b.server.restart()
		if err := b.outbox.sendStats(t.Context(), &pb.ReplicaStats{Pressure: 0.5}, time.Now()); err != nil {
			t.Fatal(err)
		}
		b.settle(time.Second)
		b.expectEqual(t)
	})
}

func TestOutboxSendsWhatIsLeftOnClose(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := newBench(1, 1<<20)
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			b.outbox.run(t.Context())
		}()
		b.settle(time.Second)
		b.change(10)
		b.outbox.close()
		<-ended
		if diff := cmp.Diff(b.now(), b.server.told); diff != "" {
			t.Errorf("held at the goodbye (-want +got):\n%s", diff)
		}
		if last := b.server.updates[len(b.server.updates)-1]; !last.Goodbye || len(last.Operations) > 0 {
			t.Errorf("last update: %v", last)
		}
	})
}

func TestOutboxTimesOutReports(t *testing.T) {
	t.Parallel()
	inBench(t, 1<<20, func(t *testing.T, b *bench) {
		b.server.set(func(s *fakeServer) { s.gate = make(chan struct{}) })
		b.settle(time.Minute)
		if n := b.server.count(func(s *fakeServer) int { return s.entered }); n < 5 {
			t.Errorf("a server that never answers was tried %d times in a minute", n)
		}
		b.server.set(func(s *fakeServer) { s.gate = nil })
		b.change(10)
		b.settle(15 * time.Second)
		b.expectEqual(t)
	})
}

// Any mix of failures, lost answers, restarts and overflows ends with the
// server heldBlocks what is held.
func TestOutboxConvergesUnderRandomFaults(t *testing.T) {
	t.Parallel()
	for seed := range uint64(30) {
		synctest.Test(t, func(t *testing.T) {
			b := newBench(seed, 20_000)
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			go b.outbox.run(ctx)
			for range 80 {
				b.change(b.rng.IntN(40))
				switch b.rng.IntN(10) {
				case 0:
					b.server.restart()
				case 1:
					b.server.set(func(s *fakeServer) { s.failing = errDown })
				case 2:
					b.server.set(func(s *fakeServer) { s.deaf = true })
				case 3:
					_ = b.outbox.sendStats(ctx, &pb.ReplicaStats{}, time.Now())
				default:
					b.server.set(func(s *fakeServer) { s.failing, s.deaf = nil, false })
				}
				b.settle(time.Duration(b.rng.IntN(1000)) * time.Millisecond)
			}
			b.server.set(func(s *fakeServer) { s.failing, s.deaf = nil, false })
			_ = b.outbox.sendStats(ctx, &pb.ReplicaStats{}, time.Now())
			b.settle(20 * time.Second)
			b.expectEqual(t)
			if t.Failed() {
				t.Fatalf("seed %d", seed)
			}
		})
	}
}
