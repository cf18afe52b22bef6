package subscriber

import (
	"errors"
	"fmt"
	"io"
	"math"
	"strconv"
	"strings"

	"inferencecache.io/inferencecache/internal/engine"
	pb "inferencecache.io/inferencecache/proto/inferencecache/v1alpha1"
)

// Cache tiers whose usage gauge counts, see loadReader.
const (
	usageAuto = "auto" // the engine's own gauge, else the larger of the two old ones
	usageKV   = "kv"
	usageGPU  = "gpu"
	usageCPU  = "cpu"
)

var errNoFamily = errors.New("metrics page has no metric of this engine")

// loadReader makes a replica's stats from pages of its engine's metrics. It
// remembers the counters of the page before, for what happened since.
type loadReader struct {
	families engine.Load
	usage    string // one of the usage... constants
	model    string // take only series with this model_name; empty: all
	capacity int64  // bytes of the engine's cache; 0: unknown
	ceiling  int64  // requests at which pressure is 1; 0 or less: pressure is 0

	hits, queries float64 // of the last good page that had both
	based         bool    // hits and queries are set

	before  map[engine.Series]float64 // counters of the last good page
	last    map[engine.Series]float64 // last value of every counter of this process
	started float64                   // start of the process; 0: unknown
}

// read turns a page into stats and facts. It fails rather than make up a zero:
// a page without the load gauges is an error, and leaves the baselines alone.
func (r *loadReader) read(page io.Reader) (*pb.ReplicaStats, facts, error) {
	now, err := r.collect(page)
	if err != nil {
		return nil, facts{}, err
	}
	if err := r.complete(now); err != nil {
		return nil, facts{}, err
	}
	since := r.advance(now)
	seen := r.facts(now, since)
	stats := r.stats(now, since)
	stats.Asleep = seen.Asleep
	return stats, seen, nil
}

// complete reports what a page lacks that stats need.
func (r *loadReader) complete(now readings) error {
	families := len(now)
	if now.family(startFamily).seen {
		families--
	}
	if families == 0 {
		return errNoFamily
	}
	var missing []error
	for _, name := range []string{r.families.Running, r.families.Waiting} {
		if !now.family(name).seen {
			missing = append(missing, fmt.Errorf("metrics page lacks the load gauge %s", name))
		}
	}
	return errors.Join(missing...)
}

// stats are the published numbers, for which unknown is 0, and the optional
// ones, for which it is nil.
func (r *loadReader) stats(now readings, since growth) *pb.ReplicaStats {
	f := r.families
	running, waiting := now.family(f.Running).sum, now.family(f.Waiting).sum
	usage, hasUsage := r.usageRatio(now)
	hitRate, hasHitRate := r.hitRate(now)
	t2Hits, t2Queries := now.family(f.T2Hits), now.family(f.T2Queries)
	stats := &pb.ReplicaStats{
		CacheMemoryBytes: int64(usage * float64(r.capacity)),
		HitRate:          float32(hitRate),
		T2HitTokens:      count(t2Hits.sum),
		T2QueryTokens:    count(t2Queries.sum),

		RunningRequests:        &running,
		WaitingRequests:        &waiting,
		PrefillTokensPerSecond: optional(r.prefillSpeed(since)),
		CacheCapacityTokens:    optional(r.capacityTokens(now)),
		CacheUsage:             optional(usage, hasUsage),
		PrefixHitRate:          optional(hitRate, hasHitRate && !since.restarted),
		OffloadHitTokens:       optional(count(t2Hits.sum), t2Hits.seen),
		OffloadQueryTokens:     optional(count(t2Queries.sum), t2Queries.seen),
	}
	if r.ceiling > 0 {
		stats.Pressure = float32(clamp01((running + waiting) / float64(r.ceiling)))
	}
	return stats
}

// optional is v, or nil if v means nothing.
func optional[T any](v T, ok bool) *T {
	if !ok {
		return nil
	}
	return &v
}

