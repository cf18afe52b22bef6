package sim

import (
	"context"
	"log/slog"
	"net/http"
	"testing"
	"time"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// stopLimit is how long Run may take to end: it needs less than a second, and
// a busy machine gets some more.
const stopLimit = 3 * time.Second

// quick serves in no time and binds ports of the system's choice.
func quick() Config {
	return Config{
		Listen:      "127.0.0.1:0",
		PrefillRate: 1e12,
		DecodeRate:  1e12,
		Seed:        1,
	}
}

// start runs an engine until the test ends, which fails if stopping it
// takes longer than stopLimit.
func start(t *testing.T, cfg Config) *Engine {
	t.Helper()
	e := New(cfg, slog.New(slog.DiscardHandler))
	if err := e.Listen(); err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- e.Run(ctx) }()
	t.Cleanup(func() {
		http.DefaultClient.CloseIdleConnections()
		stop()
		select {
		case err := <-ended:
			if err != nil {
				t.Errorf("Run: %v", err)
			}
		case <-time.After(stopLimit):
			t.Errorf("Run goes on %v after its context ended", stopLimit)
		}
	})
	return e
}

// eventually waits until holds, which a socket brings about.
func eventually(t *testing.T, what string, holds func() bool) {
	t.Helper()
	tick := time.NewTicker(2 * time.Millisecond)
	defer tick.Stop()
	deadline := time.After(30 * time.Second)
	for !holds() {
		select {
		case <-tick.C:
		case <-deadline:
			t.Fatalf("still not: %s", what)
		}
	}
}

// check proves the invariants of the current process' cache.
func (e *Engine) check(t *testing.T) {
	t.Helper()
	p := e.current()
	p.mu.Lock()
	defer p.mu.Unlock()
	if err := p.cache.check(); err != nil {
		t.Error(err)
	}
}

// text is a prompt of n tokens that no other letter's text shares a
// block with.
func text(letter byte, n int) []uint32 {
	tokens := make([]uint32, n)
	for i := range tokens {
		tokens[i] = uint32(letter)
	}
	return tokens
}
