package roles

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"sync"
	"testing"
	"time"

	"github.com/VictoriaMetrics/metrics"
	"github.com/google/go-cmp/cmp"
	"github.com/spf13/pflag"

	"inferencecache.io/inferencecache/internal/engine/sim"
	"inferencecache.io/inferencecache/roles/server"
	"inferencecache.io/inferencecache/subscriber"
)

// outageVariable says how long the server of TestServerOutage is away.
const outageVariable = "INFERENCECACHE_OUTAGE"

func outage(t *testing.T) time.Duration {
	t.Helper()
	text := os.Getenv(outageVariable)
	if text == "" {
		return 3 * time.Second
	}
	d, err := time.ParseDuration(text)
	if err != nil {
		t.Fatalf("%s: %v", outageVariable, err)
	}
	return d
}

// background runs f until stop, which waits for it.
func background(t *testing.T, f func(context.Context)) (stop func()) {
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

// serveAt is a fresh server on an address. Its crash takes the listener, every
// connection and the index with it, without a word to anyone.
func serveAt(t *testing.T, address string) (s *server.Server, at string, crash func()) {
	t.Helper()
	var config server.Config
	config.Flags(pflag.NewFlagSet("", pflag.ContinueOnError))
	config.InsecureDisableAuth = true
	log := slog.New(slog.DiscardHandler)
	s = server.New(config, log, metrics.NewSet())
	mux := http.NewServeMux()
	s.Mount(mux)
	doors, err := openDoors(mux, []string{address}, nil, log)
	if err != nil {
		t.Fatal(err)
	}
	crash = background(t, func(ctx context.Context) {
		var running sync.WaitGroup
		running.Go(func() { _ = doors.http.Serve(doors.listeners[0]) })
		running.Go(func() { _ = s.Run(ctx) })
		<-ctx.Done()
		_ = doors.http.Close()
		running.Wait()
	})
	return s, doors.addresses()[0], crash
}

// simulate runs an engine with a small cache, and a subscriber that reports it
// to the server at an address.
func simulate(t *testing.T, name, server string) *sim.Engine {
	t.Helper()
	engine := sim.New(sim.Config{Name: name, Listen: "127.0.0.1:0", Blocks: 1000}, slog.New(slog.DiscardHandler))
	if err := engine.Listen(); err != nil {
		t.Fatal(err)
	}
	background(t, func(ctx context.Context) { _ = engine.Run(ctx) })
	config := subscriber.DefaultConfig()
	config.ReplicaID, config.ModelID, config.TenantID, config.Servers = name, "m", "t", []string{server}
	config.EngineEndpoint, config.ReplayEndpoint = engine.EventsEndpoint(), engine.ReplayEndpoint()
	config.EngineMetricsURL = engine.URL() + "/metrics"
	s, err := subscriber.New(config, subscriber.Deps{Logger: slog.New(slog.DiscardHandler), Metrics: metrics.NewSet()})
	if err != nil {
		t.Fatal(err)
	}
	background(t, func(ctx context.Context) { _ = s.Run(ctx) })
	return engine
}

// load completes prompts that share prefixes until ctx ends.
func load(ctx context.Context, t *testing.T, engine *sim.Engine, seed uint64) {
	rng := rand.New(rand.NewPCG(seed, 0))
	for ctx.Err() == nil {
		tokens := make([]uint32, 160+rng.IntN(800))
		branch := uint32(rng.IntN(100))
		for i := range tokens {
			tokens[i] = uint32(i)
			if i >= 64 {
				tokens[i] += branch << 16
			}
		}
		if _, err := engine.Complete(ctx, tokens, 4); err != nil && !errors.Is(err, context.Canceled) {
			t.Errorf("complete: %v", err)
			return
		}
	}
}

// held is how many blocks a server knows of each replica.
func held(s *server.Server) map[string]int {
	all := map[string]int{}
	for _, r := range s.Snapshot().Replicas {
		all[r.ReplicaID] = int(r.PrefixCount)
	}
	return all
}

// TestServerOutage lets a server crash under load and come back empty: soon it
// knows again, to the block, what each engine's cache holds.
func TestServerOutage(t *testing.T) {
	away := outage(t)
	if deadline, ok := t.Deadline(); ok && time.Until(deadline) < away+time.Minute {
		t.Fatalf("an outage of %v needs a longer -timeout", away)
	}
	first, address, crash := serveAt(t, net.JoinHostPort("127.0.0.1", freePort(t)))
	engines := map[string]*sim.Engine{}
	for i := range 3 {
		name := fmt.Sprintf("sim-%d", i+1)
		engines[name] = simulate(t, name, address)
	}
	caches := func() map[string]int {
		all := map[string]int{}
		for name, engine := range engines {
			all[name] = engine.State().HeldBlocks
		}
		return all
	}
	rest := background(t, func(ctx context.Context) {
		var workers sync.WaitGroup
		for _, engine := range engines {
			for range 2 {
				workers.Go(func() { load(ctx, t, engine, rand.Uint64()) })
			}
		}
		workers.Wait()
	})
	eventually(t, "full caches", func() bool {
		for name, n := range held(first) {
			if n < 500 || engines[name].State().Evictions == 0 {
				return false
			}
		}
		return len(held(first)) == len(engines)
	})

	crash()
	<-time.After(away)
	fresh, _, _ := serveAt(t, address)
	back := time.Now()
	<-time.After(time.Second) // the load goes on while the server catches up
	rest()
	var diff string
	for time.Since(back) < 30*time.Second {
		if diff = cmp.Diff(caches(), held(fresh)); diff == "" {
			break
		}
		<-time.After(5 * time.Millisecond)
	}
	took := time.Since(back)
	if diff != "" || took > 5*time.Second {
		t.Errorf("%v after the server came back it holds (-want +got):\n%s", took, diff)
	}
	var requests uint64
	for _, engine := range engines {
		requests += engine.State().Requests
	}
	t.Logf("away %v, whole again %v after the return; held %v, %d requests in all", away, took.Round(time.Millisecond), caches(), requests)
}
