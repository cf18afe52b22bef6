package subscriber

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"connectrpc.com/connect"
	"github.com/google/go-cmp/cmp"

	"inferencecache.io/inferencecache/internal/engine"
	"inferencecache.io/inferencecache/internal/engine/vllm"
	"inferencecache.io/inferencecache/internal/memhttp"
	pb "inferencecache.io/inferencecache/proto/inferencecache/v1alpha1"
	"inferencecache.io/inferencecache/proto/inferencecache/v1alpha1/inferencecachev1alpha1connect"
)

// fakeResolver answers with hosts, or fails.
type fakeResolver struct {
	mu    sync.Mutex
	hosts []string
	err   error
	calls int
}

func (r *fakeResolver) LookupHost(_ context.Context, host string) ([]string, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.calls++
	if host != "servers.example" {
		return nil, fmt.Errorf("asked for %q", host)
	}
	return r.hosts, r.err
}

func (r *fakeResolver) set(err error, hosts ...string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.err, r.hosts = err, hosts
}

func (r *fakeResolver) count() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.calls
}

// fleet is a replica before the servers of one name, inside a bubble.
type fleet struct {
	*servers
	name     *name
	resolver *fakeResolver
	fakes    map[string]*fakeServer // by target
	logged   bytes.Buffer
}

// inFleet follows a name that begins with hosts 10.0.0.1 and 10.0.0.2; there is
// a server at each of 10.0.0.1 to 10.0.0.4.
func inFleet(t *testing.T, f func(*testing.T, *fleet)) {
	synctest.Test(t, func(t *testing.T) {
		b := &fleet{resolver: &fakeResolver{}, fakes: make(map[string]*fakeServer)}
		b.resolver.set(nil, "10.0.0.1", "10.0.0.2", "fd00::1")
		clients := make(map[string]*http.Client)
		ctx, cancel := context.WithCancel(t.Context())
		var serving sync.WaitGroup
		for i := range 4 {
			at, server := fmt.Sprintf("http://10.0.0.%d:9090", i+1), newFakeServer()
			mux := http.NewServeMux()
			mux.Handle(inferencecachev1alpha1connect.NewInferenceCacheHandler(server))
			mem := memhttp.New(mux)
			b.fakes[at], clients[at] = server, mem.Client(true)
			serving.Go(func() { _ = mem.Run(ctx) })
		}
		meters := testMeters()
		r := &replica{meters: meters, residency: NewResidency(ResidencyConfig{MaxBlocks: 1000, MaxOrphans: 10})}
		fillResidency(r.residency, 100)
		b.servers = &servers{
			replica: r, resolver: b.resolver, meters: meters, log: slog.New(slog.NewTextHandler(&b.logged, nil)),
			http:    func(server string) connect.HTTPClient { return clients[server] },
			members: make(map[string]*member),
			template: outboxConfig{
				identity: &pb.CacheStateUpdate{ReplicaId: "replica"}, window: testWindow, heartbeat: testHeartbeat,
				maxBytes: 1 << 20, holder: r, state: func() State { return Exact }, log: quiet,
			},
		}
		var err error
		if b.name, err = newName("dns://servers.example:9090", "http://servers.example:9090"); err != nil {
			t.Fatal(err)
		}
		b.name.errors = meters.lookups(b.name.String())
		following, stop := context.WithCancel(ctx)
		var names sync.WaitGroup
		names.Go(func() { b.follow(following, ctx, b.name) })
		f(t, b)
		stop()
		names.Wait()
		b.close()
		b.wait()
		cancel()
		serving.Wait()
		for _, client := range clients {
			client.CloseIdleConnections()
		}
	})
}

// pass lets time go on to a moment just behind the next lookups.
func (b *fleet) pass(d time.Duration) {
	time.Sleep(d)
	synctest.Wait()
}

// expect checks who is reported to: each of them holds what the replica does.
func (b *fleet) expect(t *testing.T, when string, hosts ...int) {
	t.Helper()
	var want []string
	for _, host := range hosts {
		want = append(want, fmt.Sprintf("http://10.0.0.%d:9090", host))
	}
	b.mu.Lock()
	got := slices.Sorted(maps.Keys(b.members))
	b.mu.Unlock()
	if diff := cmp.Diff(want, got); diff != "" {
		t.Fatalf("%s: servers (-want +got):\n%s", when, diff)
	}
	held := 0
	for _, n := range b.replica.residency.Stats().Held {
		held += int(n)
	}
	for _, server := range want {
		if n := len(b.fakes[server].now()); n != held {
			t.Errorf("%s: %s holds %d blocks, want %d", when, server, n, held)
		}
	}
}

