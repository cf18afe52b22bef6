package roles

import (
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"os"
	"strings"
	"time"

	"connectrpc.com/connect"
	"github.com/VictoriaMetrics/metrics"
	"go.opentelemetry.io/otel/attribute"

	"inferencecache.io/inferencecache/bridge"
	"inferencecache.io/inferencecache/internal/auth"
	"inferencecache.io/inferencecache/internal/auth/tokenreview"
	"inferencecache.io/inferencecache/internal/journal"
	"inferencecache.io/inferencecache/internal/life"
	"inferencecache.io/inferencecache/internal/obs"
	"inferencecache.io/inferencecache/internal/tracing"
	"inferencecache.io/inferencecache/roles/server"
	"inferencecache.io/inferencecache/subscriber"
)

// process is one run: what its parts share.
type process struct {
	*settings
	log *slog.Logger
	out io.Writer
	set *metrics.Set

	page     *obs.Page
	mux      *http.ServeMux // of the data listeners
	bound    string         // address of the first data listener
	control  string         // address of the control listener
	services []life.Service

	subscribers []*subscriber.Subscriber
}

func (p *process) add(stage life.Stage, name string, run func(context.Context) error) {
	p.services = append(p.services, life.Service{Name: name, Stage: stage, Run: run})
}

// open starts the pages that every role has on its data listeners.
func (p *process) open() {
	p.page = obs.NewPage(p.set)
	p.mux = http.NewServeMux()
	p.page.Mount(p.mux)
}

// addDoors binds the data listeners and, if wanted, the one for profiles.
// onStop runs when they are told to close.
func (p *process) addDoors(tlsConfig *tls.Config, onStop func()) (*doors, error) {
	data, err := openDoors(p.mux, p.listen, tlsConfig, p.log)
	if err != nil {
		return nil, err
	}
	p.bound = data.addresses()[0]
	data.delay = p.drainDelay
	data.onStop = func() {
		p.page.SetReady(false)
		if onStop != nil {
			onStop()
		}
	}
	p.add(life.Doors, "listener "+strings.Join(data.addresses(), " "), data.run)
	if p.profileListen != "" {
		mux := http.NewServeMux()
		obs.MountProfiles(mux)
		profiles, err := openDoors(mux, []string{p.profileListen}, nil, p.log)
		if err != nil {
			return nil, err
		}
		p.add(life.Obs, "profiles", profiles.run)
	}
	return data, nil
}

// settled is how long after a process is ready its start is over.
const settled = time.Second

// run goes through life until ctx ends.
func (p *process) run(ctx context.Context) error {
	p.add(life.Hands, "readiness", func(ctx context.Context) error {
		p.page.SetReady(true) // everything below is bound and running
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(settled):
		}
		if err := giveBack(); err != nil {
			p.log.Debug("memory of the start is not given back", "err", err)
		}
		<-ctx.Done()
		return nil
	})
	return life.Run(ctx, stopGrace+p.drainDelay, p.log, p.services...)
}

// addServer builds the server with its data and control listeners.
func (p *process) addServer(ctx context.Context) (*server.Server, error) {
	p.server.Version = Version
	s := server.New(p.server, p.log, p.set)
	if err := p.addJournal(s); err != nil {
		return nil, err
	}
	if err := p.addTracing(s); err != nil {
		return nil, usage(err)
	}
	s.Mount(p.mux)
	var tlsConfig, controlTLS *tls.Config
	if p.server.TLSCertFile != "" {
		pair, err := server.LoadKeypair(p.server.TLSCertFile, p.server.TLSKeyFile, p.log, p.set)
		if err != nil {
			return nil, err
		}
		tlsConfig = pair.Config()
		if p.server.ControlTLS {
			controlTLS = pair.Config()
		}
	}
	guards, err := p.guards(ctx)
	if err != nil {
		return nil, err
	}
	control := http.NewServeMux()
	bridge.Mount(control, s, s, s, guards)
	controlDoors, err := openDoors(control, []string{p.controlListen}, controlTLS, p.log)
	if err != nil {
		return nil, err
	}
	p.control = controlDoors.addresses()[0]
	data, err := p.addDoors(tlsConfig, s.Drain)
	if err != nil {
		return nil, err
	}
	p.add(life.Doors, "control listener", controlDoors.run)
	p.add(life.State, "index", s.Run)
	p.log.Info("startup", "version", Version, "commit", commit(), "grpc_addr", data.addresses(),
		"grpc_tls", tlsConfig != nil, "http_addr", data.addresses(), "snapshot_addr", controlDoors.addresses(),
		"index_memory", p.server.MemoryBytes)
	return s, nil
}

