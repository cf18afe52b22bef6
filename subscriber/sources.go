package subscriber

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"slices"
	"strings"
	"sync"
	"time"
)

const (
	// rediscoverSoon is how often the engine is asked for its ranks while it
	// does not answer or a rank is not connected, rediscoverLater otherwise.
	rediscoverSoon  = 5 * time.Second
	rediscoverLater = time.Minute
)

// sources is the set of event streams that are followed: the configured ones
// at first, then those that the engine names, if it does.
type sources struct {
	make     func(endpoint) (*source, error)
	discover func(context.Context) ([]endpoint, error) // nil: never
	replica  *replica
	log      *slog.Logger

	mu  sync.Mutex
	now []*running // by rank

	trouble string // last failure to discover that was logged
}

// running is a source that is followed.
type running struct {
	*source
	stop func() // returns when it is not any more; nil before start
}

// list is the present set.
func (s *sources) list() []*source {
	s.mu.Lock()
	defer s.mu.Unlock()
	all := make([]*source, len(s.now))
	for i, one := range s.now {
		all[i] = one.source
	}
	return all
}

// run follows first, and then what the engine says, until ctx ends. Until late
// ends it works off what has been received.
func (s *sources) run(ctx, late context.Context) {
	for _, one := range s.now {
		one.start(ctx, late)
	}
	wait := rediscoverSoon
	for s.discover != nil && sleep(ctx, wait) {
		wait = s.rediscover(ctx, late)
	}
	<-ctx.Done()
	for _, one := range s.now {
		one.stop()
	}
}

// start begins to follow.
func (r *running) start(ctx, late context.Context) {
	ctx, cancel := context.WithCancel(ctx)
	var following sync.WaitGroup
	following.Go(func() { r.run(ctx, late) })
	r.stop = func() {
		cancel()
		following.Wait()
	}
}

// put adds a source to the set.
func (s *sources) put(one *running) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.now = append(s.now, one)
	slices.SortFunc(s.now, func(a, b *running) int { return a.Rank - b.Rank })
}

// drop ends what is followed of a rank, and forgets it.
func (s *sources) drop(one *running) {
	one.stop()
	s.replica.clear(one.Rank, false, time.Now())
	one.stream.meters.forget()
	s.mu.Lock()
	defer s.mu.Unlock()
	s.now = slices.DeleteFunc(s.now, func(other *running) bool { return other == one })
}

// rediscover asks the engine and follows its answer; it returns when to ask
// again.
func (s *sources) rediscover(ctx, late context.Context) time.Duration {
	found, err := s.discover(ctx)
	switch {
	case ctx.Err() != nil:
		return 0
	case errors.Is(err, errNoDiscovery):
		return rediscoverLater
	case err != nil:
		if s.trouble != err.Error() && s.connected() {
			s.trouble = err.Error()
			s.log.Warn("engine does not tell its ranks, the configured ones are followed", "err", err)
		}
		return rediscoverSoon
	}
	s.trouble = ""
	s.follow(ctx, late, found)
	if !s.connected() {
		return rediscoverSoon
	}
	return rediscoverLater
}

// follow makes the set the one that was found.
func (s *sources) follow(ctx, late context.Context, found []endpoint) {
	for _, one := range slices.Clone(s.now) {
		if !slices.ContainsFunc(found, one.is) {
			s.log.Info("rank is not followed any more", "rank", one.Rank, "endpoint", one.Events)
			s.drop(one)
		}
	}
	for _, e := range found {
		if slices.ContainsFunc(s.now, func(one *running) bool { return one.Rank == e.Rank }) {
			continue
		}
		one, err := s.make(e)
		if err != nil {
			s.log.Warn("rank cannot be followed", "rank", e.Rank, "err", err)
			continue
		}
		s.log.Info("rank found", "rank", e.Rank, "endpoint", e.Events, "replay", e.Replay)
		fresh := &running{source: one}
		fresh.start(ctx, late)
		s.put(fresh)
	}
}

// is says whether a source is the one that an engine describes. It may be
// reached by another address than the engine names, if it is reached.
func (s *source) is(e endpoint) bool {
	if s.Rank != e.Rank || s.Topic != e.Topic || e.Replay != "" && port(e.Replay) != port(s.Replay) {
		return false
	}
	return s.Events == e.Events || port(s.Events) == port(e.Events) && s.state.reached(time.Now())
}

// port of a tcp:// endpoint.
func port(endpoint string) string {
	_, port, _ := net.SplitHostPort(strings.TrimPrefix(endpoint, "tcp://"))
	return port
}

// connected says whether every source is.
func (s *sources) connected() bool {
	for _, one := range s.list() {
		if !one.state.up() {
			return false
		}
	}
	return true
}
