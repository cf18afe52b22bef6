package sim

import (
	"context"
	"log/slog"
	"sync"
	"sync/atomic"

	"golang.org/x/sync/errgroup"
)

// Rank is one data-parallel rank of an engine: a scheduler with its cache and an
// event stream of its own. Its methods may be called from any goroutine,
// addresses only after Engine.Listen.
type Rank struct {
	number   int
	cfg      Config
	log      *slog.Logger
	live     *socket   // PUB
	replay   *socket   // ROUTER; nil with Config.NoReplay
	snapshot *socket   // ROUTER; nil without Config.Snapshot
	sockets  []*socket // those of the three that there are
	requests chan replayRequest

	process    atomic.Pointer[process]
	restarts   atomic.Uint64
	restarting sync.Mutex // one Restart at a time
}

func newRank(number int, cfg Config, log *slog.Logger) *Rank {
	r := &Rank{number: number, cfg: cfg, log: log, requests: make(chan replayRequest)}
	clients := []string{"DEALER", "REQ", "ROUTER"}
	r.live = r.add(cfg.Events, &socket{kind: socketPub, accepts: []string{"SUB", "XSUB"}, limit: cfg.HWM})
	if !cfg.NoReplay {
		limit := cfg.ReplayHWM
		if limit == 0 {
			limit = cfg.BufferSteps + 1
		}
		r.replay = r.add(cfg.Replay, &socket{kind: socketRouter, accepts: clients, limit: limit, onMessage: r.onReplayRequest})
	}
	if cfg.Snapshot != "" {
		r.snapshot = r.add(cfg.Snapshot, &socket{kind: socketRouter, accepts: clients, limit: snapshotQueue, onMessage: r.onSnapshotRequest})
	}
	r.process.Store(newProcess(cfg, number, r.live))
	return r
}

func (r *Rank) add(endpoint string, s *socket) *socket {
	var err error
	if s.bind, err = offset(endpoint, r.number); err != nil {
		panic("bug: a validated endpoint has no port for every rank: " + err.Error())
	}
	s.log = r.log
	r.sockets = append(r.sockets, s)
	return s
}

// listen binds the sockets; on error none stays bound. With Config.Epoch their
// ports follow those of the first rank even if the system chose these: SGLang
// tells no others. With Config.NoEvents all are given up again.
func (r *Rank) listen(first *Rank) (err error) {
	defer func() {
		if err == nil && r.cfg.NoEvents { // the addresses are known, and refuse
			r.close(len(r.sockets))
			r.sockets = nil
		}
	}()
	for i, s := range r.sockets {
		if r.cfg.Epoch && r != first {
			_, port := first.sockets[i].address()
			s.bind = withPort(s.bind, port+r.number)
		}
		if err := s.listen(); err != nil {
			r.close(i)
			return err
		}
	}
	return nil
}

// close gives up the first n sockets, before they run.
func (r *Rank) close(n int) {
	for _, s := range r.sockets[:n] {
		_ = s.listener.Close() // nobody is connected
	}
}

// run serves the sockets and the event thread in group.
func (r *Rank) run(ctx context.Context, group *errgroup.Group) {
	for _, s := range r.sockets {
		group.Go(func() error { return s.run(ctx) })
	}
	group.Go(func() error {
		for ctx.Err() == nil {
			r.current().feed.run(ctx, r.requests)
		}
		return nil
	})
}

// Number is the rank, from 0.
func (r *Rank) Number() int { return r.number }

// EventsEndpoint is where subscribers connect to, tcp://host:port.
func (r *Rank) EventsEndpoint() string { return r.live.endpoint() }

// ReplayEndpoint is where replay is asked for, tcp://host:port, or "".
func (r *Rank) ReplayEndpoint() string { return r.replay.endpoint() }

// SnapshotEndpoint is where snapshots are asked for, tcp://host:port, or "".
func (r *Rank) SnapshotEndpoint() string { return r.snapshot.endpoint() }

// Serve runs one request without HTTP and takes the time that the model of
// prefill and decode says. It fails with a PromptError, ErrRestarted, or the
// error of ctx.
func (r *Rank) Serve(ctx context.Context, request Request) (Usage, error) {
	return r.current().serve(ctx, request)
}

func (r *Rank) current() *process { return r.process.Load() }

// onReplayRequest hands a request to the event thread. The peer's reader waits
// here while the thread is busy, so a peer has one request under way.
func (r *Rank) onReplayRequest(ctx context.Context, p *peer, frames [][]byte) {
	start, ok := requestFrom(frames)
	if !ok {
		r.log.Debug("replay request of the wrong shape", "name", r.cfg.Name, "frames", len(frames))
		return
	}
	select {
	case r.requests <- replayRequest{peer: p, start: start}:
	case <-ctx.Done():
	}
}
