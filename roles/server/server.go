// Package server is the data-plane station: it takes in what replicas say they
// hold, keeps it in the index, and answers which replica should get a prompt.
// It owns no listener, no signal and no Kubernetes client; roles composes
// those around it.
//
// A question flows through lookup.go (the order of things), input.go (what was
// asked), the index, rank (who is best) and back. Reports flow through
// ingest.go and event.go into the index, stats into replicas.go.
package server

import (
	"context"
	"crypto/rand"
	"encoding/binary"
	"log/slog"
	"net/http"
	"sync"
	"time"

	"connectrpc.com/connect"
	"connectrpc.com/grpchealth"
	"connectrpc.com/grpcreflect"
	"github.com/VictoriaMetrics/metrics"
	"go.opentelemetry.io/otel/trace"

	"inferencecache.io/inferencecache/index"
	"inferencecache.io/inferencecache/internal/journal"
	"inferencecache.io/inferencecache/internal/policy"
	pb "inferencecache.io/inferencecache/proto/inferencecache/v1alpha1"
	"inferencecache.io/inferencecache/proto/inferencecache/v1alpha1/inferencecachev1alpha1connect"
)

// Answers shorter than this are sent as they are to clients that understand
// gzip too: to compress one of a lookup costs more than all that led to it.
const compressFrom = 16 << 10

// Server implements the InferenceCache service and the receivers of the
// bridge. Safe for concurrent use.
type Server struct {
	config    Config
	log       *slog.Logger
	journal   *journal.Journal // nil: none is kept
	tracer    trace.Tracer     // nil: lookups are not traced
	epoch     uint64           // drawn at start; tells producers of a restart
	started   time.Time
	index     *index.Index
	policies  *policy.Store
	replicas  *replicas
	sources   *sources
	fleets    *fleets
	guesses   *guesses
	decisions *decisions
	removals  *removals
	events    *hub
	syncs     syncs
	tokens    *tokenizer // nil: prompt_text is not tokenized
	meters    *meters
	health    *grpchealth.StaticChecker
	lookups   sync.Pool // of *lookup
	readers   chan struct{}
}

var _ inferencecachev1alpha1connect.InferenceCacheHandler = (*Server)(nil)

// New returns a server with an empty index. Its metrics go to set.
func New(config Config, log *slog.Logger, set *metrics.Set) *Server {
	s := &Server{
		config:  config,
		log:     log,
		epoch:   drawEpoch(),
		started: time.Now(),
		index: index.New(index.Config{
			MemoryBytes: config.MemoryBytes,
			MaxEntries:  config.MaxEntries,
			Defaults:    limits(config.Policy, -1),
		}),
		policies:  policy.NewStore(config.Policy),
		replicas:  newReplicas(config.MaxReplicas),
		sources:   newSources(config.MaxReplicas),
		fleets:    newFleets(&config),
		guesses:   newGuesses(),
		decisions: newDecisions(config.Decisions),
		removals:  newRemovals(),
		health:    grpchealth.NewStaticChecker(inferencecachev1alpha1connect.InferenceCacheName),
		readers:   make(chan struct{}, config.MaxEventStreams),
	}
	s.meters = newMeters(set, s)
	s.events = newHub(config.EventBuffer, s.meters)
	if config.Tokenize {
		s.tokens = newTokenizer(config, s.replicas)
	}
	s.lookups.New = func() any { return &lookup{} }
	return s
}

func drawEpoch() uint64 {
	var b [8]byte
	_, _ = rand.Read(b[:])                      // never fails
	return binary.LittleEndian.Uint64(b[:]) | 1 // 0 is "not said"
}

// Keep records lookups and events in j from now on. Call it before the server
// serves.
func (s *Server) Keep(j *journal.Journal) {
	s.journal = j
	s.meters.journal(j)
}

