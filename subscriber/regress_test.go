package subscriber

import (
	"bytes"
	"context"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/VictoriaMetrics/metrics"

	"inferencecache.io/inferencecache/internal/engine"
	"inferencecache.io/inferencecache/internal/engine/vllm"
	pb "inferencecache.io/inferencecache/proto/inferencecache/v1alpha1"
)

// SGLang with epochs and no replay: reconnect to the same process.
func TestReconnectByEpochEndsBootstrapping(t *testing.T) {
	s := bareStream(t, nil)
	ctx := t.Context()
	c := s.state.connect()
	s.take(ctx, batch{mark: markConnected, connection: c, arrived: time.Now()})
	s.take(ctx, batch{connection: c, epoch: "e", sequence: 0, payload: storedBatch(0, []uint64{1}, []uint32{1}), arrived: time.Now()})
	if got := s.state.now(); got != Exact {
		t.Fatal(got)
	}
	s.state.disconnect(time.Now())
	c = s.state.connect()
	s.take(ctx, batch{mark: markConnected, connection: c, arrived: time.Now()})
	for n := range uint64(50) {
		s.take(ctx, batch{connection: c, epoch: "e", sequence: 1 + n, payload: storedBatch(0, []uint64{2 + n}, []uint32{uint32(2 + n)}), arrived: time.Now()})
	}
	if got := s.state.now(); got != Exact {
		t.Errorf("state %v after 50 batches in a row of the same epoch, want exact", got)
	}
}

// A replay that goes on for ever.
type endlessReplay struct{}

func (endlessReplay) replay(ctx context.Context, start uint64, yield func(uint64, []byte) bool) (bool, error) {
	p := storedBatch(0, []uint64{1}, []uint32{1})
	for ctx.Err() == nil {
		if !yield(0, p) {
			return false, nil
		}
		time.Sleep(time.Second) // below replayIdle
	}
	return false, ctx.Err()
}

func TestReplayEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := bareStream(t, endlessReplay{})
		ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
		defer cancel()
		c := s.state.connect()
		began := time.Now()
		s.take(ctx, batch{mark: markConnected, connection: c, arrived: time.Now()})
		if took := time.Since(began); took > 2*replayMost {
			t.Errorf("one replay held the stream for %v", took)
		}
	})
}

// Shutdown with a snapshot under way.
func TestShutdownDoesNotWaitForASnapshot(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := bareStream(t, nil)
		s.auditor = &auditor{every: time.Minute, taken: make(chan *snapshot, 1), take: func(ctx context.Context) *snapshot {
			select { // a capture takes up to 5 s, snapshotIdle is 6 s
			case <-ctx.Done():
			case <-time.After(5 * time.Second):
			}
			return &snapshot{err: errSilent, at: time.Now()}
		}}
		late, stop := context.WithCancel(t.Context())
		defer stop()
		ended := make(chan struct{})
		go func() { defer close(ended); s.run(late) }()
		c := s.state.connect()
		s.queue.push(batch{mark: markConnected, connection: c, arrived: time.Now()})
		s.queue.push(batch{connection: c, sequence: 0, payload: storedBatch(0, []uint64{1}, []uint32{1}), arrived: time.Now()})
		time.Sleep(time.Second)
		synctest.Wait()
		s.state.disconnect(time.Now())
		s.queue.close()
		began := time.Now()
		<-ended
		if took := time.Since(began); took >= shutdownGrace {
			t.Errorf("stream ended %v after its queue was closed; the grace of %v is over, no goodbye is said", took, shutdownGrace)
		}
	})
}

// A rank that is dropped leaves its metrics.
func TestDroppedRankLeavesNoMetrics(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		set := metrics.NewSet()
		m := newMeters(set, "replica")
		config := DefaultConfig()
		sub := &Subscriber{meters: m, log: quiet, replica: &replica{meters: m, residency: NewResidency(ResidencyConfig{})}}
		s := &sources{replica: sub.replica, log: quiet, make: func(e endpoint) (*source, error) { return newSource(e, &config, vllm.Dialect, sub) }}
		ctx, cancel := context.WithCancel(t.Context())
		for rank := range 50 {
			s.follow(ctx, ctx, []endpoint{{Rank: rank, Events: "ipc:///nonexistent/rv"}})
		}
		cancel()
		for _, one := range s.now {
			one.stop()
		}
		var page bytes.Buffer
		set.WritePrometheus(&page)
		if n := strings.Count(page.String(), `rank="7"`); n > 0 {
			t.Errorf("%d series of a rank that is not followed; all %d", n, strings.Count(page.String(), "\n"))
		}
		if strings.Contains(page.String(), `state{replica="replica",rank="7",state="connecting"} 1`) {
			t.Error("and its state is still said")
		}
	})
}

