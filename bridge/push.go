package bridge

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"log/slog"
	"net/http"
	"slices"
	"sync"
	"time"

	"github.com/VictoriaMetrics/metrics"

	"inferencecache.io/inferencecache/internal/loops"
	"inferencecache.io/inferencecache/internal/policy"
)

const (
	pushLow  = 27 * time.Second
	pushHigh = 30 * time.Second
	// After a failure a server is tried again in a second, then in twice the
	// time before, up to pushHigh.
	retryLow = time.Second
	// A server that took nothing for so long may have started anew meanwhile, and
	// then remembers nothing: what it acknowledged does not count any more.
	ackedFor = 2 * pushHigh
	maxAcked = 1 << 10 // bytes of an answer that should be empty
)

// Pusher brings the newest policy set to every server: when it is new, when
// the server is, and every 30 s, since a server that restarted remembers
// nothing. Each server has a goroutine of its own, so none waits for another,
// and a set that is not sent yet is replaced by a newer one.
type Pusher struct {
	endpoints Endpoints
	caller    caller
	log       *slog.Logger
	changed   func()
	results   *results
	seconds   *metrics.PrometheusHistogram

	mu       sync.Mutex // guards what follows
	newest   *encoded   // nil: nothing to push yet
	renewed  chan struct{}
	refused  string // why a set could not be encoded
	problem  string // of the list of servers
	targets  map[string]*target
	complete time.Time // when every server last had the newest set
}

// encoded is one set, ready to send. Immutable but for sources, which Pusher's
// lock guards.
type encoded struct {
	body     []byte
	revision string
	sources  []policy.Source
}

// target is one server. Pusher's lock guards it.
type target struct {
	server   loops.Server
	acked    *encoded
	state    loops.ServerState
	failures int
	stop     context.CancelFunc
}

// NewPusher pushes nothing before the first Push. The token is for the
// policies' audience. changed, if not nil, is called after a server's
// acknowledgement or trouble became another, by any goroutine.
func NewPusher(d Deps, changed func()) *Pusher {
	if changed == nil {
		changed = func() {}
	}
	p := &Pusher{
		endpoints: d.Endpoints, caller: newCaller(d.HTTP, d.TokenFile), log: d.Log, changed: changed,
		results: newResults(d.Metrics, "inferencecache_bridge_pushes_total"),
		seconds: d.Metrics.NewPrometheusHistogram("inferencecache_bridge_push_seconds"),
		renewed: make(chan struct{}), targets: map[string]*target{},
	}
	d.Metrics.NewGauge("inferencecache_bridge_push_age_seconds", func() float64 {
		p.mu.Lock()
		defer p.mu.Unlock()
		return age(p.complete)
	})
	d.Metrics.NewGauge("inferencecache_bridge_servers_behind", func() float64 {
		p.mu.Lock()
		defer p.mu.Unlock()
		return float64(p.behindLocked())
	})
	return p
}

// Push makes d the newest set and returns at once. A set that servers cannot
// take is an error, and the one before stays in force.
func (p *Pusher) Push(d policy.Document) error {
	body, err := EncodePolicy(d)
	p.mu.Lock()
	defer p.mu.Unlock()
	if err != nil {
		p.refused = err.Error()
		return err
	}
	p.refused = ""
	sum := sha256.Sum256(body)
	revision := hex.EncodeToString(sum[:8])
	if p.newest != nil && p.newest.revision == revision {
		// What servers see is the same, so who has it has this one too.
		p.newest.sources = d.Sources
		return nil
	}
	p.newest = &encoded{body, revision, d.Sources}
	close(p.renewed)
	p.renewed = make(chan struct{})
	return nil
}

// State is safe for concurrent use.
func (p *Pusher) State() loops.PushState {
	p.mu.Lock()
	defer p.mu.Unlock()
	s := loops.PushState{Problem: cmp.Or(p.refused, p.problem)}
	if p.newest != nil {
		s.Revision, s.Sources = p.newest.revision, p.newest.sources
	}
	for _, t := range p.targets {
		server := loops.PushedServer{ServerState: t.state}
		if t.acked != nil {
			server.Revision, server.Sources = t.acked.revision, t.acked.sources
		}
		s.Servers = append(s.Servers, server)
	}
	slices.SortFunc(s.Servers, func(a, b loops.PushedServer) int { return cmp.Compare(a.Name, b.Name) })
	return s
}

