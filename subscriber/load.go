package subscriber

import (
	"errors"
	"fmt"
	"io"
	"math"
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
// remembers the counters of the page before, for the hit rate.
type loadReader struct {
	families engine.Load
	usage    string // one of the usage... constants
	model    string // take only series with this model_name; empty: all
	capacity int64  // bytes of the engine's cache; 0: unknown
	ceiling  int64  // requests at which pressure is 1; 0 or less: pressure is 0

	hits, queries float64 // of the last good page
	based         bool    // hits and queries are set
}

// family is what a page says under one name.
type family struct {
	seen     bool
	sum, max float64
}

// read turns a page into stats. It fails rather than make up a zero: a page
// without the load gauges is an error, and leaves the baseline alone.
func (r *loadReader) read(page io.Reader) (*pb.ReplicaStats, error) {
	found, err := r.collect(page)
	if err != nil {
		return nil, err
	}
	if len(found) == 0 {
		return nil, errNoFamily
	}
	var missing []error
	for _, name := range []string{r.families.Running, r.families.Waiting} {
		if !found[name].seen {
			missing = append(missing, fmt.Errorf("metrics page lacks the load gauge %s", name))
		}
	}
	if err := errors.Join(missing...); err != nil {
		return nil, err
	}
	load := found[r.families.Running].sum + found[r.families.Waiting].sum
	stats := &pb.ReplicaStats{
		CacheMemoryBytes: int64(clamp01(r.usageRatio(found)) * float64(r.capacity)),
		HitRate:          float32(r.hitRate(found)),
		T2HitTokens:      count(found[r.families.T2Hits].sum),
		T2QueryTokens:    count(found[r.families.T2Queries].sum),
	}
	if r.ceiling > 0 {
		stats.Pressure = float32(clamp01(load / float64(r.ceiling)))
	}
	return stats, nil
}

// collect sums up the families that matter. Counters are found with and
// without "_total".
func (r *loadReader) collect(page io.Reader) (map[string]family, error) {
	f := r.families
	wanted := make(map[string]string) // name on the page -> name of the family
	for _, name := range []string{f.Running, f.Waiting, f.Usage, f.UsageGPU, f.UsageCPU, f.HitRate} {
		wanted[name] = name
	}
	for _, name := range []string{f.Hits, f.Queries, f.T2Hits, f.T2Queries} {
		wanted[name], wanted[name+"_total"] = name, name
	}
	delete(wanted, "")
	delete(wanted, "_total")
	found := make(map[string]family)
	err := readSamples(page, func(s sample) {
		name, ok := wanted[string(s.name)]
		if !ok || !r.counts(name, s) {
			return
		}
		seen := found[name]
		if !seen.seen {
			seen.max = s.value
		}
		found[name] = family{seen: true, sum: seen.sum + s.value, max: max(seen.max, s.value)}
	})
	return found, err
}

// counts reports whether a series belongs to the load. Engines with priority
// scheduling repeat the load by priority; the series without one is the total.
func (r *loadReader) counts(name string, s sample) bool {
	if r.model != "" {
		if model, _ := s.label("model_name"); model != r.model {
			return false
		}
	}
	if name == r.families.Running || name == r.families.Waiting {
		priority, _ := s.label("priority")
		return priority == ""
	}
	return true
}

// usageRatio is the part of the cache in use, 0 if the page does not say.
func (r *loadReader) usageRatio(found map[string]family) float64 {
	kv, gpu, cpu := found[r.families.Usage], found[r.families.UsageGPU], found[r.families.UsageCPU]
	switch r.usage {
	case usageKV:
		return kv.max
	case usageGPU:
		return gpu.max
	case usageCPU:
		return cpu.max
	}
	if kv.seen {
		return kv.max
	}
	return max(gpu.max, cpu.max)
}

// hitRate is the engine's own gauge or the share of hits since the last good
// page: 0 on the first page, after a reset and without queries in between. A
// page that lacks a counter keeps the baseline.
func (r *loadReader) hitRate(found map[string]family) float64 {
	if r.families.HitRate != "" {
		return clamp01(found[r.families.HitRate].max)
	}
	hits, queries := found[r.families.Hits], found[r.families.Queries]
	if !hits.seen || !queries.seen {
		return 0
	}
	newHits, newQueries, based := hits.sum-r.hits, queries.sum-r.queries, r.based
	r.hits, r.queries, r.based = hits.sum, queries.sum, true
	if !based || newHits < 0 || newQueries <= 0 {
		return 0
	}
	return clamp01(newHits / newQueries)
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
