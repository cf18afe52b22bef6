package subscriber

import (
	"context"
	"log/slog"
	"net/http"
	"testing"
	"time"

	"connectrpc.com/connect"
	"github.com/VictoriaMetrics/metrics"
	"github.com/google/go-cmp/cmp"

	"inferencecache.io/inferencecache/internal/fingerprint"
	"inferencecache.io/inferencecache/internal/kv"
	"inferencecache.io/inferencecache/internal/memhttp"
	"inferencecache.io/inferencecache/proto/inferencecache/v1alpha1/inferencecachev1alpha1connect"
)

// rig is a whole subscriber before a fake server over real RPC.
type rig struct {
	*Subscriber
	one    *source // of rank 0
	server *fakeServer
	stop   func()
}

// newRig runs a subscriber of endpoint.
func newRig(t *testing.T, endpoint string, configure ...func(*Config)) *rig {
	t.Helper()
	server := newFakeServer()
	mux := http.NewServeMux()
	mux.Handle(inferencecachev1alpha1connect.NewInferenceCacheHandler(server))
	mem := memhttp.New(mux)
	client := mem.Client(true)
	start(t, func(ctx context.Context) {
		if err := mem.Run(ctx); err != nil {
			t.Error(err)
		}
		client.CloseIdleConnections()
	})

	c := DefaultConfig()
	c.EngineEndpoint, c.ReplayEndpoint, c.Servers, c.EngineMetricsURL = endpoint, "", []string{memhttp.URL}, ""
	c.ReplicaID, c.ModelID, c.TenantID, c.Window = "replica", "model", "tenant", 5*time.Millisecond
	for _, f := range configure {
		f(&c)
	}
	s, err := New(c, Deps{
		HTTP: func(string) connect.HTTPClient { return client }, Logger: testLogger(t), Metrics: metrics.NewSet(),
	})
	if err != nil {
		t.Fatal(err)
	}
	r := &rig{Subscriber: s, one: s.sources.list()[0], server: server}
	r.stop = start(t, func(ctx context.Context) {
		if err := s.Run(ctx); err != nil {
			t.Error(err)
		}
	})
	return r
}

// testLogger writes to the test's log.
func testLogger(t *testing.T) *slog.Logger {
	return slog.New(slog.NewTextHandler(t.Output(), nil))
}

// expectHeld waits until the server holds exactly want.
func (r *rig) expectHeld(t *testing.T, what string, want heldBlocks) {
	t.Helper()
	deadline := time.Now().Add(patience)
	tick := time.NewTicker(2 * time.Millisecond)
	defer tick.Stop()
	for {
		diff := cmp.Diff(want, r.server.now())
		if diff == "" {
			break
		}
		if time.Now().After(deadline) {
			t.Fatalf("%s: held (-want +got):\n%s", what, diff)
		}
		<-tick.C
	}
	r.expectNoFaults(t)
}

func (r *rig) expectNoFaults(t *testing.T) {
	t.Helper()
	r.server.set(func(s *fakeServer) {
		if len(s.faults) > 0 {
			t.Errorf("broken promises: %q", s.faults)
		}
	})
}

// waitState waits until the subscriber says so of itself.
func (r *rig) waitState(t *testing.T, want State) {
	t.Helper()
	until(t, "state "+want.String(), func() bool { return r.State() == want })
}

// refused is how many messages were refused for a reason.
func (r *rig) refused(reason string) uint64 { return r.one.receiver.metrics.refused(reason).Get() }

// judged is how many batches got a verdict.
func (r *rig) judged(v verdict) uint64 { return r.one.stream.meters.batches[v].Get() }

// prefixes are the keys of a chain of blocks of 16 equal tokens.
func prefixes(tokens ...uint32) []kv.Hash {
	var all []uint32
	for _, token := range tokens {
		for range 16 {
			all = append(all, token)
		}
	}
	return fingerprint.Append(nil, all, 16)
}

// inT1 are blocks of the base model in the engine's own memory.
func inT1(hashes ...kv.Hash) heldBlocks {
	h := heldBlocks{}
	for _, hash := range hashes {
		h[heldBlock{Hash: hash}] = kv.T1
	}
	return h
}

// chainOf numbers the blocks of a chain: engine hashes and tokens from n on.
func chainOf(n, length int) (hashes []uint64, tokens []uint32) {
	for i := range length {
		hashes = append(hashes, uint64(n+i))
		tokens = append(tokens, uint32(n+i))
	}
	return hashes, tokens
}
