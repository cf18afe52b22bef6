package sim

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"
)

// stopGrace is how long HTTP requests may take to end when the engine stops.
// Their context is over by then, so only a slow client uses it up.
const stopGrace = 300 * time.Millisecond

// bindTries is how often Listen looks for ports that follow each other.
const bindTries = 20

// Engine is one simulated replica. Listen binds it, Run serves it; the other
// methods may be called from any goroutine, addresses only after Listen. What
// it has of a Rank, faults and state above all, is that of rank 0.
type Engine struct {
	*Rank
	cfg     Config
	log     *slog.Logger
	ranks   []*Rank
	http    net.Listener
	answers atomic.Uint64 // completions so far, for their ids
}

// New returns an engine with an empty cache. Zero fields of cfg are defaults;
// a cfg that Validate refuses is a mistake of the caller and panics.
func New(cfg Config, log *slog.Logger) *Engine {
	if err := cfg.Validate(); err != nil {
		panic("bug: sim.New with a configuration that was not validated: " + err.Error())
	}
	e := &Engine{cfg: cfg.withDefaults(), log: log}
	for number := range e.cfg.Ranks {
		e.ranks = append(e.ranks, newRank(number, e.cfg, log))
	}
	e.Rank = e.ranks[0]
	return e
}

// Listen binds the HTTP address and the event sockets of every rank; on error
// none stays bound. What it has bound is closed by Run.
func (e *Engine) Listen() (err error) {
	if e.http, err = net.Listen("tcp", e.cfg.Listen); err != nil {
		return fmt.Errorf("listen for HTTP: %w", err)
	}
	tries := 1
	if e.cfg.Epoch && len(e.ranks) > 1 {
		tries = bindTries // free ports that the system chose may have taken ones behind them
	}
	for range tries {
		if err = e.bind(); err == nil {
			return nil
		}
	}
	return errors.Join(err, e.http.Close())
}

func (e *Engine) bind() error {
	for i, r := range e.ranks {
		if err := r.listen(e.ranks[0]); err != nil {
			for _, bound := range e.ranks[:i] {
				bound.close(len(bound.sockets))
			}
			return err
		}
	}
	return nil
}

// HTTPAddr is the bound HTTP address, host:port.
func (e *Engine) HTTPAddr() string { return dialable(e.http.Addr()) }

// URL is the base of the HTTP API.
func (e *Engine) URL() string { return "http://" + e.HTTPAddr() }

// Ranks are the data-parallel ranks, in order.
func (e *Engine) Ranks() []*Rank { return slices.Clone(e.ranks) }

// EventsEndpoints are where the ranks publish, in order.
func (e *Engine) EventsEndpoints() []string { return e.endpoints((*Rank).EventsEndpoint) }

// ReplayEndpoints are where the ranks replay, in order; each is "" without
// replay.
func (e *Engine) ReplayEndpoints() []string { return e.endpoints((*Rank).ReplayEndpoint) }

// SnapshotEndpoints are where the ranks give snapshots, likewise.
func (e *Engine) SnapshotEndpoints() []string { return e.endpoints((*Rank).SnapshotEndpoint) }

func (e *Engine) endpoints(of func(*Rank) string) []string {
	var all []string
	for _, r := range e.ranks {
		all = append(all, of(r))
	}
	return all
}

// Run serves the engine until ctx ends, binding it first if Listen has not
// been called. It returns after the last goroutine, within a second whatever
// the peers do, and with nil if ctx was the reason.
func (e *Engine) Run(ctx context.Context) error {
	if e.http == nil {
		if err := e.Listen(); err != nil {
			return err
		}
	}
	e.log.Info("simulated engine serving", "name", e.cfg.Name, "model", e.cfg.Model, "ranks", len(e.ranks),
		"url", e.URL(), "events", e.EventsEndpoint(), "replay", e.ReplayEndpoint())
	group, ctx := errgroup.WithContext(ctx)
	for _, r := range e.ranks {
		r.run(ctx, group)
	}
	group.Go(func() error { return e.serveHTTP(ctx) })
	return group.Wait()
}

// Complete runs one request of prompt tokens that generates maxTokens, as Serve
// does. tokens must not change.
func (e *Engine) Complete(ctx context.Context, tokens []uint32, maxTokens int) (Usage, error) {
	return e.Serve(ctx, Request{Tokens: tokens, MaxTokens: maxTokens})
}

// Serve is Rank.Serve of the least loaded rank, the lowest of several.
func (e *Engine) Serve(ctx context.Context, request Request) (Usage, error) {
	return e.leastLoaded().Serve(ctx, request)
}

func (e *Engine) leastLoaded() *Rank {
	best, least := e.ranks[0], e.ranks[0].current().load()
	for _, r := range e.ranks[1:] {
		if load := r.current().load(); load < least {
			best, least = r, load
		}
	}
	return best
}

func (e *Engine) serveHTTP(ctx context.Context) error {
	var conns sync.WaitGroup
	server := &http.Server{
		Handler:           e.Handler(),
		ReadHeaderTimeout: 5 * time.Second,
		ErrorLog:          slog.NewLogLogger(e.log.Handler(), slog.LevelDebug),
		BaseContext:       func(net.Listener) context.Context { return ctx },
		// Shutdown and Close do not wait for the goroutines of connections.
		ConnState: func(_ net.Conn, state http.ConnState) {
			switch state {
			case http.StateNew:
				conns.Add(1)
			case http.StateClosed, http.StateHijacked:
				conns.Done()
			}
		},
	}
	served := make(chan error, 1)
	conns.Go(func() { served <- server.Serve(e.http) })
	var err error
	select {
	case err = <-served:
	case <-ctx.Done():
	}
	grace, cancel := context.WithTimeout(context.WithoutCancel(ctx), stopGrace)
	defer cancel()
	if server.Shutdown(grace) != nil {
		_ = server.Close() // a client that did not let go
	}
	conns.Wait()
	return err
}
