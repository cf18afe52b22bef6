package subscriber

import (
	"context"
	"log/slog"
	"net/http"
	"sync"
	"time"

	"connectrpc.com/connect"

	pb "inferencecache.io/inferencecache/proto/inferencecache/v1alpha1"
)

// target is where one server is.
type target struct {
	base    string // URL that requests name
	address string // host:port to dial; empty: what base says
}

// String is the target in logs and labels: a URL that tells it from others.
func (t target) String() string {
	if t.address == "" {
		return t.base
	}
	return schemeOf(t.base) + "://" + t.address
}

// servers owns the outboxes of a replica: one for each server that was named,
// and one for each address that a name stands for at present. The set changes
// under replica.mu, so that each change of what is held finds one set.
type servers struct {
	replica  *replica
	template outboxConfig                              // of every outbox, but for server, reporter and troubled
	http     func(serverURL string) connect.HTTPClient // nil: clients of their own
	resolver resolver
	names    []*name
	meters   *meters
	log      *slog.Logger
	running  sync.WaitGroup // outboxes

	mu      sync.Mutex
	members map[string]*member // by target
	turn    func()             // tells that the set has changed; nil: nobody asked
}

// member is an outbox with what is its own.
type member struct {
	outbox *outbox
	ask    func(context.Context, *pb.LookupRouteRequest) (*pb.LookupRouteResponse, error)
	owned  *http.Client // nil: not ours to close
	stop   context.CancelFunc
	ended  chan struct{} // closed when the outbox has ended
}

// add makes an outbox for t and runs it, unless there is one.
func (s *servers) add(ctx context.Context, t target, troubled func()) *member {
	m := s.open(t, troubled)
	if m != nil {
		s.start(ctx, m)
	}
	return m
}

// open makes an outbox for t; it does not run yet. Nil: there is one.
func (s *servers) open(t target, troubled func()) *member {
	client, owned := s.client(t)
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.members[t.String()] != nil {
		return nil
	}
	m := &member{owned: owned, ended: make(chan struct{})}
	config := s.template
	reporter := newGRPCReporter(client, t.base)
	m.ask = reporter.client.LookupRoute
	config.server, config.reporter, config.troubled = t.String(), reporter, troubled
	m.outbox = newOutbox(config, s.meters)
	s.members[t.String()] = m
	s.replica.join(m.outbox)
	s.turnLocked()
	return m
}

// client is what reaches t; owned, unless nil, is to be closed by us.
func (s *servers) client(t target) (client connect.HTTPClient, owned *http.Client) {
	if s.http != nil {
		return s.http(t.String()), nil
	}
	owned = newHTTPClient(t.address)
	return owned, owned
}

// start runs an outbox until it is closed and everything is sent, it is
// removed, or ctx ends.
func (s *servers) start(ctx context.Context, m *member) {
	ctx, m.stop = context.WithCancel(ctx)
	s.running.Go(func() {
		defer close(m.ended)
		defer m.stop()
		m.outbox.run(ctx)
		if m.owned != nil {
			m.owned.CloseIdleConnections()
		}
	})
}

// startAll runs the outboxes that New made.
func (s *servers) startAll(ctx context.Context) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, m := range s.members {
		s.start(ctx, m)
	}
}

// remove stops an outbox without goodbye: its server is gone, or will see that
// others know better.
func (s *servers) remove(m *member) {
	s.replica.leave(m.outbox)
	m.stop()
	<-m.ended
	m.outbox.meters.forget()
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.members, m.outbox.server)
	s.turnLocked()
}

func (s *servers) turnLocked() {
	if s.turn != nil {
		s.turn()
	}
}

// close says to all outboxes that nothing follows; wait waits for their end. No
// add or remove may come any more.
func (s *servers) close() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, m := range s.members {
		m.outbox.close()
	}
}

func (s *servers) wait() { s.running.Wait() }

// lookedUp are the servers of now, as gateways see them.
func (s *servers) lookedUp() (all []lookedUp) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, m := range s.members {
		all = append(all, m)
	}
	return all
}

func (m *member) name() string { return m.outbox.server }

func (m *member) settled(then time.Time) bool { return m.outbox.settled(then) }

func (m *member) lookup(ctx context.Context, r *pb.LookupRouteRequest) (*pb.LookupRouteResponse, error) {
	return m.ask(ctx, r)
}

// present are the outboxes of now; the context ends when others are.
func (s *servers) present(ctx context.Context) ([]*outbox, context.Context) {
	s.mu.Lock()
	defer s.mu.Unlock()
	ctx, s.turn = context.WithCancel(ctx)
	return s.replica.all(), ctx
}

// reportLoad runs the load reports, again from the start for each new set of
// servers: so a server that joins gets one at once.
func (s *servers) reportLoad(ctx context.Context, loop *statsLoop) {
	for ctx.Err() == nil {
		var same context.Context
		loop.outboxes, same = s.present(ctx)
		loop.run(same)
	}
}

// follow keeps the outboxes of n's addresses until ctx ends; the outboxes
// themselves run until late ends.
func (s *servers) follow(ctx, late context.Context, n *name) {
	tick := time.NewTicker(lookupEvery)
	defer tick.Stop()
	for {
		s.refresh(ctx, late, n)
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		case <-n.again:
		}
	}
}

// refresh looks n up once. A lookup that fails changes nothing.
func (s *servers) refresh(ctx, late context.Context, n *name) {
	addresses, err := n.lookup(ctx, s.resolver)
	if ctx.Err() != nil {
		return
	}
	s.noteLookup(n, err)
	if err != nil {
		return
	}
	for _, address := range n.judge(addresses) {
		s.log.Info("server gone from its name", "name", n.String(), "address", address)
		s.remove(n.members[address])
		delete(n.members, address)
	}
	for _, address := range addresses {
		if n.members[address] != nil {
			continue
		}
		if m := s.add(late, target{base: n.base, address: address}, n.hurry); m != nil {
			s.log.Info("server found by its name", "name", n.String(), "address", address)
			n.members[address] = m
		}
	}
}

// noteLookup counts failed lookups and logs when they begin and end.
func (s *servers) noteLookup(n *name, err error) {
	if err != nil {
		n.errors.Inc()
	}
	switch {
	case err != nil && !n.failing:
		s.log.Warn("server name not resolved, known addresses are kept", "name", n.String(), "known", len(n.members), "err", err)
	case err == nil && n.failing:
		s.log.Info("server name resolved again", "name", n.String())
	}
	n.failing = err != nil
}
