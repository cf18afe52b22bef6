package sim

import (
	"slices"
	"testing"
	"testing/synctest"
	"time"
)

func TestReplayFaultsConcernOneReplay(t *testing.T) {
	const buffered = 5
	all := []uint64{0, 1, 2, 3, 4}
	for name, c := range map[string]struct {
		fault func(e *Engine)
		first []uint64 // the replay with the fault
		then  []uint64 // the one after
	}{
		"hole":          {func(e *Engine) { e.Hole(2) }, []uint64{0, 2, 3, 4, endMarker}, all},
		"hole too far":  {func(e *Engine) { e.Hole(6) }, []uint64{0, 1, 2, 3, 4, endMarker}, all},
		"empty":         {func(e *Engine) { e.Empty() }, []uint64{endMarker}, all},
		"truncate":      {func(e *Engine) { e.Truncate(2) }, []uint64{0, 1}, all},
		"hole and cut":  {func(e *Engine) { e.Hole(1); e.Truncate(1) }, []uint64{1}, all},
		"refuse":        {func(e *Engine) { e.Refuse(1) }, nil, all},
		"refuse, empty": {func(e *Engine) { e.Refuse(1); e.Empty() }, nil, nil},
		"late":          {func(e *Engine) { e.Late(3) }, []uint64{3, 4, endMarker}, []uint64{3, 4}},
		"late, all":     {func(e *Engine) { e.Late(buffered + 1) }, []uint64{endMarker}, nil},
	} {
		for layout, frames := range map[string]int{LayoutOld: 3, LayoutNew: 4} {
			t.Run(name+", "+layout, func(t *testing.T) {
				cfg := quick()
				cfg.ReplayLayout = layout
				e := start(t, cfg)
				for range buffered {
					e.Clear()
				}
				eventually(t, "all buffered", func() bool { return e.State().BufferedBatches == buffered })
				c.fault(e)
				r := join(t, e.ReplayEndpoint(), "DEALER")
				r.ask(0)
				var first []uint64
				for range c.first {
					m := r.message()
					if len(m) != frames {
						t.Errorf("%d frames", len(m))
					}
					first = append(first, sequenceOf(m))
				}
				if !slices.Equal(first, c.first) {
					t.Errorf("replayed %d, want %d", first, c.first)
				}
				if then := r.replayed(0); !slices.Equal(then, c.then) {
					t.Errorf("then %d, want %d", then, c.then)
				}
			})
		}
	}
}

func TestLateKeepsTheRingInOrder(t *testing.T) {
	r := ring{limit: 4}
	next := uint64(0)
	keep := func(n int) {
		for range n {
			r.keep(batch{seq: next})
			next++
		}
	}
	f := func(want ...uint64) {
		t.Helper()
		var got []uint64
		for _, b := range r.from(0) {
			got = append(got, b.seq)
		}
		if !slices.Equal(got, want) {
			t.Errorf("holds %d, want %d", got, want)
		}
	}
	keep(6)
	if n := r.forget(1); n != 1 {
		t.Errorf("forgot %d", n)
	}
	f(3, 4, 5)
	keep(3)
	f(5, 6, 7, 8)
	if n := r.forget(9); n != 4 {
		t.Errorf("forgot %d", n)
	}
	f()
	keep(1)
	f(9)
}

// bulky publishes n batches of 60 kB: a few hundred are more than what the
// system buffers for a connection.
func bulky(t *testing.T, e *Engine, n int) {
	t.Helper()
	for range n {
		e.current().feed.put([]event{{kind: blockStored, hashes: []blockHash{1}, tokens: text('z', 60_000), blockSize: 60_000}})
	}
	eventually(t, "all buffered", func() bool { return e.State().BufferedBatches == n })
}

func TestReplayHWMCutsOnlyClientsThatDoNotRead(t *testing.T) {
	const batches = 500
	cfg := quick()
	cfg.ReplayHWM = 10
	e := start(t, cfg)
	bulky(t, e, batches)
	deaf := join(t, e.ReplayEndpoint(), "DEALER")
	deaf.ask(0)
	eventually(t, "replies are lost", func() bool { return e.State().LostReplies > 0 })
	got := uint64(batches + 1 - e.State().LostReplies)
	for want := range got {
		if seq := deaf.sequence(); seq != want {
			t.Fatalf("replayed %d, want %d", seq, want)
		}
	}
	rest := deaf.replayed(got) // nothing is left of the first one, not even its end
	if len(rest) != batches-int(got) || rest[0] != got || rest[len(rest)-1] != batches-1 {
		t.Errorf("the rest from %d on: %d", got, rest)
	}
}

func TestOutboxWaitsForRoomWhileMessagesLeave(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := newOutbox(1)
		f := func(want bool, took time.Duration) {
			t.Helper()
			began := time.Now()
			if got := o.offer([]byte("m"), time.Second); got != want || time.Since(began) != took {
				t.Errorf("offered %v after %v", got, time.Since(began))
			}
		}
		f(true, 0)
		f(false, time.Second)
		go func() {
			<-time.After(600 * time.Millisecond)
			o.take(nil, 9)
			<-time.After(600 * time.Millisecond)
			o.close()
		}()
		f(true, 600*time.Millisecond)
		f(true, 600*time.Millisecond) // a closed outbox swallows it
	})
}

func TestPongOvertakesAFullQueue(t *testing.T) {
	o := newOutbox(2)
	o.push([]byte("a"))
	o.push([]byte("b"))
	o.hurry([]byte("old"))
	o.hurry([]byte("pong"))
	got, _ := o.take(nil, 1)
	if len(got) != 2 || string(got[0]) != "pong" || string(got[1]) != "a" {
		t.Errorf("took %q", got)
	}
}

func TestRouterAnswersPing(t *testing.T) {
	cfg := quick()
	cfg.Snapshot = "tcp://127.0.0.1:0"
	e := start(t, cfg)
	for _, endpoint := range []string{e.ReplayEndpoint(), e.SnapshotEndpoint()} {
		c := join(t, endpoint, "DEALER")
		c.send(appendCommand(nil, "PING", []byte("\x00\x0a0123456789abcdef")))
		if pong := c.frame(); pong.flags != flagCommand || string(pong.body) != "\x04PONG0123456789abcdef" {
			t.Errorf("PING answered by %d %q", pong.flags, pong.body)
		}
	}
}
