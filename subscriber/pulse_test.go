package subscriber

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"inferencecache.io/inferencecache/internal/kv"
	pb "inferencecache.io/inferencecache/proto/inferencecache/v1alpha1"
)

// said is what the server was told since update n, in short.
func (b *bench) said(n int) (all []string) {
	b.server.set(func(s *fakeServer) {
		for _, u := range s.updates[n:] {
			what := u.StreamState.String()
			if len(u.Operations) > 0 {
				what += " " + describe(u.Operations)
			}
			if u.Goodbye {
				what += " goodbye"
			}
			all = append(all, what)
		}
	})
	return all
}

func (b *bench) updates() int {
	return b.server.count(func(s *fakeServer) int { return len(s.updates) })
}

func (b *bench) become(s State) { b.state.Store(uint32(s)) }

func TestOutboxKeepsItsPromiseOfHeartbeats(t *testing.T) {
	t.Parallel()
	inBench(t, 1<<20, func(t *testing.T, b *bench) {
		b.settle(time.Second)
		for range 20 { // changes are heartbeats too
			b.change(1)
			b.settle(testHeartbeat / 2)
		}
		b.settle(testHeartbeat)
		before := b.updates()
		b.settle(time.Minute)
		if n := b.updates() - before; n != 6 {
			t.Errorf("%d updates in an idle minute, want 6", n)
		}
		b.server.set(func(s *fakeServer) {
			for i, u := range s.updates {
				if u.Sequence != uint64(i+1) || u.HeartbeatMs != 10_000 || u.StreamState != pb.StreamState_STREAM_EXACT {
					t.Fatalf("update %d: %v", i, u)
				}
				if i > 0 && u.TimestampUs-s.updates[i-1].TimestampUs > (testHeartbeat+testWindow).Microseconds() {
					t.Errorf("update %d came %d us after the one before", i, u.TimestampUs-s.updates[i-1].TimestampUs)
				}
			}
		})
		b.expectEqual(t)
	})
}

func TestOutboxSaysAtOnceHowFarToTrustIt(t *testing.T) {
	t.Parallel()
	inBench(t, 1<<20, func(t *testing.T, b *bench) {
		b.settle(time.Second)
		before := b.updates()
		b.become(Stale)
		b.settle(stateCheck)
		if diff := cmp.Diff([]string{"STREAM_STALE"}, b.said(before)); diff != "" {
			t.Errorf("said (-want +got):\n%s", diff)
		}
		for i := range 100 { // a state that flickers
			b.become([]State{Degraded, Exact}[i%2])
			time.Sleep(10 * time.Millisecond)
		}
		b.settle(stateCheck)
		said := b.said(before)
		if len(said) > 6 || said[len(said)-1] != "STREAM_EXACT" {
			t.Errorf("in a second of flicker: %q", said)
		}
	})
}

func TestOutboxTakesStateAlongWithChanges(t *testing.T) {
	t.Parallel()
	inBench(t, 1<<20, func(t *testing.T, b *bench) {
		b.settle(time.Second)
		before := b.updates()
		b.become(Degraded)
		b.outbox.add([]Change{chainStore(0, 0, 7)}, time.Now(), time.Now())
		b.settle(time.Second)
		if said := b.said(before); len(said) != 1 || said[0][:len("STREAM_DEGRADED ")] != "STREAM_DEGRADED " {
			t.Errorf("said %q", said)
		}
	})
}

func TestOutboxSaysHowManyBlocksTheServerShouldHave(t *testing.T) {
	t.Parallel()
	inBench(t, 64<<20, func(t *testing.T, b *bench) {
		for range 20 {
			b.change(30)
			b.settle(2 * testWindow)
		}
		b.settle(testHeartbeat)
		b.server.mu.Lock()
		defer b.server.mu.Unlock()
		if b.server.updates[0].Held != nil {
			t.Error("the CLEAR says what is held, which the server does not have then")
		}
		var want [3]int64
		for _, tier := range b.server.held {
			want[slot(tier)]++
		}
		said := b.server.updates[len(b.server.updates)-1].GetHeld()
		if got := [3]int64{said.GetT1(), said.GetT2(), said.GetT3()}; got != want || want == [3]int64{} {
			t.Errorf("said %v, the server has %v", got, want)
		}
	})
}

func TestOutboxWaitsForHistoryBeforeItClears(t *testing.T) {
	t.Parallel()
	for _, v := range []struct {
		name       string
		history    time.Duration // until the state is Exact
		close      bool
		want, most time.Duration // until the CLEAR
	}{
		{"known", 0, false, 0, 0},
		{"read soon", 2 * time.Second, false, 2 * time.Second, 2*time.Second + stateCheck},
		{"never read", time.Hour, false, historyWait, historyWait},
		{"stopped before", time.Hour, true, 0, 0},
	} {
		t.Run(v.name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				b := newBench(1, 1<<20)
				b.server.held[heldBlock{Hash: 99}] = kv.T1 // of an earlier life of the replica
				if v.history > 0 {
					b.become(Connecting)
					time.AfterFunc(v.history/2, func() { b.become(Bootstrapping) })
					time.AfterFunc(v.history, func() { b.become(Exact) })
				} else {
					b.become(Exact)
				}
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				started := time.Now()
				if v.close {
					b.outbox.close()
				}
				go b.outbox.run(ctx)
				for b.updates() == 0 {
					b.settle(time.Millisecond)
				}
				if took := time.Since(started); took < v.want || took > v.most+time.Millisecond {
					t.Errorf("cleared after %v", took)
				}
				cancel()
				synctest.Wait()
			})
		})
	}
}

func TestOutboxStartsOverWhenTheServerHasLostIt(t *testing.T) {
	t.Parallel()
	inBench(t, 1<<20, func(t *testing.T, b *bench) {
		b.change(300)
		b.settle(time.Second)
		b.server.forget()
		b.settle(testHeartbeat + time.Second) // no change: the heartbeat's ack tells
		b.expectEqual(t)
		if n := b.outbox.meters.resyncs[causeLost].Get(); n != 1 {
			t.Errorf("%d resyncs, want 1", n)
		}
		b.server.forget()
		b.change(30)
		b.settle(time.Second)
		b.expectEqual(t)
		if n := b.outbox.meters.resyncs[causeRestart].Get(); n != 0 {
			t.Errorf("%d restarts seen, there was none", n)
		}
	})
}

func TestOutboxSaysGoodbyeOnce(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := newBench(1, 1<<20)
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			b.outbox.run(t.Context())
		}()
		b.change(10)
		b.settle(time.Second)
		b.server.set(func(s *fakeServer) { s.failing = errDown })
		tries := b.server.count(func(s *fakeServer) int { return s.entered })
		b.outbox.close()
		<-ended
		if n := b.server.count(func(s *fakeServer) int { return s.entered }); n != tries+1 {
			t.Errorf("%d goodbyes", n-tries)
		}
	})
}

func TestOutboxAsksForHelpWhenTroubleLasts(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := newBench(1, 1<<20)
		calls := 0
		b.outbox.troubled = func() { calls++ }
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		go b.outbox.run(ctx)
		b.settle(time.Second)
		down := func(d time.Duration) {
			b.server.set(func(s *fakeServer) { s.failing = errDown })
			b.change(10)
			b.settle(d)
			b.server.set(func(s *fakeServer) { s.failing = nil })
			b.settle(time.Minute)
		}
		down(troubleAfter - time.Second)
		if calls != 0 {
			t.Error("called for a short trouble")
		}
		down(time.Minute)
		down(time.Minute)
		if calls != 2 {
			t.Errorf("%d calls for two long troubles", calls)
		}
	})
}