// addJournal lets the server keep a journal if one is wanted.
func (p *process) addJournal(s *server.Server) error {
	config := p.server.Journal
	if config.Path == "" {
		return nil
	}
	j, err := journal.Open(config.Path, config.MaxBytes)
	if err != nil {
		return err
	}
	j.Changed = func(err error) {
		if err != nil {
			p.log.Warn("journal cannot be written; records are lost until it can", "file", config.Path, "err", err)
			return
		}
		p.log.Info("journal is written again", "file", config.Path)
	}
	s.Keep(j)
	p.add(life.State, "journal", j.Run)
	return nil
}

// addTracing lets the server trace lookups if somebody collects spans.
func (p *process) addTracing(s *server.Server) error {
	url, err := p.tracing.URL(os.Getenv)
	if err != nil || url == "" {
		return err
	}
	about := []attribute.KeyValue{attribute.String("service.name", "inferencecache"), attribute.String("service.version", Version)}
	if host, err := os.Hostname(); err == nil {
		about = append(about, attribute.String("service.instance.id", host))
	}
	e := tracing.New(url, p.tracing.Sample, about, p.log, p.set)
	s.Trace(e.Tracer())
	p.add(life.Obs, "spans", e.Run) // ends after the last lookup
	return nil
}

// guards authenticate the control paths, each with its own audience, cache and
// counter.
func (p *process) guards(ctx context.Context) (bridge.Guards, error) {
	if p.server.AllowedControllerSA == "" {
		level := slog.LevelWarn
		if p.role == roleAll && isLoopback(p.controlListen) {
			level = slog.LevelInfo // nobody else can reach it
		}
		p.log.Log(ctx, level, "controller_auth_disabled")
		return bridge.Guards{}, nil
	}
	config, err := p.controller.cluster()
	if err != nil {
		return bridge.Guards{}, fmt.Errorf("--allowed-controller-sa: %w", err)
	}
	reviewer, err := tokenreview.New(config)
	if err != nil {
		return bridge.Guards{}, fmt.Errorf("reach the Kubernetes API server for --allowed-controller-sa: %w", err)
	}
	guard := func(path, audience string) bridge.Guard {
		record := func(result auth.Result) {
			p.set.GetOrCreateCounter(fmt.Sprintf("inferencecache_%s_auth_total{result=%q}", path, result)).Inc()
		}
		return auth.NewGate(reviewer, p.server.AllowedControllerSA, audience, record, p.log).Wrap
	}
	p.log.Info("controller_auth_enabled", "allowed", p.server.AllowedControllerSA)
	return bridge.Guards{
		Snapshot: guard("snapshot", p.server.ControllerAudience),
		Policy:   guard("policy", p.server.PolicyAudience),
		Probe:    guard("probe", p.server.ControllerAudience),
	}, nil
}

// addSubscriber follows one engine; client nil: the subscriber's own.
func (p *process) addSubscriber(config subscriber.Config, client func(string) connect.HTTPClient) error {
	s, err := subscriber.New(config, subscriber.Deps{HTTP: client, Logger: p.log, Metrics: p.set, Version: "inferencecache/" + Version})
	if err != nil {
		return err
	}
	p.subscribers = append(p.subscribers, s)
	if len(p.subscribers) == 1 {
		p.mux.Handle("GET /debug/state", subscriber.DebugPage(func() []*subscriber.Subscriber { return p.subscribers }))
	}
	p.add(life.Hands, "subscriber "+config.ReplicaID, s.Run)
	return nil
}

func (p *process) runServer(ctx context.Context) error {
	p.open()
	if _, err := p.addServer(ctx); err != nil {
		return err
	}
	return p.run(ctx)
}

func (p *process) runSubscriber(ctx context.Context) error {
	p.open()
	if err := p.addSubscriber(p.subscriber, nil); err != nil {
		return err
	}
	if _, err := p.addDoors(nil, nil); err != nil {
		return err
	}
	p.log.Info("startup", "version", Version, "commit", commit(), "replica", p.subscriber.ReplicaID, "engine", p.subscriber.EngineEndpoint)
	return p.run(ctx)
}
