package subscriber

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"inferencecache.io/inferencecache/internal/engine"
)

const (
	// connectPatience is how long an engine may take to bind its publisher
	// before that is called a fault. Large models load for minutes, during
	// which the engine serves no metrics either.
	connectPatience = time.Minute
	// eventPatience is how long an engine may compute prompts without an event.
	eventPatience = time.Minute
	// rankPatience is how long it may take to find all ranks.
	rankPatience = 20 * time.Second
	// symptomMemory is for how long what happened once is still a condition.
	symptomMemory = 10 * time.Minute
	// minStores and minTokens make sure that a judgement has something to go by.
	minStores = 8
	minTokens = 4096
)

// symptoms are what the sentinel knows of one replica.
type symptoms struct {
	now       time.Time
	started   time.Time // of the subscriber
	blockSize int       // that the server indexes; 0: any
	capped    uint64    // blocks evicted here, if some were lately
	sources   []sourceSymptoms
	engine    engineSymptoms
	lookups   []string // servers that do not find what they were told, and why
}

// sourceSymptoms are those of one event stream.
type sourceSymptoms struct {
	ledger
	rank       int
	topic      string
	replay     bool          // an endpoint is configured
	connected  time.Time     // when it first connected; zero: never
	away       time.Duration // since the last connection ended; 0: there is one
	otherTopic uint64        // messages under other topics
}

// engineSymptoms are those of the metrics page. The zero value knows nothing.
type engineSymptoms struct {
	prompts float64 // prompt tokens since the last event of any source, or since the page was first seen
	caching string  // prefix caching: "True", "False", ""
	cached  float64 // of these, found in the engine's cache while nothing of it was known here
	asleep  bool
	emptied bool // it has no cache while it sleeps
	engines int  // data-parallel ranks that it shows; 0: unknown
}

// diagnose names what is wrong. It is a pure function of the symptoms.
func diagnose(s *symptoms) []finding {
	var all []finding
	add := func(name Condition, format string, args ...any) {
		all = append(all, finding{name, fmt.Sprintf(format, args...)})
	}
	for i := range s.sources {
		s.sources[i].diagnose(s, add)
	}
	s.diagnoseTraffic(add)
	if s.engine.caching == "False" {
		add(PrefixCachingOff, "the engine's metrics say enable_prefix_caching=False")
	}
	switch {
	case s.engine.emptied:
		add(EngineAsleep, "engine asleep, and its cache with it: nothing is held")
	case s.engine.asleep:
		add(EngineAsleep, "engine asleep, at a level that keeps its cache")
	}
	if s.engine.engines > len(s.sources) && s.now.Sub(s.started) > rankPatience {
		add(RanksMissing, "the engine shows %d ranks, %d are followed", s.engine.engines, len(s.sources))
	}
	if s.capped > 0 {
		add(CapReached, "%d blocks dropped here so far", s.capped)
	}
	if len(s.lookups) > 0 {
		add(LookupMismatch, "%s", strings.Join(s.lookups, "; "))
	}
	if s.engine.cached >= minTokens && len(all) == 0 { // else that is why
		add(CacheUnseen, "%.0f prompt tokens came from a cache of which no block is known", s.engine.cached)
	}
	return all
}

// diagnose one event stream.
func (s *sourceSymptoms) diagnose(all *symptoms, add func(Condition, string, ...any)) {
	away := s.away
	if s.connected.IsZero() {
		away = all.now.Sub(all.started)
	}
	if away > connectPatience {
		add(NotConnected, "rank %d: no connection for %s", s.rank, away.Round(time.Second))
	}
	if s.otherTopic > 0 && s.Live == 0 {
		add(TopicMismatch, "rank %d: %d messages under other topics than %q", s.rank, s.otherTopic, s.topic)
	}
	if s.HasRank && s.Rank != s.rank {
		add(RankMismatch, "the stream of rank %d says that it is rank %d", s.rank, s.Rank)
	}
	if s.NoReplay && s.replay {
		add(NoReplay, "rank %d does not answer", s.rank)
	}
	recent := func(at time.Time) bool { return !at.IsZero() && all.now.Sub(at) < symptomMemory }
	if recent(s.SeedAt) {
		add(RandomHashSeed, "rank %d: equal prompts had different block names", s.rank)
	}
	if recent(s.UnknownAt) {
		add(UnknownEvents, "rank %d: %d events", s.rank, s.Unknown)
	}
	if recent(s.DriftAt) {
		add(HeldDrifted, "rank %d: more blocks were taken for held than the engine has room for", s.rank)
	}
	if n := s.Refused[BlockSizeMismatch]; n > 0 && n >= s.Applied {
		add(WrongBlockSize, "rank %d: %d stores refused, --block-size is %d", s.rank, n, all.blockSize)
	}
	if n := s.Refused[UnmappedAdapter]; recent(s.UnmappedAt) {
		add(AdapterUnmapped, "rank %d: %d stores refused", s.rank, n)
	}
	if s.Stores >= minStores && s.Applied == 0 {
		add(NothingIndexed, "rank %d: none of %d stores could be used: %s", s.rank, s.Stores, reasons(s.Refused))
	}
}

// diagnoseTraffic finds an engine that computes prompts and says nothing.
func (s *symptoms) diagnoseTraffic(add func(Condition, string, ...any)) {
	var last time.Time
	for _, one := range s.sources {
		if one.connected.IsZero() {
			return // another fault
		}
		if one.connected.After(last) {
			last = one.connected
		}
		if one.Last.After(last) {
			last = one.Last
		}
	}
	if silent := s.now.Sub(last); s.engine.prompts >= minTokens && silent > eventPatience {
		add(NoEvents, "%.0f prompt tokens computed without an event for %s", s.engine.prompts, silent.Round(time.Second))
	}
}

// reasons lists counts by reason, the largest first.
func reasons(counts map[engine.Reason]uint64) string {
	names := slices.SortedFunc(maps.Keys(counts), func(a, b engine.Reason) int {
		return cmp.Or(cmp.Compare(counts[b], counts[a]), cmp.Compare(a, b))
	})
	var parts []string
	for _, name := range names {
		parts = append(parts, fmt.Sprintf("%s %d", name, counts[name]))
	}
	return strings.Join(parts, ", ")
}