// The address that works is given up for one that the engine names and
// that does not.
func TestAddressThatWorksIsKept(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMeters(metrics.NewSet(), "replica")
		config := DefaultConfig()
		sub := &Subscriber{meters: m, log: quiet, replica: &replica{meters: m, residency: NewResidency(ResidencyConfig{})}}
		s := &sources{replica: sub.replica, log: quiet, make: func(e endpoint) (*source, error) { return newSource(e, &config, vllm.Dialect, sub) }}
		one, err := s.make(endpoint{Rank: 0, Events: "tcp://127.0.0.1:5557"})
		if err != nil {
			t.Fatal(err)
		}
		r := &running{source: one, stop: func() {}}
		s.put(r)
		named := []endpoint{{Rank: 0, Events: "tcp://nowhere.invalid:5557"}} // same port, another address
		ctx, cancel := context.WithCancel(t.Context())
		cancel() // receivers end at once
		one.state.connect()
		s.follow(ctx, ctx, named)
		if s.list()[0] != one {
			t.Fatal("given up while connected")
		}
		one.state.disconnect(time.Now()) // for 100 ms
		s.follow(ctx, ctx, named)
		if got := s.list()[0]; got.Events != one.Events {
			t.Errorf("follows %s from now on", got.Events)
		}
	})
}

// The mismatch stays although there is nothing left to compare.
type forgetful struct{ matched int32 }

func (forgetful) name() string           { return "s" }
func (forgetful) settled(time.Time) bool { return true }
func (s forgetful) lookup(context.Context, *pb.LookupRouteRequest) (*pb.LookupRouteResponse, error) {
	return &pb.LookupRouteResponse{ReplicaScores: []*pb.ReplicaScore{{ReplicaId: "r", MatchedTokens: s.matched}}}, nil
}

func TestMismatchEndsWithItsPrompt(t *testing.T) {
	s := bareStream(t, nil)
	src := &source{state: s.state}
	src.stream.account = s.account
	src.stream.replica = s.replica
	config := DefaultConfig()
	config.ReplicaID = "r"
	sen := &sentinel{config: &config, replica: s.replica, sources: func() []*source { return []*source{src} },
		servers: func() []lookedUp { return []lookedUp{forgetful{}} }}
	c := s.state.connect()
	old := time.Now().Add(-time.Minute)
	s.take(t.Context(), batch{mark: markConnected, connection: c, arrived: old})
	s.take(t.Context(), batch{connection: c, sequence: 0, payload: storedBatch(0, []uint64{1}, []uint32{1}), arrived: old})
	sen.lookUp(t.Context(), time.Now())
	sen.lookUp(t.Context(), time.Now()) // once may be a server that has just started
	if len(sen.lookups) != 1 {
		t.Fatal(sen.lookups)
	}
	s.take(t.Context(), batch{connection: c, sequence: 1, payload: removedBatch(1), arrived: time.Now()})
	for n := range 100 {
		sen.lookUp(t.Context(), time.Now().Add(time.Duration(n)*time.Minute))
	}
	if len(sen.lookups) != 0 {
		t.Errorf("100 minutes after the prompt is gone: %q", sen.lookups)
	}
}

// Nothing is diagnosed for an engine that went away for good.
func TestEngineGoneIsNamed(t *testing.T) {
	now := time.Now()
	s := healthy(now)
	s.sources[0].away = time.Hour
	s.sources[0].Last = now.Add(-time.Hour)
	s.engine = engineSymptoms{} // metrics page gone as well
	if found := diagnose(s); len(found) == 0 {
		t.Error("publisher away for an hour: no condition")
	}
}

// An adapter is named later, and 1000 of its stores are applied.
func TestUnmappedAdapterEnds(t *testing.T) {
	now := time.Now()
	s := healthy(now)
	s.sources[0].Refused = map[engine.Reason]uint64{UnmappedAdapter: 1}
	s.sources[0].Applied, s.sources[0].Stores = 1_000_000, 1_000_001
	if found := diagnose(s); len(found) != 0 {
		t.Errorf("one refused store of a million, whenever it was: %v", found)
	}
}

