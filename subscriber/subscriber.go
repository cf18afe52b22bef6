package subscriber

import (
	"context"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"connectrpc.com/connect"
	"github.com/VictoriaMetrics/metrics"

	"inferencecache.io/inferencecache/internal/engine"
	pb "inferencecache.io/inferencecache/proto/inferencecache/v1alpha1"
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
	// HTTP gives the client for one server, by its base URL. Nil: a client of
	// the subscriber's own that speaks HTTP/2, in the clear to http:// URLs.
	HTTP func(serverURL string) connect.HTTPClient
	// Scraper fetches the engine's metrics page. Nil: a plain client.
	Scraper interface {
		Do(*http.Request) (*http.Response, error)
	}
	Logger  *slog.Logger
	Metrics *metrics.Set // may be shared with other subscribers
	// Version is the client_version of stats, for instance "inferencecache/1.2".
	Version string
}

// Subscriber follows one engine. Make it with New, start it once with Run; the
// other methods may be called at any time from any goroutine.
type Subscriber struct {
	sources []*source
	replica *replica
	stats   *statsLoop // nil: no metrics page
	meters  *meters
	log     *slog.Logger
	owned   []*http.Client // closed when Run ends
	started atomic.Bool
	running atomic.Bool
}

// New builds a subscriber from a valid configuration. Nothing starts before
// Run.
func New(config Config, deps Deps) (*Subscriber, error) {
	if err := config.Validate(); err != nil {
		return nil, err
	}
	dialect, err := config.dialect()
	if err != nil {
		return nil, err
	}
	adapters, err := parseAdapters(config.Adapters)
	if err != nil {
		return nil, err
	}
	endpoints, err := config.endpoints()
	if err != nil {
		return nil, err
	}
	s := &Subscriber{
		meters: newMeters(deps.Metrics, config.ReplicaID),
		log:    deps.Logger.With("replica", config.ReplicaID),
	}
	s.replica = &replica{meters: s.meters, residency: NewResidency(ResidencyConfig{
		BlockSize: config.BlockSize, Adapters: adapters, MaxBlocks: config.MaxBlocks,
		MaxOrphans: config.MaxOrphans, HasLowerTier: config.HasLowerTier,
	})}
	for _, e := range endpoints {
		one, err := newSource(e, &config, dialect, s)
		if err != nil {
			return nil, err
		}
		s.sources = append(s.sources, one)
	}
	if err := s.connectServers(config, deps); err != nil {
		return nil, err
	}
	if config.EngineMetricsURL != "" {
		s.stats = s.newStats(config, deps, dialect.Load)
	}
	return s, nil
}

// connectServers makes an outbox for each server. No connection is opened yet.
func (s *Subscriber) connectServers(config Config, deps Deps) error {
	identity := &pb.CacheStateUpdate{
		ReplicaId: config.ReplicaID, ModelId: config.ModelID, TenantId: config.TenantID,
		HashScheme: config.HashScheme, EngineUrl: config.engineURL(),
	}
	for _, server := range config.Servers {
		base, err := serverURL(server)
		if err != nil {
			return fmt.Errorf("--server: %w", err)
		}
		var client connect.HTTPClient
		if deps.HTTP != nil {
			client = deps.HTTP(base)
		} else {
			own := newHTTPClient()
			s.owned = append(s.owned, own)
			client = own
		}
		s.replica.outboxes = append(s.replica.outboxes, newOutbox(outboxConfig{
			server: base, reporter: newGRPCReporter(client, base), identity: identity,
			window: config.Window, maxBytes: config.OutboxBytes, holder: s.replica, log: s.log,
		}, s.meters))
	}
	return nil
}

func (s *Subscriber) newStats(config Config, deps Deps, families engine.Load) *statsLoop {
	scraper := deps.Scraper
	if scraper == nil {
		own := &http.Client{Transport: &http.Transport{}}
		s.owned = append(s.owned, own)
		scraper = own
	}
	return &statsLoop{
		url: config.EngineMetricsURL, interval: config.StatsInterval, version: deps.Version, http: scraper,
		load: loadReader{
			families: families, usage: config.CacheTier, model: config.EngineModelName,
			capacity: config.EngineCacheBytes, ceiling: config.Ceiling,
		},
		outboxes: s.replica.outboxes, meters: s.meters, log: s.log,
	}
}

// Run follows the engine until ctx ends, then sends what is queued, for at
// most two seconds, and returns nil. The absence of the engine or of a server
// is no error.
func (s *Subscriber) Run(ctx context.Context) error {
	if s.started.Swap(true) {
		panic("bug: Run called twice")
	}
	s.running.Store(true)
	defer s.running.Store(false)
	late, stop := context.WithCancel(context.WithoutCancel(ctx))
	defer stop()

	var front, middle, back sync.WaitGroup
	for _, one := range s.sources {
		front.Go(func() { one.receiver.run(ctx) })
		middle.Go(func() { one.stream.run(late) })
	}
	if s.stats != nil {
		front.Go(func() { s.stats.run(ctx) })
	}
	for _, o := range s.replica.outboxes {
		back.Go(func() { o.run(late) })
	}

	<-ctx.Done()
	grace := time.AfterFunc(shutdownGrace, stop)
	defer grace.Stop()
	front.Wait()
	for _, one := range s.sources {
		one.queue.close()
	}
	middle.Wait()
	for _, o := range s.replica.outboxes {
		o.close()
	}
	back.Wait()
	for _, client := range s.owned {
		client.CloseIdleConnections()
	}
	return nil
}

// Ready reports whether the subscriber does its work. It does not depend on
// the engine or a server: a subscriber stands beside its engine, and its
// readiness must not keep the engine from serving.
func (s *Subscriber) Ready() bool { return s.running.Load() }

// State says how far the view of the engine can be trusted: the least trusted
// of its event streams.
func (s *Subscriber) State() State {
	worst := s.sources[0].state.now()
	for _, one := range s.sources[1:] {
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
