package doctor

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"strings"
	"sync"
	"time"

	"inferencecache.io/inferencecache/internal/obs"
	pb "inferencecache.io/inferencecache/proto/inferencecache/v1alpha1"
	"inferencecache.io/inferencecache/proto/inferencecache/v1alpha1/inferencecachev1alpha1connect"
)

const (
	maxAnswer   = 16 << 20
	maxReplicas = 10_000
	callTimeout = 10 * time.Second // a machine that is too busy shows as slow, and is no fault
	// greetTimeout is how long an event endpoint may take to say its first byte.
	greetTimeout = time.Second
)

// Local is a system that is looked at through addresses alone, without a
// cluster.
type Local struct {
	Server      string   // base URL of the port that gateways use
	Control     string   // base URL of the controller's port; "": not looked at
	Token       string   // bearer token for Control; "": none
	Subscribers []string // base URLs of processes that follow engines; Server may be one
	Here        bool     // all run on this machine: loopback addresses are its own
	// Gateway and Engine are base URLs at which the same prompts must become the
	// same tokens; "": not compared.
	Gateway, Engine string
	HTTP            *http.Client

	// port is where a port of the subscriber's own machine is to be dialled; nil:
	// it cannot be, unless all is Here.
	port func(ctx context.Context, port int) (string, error)
}

// evidence is all that was seen. A nil or zero part was not.
type evidence struct {
	health      answer
	fleet       *pb.GetFleetResponse
	asked       map[string]float64 // lookups by model
	indexed     map[string]float64 // keys by model
	control     bool
	token       bool
	snapshot    answer
	policy      answer
	probe       answer
	engines     []engine
	certificate time.Time // when it ends; zero: there is none
	parity      *parity
}

// answer is what a GET, HEAD or POST brought.
type answer struct {
	status int
	body   []byte
	err    error
}

// engine is what its subscriber and it itself show.
type engine struct {
	follower
	silent  error            // of its subscriber, of which nothing is known then
	asked   bool             // its API was asked
	serves  error            // of its API; nil: it answers
	models  []string         // that it serves; nil: unknown
	refused map[string]error // event endpoints that could not be dialled
}

// follower is one element of a subscriber's GET /debug/state.
type follower struct {
	Replica    string            `json:"replica"`
	Tenant     string            `json:"tenant"`
	Model      string            `json:"model"`
	Engine     string            `json:"engine_url"`
	Uptime     float64           `json:"uptime_seconds"`
	Conditions map[string]advice `json:"conditions"`
	Sources    []followed        `json:"sources"`
}

type advice struct {
	Detail string `json:"detail"`
	Do     string `json:"do"`
}

type followed struct {
	Rank     int    `json:"rank"`
	Endpoint string `json:"endpoint"`
	State    string `json:"state"`
}

// gather looks at everything once, at all of it side by side.
func (l *Local) gather(ctx context.Context) *evidence {
	var e *evidence
	var engines []engine
	var found *parity
	var looking sync.WaitGroup
	looking.Go(func() { e = l.lookAtServer(ctx) })
	looking.Go(func() { engines = l.engines(ctx) })
	if l.Gateway != "" && l.Engine != "" {
		looking.Go(func() { found = l.compare(ctx) })
	}
	looking.Wait()
	e.engines, e.parity = engines, found
	return e
}

// lookAtServer gathers what one server shows.
func (l *Local) lookAtServer(ctx context.Context) *evidence {
	e := &evidence{control: l.Control != "", token: l.Token != ""}
	var looking sync.WaitGroup
	looking.Go(func() {
		e.health = l.call(ctx, http.MethodPost, l.Server+"/grpc.health.v1.Health/Check", `{}`)
		page := l.call(ctx, http.MethodGet, l.Server+"/metrics", "").body
		e.asked, e.indexed = byModel(page, "inferencecache_lookup_route_calls_total"), byModel(page, "inferencecache_index_entries")
		e.fleet = l.fleet(ctx)
	})
	looking.Go(func() { e.certificate = l.certificate(ctx) })
	if e.control {
		looking.Go(func() {
			e.snapshot = l.call(ctx, http.MethodGet, l.Control+"/snapshot", "")
			e.policy = l.call(ctx, http.MethodHead, l.Control+"/policy", "")
			e.probe = l.call(ctx, http.MethodHead, l.Control+"/probe", "")
		})
	}
	looking.Wait()
	return e
}

// engines asks every subscriber, and then the engines that they follow.
func (l *Local) engines(ctx context.Context) []engine {
	var all []engine
	for _, base := range append([]string{l.Server}, l.Subscribers...) {
		// A server that follows nothing has no such page.
		followed, _ := l.followers(ctx, base)
		all = append(all, followed...)
	}
	var asking sync.WaitGroup
	for i := range all {
		asking.Go(func() { l.ask(ctx, &all[i]) })
	}
	asking.Wait()
	return all
}

