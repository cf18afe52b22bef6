package server

import (
	"fmt"
	"io"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/VictoriaMetrics/metrics"

	"inferencecache.io/inferencecache/index"
	"inferencecache.io/inferencecache/internal/journal"
	"inferencecache.io/inferencecache/internal/obs"
)

// latencyBuckets are the published bounds of the lookup histogram, in seconds.
var latencyBuckets = []float64{0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1}

// ageBuckets tell a healthy stream (well below a second) from one that lags.
var ageBuckets = []float64{0.01, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 60, 600}

// reasons is the whole vocabulary of LookupRoute, so that counters can be an
// array.
var reasons = []string{prefixMatch, tenantHot, affinityHint, loadHint, shadowed, noHint, requiresChain, timedOut, unknownTenant, unknownModel, unknownScheme}

// meters holds the server's metrics. What clients name (models, tenants) is
// bounded by obs.Labels; everything else is a fixed set.
type meters struct {
	set     *metrics.Set
	up      *metrics.Gauge
	updates *metrics.Counter
	asked   []atomic.Int64               // lookups by reason, over all models
	age     *metrics.PrometheusHistogram // of updates on arrival, by their stamps

	models  *obs.Labels
	tenants *obs.Labels
	byModel sync.Map // shown model -> *modelMeters

	dropped      map[string]*metrics.Counter // by reason
	refused      map[string]*metrics.Counter // by reason
	operations   map[string]*metrics.Counter // by effect on an entry
	deaths       map[string]*metrics.Counter // of replicas, by cause
	outcomes     map[string]*metrics.Counter // reported, by what became of them
	promised     *metrics.Counter            // tokens that replicas which served were said to hold
	found        *metrics.Counter            // of these, those that their engines found
	unforeseen   *metrics.Counter            // tokens found beyond
	slowReaders  *metrics.Counter
	sweepSeconds *metrics.PrometheusHistogram
	evictions    sync.Map // series name -> *metrics.Counter, made at first use

	mu    sync.Mutex // guards shown
	shown map[string]bool
}

type modelMeters struct {
	calls   []*lazyCounter // by reason, then hint used or not
	latency *metrics.PrometheusHistogram
}

// lazyCounter has no series until it counts: absent is not zero here.
type lazyCounter struct {
	once    sync.Once
	name    string
	counter *metrics.Counter
}

func (c *lazyCounter) inc(set *metrics.Set) {
	c.once.Do(func() { c.counter = set.GetOrCreateCounter(c.name) })
	c.counter.Inc()
}

func newMeters(set *metrics.Set, s *Server) *meters {
	m := &meters{
		set:          set,
		up:           set.NewGauge("inferencecache_server_up", nil),
		updates:      set.NewCounter("inferencecache_ingest_updates_total"),
		asked:        make([]atomic.Int64, len(reasons)),
		age:          set.NewPrometheusHistogramExt("inferencecache_ingest_age_seconds", ageBuckets),
		models:       obs.NewLabels(s.config.MaxModelLabels),
		tenants:      obs.NewLabels(s.config.MaxModelLabels),
		dropped:      counters(set, "inferencecache_ingest_dropped_total", "reason", drops),
		refused:      counters(set, "inferencecache_lookup_refused_inputs_total", "reason", refusals),
		operations:   counters(set, "inferencecache_ingest_entries_total", "effect", []string{"added", "refreshed", "removed"}),
		deaths:       counters(set, "inferencecache_replica_deaths_total", "cause", []string{causeSilence, causeGoodbye}),
		outcomes:     counters(set, "inferencecache_outcomes_total", "result", outcomes),
		promised:     set.NewCounter("inferencecache_outcome_promised_tokens_total"),
		found:        set.NewCounter("inferencecache_outcome_found_tokens_total"),
		unforeseen:   set.NewCounter("inferencecache_outcome_unforeseen_tokens_total"),
		slowReaders:  set.NewCounter(`inferencecache_event_streams_cut_total{reason="slow_reader"}`),
		sweepSeconds: set.NewPrometheusHistogramExt("inferencecache_index_sweep_seconds", latencyBuckets),
		shown:        map[string]bool{},
	}
	tls := 0.0
	if s.config.TLSCertFile != "" {
		tls = 1
	}
	set.NewGauge("inferencecache_server_grpc_tls_enabled", nil).Set(tls)
	set.NewGauge("inferencecache_event_streams", func() float64 { return float64(s.events.readers.Load()) })
	set.NewGauge("inferencecache_replicas_with_stats", func() float64 { return float64(s.replicas.len()) })
	set.NewGauge("inferencecache_replicas_quarantined", func() float64 { return float64(s.fleets.quarantined()) })
	set.NewGauge("inferencecache_index_holder_entries", func() float64 { return float64(s.index.Counts().Entries) })
	set.NewGauge("inferencecache_index_bytes", func() float64 { return float64(s.index.Counts().Bytes) })
	set.NewGauge("inferencecache_index_bytes_limit", nil).Set(float64(s.config.MemoryBytes))
	set.NewGauge("inferencecache_policy_version", func() float64 { return float64(s.policies.Load().Version) })
	set.NewGauge("inferencecache_policy_age_seconds", func() float64 {
		if adopted := s.policies.Load().Adopted; !adopted.IsZero() {
			return time.Since(adopted).Seconds()
		}
		return -1 // never pushed
	})
	set.RegisterMetricsWriter(func(w io.Writer) {
		m.writeEntries(w, s.index.Models())
		writeStates(w, s.replicas.states())
	})
	return m
}

