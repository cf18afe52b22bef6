package subscriber

import (
	"errors"
	"io"
	"maps"
	"slices"
	"strings"

	"inferencecache.io/inferencecache/internal/engine"
)

// maxReadings bounds the samples kept of one page. Engines write a few
// hundred, a tenth of them under names that count here.
const maxReadings = 1 << 16

var errTooManyReadings = errors.New("metrics page has too many series of this engine")

// startFamily is the family that tells a process's start, in seconds since the
// epoch. Python's client library writes it, unless an engine runs several
// processes behind one page.
const startFamily = "process_start_time_seconds"

// readings are the samples of a page by family, as far as they count.
type readings map[string][]sample

// family is what a page says under one name.
type family struct {
	seen     bool
	sum, max float64
}

// collect reads the families that matter. Counters are found with and without
// "_total".
func (r *loadReader) collect(page io.Reader) (readings, error) {
	wanted := r.wanted()
	found, kept := make(readings), 0
	err := readSamples(page, func(s sample) {
		name, ok := wanted[string(s.name)]
		if !ok || !r.counts(name, s) {
			return
		}
		if kept++; kept <= maxReadings {
			found[name] = append(found[name], sample{labels: slices.Clone(s.labels), value: s.value})
		}
	})
	if err == nil && kept > maxReadings {
		err = errTooManyReadings
	}
	return found, err
}

// wanted maps names on a page to names of families.
func (r *loadReader) wanted() map[string]string {
	f := r.families
	wanted := map[string]string{startFamily: startFamily}
	for _, name := range []string{
		f.Running, f.Waiting, f.Usage, f.UsageGPU, f.UsageCPU, f.HitRate,
		f.CapacityTokens, f.CapacityBlocks, f.BlockTokens, f.CacheConfig, f.Sleep,
	} {
		wanted[name] = name
	}
	for _, counter := range r.counters() {
		wanted[counter.Name], wanted[counter.Name+"_total"] = counter.Name, counter.Name
	}
	delete(wanted, "")
	delete(wanted, "_total")
	return wanted
}

// counters are all series that only grow while a process lives.
func (r *loadReader) counters() []engine.Series {
	f := r.families
	var all []engine.Series
	for _, name := range []string{f.Hits, f.Queries, f.T2Hits, f.T2Queries, f.PromptTokens} {
		if name != "" {
			all = append(all, engine.Series{Name: name})
		}
	}
	for _, way := range f.Prefill {
		all = append(all, way.Tokens, way.Seconds)
		all = append(all, way.Cached...)
	}
	return all
}

// counts reports whether a sample belongs to the replica. Engines with
// priority scheduling repeat the load by priority; the series without one is
// the total. What describes the process names no model.
func (r *loadReader) counts(name string, s sample) bool {
	if r.model != "" {
		model, labelled := s.label("model_name")
		general := name == startFamily || name == r.families.CacheConfig
		if model != r.model && (labelled || !general) {
			return false
		}
	}
	if name == r.families.Running || name == r.families.Waiting {
		priority, _ := s.label("priority")
		return priority == ""
	}
	return true
}

// family sums up all samples under name.
func (found readings) family(name string) family {
	samples := found[name]
	if len(samples) == 0 {
		return family{}
	}
	f := family{seen: true, max: samples[0].value}
	for _, s := range samples {
		f.sum += s.value
		f.max = max(f.max, s.value)
	}
	return f
}

// total sums up a series; ok is false if the page has no sample of it. Samples
// that differ only in a rank within one copy of the model say the same thing
// several times, and the largest counts: SGLang writes some numbers from every
// scheduler.
func (found readings) total(series engine.Series) (sum float64, ok bool) {
	copies := make(map[string]float64)
	for _, s := range found[series.Name] {
		if !picks(series, s) {
			continue
		}
		key := s.copyKey()
		if value, seen := copies[key]; !seen || s.value > value {
			copies[key] = s.value
		}
	}
	for _, key := range slices.Sorted(maps.Keys(copies)) { // equal pages, equal sums
		sum += copies[key]
	}
	return sum, len(copies) > 0
}

func picks(series engine.Series, s sample) bool {
	if series.Label == "" {
		return true
	}
	value, _ := s.label(series.Label)
	return slices.Contains(strings.Split(series.Values, ","), value)
}

// innerRanks are labels of the ranks that serve one copy of the model together.
var innerRanks = []string{"tp_rank", "pp_rank", "moe_ep_rank"}

// copyKey is the sample's labels without the inner ranks.
func (s sample) copyKey() string {
	var key strings.Builder
	for name, value := range s.eachLabel {
		if !slices.Contains(innerRanks, name) {
			key.WriteString(name + "=" + value + "\n")
		}
	}
	return key.String()
}