// usageRatio is the part of the cache in use, 0 to 1. If the page does not
// say, it is 0 and ok is false.
func (r *loadReader) usageRatio(now readings) (ratio float64, ok bool) {
	kv, gpu, cpu := now.family(r.families.Usage), now.family(r.families.UsageGPU), now.family(r.families.UsageCPU)
	used := kv
	switch {
	case r.usage == usageGPU:
		used = gpu
	case r.usage == usageCPU:
		used = cpu
	case r.usage == usageAuto && !kv.seen:
		used = family{seen: gpu.seen || cpu.seen, max: max(gpu.max, cpu.max)}
	}
	return clamp01(used.max), used.seen
}

// hitRate is the engine's own gauge or the share of hits since the last good
// page. It is 0 and ok is false on the first page, after a reset, without
// queries in between and for a page that lacks the gauge or a counter, which
// keeps the baseline.
func (r *loadReader) hitRate(now readings) (rate float64, ok bool) {
	if r.families.HitRate != "" {
		gauge := now.family(r.families.HitRate)
		return clamp01(gauge.max), gauge.seen
	}
	hits, queries := now.family(r.families.Hits), now.family(r.families.Queries)
	if !hits.seen || !queries.seen {
		return 0, false
	}
	newHits, newQueries, based := hits.sum-r.hits, queries.sum-r.queries, r.based
	r.hits, r.queries, r.based = hits.sum, queries.sum, true
	if !based || !(newHits >= 0 && newQueries > 0) { // so written, it keeps out NaN
		return 0, false
	}
	return clamp01(newHits / newQueries), true
}

// capacityTokens is how many tokens the engine's own memory can hold, by its
// gauges or by vLLM's description of its cache.
func (r *loadReader) capacityTokens(now readings) (tokens int64, ok bool) {
	f := r.families
	capacity, hasGauge := now.total(engine.Series{Name: f.CapacityTokens})
	if !hasGauge {
		blocks, _ := now.total(engine.Series{Name: f.CapacityBlocks})
		capacity = blocks * now.family(f.BlockTokens).max
	}
	if capacity <= 0 {
		capacity = describedTokens(now[f.CacheConfig])
	}
	return count(capacity), capacity >= 1
}

// describedTokens is the capacity that the series of vllm:cache_config_info
// tell, 0 if they do not. There is one a data-parallel engine. Newer versions say
// on each how many tokens its engine holds, which is right for hybrid models
// too (pull request 42206).
// The blocks, however, are those of all engines together on every series: the
// front end adds up what the engines tell it (vllm/v1/engine/utils.py) and
// writes the one result for each (log_metrics_info).
func describedTokens(series []sample) float64 {
	byEngine := make(map[string]float64)
	var own, blocks float64
	for _, s := range series {
		name, _ := s.label("engine")
		byEngine[name] = labelNumber(s, engine.LabelCacheTokens)
		blocks = max(blocks, labelNumber(s, engine.LabelBlocks)*labelNumber(s, engine.LabelBlockSize))
	}
	for _, tokens := range byEngine {
		if tokens == 0 {
			return blocks
		}
		own += tokens
	}
	return own
}

// labelNumber is a label's value as a positive number; 0 for anything else, such as
// "None".
func labelNumber(s sample, label string) float64 {
	text, _ := s.label(label)
	n, err := strconv.ParseInt(text, 10, 64)
	if err != nil {
		return 0
	}
	return float64(max(n, 0))
}

func clamp01(v float64) float64 { return min(max(v, 0), 1) }

// count is a counter's value as a whole number.
func count(v float64) int64 {
	if v >= math.MaxInt64 {
		return math.MaxInt64
	}
	return int64(max(v, 0))
}

// baseURL is the scheme and host of a metrics URL, where the engine's API is.
func baseURL(metricsURL string) string {
	scheme, rest, ok := strings.Cut(metricsURL, "://")
	if !ok {
		return ""
	}
	host, _, _ := strings.Cut(rest, "/")
	return scheme + "://" + host
}
