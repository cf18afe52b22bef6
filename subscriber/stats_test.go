package subscriber

import (
	"bytes"
	"context"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"inferencecache.io/inferencecache/internal/engine/vllm"
	pb "inferencecache.io/inferencecache/proto/inferencecache/v1alpha1"
)

// page answers every scrape with what it holds.
type page struct {
	mu      sync.Mutex
	status  int
	body    string
	scrapes int
}

func (p *page) set(status int, body string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.status, p.body = status, body
}

func (p *page) Do(*http.Request) (*http.Response, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.scrapes++
	if p.status == 0 {
		return nil, errors.New("connection refused")
	}
	return &http.Response{
		StatusCode: p.status, Status: http.StatusText(p.status), Body: io.NopCloser(strings.NewReader(p.body)),
	}, nil
}

func TestStatsLoop(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		good, bad := newFakeServer(), newFakeServer()
		var logged bytes.Buffer
		var observed []facts
		engine := &page{}
		engine.set(http.StatusOK, vllmPage)
		loop := &statsLoop{
			url: "http://engine/metrics", interval: 10 * time.Second, version: "test/1", http: engine,
			load:   loadReader{families: vllm.Dialect.Load, usage: usageAuto, ceiling: 64, model: "m"},
			meters: testMeters(), log: slog.New(slog.NewTextHandler(&logged, nil)),
			observed: func(f facts) { observed = append(observed, f) },
		}
		for _, s := range []*fakeServer{good, bad} {
			loop.outboxes = append(loop.outboxes, newOutbox(outboxConfig{
				server: "fake", reporter: s, identity: &pb.CacheStateUpdate{ReplicaId: "replica", EngineUrl: "http://engine"},
				state: func() State { return Exact }, log: quiet,
			}, loop.meters))
		}
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		go loop.run(ctx)
		count := func(s *fakeServer) int { return s.count(func(s *fakeServer) int { return len(s.stats) }) }

		synctest.Wait()
		if count(good) != 1 || count(bad) != 1 {
			t.Fatalf("at start: %d and %d reports, want one each", count(good), count(bad))
		}
		var first *pb.CacheStateUpdate
		good.set(func(s *fakeServer) { first = s.stats[0] })
		if first.ReplicaId != "replica" || first.Stats.ClientVersion != "test/1" || first.Stats.Pressure != 0.5 ||
			first.TimestampUs != time.Now().UnixMicro() || first.EngineUrl != "http://engine" {
			t.Errorf("report: %v", first)
		}

		bad.set(func(s *fakeServer) { s.refusing = true })
		time.Sleep(10*time.Second + 1)
		synctest.Wait()
		if n := loop.outboxes[1].meters.errors.Get(); count(good) != 2 || n != 1 {
			t.Errorf("with one server refusing: %d reports to the other, %d errors", count(good), n)
		}
		bad.set(func(s *fakeServer) { s.refusing = false })

		engine.set(http.StatusServiceUnavailable, "")
		time.Sleep(60 * time.Second)
		synctest.Wait()
		engine.set(http.StatusOK, vllmPage)
		time.Sleep(20 * time.Second)
		synctest.Wait()
		cancel()
		synctest.Wait()

		var events []string
		for line := range strings.Lines(logged.String()) {
			_, after, _ := strings.Cut(line, "level=")
			level, _, _ := strings.Cut(after, " ")
			_, event, _ := strings.Cut(line, "event=")
			event, _, _ = strings.Cut(event, " ")
			events = append(events, strings.TrimSpace(level+" "+event))
		}
		want := []string{"WARN", "ERROR load_signal_stale", "INFO load_signal_recovered"}
		if diff := cmp.Diff(want, events); diff != "" {
			t.Errorf("log (-want +got):\n%s\n%s", diff, logged.String())
		}
		if got := loop.meters.scrapeErrors.Get(); got != 6 {
			t.Errorf("%d scrape errors counted, want 6", got)
		}
		if got := int(loop.meters.scrapes.Get()); len(observed) != got || got < 3 || observed[0].Engines != 2 {
			t.Errorf("%d of %d scrapes observed: %+v", len(observed), got, observed)
		}
	})
}
