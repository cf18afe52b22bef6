package subscriber

import (
	"context"
	"io"
	"log/slog"
	"sync"
	"testing"
	"time"

	"github.com/VictoriaMetrics/metrics"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) {
	goleak.VerifyTestMain(m,
		// The library's own PUB leaves its writer holding a lock on close.
		goleak.IgnoreAnyFunction("github.com/go-zeromq/zmq4.(*pubMWriter).run"),
		goleak.IgnoreAnyFunction("github.com/go-zeromq/zmq4.(*pubQReader).listen"),
	)
}

// patience is how long tests wait for other processes and goroutines: long, for
// machines that do much else.
const patience = time.Minute

var quiet = slog.New(slog.NewTextHandler(io.Discard, nil))

// testMeters are metrics of a set of their own.
func testMeters() *meters { return newMeters(metrics.NewSet(), "replica") }

func testSourceMeters() *sourceMeters { return testMeters().source(0, newQueue(1, 1), &machine{}) }

// until waits for a condition that other goroutines bring about.
func until(t *testing.T, what string, condition func() bool) {
	t.Helper()
	deadline := time.NewTimer(patience)
	defer deadline.Stop()
	tick := time.NewTicker(2 * time.Millisecond)
	defer tick.Stop()
	for !condition() {
		select {
		case <-deadline.C:
			t.Fatalf("waited in vain for: %s", what)
		case <-tick.C:
		}
	}
}

// start runs f until the test ends, which waits for it.
func start(t *testing.T, f func(context.Context)) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	var running sync.WaitGroup
	running.Go(func() { f(ctx) })
	stop = sync.OnceFunc(func() {
		cancel()
		running.Wait()
	})
	t.Cleanup(stop)
	return stop
}
