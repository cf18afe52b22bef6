package sim

import (
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"inferencecache.io/inferencecache/internal/engine"
	"inferencecache.io/inferencecache/internal/engine/vllm"
)

// complete sends a prompt to the rank that header names and returns the status.
func complete(t *testing.T, e *Engine, header, prompt string) (int, string) {
	t.Helper()
	r := httptest.NewRequestWithContext(t.Context(), "POST", "/v1/completions",
		strings.NewReader(`{"prompt":"`+prompt+`","max_tokens":1}`))
	if header != "" {
		r.Header.Set("x-data-parallel-rank", header)
	}
	w := httptest.NewRecorder()
	e.Handler().ServeHTTP(w, r)
	return w.Code, w.Body.String()
}

// held is how many blocks each rank holds.
func held(e *Engine) (blocks []int) {
	for _, r := range e.Ranks() {
		blocks = append(blocks, r.State().HeldBlocks)
	}
	return blocks
}

func TestHeaderNamesTheRank(t *testing.T) {
	cfg := quick()
	cfg.Ranks = 3
	e := newTestEngine(cfg)
	f := func(header string, status int, want ...int) {
		t.Helper()
		got, body := complete(t, e, header, strings.Repeat("a", 32))
		if got != status || !slices.Equal(held(e), want) {
			t.Errorf("rank %q: %d %s, blocks %d, want %d", header, got, body, held(e), want)
		}
	}
	f("2", http.StatusOK, 0, 0, 2)
	f("", http.StatusOK, 2, 0, 2)
	f("soon", http.StatusOK, 2, 0, 2)
	f("3", http.StatusBadRequest, 2, 0, 2)
	f("-1", http.StatusBadRequest, 2, 0, 2)
	f("1", http.StatusOK, 2, 2, 2)
}

func TestRequestsGoToTheLeastLoadedRank(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cfg := modest()
		cfg.Ranks = 2
		e := newTestEngine(cfg)
		began := time.Now()
		var done sync.WaitGroup
		f := func(letter byte, want time.Duration) {
			done.Go(func() {
				_, err := e.Complete(t.Context(), text(letter, 50), 20) // 0.5 s and 2 s
				if took := time.Since(began); err != nil || took != want {
					t.Errorf("%c took %v, want %v, %v", letter, took, want, err)
				}
			})
			synctest.Wait()
		}
		f('a', 2500*time.Millisecond)
		f('b', 2500*time.Millisecond) // beside a, not behind it
		f('c', 3*time.Second)         // behind a
		f('d', 3*time.Second)         // behind b
		done.Wait()
		if got := held(e); !slices.Equal(got, []int{10, 10}) {
			t.Errorf("blocks %d", got)
		}
	})
}

func TestEachRankHasItsOwnStream(t *testing.T) {
	cfg := quick()
	cfg.Ranks = 2
	e := start(t, cfg)
	if n := len(slices.Compact(slices.Sorted(slices.Values(slices.Concat(e.EventsEndpoints(), e.ReplayEndpoints()))))); n != 4 {
		t.Fatalf("endpoints %q and %q", e.EventsEndpoints(), e.ReplayEndpoints())
	}
	if e.EventsEndpoints()[0] != e.EventsEndpoint() || e.ReplayEndpoints()[0] != e.ReplayEndpoint() {
		t.Errorf("rank 0 at %s and %s", e.EventsEndpoint(), e.ReplayEndpoint())
	}
	for _, r := range e.Ranks() {
		c := join(t, r.EventsEndpoint(), "SUB")
		c.send(appendMessage(nil, []byte{1}))
		eventually(t, "subscribed", func() bool { return r.State().Subscribers == 1 })
		if _, err := r.Serve(t.Context(), Request{Tokens: text('a', 16*(1+r.Number())), MaxTokens: 1}); err != nil {
			t.Fatal(err)
		}
		m := c.message()
		batch, err := engine.Decode(vllm.Dialect, m[2], engine.DefaultLimits())
		if err != nil || sequenceOf(m) != 0 || !batch.HasRank || batch.Rank != r.Number() || len(batch.Events[0].Hashes) != 1+r.Number() {
			t.Errorf("rank %d: %+v, %v", r.Number(), batch, err)
		}
		if got := join(t, r.ReplayEndpoint(), "DEALER").replayed(0); !slices.Equal(got, []uint64{0}) {
			t.Errorf("rank %d replays %d", r.Number(), got)
		}
	}
}

func TestFaultsTakeEffectOnOneRank(t *testing.T) {
	cfg := quick()
	cfg.Ranks = 2
	e := newTestEngine(cfg)
	for _, header := range []string{"0", "1"} {
		complete(t, e, header, strings.Repeat("a", 64))
	}
	answer[any](t, e, "POST", "/sim/fault?kind=evict&n=3&rank=1", "")
	if got := held(e); !slices.Equal(got, []int{4, 1}) {
		t.Errorf("blocks %d", got)
	}
	answer[any](t, e, "POST", "/sim/fault?kind=restart&rank=1", "")
	if a, b := e.State(), answer[State](t, e, "GET", "/sim/state?rank=1", ""); a.Restarts != 0 || b.Restarts != 1 || b.Rank != 1 {
		t.Errorf("states %+v and %+v", a, b)
	}
	complete(t, e, "1", strings.Repeat("a", 64))
	answer[any](t, e, "POST", "/reset_prefix_cache", "")
	if got := held(e); !slices.Equal(got, []int{0, 0}) {
		t.Errorf("blocks %d after a reset", got)
	}
	for _, path := range []string{"/sim/fault?kind=drop&rank=2", "/sim/fault?kind=drop&rank=x"} {
		if status, body := call(t, e, "POST", path, ""); status != http.StatusBadRequest || !strings.Contains(body, "rank must be a number from 0 to 1") {
			t.Errorf("%s: %d %s", path, status, body)
		}
	}
	if status, _ := call(t, e, "GET", "/sim/state?rank=2", ""); status != http.StatusBadRequest {
		t.Errorf("state of rank 2: %d", status)
	}
}

