package bridge

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"net/http"
	"slices"
	"sync"
	"time"

	"github.com/VictoriaMetrics/metrics"

	"inferencecache.io/inferencecache/internal/loops"
	"inferencecache.io/inferencecache/internal/status"
)

const (
	pullLow  = 25 * time.Second
	pullHigh = 30 * time.Second
	// maxSnapshot holds some 100,000 replicas.
	maxSnapshot = 32 << 20 // bytes
)

// Receiver gets what the servers said of themselves.
type Receiver interface {
	// Receive is called by one goroutine, never while it still runs.
	Receive(ctx context.Context, pulled loops.Pulled)
}

// Puller asks every server for its snapshot, every 25 to 30 s.
type Puller struct {
	endpoints Endpoints
	caller    caller
	receiver  Receiver
	log       *slog.Logger
	results   *results
	seconds   *metrics.PrometheusHistogram

	mu    sync.Mutex // guards state
	state loops.PullState
}

// Deps are what the loops of the controller's bank share.
type Deps struct {
	Endpoints Endpoints
	HTTP      *http.Client // to the control listeners; bounds nothing itself
	TokenFile string       // projected, for the audience of the loop's paths; "": none
	Log       *slog.Logger
	Metrics   *metrics.Set
}

// NewPuller hands what it pulls to receiver. The token is for the controller's
// audience.
func NewPuller(d Deps, receiver Receiver) *Puller {
	p := &Puller{
		endpoints: d.Endpoints, caller: newCaller(d.HTTP, d.TokenFile), receiver: receiver, log: d.Log,
		results: newResults(d.Metrics, "inferencecache_bridge_pulls_total"),
		seconds: d.Metrics.NewPrometheusHistogram("inferencecache_bridge_pull_seconds"),
	}
	d.Metrics.NewGauge("inferencecache_bridge_pull_age_seconds", func() float64 { return age(p.State().Complete) })
	d.Metrics.NewGauge("inferencecache_bridge_servers", func() float64 { return float64(len(p.State().Servers)) })
	return p
}

// Run pulls until ctx ends.
func (p *Puller) Run(ctx context.Context) error {
	rounds(ctx, p.endpoints, pullLow, pullHigh, p.round)
	return nil
}

// State is safe for concurrent use.
func (p *Puller) State() loops.PullState {
	p.mu.Lock()
	defer p.mu.Unlock()
	state := p.state
	state.Servers = slices.Clone(state.Servers)
	return state
}

// round asks every server at once and waits for the slowest, which has a
// timeout.
func (p *Puller) round(ctx context.Context, servers []loops.Server, err error) {
	if err != nil {
		p.adopt(loops.PullState{Problem: "list the servers: " + err.Error(), Servers: p.State().Servers}, false)
		return
	}
	snapshots := make([]status.Snapshot, len(servers))
	errs := make([]error, len(servers))
	var group sync.WaitGroup
	for i, s := range servers {
		group.Go(func() { snapshots[i], errs[i] = p.pull(ctx, s) })
	}
	group.Wait()
	if ctx.Err() != nil {
		return // a leader no more: what failed by that is nobody's fault
	}

	pulled := loops.Pulled{At: time.Now(), Prefixes: map[string]int64{}}
	var answers []status.Snapshot
	next := loops.PullState{}
	for i, s := range servers {
		state := loops.ServerState{Name: s.Name, At: pulled.At}
		if errs[i] != nil {
			state.Problem = errs[i].Error()
			state.At = p.lastSuccess(s.Name)
			pulled.Missing = append(pulled.Missing, s.Name)
		} else {
			answers = append(answers, snapshots[i])
			pulled.Answered = append(pulled.Answered, s.Name)
			pulled.Prefixes[s.Name] = snapshots[i].TotalPrefixes
		}
		next.Servers = append(next.Servers, state)
	}
	slices.SortFunc(next.Servers, func(a, b loops.ServerState) int { return cmp.Compare(a.Name, b.Name) })
	p.adopt(next, len(servers) > 0 && len(answers) == len(servers))
	if len(answers) > 0 {
		pulled.Snapshot = Merge(answers)
		p.receiver.Receive(ctx, pulled)
	}
}

func (p *Puller) pull(ctx context.Context, s loops.Server) (status.Snapshot, error) {
	started := time.Now()
	var snapshot status.Snapshot
	body, err := p.caller.call(ctx, http.MethodGet, s.Control+"/snapshot", nil, http.StatusOK, maxSnapshot)
	if err == nil {
		// Fields of a newer server are ignored.
		if err = json.Unmarshal(body, &snapshot); err != nil {
			err = &callError{resultUnreadable, fmt.Errorf("decode the snapshot of %s: %w", s.Name, err)}
		}
	}
	p.results.count(resultOf(err))
	p.seconds.UpdateDuration(started)
	return snapshot, err
}

func (p *Puller) lastSuccess(name string) time.Time {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, s := range p.state.Servers {
		if s.Name == name {
			return s.At
		}
	}
	return time.Time{}
}

// adopt makes next the state and logs what is new about it.
func (p *Puller) adopt(next loops.PullState, complete bool) {
	p.mu.Lock()
	before := p.state
	next.Complete = before.Complete
	if complete {
		next.Complete = time.Now()
	}
	p.state = next
	p.mu.Unlock()

	if (next.Problem == "") != (before.Problem == "") {
		logChange(p.log, "list of servers", "", next.Problem)
	}
	for _, s := range next.Servers {
		i := slices.IndexFunc(before.Servers, func(b loops.ServerState) bool { return b.Name == s.Name })
		if had := i >= 0 && before.Servers[i].Problem != ""; had != (s.Problem != "") {
			logChange(p.log, "snapshot pull", s.Name, s.Problem)
		}
	}
}

// logChange tells of the first failure and of the recovery.
func logChange(log *slog.Logger, what, server, problem string) {
	if problem != "" {
		log.Warn(what+" failing", "server", server, "err", problem)
	} else {
		log.Info(what+" works again", "server", server)
	}
}

// age in seconds of a moment; -1: it never came.
func age(at time.Time) float64 {
	if at.IsZero() {
		return -1
	}
	return time.Since(at).Seconds()
}
