package subscriber

import (
	"cmp"
	"maps"
	"math"
	"strings"

	"inferencecache.io/inferencecache/internal/engine"
)

// rounding is how far a counter may seem to fall, as a share of it: several
// processes behind one page may be added up in another order.
const rounding = 1e-9

// facts are what a metrics page tells of the engine besides its load: evidence
// for others of a restart, of silence and of a mistake in configuration.
type facts struct {
	Started       float64 // process_start_time_seconds, since the epoch; 0: unknown
	Fell          bool    // a counter fell since the page before: another process
	PromptTokens  float64 // of all prompts so far; -1: unknown
	PrefixCaching string  // vLLM: "True" or "False"; "": unknown
	BlockSize     int     // tokens; of a hybrid model its smallest; 0: unknown
	CachedTokens  float64 // of all prompts so far, those that the engine found in its own cache; -1: unknown
	Capacity      int64   // tokens that fit into the memory of all engines behind the page; 0: unknown
	Engines       int     // vLLM: data-parallel engines behind the page; 0: unknown
	Asleep        *bool   // vLLM: every engine sleeps and serves nothing; nil: unknown
	Emptied       bool    // and has given its cache away
}

// facts reads them from a page.
func (r *loadReader) facts(now readings, since growth) facts {
	f := r.families
	prompts, ok := now.total(engine.Series{Name: f.PromptTokens})
	if !ok {
		prompts = -1
	}
	prefixCaching, blockSize := described(now[f.CacheConfig])
	if blockSize == 0 {
		blockSize = now.family(f.BlockTokens).max
	}
	asleep, emptied := sleepState(now[f.Sleep])
	capacity, _ := r.capacityTokens(now)
	return facts{
		Started:       now.family(startFamily).max,
		Fell:          since.fell,
		PromptTokens:  prompts,
		CachedTokens:  r.cachedTokens(now),
		Capacity:      capacity,
		PrefixCaching: prefixCaching,
		BlockSize:     int(min(max(blockSize, 0), math.MaxInt32)),
		Engines:       countEngines(now[f.Running]),
		Asleep:        asleep,
		Emptied:       emptied,
	}
}

// cachedTokens is the counter of tokens found in the engine's cache, or what its
// way to tell the prefill speed takes off for them; -1 if neither is there.
func (r *loadReader) cachedTokens(now readings) float64 {
	if hits, ok := now.total(engine.Series{Name: r.families.Hits}); ok {
		return hits
	}
	for _, way := range r.families.Prefill {
		sum, known := 0.0, len(way.Cached) > 0
		for _, one := range way.Cached {
			tokens, ok := now.total(one)
			sum, known = sum+tokens, known && ok
		}
		if known {
			return sum
		}
	}
	return -1
}

// described is what vllm:cache_config_info says, which is the same for every
// engine behind a page.
func described(series []sample) (prefixCaching string, blockSize float64) {
	for _, s := range series {
		if value, _ := s.label(engine.LabelPrefixCaching); value != "None" {
			prefixCaching = value
		}
		blockSize = max(blockSize, labelNumber(s, engine.LabelBlockSize))
	}
	return prefixCaching, blockSize
}

// countEngines counts the engine labels of a gauge that each engine has.
func countEngines(gauge []sample) int {
	names := make(map[string]bool)
	for _, s := range gauge {
		if name, ok := s.label("engine"); ok {
			names[name] = true
		}
	}
	return len(names)
}

// sleepState says whether no engine is awake, nil if the page does not say, and
// whether they have no cache then. Of vLLM's levels 1 sets weights_offloaded and
// 2 discard_all, and both give the cache away; 0 sets neither: it only pauses.
func sleepState(states []sample) (asleep *bool, emptied bool) {
	levels, reached := 0, false
	for _, s := range states {
		switch state, _ := s.label("sleep_state"); state {
		case "awake":
			all := s.value == 0 && (asleep == nil || *asleep)
			asleep = &all
		case "weights_offloaded", "discard_all":
			levels++
			reached = reached || s.value != 0
		}
	}
	paused := levels >= 2 && !reached // all levels are shown, and it is at none
	return asleep, asleep != nil && *asleep && !paused
}

// growth is what happened between two good pages.
type growth struct {
	grown     map[engine.Series]float64 // counters that both pages have
	fell      bool                      // a counter is lower than before
	restarted bool                      // another process by any sign: nothing has grown
}

// advance compares a page with the one before and makes it the baseline. After
// a restart nothing is known of the time in between. A counter may be missing
// from a page, as some engines write one only after its first count: it falls
// if it comes back lower than it ever was. The sum of a histogram proves
// nothing: an observation may be negative (vLLM pull request 42256).
func (r *loadReader) advance(now readings) growth {
	since := growth{grown: make(map[engine.Series]float64)}
	current := make(map[engine.Series]float64)
	for _, counter := range r.counters() {
		total, ok := now.total(counter)
		if !ok {
			continue
		}
		current[counter] = total
		if before, ok := r.before[counter]; ok {
			since.grown[counter] = total - before
		}
		last := r.last[counter]
		if last-total > rounding*last && !strings.HasSuffix(counter.Name, "_sum") {
			since.fell = true
		}
	}
	start := now.family(startFamily).max
	since.restarted = since.fell || start != r.started && start != 0 && r.started != 0
	if since.restarted {
		clear(since.grown)
		clear(r.last)
	}
	if r.last == nil {
		r.last = make(map[engine.Series]float64)
	}
	maps.Copy(r.last, current)
	r.before = current
	r.started = cmp.Or(start, r.started)
	return since
}

// prefillSpeed is how many prompt tokens the engine computed, leaving out those
// found in a cache, per second of computing prompts since the page before. See
// the dialects for what their seconds are. It is unknown unless both grew.
func (r *loadReader) prefillSpeed(since growth) (tokensPerSecond float64, ok bool) {
	for _, way := range r.families.Prefill {
		tokens, seconds, ok := since.measure(way)
		if !ok {
			continue
		}
		speed := tokens / seconds
		return speed, tokens > 0 && seconds > 0 && !math.IsInf(speed, 0)
	}
	return 0, false
}

// measure is the growth of a way's series; ok is false if one is missing.
func (g growth) measure(way engine.Speed) (tokens, seconds float64, ok bool) {
	tokens, ok = g.grown[way.Tokens]
	seconds, timed := g.grown[way.Seconds]
	ok = ok && timed
	for _, cached := range way.Cached {
		found, counted := g.grown[cached]
		tokens, ok = tokens-found, ok && counted
	}
	return tokens, seconds, ok
}