func TestMetricsHaveASeriesForEachRank(t *testing.T) {
	cfg := quick()
	cfg.Ranks = 2
	e := newTestEngine(cfg)
	complete(t, e, "1", strings.Repeat("a", 40))
	_, page := call(t, e, "GET", "/metrics", "")
	for _, line := range []string{
		`vllm:prompt_tokens_total{engine="0",model_name="sim"} 0`,
		`vllm:prompt_tokens_total{engine="1",model_name="sim"} 40`,
		`vllm:cache_config_info{block_size="16",enable_prefix_caching="True",engine="1",model_name="sim",num_gpu_blocks="8192"} 1.0`,
	} {
		if !strings.Contains(page, line+"\n") {
			t.Errorf("no %s in\n%s", line, page)
		}
	}
	if n := strings.Count(page, "# TYPE vllm:prompt_tokens_total counter\n"); n != 1 {
		t.Errorf("%d headers of one family", n)
	}
}

func TestRanksAddTheirNumberToThePort(t *testing.T) {
	f := func(endpoint string, rank int, want string) {
		t.Helper()
		if got, err := offset(endpoint, rank); got != want || (want == "") != (err != nil) {
			t.Errorf("%s of rank %d: %q, %v", endpoint, rank, got, err)
		}
	}
	f("tcp://*:5557", 0, "tcp://*:5557")
	f("tcp://[::1]:5557", 3, "tcp://[::1]:5560")
	f("tcp://127.0.0.1:0", 3, "tcp://127.0.0.1:0")
	f("tcp://127.0.0.1:65535", 1, "")
	f("tcp://127.0.0.1", 1, "")
	cfg := quick()
	cfg.Ranks, cfg.Events, cfg.Replay = 2, "tcp://127.0.0.1:15557", "tcp://127.0.0.1:15657"
	r := newTestEngine(cfg).ranks[1]
	if r.live.bind != "tcp://127.0.0.1:15558" || r.replay.bind != "tcp://127.0.0.1:15658" {
		t.Errorf("rank 1 binds %s and %s", r.live.bind, r.replay.bind)
	}
}

func TestSourcesAreDiscovered(t *testing.T) {
	f := func(cfg Config, want func(e *Engine) string) {
		t.Helper()
		e := newTestEngine(cfg)
		if err := e.Listen(); err != nil {
			t.Fatal(err)
		}
		defer func() {
			_ = e.http.Close()
			for _, r := range e.ranks {
				r.close(len(r.sockets))
			}
		}()
		_, got := call(t, e, "GET", "/kv_event_sources", "")
		if diff := cmp.Diff(want(e)+"\n", got); diff != "" {
			t.Error(diff)
		}
	}
	cfg := quick()
	cfg.Ranks, cfg.Topic = 2, "kv"
	f(cfg, func(e *Engine) string {
		events, replay := e.EventsEndpoints(), e.ReplayEndpoints()
		return fmt.Sprintf(`[{"data_parallel_rank":0,"endpoint":"%s","replay_endpoint":"%s","topic":"kv"},`+
			`{"data_parallel_rank":1,"endpoint":"%s","replay_endpoint":"%s","topic":"kv"}]`,
			events[0], replay[0], events[1], replay[1])
	})
	cfg = quick()
	cfg.NoReplay = true
	f(cfg, func(e *Engine) string {
		return fmt.Sprintf(`[{"data_parallel_rank":0,"endpoint":"%s","replay_endpoint":null,"topic":""}]`, e.EventsEndpoint())
	})
	cfg.NoDiscovery = true
	f(cfg, func(*Engine) string { return "404 page not found" })
}

func TestEngineWithoutEventsRefusesConnections(t *testing.T) {
	cfg := quick()
	cfg.NoEvents = true
	e := start(t, cfg)
	for _, endpoint := range []string{e.EventsEndpoint(), e.ReplayEndpoint()} {
		conn, err := net.Dial("tcp", strings.TrimPrefix(endpoint, "tcp://"))
		if err == nil {
			_ = conn.Close()
			t.Errorf("%s accepts a connection", endpoint)
		}
	}
	complete(t, e, "", strings.Repeat("a", 40))
	e.Restart()
	complete(t, e, "", strings.Repeat("a", 40))
}

func TestEngineWithoutCachingFindsAndSaysNothing(t *testing.T) {
	cfg := quick()
	cfg.NoCaching = true
	e := start(t, cfg)
	for range 3 {
		complete(t, e, "", strings.Repeat("a", 64))
	}
	_, page := call(t, e, "GET", "/metrics", "")
	for _, part := range []string{`enable_prefix_caching="False"`, `vllm:prefix_cache_hits_total{engine="0",model_name="sim"} 0` + "\n"} {
		if !strings.Contains(page, part) {
			t.Errorf("no %s in\n%s", part, page)
		}
	}
	if n := e.State().NextSequence; n != 0 {
		t.Errorf("%d batches published", n)
	}
}

func TestEngineWithoutReplayRunsAndRestarts(t *testing.T) {
	cfg := quick()
	cfg.NoReplay = true
	e := start(t, cfg)
	c := subscribe(t, e, "")
	e.Clear()
	if got := c.sequence(); got != 0 || e.ReplayEndpoint() != "" {
		t.Errorf("got %d, replay at %q", got, e.ReplayEndpoint())
	}
	e.Restart()
	c.ended()
}
