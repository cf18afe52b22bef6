package subscriber

import (
	"context"
	"log/slog"
	"math/rand/v2"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"connectrpc.com/connect"
	"github.com/VictoriaMetrics/metrics"
)

const (
	// queueBatches bounds the queue besides its bytes; engines cap at 100,000.
	queueBatches = 1 << 16
	// shutdownGrace is how long Run goes on after its context to send what is
	// queued.
	shutdownGrace = 2 * time.Second
)

// Deps are what a Subscriber gets from outside. Only Logger and Metrics are
// required.
type Deps struct {
	// HTTP gives the client for one server, by its base URL; for one that was
	// found by name, with its address as host. Nil: clients of the subscriber's
	// own that speak HTTP/2, in the clear to http:// URLs.
	HTTP func(serverURL string) connect.HTTPClient
	// Scraper fetches the engine's metrics page. Nil: a plain client.
	Scraper interface {
		Do(*http.Request) (*http.Response, error)
	}
	// Resolver looks up the names of dns:// servers. Nil: the system's.
	Resolver interface {
		LookupHost(ctx context.Context, host string) ([]string, error)
	}
	Logger  *slog.Logger
	Metrics *metrics.Set // may be shared with other subscribers
	// Version is the client_version of stats, for instance "inferencecache/1.2".
	Version string
}

// Subscriber follows one engine. Make it with New, start it once with Run; the
// other methods may be called at any time from any goroutine.
type Subscriber struct {
	config     *Config
	sources    *sources
	replica    *replica
	servers    *servers
	stats      *statsLoop    // nil: no metrics page
	adapters   *adapterNames // nil: no file of them
	sentinel   *sentinel
	conditions *conditions
	meters     *meters
	log        *slog.Logger
	scraper    *http.Client // closed when Run ends; nil: not ours
	started    atomic.Bool
	running    atomic.Bool
}

// Run follows the engine until ctx ends, then sends what is queued and says
// goodbye to the servers, for at most two seconds, and returns nil. The absence
// of the engine or of a server is no error.
func (s *Subscriber) Run(ctx context.Context) error {
	if s.started.Swap(true) {
		panic("bug: Run called twice")
	}
	s.running.Store(true)
	defer s.running.Store(false)
	late, stop := context.WithCancel(context.WithoutCancel(ctx))
	defer stop()

	var work sync.WaitGroup // all but the servers
	work.Go(func() { s.sources.run(ctx, late) })
	work.Go(func() { s.sentinel.run(ctx) })
	s.servers.startAll(late)
	for _, n := range s.servers.names {
		work.Go(func() { s.servers.follow(ctx, late, n) })
	}
	if s.stats != nil {
		work.Go(func() { s.servers.reportLoad(ctx, s.stats) })
	}
	if s.adapters != nil {
		work.Go(func() { s.adapters.run(ctx) })
	}

	<-ctx.Done()
	grace := time.AfterFunc(shutdownGrace, stop)
	defer grace.Stop()
	work.Wait()
	s.servers.close()
	s.servers.wait()
	if s.scraper != nil {
		s.scraper.CloseIdleConnections()
	}
	return nil
}

// Ready reports whether the subscriber does its work. It does not depend on
// the engine or a server: a subscriber stands beside its engine, and its
// readiness must not keep the engine from serving.
func (s *Subscriber) Ready() bool { return s.running.Load() }

// State says how far the view of the engine can be trusted: the least trusted
// of its event streams.
func (s *Subscriber) State() State { return stateOf(s.sources.list()) }

// reportedState is the state of what was reported: that of the streams that
// hold something. A rank that is away holds nothing, and must not make the
// others' blocks age.
func (s *Subscriber) reportedState() State {
	var holding []*source
	all := s.sources.list()
	for _, one := range all {
		if s.replica.holdsAny(one.Rank) {
			holding = append(holding, one)
		}
	}
	if len(holding) == 0 {
		return stateOf(all)
	}
	return stateOf(holding)
}

func stateOf(sources []*source) State {
	if len(sources) == 0 {
		return Connecting
	}
	worst := Exact
	for _, one := range sources {
		worst = worse(worst, one.state.now())
	}
	return worst
}

// newEpoch is a random number that is not 0.
func newEpoch() uint64 {
	for {
		if epoch := rand.Uint64(); epoch != 0 {
			return epoch
		}
	}
}