// An engine that names its epochs and does not replay starts again and is
// idle: what it held stays, and is vouched for (bootstrapping vouches).
func TestRestartOfAnIdleEngineIsNoticed(t *testing.T) {
	s := bareStream(t, nil)
	ctx := t.Context()
	c := s.state.connect()
	s.take(ctx, batch{mark: markConnected, connection: c, arrived: time.Now()})
	s.take(ctx, batch{connection: c, epoch: "e", sequence: 0, payload: storedBatch(0, []uint64{1}, []uint32{1}), arrived: time.Now()})
	s.state.disconnect(time.Now())
	c = s.state.connect() // to another process, a second later
	s.take(ctx, batch{mark: markConnected, connection: c, arrived: time.Now()})
	for n := range 1000 {
		s.idle(ctx, time.Now().Add(time.Duration(n)*time.Minute))
	}
	if n := s.replica.stats().Holdings; n > 0 {
		t.Errorf("%d blocks of the process before are held, in state %v", n, s.state.now())
	}
}

// The cap is reached again and again.
func TestCapDoesNotFlap(t *testing.T) {
	var log bytes.Buffer
	s := bareStream(t, nil)
	s.replica.residency = NewResidency(ResidencyConfig{MaxBlocks: 4})
	config := DefaultConfig()
	c := newConditions(testMeters(), slog.New(slog.NewTextHandler(&log, nil)))
	sen := &sentinel{config: &config, replica: s.replica, sources: func() []*source { return nil }, conditions: c}
	var base promptBase
	link := s.state.connect()
	for n := range uint64(120) { // ten minutes; a prompt every ten seconds
		if n%2 == 0 {
			s.take(context.Background(), batch{connection: link, sequence: n / 2,
				payload: storedBatch(0, []uint64{n + 1}, []uint32{uint32(n + 1)}), arrived: time.Now()})
		}
		c.set(diagnose(sen.gather(time.Now(), &base)))
	}
	if n := bytes.Count(log.Bytes(), []byte("\n")); n > 4 {
		t.Errorf("%d lines in the log in ten minutes of one condition", n)
	}
}

// What is read of a broken connection says nothing of the next one.
func TestReadOfAnOldConnectionIsNotOfTheNext(t *testing.T) {
	s := bareStream(t, nil)
	ctx := t.Context()
	c := s.state.connect()
	s.take(ctx, batch{mark: markConnected, connection: c, arrived: time.Now()})
	s.take(ctx, batch{connection: c, sequence: 0, payload: storedBatch(0, []uint64{1}, []uint32{1}), arrived: time.Now()})
	s.state.disconnect(time.Now())
	s.state.connect() // its mark is still queued, behind this:
	s.take(ctx, batch{connection: c, sequence: 5, payload: storedBatch(0, []uint64{2}, []uint32{2}), arrived: time.Now()})
	if got := s.state.now(); got != Bootstrapping {
		t.Errorf("state %v of a connection that nobody has looked at", got)
	}
}

// Nothing is followed.
func TestNothingFollowedIsNotExact(t *testing.T) {
	s := &Subscriber{sources: &sources{}}
	if got := s.State(); got == Exact {
		t.Errorf("state %v without a stream", got)
	}
}

// One batch of the history cannot be transported (its frame is above
// --max-frame-bytes): all that came after it is thrown away every 30 s.
type rvTorn struct{ batches [][]byte }

func (h *rvTorn) replay(_ context.Context, start uint64, yield func(uint64, []byte) bool) (bool, error) {
	for n := start; n < uint64(len(h.batches)); n++ {
		if h.batches[n] == nil {
			return false, errFrameTooLarge
		}
		if !yield(n, h.batches[n]) {
			return false, nil
		}
	}
	return true, nil
}

func TestUnreadableHistoryIsNotReadAgainAndAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := &rvTorn{}
		s := bareStream(t, h)
		ctx := t.Context()
		c := s.state.connect()
		s.take(ctx, batch{mark: markConnected, connection: c, arrived: time.Now()})
		send := func(deliver bool) {
			n := uint64(len(h.batches))
			p := storedBatch(0, []uint64{n + 1}, []uint32{uint32(n + 1)})
			if !deliver {
				h.batches = append(h.batches, nil)
				return
			}
			h.batches = append(h.batches, p)
			s.take(ctx, batch{connection: c, sequence: n, payload: p, arrived: time.Now()})
		}
		for range 5 {
			send(true)
		}
		send(false) // the connection would break here and be made again
		for range 100 {
			send(true)
		}
		least, most := 1<<30, 0
		for range 600 { // ten minutes, a batch every second
			time.Sleep(time.Second)
			s.idle(ctx, time.Now())
			send(true)
			n := s.replica.stats().Holdings
			least, most = min(least, n), max(most, n)
		}
		t.Logf("held: %d at least, %d at most; restarts of the view: see below", least, most)
		if got := s.replica.stats().Holdings; got < 600 {
			t.Errorf("%d blocks held of 700 that came live", got)
		}
	})
}