// followers are the engines that the process at base follows.
func (l *Local) followers(ctx context.Context, base string) ([]engine, error) {
	a := l.call(ctx, http.MethodGet, base+"/debug/state", "")
	if a.err != nil {
		return nil, a.err
	}
	var followers []follower
	if err := json.Unmarshal(a.body, &followers); a.status != http.StatusOK || err != nil {
		return nil, fmt.Errorf("GET /debug/state: status %d", a.status)
	}
	all := make([]engine, len(followers))
	for i, f := range followers {
		all[i].follower = f
	}
	return all, nil
}

// ask finds out whether an engine serves, which models, and whether anything
// listens where its events should come from.
func (l *Local) ask(ctx context.Context, e *engine) {
	if base, ok := l.here(ctx, e.Engine); ok {
		e.asked = true
		a := l.call(ctx, http.MethodGet, strings.TrimSuffix(base, "/")+"/v1/models", "")
		e.serves = a.err
		var list struct {
			Data []struct {
				ID string `json:"id"`
			} `json:"data"`
		}
		if a.status == http.StatusOK && json.Unmarshal(a.body, &list) == nil {
			for _, m := range list.Data {
				e.models = append(e.models, m.ID)
			}
		}
	}
	e.refused = map[string]error{}
	for _, s := range e.Sources {
		endpoint, ok := l.here(ctx, s.Endpoint)
		address, isTCP := strings.CutPrefix(endpoint, "tcp://")
		if !ok || !isTCP {
			continue
		}
		if err := greets(ctx, address); err != nil {
			e.refused[s.Endpoint] = err
		}
	}
}

// greets dials a ZeroMQ endpoint and waits for the first byte of its greeting,
// which comes unasked: a forwarded port accepts although nobody listens behind it.
// One that is silent listens.
func greets(ctx context.Context, address string) error {
	dialer := net.Dialer{Timeout: callTimeout}
	conn, err := dialer.DialContext(ctx, "tcp", address)
	if err != nil {
		return err
	}
	defer conn.Close()
	if err := conn.SetReadDeadline(time.Now().Add(greetTimeout)); err != nil {
		return err
	}
	if _, err := conn.Read(make([]byte, 1)); err != nil && !errors.Is(err, os.ErrDeadlineExceeded) {
		return err
	}
	return nil
}

// here makes a URL that a subscriber has one that means the same here. A loopback
// address is that of its own machine, or of its pod.
func (l *Local) here(ctx context.Context, address string) (string, bool) {
	u, err := url.Parse(address)
	if address == "" || err != nil {
		return "", false
	}
	port := loopbackPort(address)
	switch {
	case port == 0, l.Here:
		return address, true
	case l.port == nil:
		return "", false
	}
	if u.Host, err = l.port(ctx, port); err != nil {
		return "", false
	}
	return u.String(), true
}

func (l *Local) call(ctx context.Context, method, address, body string) answer {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, method, address, strings.NewReader(body))
	if err != nil {
		return answer{err: err}
	}
	if body != "" {
		request.Header.Set("Content-Type", "application/json")
	}
	if l.Token != "" && strings.HasPrefix(address, l.Control+"/") {
		request.Header.Set("Authorization", "Bearer "+l.Token)
	}
	response, err := l.HTTP.Do(request)
	if err != nil {
		return answer{err: plain(err)}
	}
	defer response.Body.Close()
	read, err := io.ReadAll(io.LimitReader(response.Body, maxAnswer))
	return answer{response.StatusCode, read, err}
}

// plain leaves out what the reader of a finding knows: method and address.
func plain(err error) error {
	if wrapped := (*url.Error)(nil); errors.As(err, &wrapped) {
		return wrapped.Err
	}
	return err
}

// certificate is when that of the server ends; whoever signed it.
func (l *Local) certificate(ctx context.Context) time.Time {
	u, err := url.Parse(l.Server)
	if err != nil || u.Scheme != "https" {
		return time.Time{}
	}
	host := u.Host
	if u.Port() == "" {
		host = net.JoinHostPort(u.Hostname(), "443")
	}
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	// Only its dates are read: nothing is sent over the connection.
	dialer := tls.Dialer{Config: &tls.Config{InsecureSkipVerify: true, NextProtos: []string{"h2"}}}
	conn, err := dialer.DialContext(ctx, "tcp", host)
	if err != nil {
		return time.Time{}
	}
	defer conn.Close()
	chain := conn.(*tls.Conn).ConnectionState().PeerCertificates
	if len(chain) == 0 {
		return time.Time{}
	}
	return chain[0].NotAfter
}

// fleet is the fleet as the server sees it; nil if it does not say.
func (l *Local) fleet(ctx context.Context) *pb.GetFleetResponse {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	client := inferencecachev1alpha1connect.NewInferenceCacheClient(l.HTTP, l.Server)
	fleet, err := client.GetFleet(ctx, &pb.GetFleetRequest{MaxReplicas: maxReplicas, TopK: 1})
	if err != nil {
		return nil
	}
	return fleet
}

// byModel adds up one of the server's metrics for each model.
func byModel(page []byte, metric string) map[string]float64 {
	sums := map[string]float64{}
	for line := range strings.Lines(string(page)) {
		if s, ok := obs.ParseSample(strings.TrimSpace(line)); ok && s.Name == metric {
			sums[s.Labels["model"]] += s.Value
		}
	}
	return sums
}