// Mount adds the service, health, reflection and the status page to mux.
func (s *Server) Mount(mux *http.ServeMux) {
	options := connect.WithHandlerOptions(connect.WithReadMaxBytes(s.config.MaxMessageBytes), connect.WithCompressMinBytes(compressFrom))
	path, service := inferencecachev1alpha1connect.NewInferenceCacheHandler(s, options)
	mux.Handle(path, s.syncs.track(service))
	mountPage(mux)
	mux.Handle(grpchealth.NewHandler(s.health, options))
	reflector := grpcreflect.NewStaticReflector(inferencecachev1alpha1connect.InferenceCacheName, grpchealth.HealthV1ServiceName)
	mux.Handle(grpcreflect.NewHandlerV1(reflector))
	mux.Handle(grpcreflect.NewHandlerV1Alpha(reflector))
}

// Run keeps the index tidy and looks for dead replicas until ctx ends; from then
// on health is NOT_SERVING and streams are told to end.
func (s *Server) Run(ctx context.Context) error {
	s.setServing(true)
	if s.tokens != nil {
		defer s.tokens.close()
	}
	ticker := time.NewTicker(s.config.SweepInterval)
	defer ticker.Stop()
	deaths := time.NewTicker(max(s.config.ReplicaDeadAfter/deathChecks, time.Millisecond))
	defer deaths.Stop()
	for {
		select {
		case <-ctx.Done():
			s.Drain()
			return nil
		case now := <-ticker.C:
			s.sweep(now)
		case now := <-deaths.C:
			s.checkDead(now)
		}
	}
}

// Drain tells load balancers to go elsewhere and ends every open stream.
func (s *Server) Drain() {
	s.setServing(false)
	s.events.close()
	s.syncs.close()
}

func (s *Server) setServing(serving bool) {
	status := grpchealth.StatusNotServing
	if serving {
		status = grpchealth.StatusServing
	}
	s.health.SetStatus("", status)
	s.health.SetStatus(inferencecachev1alpha1connect.InferenceCacheName, status)
	s.meters.setUp(serving)
}

func (s *Server) sweep(now time.Time) {
	started := time.Now()
	s.meters.applied(s.index.Sweep(now, s.config.SweepSlots))
	set := s.policies.Load()
	s.replicas.expire(now, func(tenant string) time.Duration { return set.For(tenant).TTL })
	s.sources.expire(now, sourceTTL)
	s.fleets.expire(now)
	s.paroles(now)
	s.meters.sweepSeconds.UpdateDuration(started)
}

// PolicyDefaults implements bridge.Adopter.
func (s *Server) PolicyDefaults() policy.Policy { return s.config.Policy }

// AdoptPolicy implements bridge.Adopter: policies and quotas change together.
func (s *Server) AdoptPolicy(set *policy.Set) {
	set.Adopted = time.Now()
	tenants := make(map[string]index.Limits, len(set.Policies)+len(set.Quotas))
	for tenant, p := range set.Policies {
		tenants[tenant] = limits(p, -1)
	}
	for tenant, quota := range set.Quotas {
		tenants[tenant] = limits(set.For(tenant), quota)
	}
	s.index.SetLimits(limits(set.Default, -1), tenants)
	s.policies.Adopt(set)
}

func limits(p policy.Policy, quota int64) index.Limits {
	return index.Limits{TTL: p.TTL, LFU: p.LFU, MaxKeys: quota}
}

// RenderTemplate knows no templates: they are the operator's.
func (s *Server) RenderTemplate(context.Context, *pb.RenderTemplateRequest) (*pb.RenderTemplateResponse, error) {
	return &pb.RenderTemplateResponse{ReasonCode: "TEMPLATE_NOT_FOUND"}, nil
}

// LookupPDRoute knows no topologies: they are the operator's.
func (s *Server) LookupPDRoute(context.Context, *pb.LookupPDRouteRequest) (*pb.LookupPDRouteResponse, error) {
	return &pb.LookupPDRouteResponse{ReasonCode: noHint}, nil
}