// journal shows how a journal fares.
func (m *meters) journal(j *journal.Journal) {
	m.set.RegisterMetricsWriter(func(w io.Writer) {
		metrics.WriteCounterUint64(w, `inferencecache_journal_records_total{result="written"}`, uint64(j.Written()))
		metrics.WriteCounterUint64(w, `inferencecache_journal_records_total{result="dropped"}`, uint64(j.Dropped()))
		metrics.WriteCounterUint64(w, "inferencecache_journal_write_failures_total", uint64(j.Failures()))
	})
}

func counters(set *metrics.Set, name, label string, values []string) map[string]*metrics.Counter {
	by := make(map[string]*metrics.Counter, len(values))
	for _, v := range values {
		by[v] = set.NewCounter(fmt.Sprintf("%s{%s=%q}", name, label, v))
	}
	return by
}

func (m *meters) setUp(up bool) {
	v := 0.0
	if up {
		v = 1
	}
	m.up.Set(v)
}

// lookup counts one LookupRoute call.
func (m *meters) lookup(model, reason string, hinted bool, took time.Duration) {
	mm := m.model(m.models.Value(model))
	i := slices.Index(reasons, reason)
	m.asked[i].Add(1)
	i *= 2
	if hinted {
		i++
	}
	mm.calls[i].inc(m.set)
	mm.latency.Update(took.Seconds())
}

// byReason is how many lookups there were, without those that never were.
func (m *meters) byReason() map[string]int64 {
	by := map[string]int64{}
	for i := range m.asked {
		if n := m.asked[i].Load(); n > 0 {
			by[reasons[i]] = n
		}
	}
	return by
}

func (m *meters) model(shown string) *modelMeters {
	if mm, ok := m.byModel.Load(shown); ok {
		return mm.(*modelMeters)
	}
	mm := &modelMeters{latency: m.set.GetOrCreatePrometheusHistogramExt(
		fmt.Sprintf("inferencecache_lookup_route_latency_seconds{model=%q}", shown), latencyBuckets)}
	for _, reason := range reasons {
		for _, used := range []bool{false, true} {
			mm.calls = append(mm.calls, &lazyCounter{name: fmt.Sprintf(
				`inferencecache_lookup_route_calls_total{hint_used="%t",model=%q,reason_code=%q}`, used, shown, reason)})
		}
	}
	actual, _ := m.byModel.LoadOrStore(shown, mm)
	return actual.(*modelMeters)
}

func (m *meters) drop(reason string, n int) { m.dropped[reason].Add(n) }

func (m *meters) refusedInput(reason string) { m.refused[reason].Inc() }

// applied counts what the index did with a batch or a sweep.
func (m *meters) applied(a index.Applied) {
	m.operations["added"].Add(a.Added)
	m.operations["refreshed"].Add(a.Refreshed)
	m.operations["removed"].Add(a.Removed)
	m.dropped[dropUnknownRemove].Add(a.Unknown)
	m.dropped[dropStale].Add(a.Stale)
	m.dropped[dropNoRoom].Add(a.Refused)
	for _, e := range a.Evicted {
		m.evicted(e)
	}
}

// evicted counts in the contract's units: distinct keys for a quota, entries
// for everything else.
func (m *meters) evicted(e index.Eviction) {
	if e.Reason == index.OverKeys {
		m.count(fmt.Sprintf(`inferencecache_tenant_evictions_total{reason="over_entries",tenant_id=%q}`, m.tenants.Value(e.Tenant)), e.Keys)
		return
	}
	algorithm, reason := "lru", "ttl"
	if e.LFU {
		algorithm = "lfu"
	}
	if e.Reason == index.OverCap {
		reason = "cap"
	}
	m.count(fmt.Sprintf(`inferencecache_index_evictions_total{algorithm=%q,reason=%q}`, algorithm, reason), e.Entries)
}

func (m *meters) count(series string, n int) {
	counter, ok := m.evictions.Load(series)
	if !ok {
		counter, _ = m.evictions.LoadOrStore(series, m.set.GetOrCreateCounter(series))
	}
	counter.(*metrics.Counter).Add(n)
}

// writeEntries shows distinct keys by model. A model shown once stays, at 0
// when it has drained: absent would read as "unknown".
func (m *meters) writeEntries(w io.Writer, models []index.ModelCount) {
	keys := map[string]int64{}
	for _, c := range models {
		keys[m.models.Value(c.Model)] += c.Keys
	}
	m.mu.Lock()
	for model := range keys {
		m.shown[model] = true
	}
	for model := range m.shown {
		keys[model] += 0
	}
	m.mu.Unlock()
	for _, model := range sortedKeys(keys) {
		metrics.WriteGaugeUint64(w, fmt.Sprintf("inferencecache_index_entries{model=%q}", model), uint64(keys[model]))
	}
}

// streamStates are what replicas can say of their streams, as label values by
// number; a number of the future counts as the first.
var streamStates = []string{"unknown", "connecting", "bootstrapping", "exact", "degraded", "stale"}

// writeStates shows how many replicas say what of their streams.
func writeStates(w io.Writer, count []int) {
	for state, name := range streamStates {
		metrics.WriteGaugeUint64(w, fmt.Sprintf("inferencecache_replicas{state=%q}", name), uint64(count[state]))
	}
}

func sortedKeys(m map[string]int64) []string {
	keys := make([]string, 0, len(m))
	for k := range m {
		keys = append(keys, k)
	}
	slices.Sort(keys)
	return keys
}
