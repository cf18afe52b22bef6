package bridge

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/VictoriaMetrics/metrics"
	"github.com/spf13/pflag"
	"go.uber.org/goleak"

	"inferencecache.io/inferencecache/internal/loops"
	"inferencecache.io/inferencecache/internal/memhttp"
	"inferencecache.io/inferencecache/internal/policy"
	"inferencecache.io/inferencecache/roles/server"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// fleet is a controller's bank before servers that can fail, in a bubble.
type fleet struct {
	t       *testing.T
	set     *metrics.Set
	log     journal
	mu      sync.Mutex // guards what follows
	hosts   map[string]*host
	listed  []string
	err     error
	changed chan struct{}
}

// journal is a log that tests read while it is written.
type journal struct {
	mu   sync.Mutex // guards text
	text bytes.Buffer
}

func (j *journal) Write(b []byte) (int, error) {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.text.Write(b)
}

func (j *journal) String() string {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.text.String()
}

// host is one server: the real handlers of both listeners, and what may go
// wrong before them.
type host struct {
	*server.Server
	name string

	mu      sync.Mutex // guards what follows
	adopted []*policy.Set
	calls   map[string]int                                         // by path
	trouble func(http.ResponseWriter, *http.Request) (served bool) // nil: none
	client  *http.Client                                           // HTTP/1.1
	http2   *http.Client
}

// AdoptPolicy remembers what the real server was told.
func (h *host) AdoptPolicy(set *policy.Set) {
	h.mu.Lock()
	h.adopted = append(h.adopted, set)
	h.mu.Unlock()
	h.Server.AdoptPolicy(set)
}

func (h *host) ServeHTTP(w http.ResponseWriter, r *http.Request, next http.Handler) {
	h.mu.Lock()
	h.calls[r.URL.Path]++
	trouble := h.trouble
	h.mu.Unlock()
	if trouble != nil && trouble(w, r) {
		return
	}
	next.ServeHTTP(w, r)
}

func (h *host) fail(trouble func(http.ResponseWriter, *http.Request) bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.trouble = trouble
}

func (h *host) called(path string) int {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.calls[path]
}

// ttls are the sets it adopted, told apart by one namespace's TTL.
func (h *host) ttls() (ttls []time.Duration) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, set := range h.adopted {
		ttls = append(ttls, set.Policies["ns"].TTL)
	}
	return ttls
}

func (h *host) newest() time.Duration {
	if all := h.ttls(); len(all) > 0 {
		return all[len(all)-1]
	}
	return 0
}

// inFleet runs f in a bubble with servers a, b, ... that are all listed.
func inFleet(t *testing.T, names []string, f func(*testing.T, *fleet)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		fl := &fleet{t: t, set: metrics.NewSet(), hosts: map[string]*host{}, changed: make(chan struct{})}
		for _, name := range names {
			fl.add(name, Guards{})
		}
		fl.list(names...)
		f(t, fl)
	})
}

// add starts a server that is not listed yet, in place of one of that name.
func (f *fleet) add(name string, guards Guards) *host {
	f.t.Helper()
	var config server.Config
	flags := pflag.NewFlagSet(name, pflag.ContinueOnError)
	config.Flags(flags)
	config.MemoryBytes = 1 << 20
	h := &host{Server: server.New(config, slog.New(slog.DiscardHandler), metrics.NewSet()), name: name, calls: map[string]int{}}
	mux := http.NewServeMux()
	h.Mount(mux)
	Mount(mux, h, h, h, guards)
	inside := memhttp.New(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { h.ServeHTTP(w, r, mux) }))
	ctx, cancel := context.WithCancel(context.WithoutCancel(f.t.Context()))
	done := make(chan error, 1)
	go func() { done <- inside.Run(ctx) }()
	h.client, h.http2 = inside.Client(false), inside.Client(true)
	f.t.Cleanup(func() {
		h.client.CloseIdleConnections()
		h.http2.CloseIdleConnections()
		cancel()
		if err := <-done; err != nil {
			f.t.Error(err)
		}
	})
	f.mu.Lock()
	defer f.mu.Unlock()
	f.hosts[name] = h
	return h
}

// list tells the bank which servers there are.
func (f *fleet) list(names ...string) { f.relist(nil, names...) }

func (f *fleet) relist(err error, names ...string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.listed, f.err = names, err
	close(f.changed)
	f.changed = make(chan struct{})
}

func (f *fleet) Endpoints(context.Context) (servers []loops.Server, err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, name := range f.listed {
		servers = append(servers, loops.Server{Name: name, Control: "http://" + name, RPC: "http://" + name})
	}
	return servers, f.err
}

func (f *fleet) Changed() <-chan struct{} {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.changed
}

// reach is the network: requests go to the server that the URL names.
func (f *fleet) reach(r *http.Request, http2 bool) (*http.Response, error) {
	f.mu.Lock()
	h := f.hosts[r.URL.Host]
	f.mu.Unlock()
	if h == nil {
		return nil, fmt.Errorf("dial %s: connection refused", r.URL.Host)
	}
	if http2 {
		return h.http2.Transport.RoundTrip(r)
	}
	return h.client.Transport.RoundTrip(r)
}

type roundTrip func(*http.Request) (*http.Response, error)

func (f roundTrip) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

func (f *fleet) client(http2 bool) *http.Client {
	return &http.Client{Transport: roundTrip(func(r *http.Request) (*http.Response, error) { return f.reach(r, http2) })}
}

func (f *fleet) deps(tokenFile string) Deps {
	return Deps{
		Endpoints: f, HTTP: f.client(false), TokenFile: tokenFile,
		Log: slog.New(slog.NewTextHandler(&f.log, nil)), Metrics: f.set,
	}
}

// start runs a loop until the end of the test.
func (f *fleet) start(run func(context.Context) error) {
	f.t.Helper()
	ctx, cancel := context.WithCancel(context.WithoutCancel(f.t.Context()))
	done := make(chan error, 1)
	go func() { done <- run(ctx) }()
	f.t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			f.t.Error(err)
		}
	})
}

// metric reads one series.
func (f *fleet) metric(series string) string {
	var page bytes.Buffer
	f.set.WritePrometheus(&page)
	for line := range bytes.Lines(page.Bytes()) {
		if value, ok := bytes.CutPrefix(line, []byte(series+" ")); ok {
			return string(bytes.TrimSpace(value))
		}
	}
	return "absent"
}

// hang answers nothing until the caller gives up.
func hang(_ http.ResponseWriter, r *http.Request) bool {
	_, _ = io.Copy(io.Discard, r.Body)
	<-r.Context().Done()
	return true
}

// answer says status to every request.
func answer(status int, body string) func(http.ResponseWriter, *http.Request) bool {
	return func(w http.ResponseWriter, _ *http.Request) bool {
		http.Error(w, body, status)
		return true
	}
}

// only makes trouble on one path.
func only(path string, trouble func(http.ResponseWriter, *http.Request) bool) func(http.ResponseWriter, *http.Request) bool {
	return func(w http.ResponseWriter, r *http.Request) bool { return r.URL.Path == path && trouble(w, r) }
}

var errListing = errors.New("the API server is away")

// after lets time pass and then everything that is due by then happen.
func after(d time.Duration) {
	time.Sleep(d)
	synctest.Wait()
}

func serverNames(states []loops.ServerState) (names []string) {
	for _, s := range states {
		names = append(names, s.Name)
	}
	return slices.Clip(names)
}
