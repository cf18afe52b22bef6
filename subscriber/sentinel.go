package subscriber

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/VictoriaMetrics/metrics"

	pb "inferencecache.io/inferencecache/proto/inferencecache/v1alpha1"
)

const (
	sentinelEvery = 5 * time.Second
	// checkEvery is how often a prompt of the engine's own is looked up at
	// each server; checkAfter how old its blocks must be.
	checkEvery = time.Minute
	checkAfter = 5 * time.Second
	// checkMaxAge is how old a prompt may be: it has to be held all the time.
	checkMaxAge  = 10 * time.Minute
	checkTimeout = 2 * time.Second
	// checkAgain is when a server that did not find a prompt is asked once more.
	checkAgain = 15 * time.Second
	// widenAfter is how long a topic may bring nothing before all are taken, to
	// see whether there are others.
	widenAfter = 10 * time.Second
)

// sentinel watches one replica for what makes a router that runs never match:
// it gathers symptoms, diagnoses them and sets the conditions.
type sentinel struct {
	started    time.Time
	config     *Config
	replica    *replica
	sources    func() []*source
	conditions *conditions
	checks     *metrics.Counter // lookups of the engine's own prompts that were answered

	servers func() []lookedUp

	mu   sync.Mutex // over page
	page observation

	// Only run touches these.
	unseen  unseen
	evicted uint64    // at the last look
	capped  time.Time // when a block was evicted last
	looked  time.Time
	doubted map[string]bool // servers that did not find the last prompt
	lookups []string
}

// run looks until ctx ends.
func (s *sentinel) run(ctx context.Context) {
	tick := time.NewTicker(sentinelEvery)
	defer tick.Stop()
	var base promptBase
	for {
		select {
		case <-ctx.Done():
			return
		case now := <-tick.C:
			answered := 0
			if now.Sub(s.looked) >= checkEvery {
				answered = s.lookUp(ctx, now)
			}
			s.conditions.set(diagnose(s.gather(now, &base)))
			s.checks.Add(answered)
		}
	}
}

// lookedUp is a server at which prompts can be looked up.
type lookedUp interface {
	name() string
	// settled reports that the server was told everything that was held then.
	settled(then time.Time) bool
	lookup(context.Context, *pb.LookupRouteRequest) (*pb.LookupRouteResponse, error)
}

// promptBase is the prompt counter at the time of the last event.
type promptBase struct {
	batches uint64
	prompts float64
	set     bool
}

// unseen counts what the engine's cache answers while nothing is held here.
type unseen struct {
	base  float64 // the counter when something was last held
	known bool
}

// tokens are those answered since, by the counter on a page; -1: it has none.
func (u *unseen) tokens(cached float64, holds bool) float64 {
	if holds || !u.known || cached < u.base {
		*u = unseen{cached, cached >= 0}
		return 0
	}
	return cached - u.base
}

func (s *sentinel) gather(now time.Time, base *promptBase) *symptoms {
	found := &symptoms{now: now, started: s.started, blockSize: s.config.BlockSize, lookups: s.lookups}
	batches := uint64(0)
	for _, one := range s.sources() {
		found.sources = append(found.sources, one.symptoms(now))
		batches += found.sources[len(found.sources)-1].Batches
	}
	held := s.replica.stats()
	if held.Evicted > s.evicted {
		s.evicted, s.capped = held.Evicted, now
	}
	if !s.capped.IsZero() && now.Sub(s.capped) < symptomMemory {
		found.capped = s.evicted
	}

	s.mu.Lock()
	page := s.page
	s.mu.Unlock()
	if !page.at.IsZero() {
		if !base.set || base.batches != batches || page.PromptTokens < base.prompts {
			*base = promptBase{batches, page.PromptTokens, true}
		}
		found.engine = engineSymptoms{
			prompts: page.PromptTokens - base.prompts, cached: s.unseen.tokens(page.CachedTokens, held.Holdings > 0), caching: page.PrefixCaching, engines: page.Engines,
			asleep: page.Asleep != nil && *page.Asleep, emptied: page.Emptied,
		}
	}
	return found
}

// symptoms of one source. A topic that brings nothing is widened to see whether
// there are others.
func (s *source) symptoms(now time.Time) sourceSymptoms {
	found := sourceSymptoms{
		ledger: s.stream.account.read(), rank: s.Rank, topic: s.Topic, replay: s.Replay != "",
		connected: s.state.since(), away: s.state.away(now), otherTopic: s.receiver.metrics.refused(badTopic).Get(),
	}
	if s.Topic != "" && found.Live == 0 && !found.connected.IsZero() && now.Sub(found.connected) > widenAfter {
		s.receiver.widen()
	}
	return found
}

// lookUp asks every server for a prompt that the engine has stored, as a
// gateway does, and keeps which of them do not name this replica. It returns how
// many answered.
func (s *sentinel) lookUp(ctx context.Context, now time.Time) (answered int) {
	asked, ok := s.prompt(now)
	if !ok {
		s.lookups, s.doubted = nil, nil
		return 0
	}
	s.looked = now
	doubted := s.doubted
	s.lookups, s.doubted = nil, map[string]bool{}
	for _, server := range s.servers() {
		if !server.settled(asked.at) {
			continue
		}
		matched, err := s.ask(ctx, server, &asked)
		if ctx.Err() != nil || err != nil || !server.settled(asked.at) || !s.replica.holds(asked.adapter, asked.first()) {
			continue // unreachable servers show elsewhere
		}
		answered++
		if matched >= asked.blockSize {
			continue
		}
		// A server that has just started again does not know everything yet.
		s.doubted[server.name()] = true
		s.looked = now.Add(checkAgain - checkEvery)
		if doubted[server.name()] {
			s.lookups = append(s.lookups, fmt.Sprintf("%s finds %d of %d tokens", server.name(), matched, len(asked.tokens)))
		}
	}
	return answered
}

// prompt is the youngest one that is old enough to have been reported.
func (s *sentinel) prompt(now time.Time) (best ownPrompt, ok bool) {
	for _, one := range s.sources() {
		p := one.stream.account.read().prompt
		age := now.Sub(p.at)
		if len(p.tokens) == 0 || age < checkAfter || age > checkMaxAge || !s.replica.holds(p.adapter, p.first()) {
			continue
		}
		if !ok || p.at.After(best.at) {
			best, ok = p, true
		}
	}
	return best, ok
}

// ask returns how many tokens of the prompt a server finds at this replica.
func (s *sentinel) ask(ctx context.Context, server lookedUp, p *ownPrompt) (matched int, err error) {
	ctx, cancel := context.WithTimeout(ctx, checkTimeout)
	defer cancel()
	answer, err := server.lookup(ctx, &pb.LookupRouteRequest{
		ModelId: s.config.ModelID, TenantId: s.config.TenantID, HashScheme: s.config.HashScheme,
		AdapterId: p.adapter, TokenIds: p.tokens, SelfCheck: true,
	})
	if err != nil {
		return 0, err
	}
	for _, score := range answer.GetReplicaScores() {
		if score.GetReplicaId() == s.config.ReplicaID {
			matched = max(matched, int(score.GetMatchedTokens()))
		}
	}
	return matched, nil
}

// observation is what a metrics page showed, and when. The zero value is none.
type observation struct {
	facts
	at time.Time
}

// observe takes in what a scrape has shown and returns what the one before did.
func (s *sentinel) observe(f facts, now time.Time) (before observation, known bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	before = s.page
	s.page = observation{f, now}
	return before, !before.at.IsZero()
}