func TestServersFollowTheirName(t *testing.T) {
	t.Parallel()
	inFleet(t, func(t *testing.T, b *fleet) {
		b.pass(time.Second)
		b.expect(t, "at start", 1, 2)

		b.resolver.set(nil, "10.0.0.1", "10.0.0.2", "10.0.0.3")
		b.pass(lookupEvery)
		b.expect(t, "one more", 1, 2, 3)
		b.replica.apply(0, &engine.Batch{Events: []engine.Event{stores(names(7001), prompt(1))}}, time.Now(), time.Now(), nil)
		b.pass(time.Second)
		b.expect(t, "after a change", 1, 2, 3)

		b.resolver.set(nil, "10.0.0.1", "10.0.0.3")
		b.pass(lookupEvery)
		b.expect(t, "one answer without it", 1, 2, 3)
		b.resolver.set(nil, "10.0.0.1", "10.0.0.2", "10.0.0.3")
		b.pass(lookupEvery)
		b.resolver.set(nil, "10.0.0.1", "10.0.0.3")
		b.pass(lookupEvery)
		b.expect(t, "it came back in between", 1, 2, 3)
		b.pass(lookupEvery)
		b.expect(t, "two answers without it", 1, 3)
		gone := b.fakes["http://10.0.0.2:9090"]
		gone.set(func(s *fakeServer) {
			if s.told != nil {
				t.Error("goodbye to a server that went away itself")
			}
		})
		var page bytes.Buffer
		b.meters.set.WritePrometheus(&page)
		if strings.Contains(page.String(), "10.0.0.2") {
			t.Errorf("metrics of a server that is gone:\n%s", page.String())
		}
		b.resolver.set(nil, "10.0.0.2", "10.0.0.1", "10.0.0.3")
		b.pass(lookupEvery)
		b.expect(t, "it is back", 1, 2, 3)
	})
}

func TestServersStayWhenTheirNameFails(t *testing.T) {
	t.Parallel()
	inFleet(t, func(t *testing.T, b *fleet) {
		b.pass(time.Second)
		b.resolver.set(errors.New("no such host"))
		b.pass(10 * lookupEvery)
		b.expect(t, "without DNS", 1, 2)
		b.resolver.set(nil)
		b.pass(2 * lookupEvery)
		b.expect(t, "no address at all", 1, 2)
		b.resolver.set(nil, "10.0.0.1", "10.0.0.2")
		b.pass(lookupEvery)
		b.expect(t, "with DNS again", 1, 2)
		if n := b.name.errors.Get(); n != 12 {
			t.Errorf("%d failed lookups counted, want 12", n)
		}
		if log := b.logged.String(); strings.Count(log, "WARN") != 1 || strings.Count(log, "resolved again") != 1 {
			t.Errorf("logged:\n%s", log)
		}
	})
}

func TestServersAreLookedUpWhenOneFails(t *testing.T) {
	t.Parallel()
	inFleet(t, func(t *testing.T, b *fleet) {
		b.pass(11 * time.Second)
		before := b.resolver.count()
		b.fakes["http://10.0.0.1:9090"].set(func(s *fakeServer) { s.failing = errDown })
		b.resolver.set(nil, "10.0.0.2", "10.0.0.4")
		b.pass(18 * time.Second) // a heartbeat fails, and goes on failing
		if n := b.resolver.count() - before; n != 1 {
			t.Errorf("%d lookups, want 1", n)
		}
		b.expectMembers(t, 1, 2, 4)
		b.pass(lookupEvery)
		b.expect(t, "two answers later", 2, 4)
	})
}

// expectMembers is expect without a look at what the servers hold.
func (b *fleet) expectMembers(t *testing.T, hosts ...int) {
	t.Helper()
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, host := range hosts {
		if b.members[fmt.Sprintf("http://10.0.0.%d:9090", host)] == nil {
			t.Errorf("no outbox for host %d", host)
		}
	}
	if len(b.members) != len(hosts) {
		t.Errorf("%d outboxes", len(b.members))
	}
}

func TestServersGetLoadReportsAsTheyJoin(t *testing.T) {
	t.Parallel()
	inFleet(t, func(t *testing.T, b *fleet) {
		engine := &page{}
		engine.set(http.StatusOK, vllmPage)
		loop := &statsLoop{
			url: "http://engine/metrics", interval: time.Hour, http: engine, meters: b.meters, log: quiet,
			load: loadReader{families: vllm.Dialect.Load, usage: usageAuto, ceiling: 64, model: "m"},
		}
		ctx, cancel := context.WithCancel(t.Context())
		var reporting sync.WaitGroup
		reporting.Go(func() { b.reportLoad(ctx, loop) })
		b.pass(time.Second)
		b.resolver.set(nil, "10.0.0.1", "10.0.0.2", "10.0.0.3")
		b.pass(lookupEvery)
		for _, host := range []int{1, 2, 3} {
			if n := b.fakes[fmt.Sprintf("http://10.0.0.%d:9090", host)].count(func(s *fakeServer) int { return len(s.stats) }); n == 0 {
				t.Errorf("host %d got no load report", host)
			}
		}
		cancel()
		reporting.Wait()
	})
}

func TestParseServer(t *testing.T) {
	t.Parallel()
	for _, v := range []struct {
		in, base string
		many, ok bool
	}{
		{"server:9090", "http://server:9090", false, true},
		{"https://server:9090/", "https://server:9090", false, true},
		{"dns://server.ns.svc:9090", "http://server.ns.svc:9090", true, true},
		{"dns+https://server:9090", "https://server:9090", true, true},
		{"dns+https://server:9090/", "https://server:9090", true, true},
		{"dns://server", "", true, false},
		{"dns://:9090", "", true, false},
		{"dns://server:9090/path", "", true, false},
		{"dns://server:x", "", true, false},
		{"dns+http://server:9090", "", false, false},
	} {
		base, many, err := parseServer(v.in)
		if (err == nil) != v.ok || many != v.many || v.ok && base != v.base {
			t.Errorf("%s: %q %t %v", v.in, base, many, err)
		}
	}
}
