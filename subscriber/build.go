package subscriber

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"time"

	"inferencecache.io/inferencecache/internal/engine"
	pb "inferencecache.io/inferencecache/proto/inferencecache/v1alpha1"
)

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
		config: &config,
		meters: newMeters(deps.Metrics, config.ReplicaID),
		log:    deps.Logger.With("replica", config.ReplicaID),
	}
	s.replica = &replica{meters: s.meters, residency: NewResidency(ResidencyConfig{
		BlockSize: config.BlockSize, Adapters: adapters, MaxBlocks: config.MaxBlocks,
		MaxOrphans: config.MaxOrphans, HasLowerTier: config.HasLowerTier,
	})}
	scraper := deps.Scraper
	if scraper == nil {
		s.scraper = &http.Client{Transport: &http.Transport{}}
		scraper = s.scraper
	}
	if err := s.addSources(endpoints, dialect, scraper); err != nil {
		return nil, err
	}
	if err := s.connectServers(config, deps); err != nil {
		return nil, err
	}
	s.conditions = newConditions(s.meters, s.log)
	s.sentinel = &sentinel{
		started: time.Now(), config: s.config, replica: s.replica, conditions: s.conditions,
		checks:  s.meters.counter("self_checks_total", ""),
		sources: s.sources.list, servers: s.servers.lookedUp,
	}
	if config.EngineMetricsURL != "" {
		s.stats = s.newStats(dialect.Load, deps.Version, scraper)
	}
	if config.AdaptersFile != "" {
		s.adapters = &adapterNames{fixed: adapters, file: config.AdaptersFile, replica: s.replica, log: s.log}
	}
	return s, nil
}

// addSources makes the configured event streams. None is opened yet.
func (s *Subscriber) addSources(endpoints []endpoint, dialect engine.Dialect, scraper httpDoer) error {
	s.sources = &sources{
		replica: s.replica, log: s.log,
		make: func(e endpoint) (*source, error) { return newSource(e, s.config, dialect, s) },
	}
	for _, e := range endpoints {
		one, err := s.sources.make(e)
		if err != nil {
			return err
		}
		s.sources.put(&running{source: one})
	}
	if base := s.config.engineURL(); s.config.DiscoverRanks && base != "" {
		s.sources.discover = func(ctx context.Context) ([]endpoint, error) {
			found, err := discover(ctx, scraper, dialect.Name, base)
			return s.config.complete(found), err
		}
	}
	return nil
}

// connectServers makes an outbox for each server that is named. No connection is
// opened yet, and no name looked up.
func (s *Subscriber) connectServers(config Config, deps Deps) error {
	s.servers = &servers{
		replica: s.replica, http: deps.HTTP, resolver: deps.Resolver, meters: s.meters, log: s.log,
		members: make(map[string]*member),
		template: outboxConfig{
			identity: &pb.CacheStateUpdate{
				ReplicaId: config.ReplicaID, ModelId: config.ModelID, TenantId: config.TenantID,
				HashScheme: config.HashScheme, EngineUrl: config.engineURL(),
			},
			window: config.Window, heartbeat: config.HeartbeatInterval, maxBytes: config.OutboxBytes,
			holder: s.replica, state: s.reportedState, log: s.log,
		},
	}
	s.meters.watch("servers", "", func() float64 { return float64(len(s.replica.all())) })
	if deps.Resolver == nil {
		s.servers.resolver = net.DefaultResolver
	}
	for _, server := range config.Servers {
		base, many, err := parseServer(server)
		if err != nil {
			return fmt.Errorf("--server: %w", err)
		}
		if !many {
			s.servers.open(target{base: base}, nil)
			continue
		}
		n, err := newName(server, base)
		if err != nil {
			return fmt.Errorf("--server: %w", err)
		}
		n.errors = s.meters.lookups(server)
		s.servers.names = append(s.servers.names, n)
	}
	return nil
}

func (s *Subscriber) newStats(families engine.Load, version string, scraper httpDoer) *statsLoop {
	c := s.config
	return &statsLoop{
		url: c.EngineMetricsURL, interval: c.StatsInterval, version: version, http: scraper,
		load: loadReader{
			families: families, usage: c.CacheTier, model: c.EngineModelName, capacity: c.EngineCacheBytes, ceiling: c.Ceiling,
		},
		observed: s.observed, meters: s.meters, log: s.log,
	}
}

// observed hands on what the engine's metrics have shown: to the sentinel, and,
// if they are another process's than before, to the streams.
func (s *Subscriber) observed(f facts) {
	now := time.Now()
	before, known := s.sentinel.observe(f, now)
	defer s.tellSleep(f, now)
	defer s.tellDrift(f, now)
	var since time.Time // the process is younger than that
	switch {
	case !known:
		return
	case f.Fell:
		since = before.at
	case f.Started > 0 && before.Started > 0 && f.Started != before.Started:
		since = time.Unix(0, int64(f.Started*1e9))
	default:
		return
	}
	for _, one := range s.sources.list() {
		one.queue.push(batch{mark: markReplaced, arrived: since})
	}
}

// tellSleep hands on to the streams whether the engine sleeps without a cache.
func (s *Subscriber) tellSleep(f facts, now time.Time) {
	if f.Asleep == nil {
		return
	}
	is := markAwake
	if f.Emptied {
		is = markAsleep
	}
	for _, one := range s.sources.list() {
		one.queue.push(batch{mark: is, arrived: now})
	}
}