func (p *Pusher) behindLocked() int {
	n := 0
	for _, t := range p.targets {
		if t.acked != p.newest {
			n++
		}
	}
	return n
}

// Run keeps one goroutine for each server until ctx ends.
func (p *Pusher) Run(ctx context.Context) error {
	var group sync.WaitGroup
	defer group.Wait()
	rounds(ctx, p.endpoints, pushLow, pushHigh, func(ctx context.Context, servers []loops.Server, err error) {
		p.follow(ctx, servers, err, &group)
	})
	return nil
}

// follow starts what is new and stops what is gone.
func (p *Pusher) follow(ctx context.Context, servers []loops.Server, err error, group *sync.WaitGroup) {
	news := false
	defer func() {
		if news {
			p.changed()
		}
	}()
	p.mu.Lock()
	defer p.mu.Unlock() // before changed is called
	problem := p.problem
	if err != nil {
		p.problem = "list the servers: " + err.Error()
		news = p.problem != problem
		return // who is known is still served
	}
	p.problem = ""
	news = problem != ""
	for control, t := range p.targets {
		if !slices.ContainsFunc(servers, func(s loops.Server) bool { return s.Control == control }) {
			t.stop()
			delete(p.targets, control)
			news = true
		}
	}
	for _, s := range servers {
		if p.targets[s.Control] != nil {
			continue
		}
		own, stop := context.WithCancel(ctx)
		t := &target{server: s, state: loops.ServerState{Name: s.Name}, stop: stop}
		p.targets[s.Control] = t
		news = true
		group.Go(func() {
			defer stop()
			p.serve(own, t)
		})
	}
}

// serve pushes to one server until ctx ends.
func (p *Pusher) serve(ctx context.Context, t *target) {
	for {
		p.mu.Lock()
		newest, renewed := p.newest, p.renewed
		p.mu.Unlock()
		wait := pushHigh
		if newest != nil {
			wait = p.send(ctx, t, newest)
		}
		select {
		case <-ctx.Done():
			return
		case <-renewed:
		case <-time.After(wait):
		}
	}
}

// send pushes one set and returns how long to wait before the next try. A
// request that timed out here may still arrive there, even after a newer one:
// the push every 30 s puts that right.
func (p *Pusher) send(ctx context.Context, t *target, set *encoded) time.Duration {
	started := time.Now()
	_, err := p.caller.call(ctx, http.MethodPost, t.server.Control+"/policy", set.body, http.StatusNoContent, maxAcked)
	if ctx.Err() != nil {
		return 0
	}
	p.results.count(resultOf(err))
	p.seconds.UpdateDuration(started)

	p.mu.Lock()
	before, wasAcked := t.state.Problem, t.acked
	wait := between(pushLow, pushHigh)
	if err == nil {
		t.acked, t.failures, t.state.At, t.state.Problem, t.state.Refused = set, 0, time.Now(), "", false
		if p.behindLocked() == 0 {
			p.complete = t.state.At
		}
	} else {
		t.state.Problem = err.Error()
		t.state.Refused = resultOf(err) == resultRefused || resultOf(err) == resultRejected
		if time.Since(t.state.At) > ackedFor {
			t.acked = nil
		}
		wait = backoff(t.failures)
		t.failures++
	}
	after := t.state.Problem
	news := before != after || wasAcked != t.acked
	p.mu.Unlock()

	if (before == "") != (after == "") {
		logChange(p.log, "policy push", t.server.Name, after)
	}
	if news {
		p.changed()
	}
	return wait
}

// backoff after so many failures in a row.
func backoff(failures int) time.Duration {
	wait := min(pushHigh, retryLow<<min(failures, 10))
	return between(wait*4/5, wait*6/5)
}
