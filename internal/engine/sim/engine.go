package sim

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"
)

// stopGrace is how long HTTP requests may take to end when the engine stops.
// Their context is over by then, so only a slow client uses it up.
const stopGrace = 300 * time.Millisecond

// Engine is one simulated replica. Listen binds it, Run serves it; the other
// methods may be called from any goroutine, addresses only after Listen.
type Engine struct {
	cfg      Config
	log      *slog.Logger
	http     net.Listener
	live     *socket // PUB
	replay   *socket // ROUTER
	requests chan replayRequest
	answers  atomic.Uint64 // completions so far, for their ids

	process    atomic.Pointer[process]
	restarts   atomic.Uint64
	restarting sync.Mutex // one Restart at a time
}

// New returns an engine with an empty cache. Zero fields of cfg are defaults;
// a cfg that Validate refuses is a mistake of the caller and panics.
func New(cfg Config, log *slog.Logger) *Engine {
	if err := cfg.Validate(); err != nil {
		panic("bug: sim.New with a configuration that was not validated: " + err.Error())
	}
	e := &Engine{cfg: cfg.withDefaults(), log: log, requests: make(chan replayRequest)}
	e.live = &socket{kind: socketPub, accepts: []string{"SUB", "XSUB"}, limit: e.cfg.HWM, log: log}
	e.replay = &socket{kind: socketRouter, accepts: []string{"DEALER", "REQ", "ROUTER"}, limit: e.cfg.BufferSteps + 1, log: log}
	e.replay.onMessage = e.onReplayRequest
	e.process.Store(newProcess(e.cfg, e.live))
	return e
}

// Listen binds the HTTP address and both event sockets; on error none stays
// bound. What it has bound is closed by Run.
func (e *Engine) Listen() (err error) {
	if e.http, err = net.Listen("tcp", e.cfg.Listen); err != nil {
		return fmt.Errorf("listen for HTTP: %w", err)
	}
	if err = e.live.listen(e.cfg.Events); err != nil {
		return errors.Join(err, e.http.Close())
	}
	if err = e.replay.listen(e.cfg.Replay); err != nil {
		return errors.Join(err, e.http.Close(), e.live.listener.Close())
	}
	return nil
}

// HTTPAddr is the bound HTTP address, host:port.
func (e *Engine) HTTPAddr() string { return dialable(e.http.Addr()) }

// URL is the base of the HTTP API.
func (e *Engine) URL() string { return "http://" + e.HTTPAddr() }

// EventsEndpoint is where subscribers connect to, tcp://host:port.
func (e *Engine) EventsEndpoint() string { return e.live.endpoint() }

// ReplayEndpoint is where replay is asked for, tcp://host:port.
func (e *Engine) ReplayEndpoint() string { return e.replay.endpoint() }

// Run serves the engine until ctx ends, binding it first if Listen has not
// been called. It returns after the last goroutine, within a second whatever
// the peers do, and with nil if ctx was the reason.
func (e *Engine) Run(ctx context.Context) error {
	if e.http == nil {
		if err := e.Listen(); err != nil {
			return err
		}
	}
	e.log.Info("simulated engine serving", "name", e.cfg.Name, "model", e.cfg.Model,
		"url", e.URL(), "events", e.EventsEndpoint(), "replay", e.ReplayEndpoint())
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error { return e.live.run(ctx) })
	group.Go(func() error { return e.replay.run(ctx) })
	group.Go(func() error { return e.serveHTTP(ctx) })
	group.Go(func() error {
		for ctx.Err() == nil {
			e.current().feed.run(ctx, e.requests)
		}
		return nil
	})
	return group.Wait()
}

// Complete runs one request of prompt tokens that generates maxTokens, without
// HTTP, and takes the time the model of prefill and decode says. It fails with
// a PromptError, ErrRestarted, or the error of ctx. tokens must not change.
func (e *Engine) Complete(ctx context.Context, tokens []uint32, maxTokens int) (Usage, error) {
	return e.current().complete(ctx, tokens, maxTokens)
}

// State is what GET /sim/state says: counts and addresses, no tokens.
type State struct {
	Name            string  `json:"name"`
	Model           string  `json:"model"`
	BlockSize       int     `json:"block_size"` // tokens
	Blocks          int     `json:"blocks"`     // capacity
	HeldBlocks      int     `json:"held_blocks"`
	UsedBlocks      int     `json:"used_blocks"` // by running requests
	NextSequence    uint64  `json:"next_sequence"`
	QueuedBatches   int     `json:"queued_batches"`   // not sent yet
	BufferedBatches int     `json:"buffered_batches"` // for replay
	LostBatches     uint64  `json:"lost_batches"`     // the queue was full
	LostMessages    uint64  `json:"lost_messages"`    // a subscriber's queue was full
	Subscribers     int     `json:"subscribers"`
	Evictions       uint64  `json:"evictions"` // blocks
	Requests        uint64  `json:"requests"`  // completed
	Running         int     `json:"running"`
	Waiting         int     `json:"waiting"`
	Restarts        uint64  `json:"restarts"`
	Started         float64 `json:"started"` // seconds since the epoch, of this process
}

// State returns the engine's counts. All but LostMessages, Subscribers and
// Restarts start anew in a restart.
func (e *Engine) State() State {
	p := e.current()
	s := State{
		Name: e.cfg.Name, Model: e.cfg.Model, BlockSize: e.cfg.BlockSize, Blocks: e.cfg.Blocks,
		LostMessages: e.live.dropped.Load(),
		Subscribers:  e.live.subscribers(),
		Restarts:     e.restarts.Load(),
		Started:      float64(p.born.UnixMilli()) / 1e3,
	}
	p.mu.Lock()
	s.HeldBlocks, s.UsedBlocks = len(p.cache.held), p.cache.used()
	s.Evictions, s.Requests = p.counts.evictions, p.counts.requests
	s.Running, s.Waiting = p.counts.running, p.counts.waiting
	p.mu.Unlock()
	p.feed.mu.Lock()
	s.NextSequence, s.LostBatches = p.feed.next, p.feed.overflow
	s.QueuedBatches, s.BufferedBatches = len(p.feed.queue), len(p.feed.buffer)
	p.feed.mu.Unlock()
	return s
}

func (e *Engine) current() *process { return e.process.Load() }

// onReplayRequest hands a request to the event thread. The peer's reader waits
// here while the thread is busy, so a peer has one request under way.
func (e *Engine) onReplayRequest(ctx context.Context, p *peer, frames [][]byte) {
	start, ok := requestFrom(frames)
	if !ok {
		e.log.Debug("replay request of the wrong shape", "name", e.cfg.Name, "frames", len(frames))
		return
	}
	select {
	case e.requests <- replayRequest{peer: p, start: start}:
	case <-ctx.Done():
	}
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
