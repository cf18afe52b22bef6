package subscriber

import (
	"fmt"
	"strings"

	"github.com/VictoriaMetrics/metrics"

	"inferencecache.io/inferencecache/internal/engine"
	"inferencecache.io/inferencecache/internal/kv"
)

// meters are the handles of one subscriber's metrics, all labelled with its
// replica: several subscribers of one process share a set.
type meters struct {
	held            [3]*metrics.Gauge // by best tier: T1, T2, T3
	orphans         *metrics.Gauge
	orphansAttached *metrics.Counter
	orphansDropped  *metrics.Counter
	evicted         *metrics.Counter
	scrapes         *metrics.Counter
	scrapeErrors    *metrics.Counter

	set     *metrics.Set
	replica string
}

const metricPrefix = "inferencecache_subscriber_"

// newMeters registers the metrics of one replica.
func newMeters(set *metrics.Set, replica string) *meters {
	m := &meters{set: set, replica: replica}
	for i := range m.held {
		m.held[i] = m.gauge("held_blocks", fmt.Sprintf("tier=%q", kv.T1+kv.Tier(i)))
	}
	m.orphans = m.gauge("orphan_blocks", "")
	m.orphansAttached = m.counter("attached_orphans_total", "")
	m.orphansDropped = m.counter("dropped_orphans_total", "")
	m.evicted = m.counter("evicted_blocks_total", "")
	m.scrapes = m.counter("scrapes_total", "")
	m.scrapeErrors = m.counter("scrape_errors_total", "")
	return m
}

func (m *meters) counter(what, labels string) *metrics.Counter {
	return m.set.GetOrCreateCounter(m.name(what, labels))
}

func (m *meters) gauge(what, labels string) *metrics.Gauge {
	return m.set.GetOrCreateGauge(m.name(what, labels), nil)
}

// delayBuckets tell a server or an event that is on time from one that lags, in
// seconds.
var delayBuckets = []float64{0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 10, 60}

// histogram has fixed buckets, which Prometheus can take quantiles of.
func (m *meters) histogram(what, labels string) *metrics.PrometheusHistogram {
	return m.set.GetOrCreatePrometheusHistogramExt(m.name(what, labels), delayBuckets)
}

// lookups counts those of a server's name that failed.
func (m *meters) lookups(server string) *metrics.Counter {
	return m.counter("server_lookup_errors_total", fmt.Sprintf("server=%q", server))
}

// watch registers a gauge that is read from f when the page is written, in
// place of one that an earlier subscriber of the same replica left behind.
func (m *meters) watch(what, labels string, f func() float64) {
	name := m.name(what, labels)
	m.set.UnregisterMetric(name)
	m.set.NewGauge(name, f)
}

// name is the full name of a metric with the replica and further labels.
func (m *meters) name(what, labels string) string {
	if labels != "" {
		labels = "," + labels
	}
	return fmt.Sprintf("%s%s{replica=%q%s}", metricPrefix, what, m.replica, labels)
}

// sourceMeters are the handles of one event source, labelled with its rank too.
type sourceMeters struct {
	*meters
	connects      *metrics.Counter
	disconnects   *metrics.Counter
	receivedBytes *metrics.Counter
	queueDropped  *metrics.Counter
	lastSequence  *metrics.Gauge
	missing       *metrics.Counter // batches, when a gap was seen
	lost          *metrics.Counter // batches, for good
	tail          *metrics.Counter // batches that only a probe brought to light
	replayed      *metrics.Counter // batches
	refuted       *metrics.Counter // blocks that a snapshot did not have
	unheard       *metrics.Gauge   // blocks of the last snapshot that are not known
	undecodable   *metrics.Counter
	implausible   *metrics.Counter
	drifts        *metrics.Counter // starts over because more was held than fits

	bad       map[string]*metrics.Counter
	batches   [verdicts]*metrics.Counter
	replays   [replayOutcomes]*metrics.Counter // rounds
	restarts  map[string]*metrics.Counter      // by cause
	snapshots map[string]*metrics.Counter      // by outcome
	events    map[eventKey]*metrics.Counter    // by the stream's goroutine alone
	label     string
}

type eventKey struct {
	status engine.Status
	reason engine.Reason
}

// source registers the metrics of one source. The gauges that look at live
// values are read from queue and state when the page is written.
func (m *meters) source(rank int, q *queue, state *machine) *sourceMeters {
	label := fmt.Sprintf("rank=\"%d\"", rank)
	s := &sourceMeters{meters: m, label: label, events: make(map[eventKey]*metrics.Counter)}
	s.connects = m.counter("connects_total", label)
	s.disconnects = m.counter("disconnects_total", label)
	s.receivedBytes = m.counter("received_bytes_total", label)
	s.queueDropped = m.counter("queue_dropped_batches_total", label)
	s.lastSequence = m.gauge("last_sequence", label)
	s.missing = m.counter("missing_batches_total", label)
	s.lost = m.counter("lost_batches_total", label)
	s.tail = m.counter("tail_lost_batches_total", label)
	s.replayed = m.counter("replayed_batches_total", label)
	s.refuted = m.counter("refuted_blocks_total", label)
	s.unheard = m.gauge("snapshot_unknown_blocks", label)
	s.snapshots = s.by("snapshots_total", "outcome", "applied", "failed", "foreign", "late")
	s.undecodable = m.counter("undecodable_batches_total", label)
	s.implausible = m.counter("implausible_timestamps_total", label)
	s.drifts = m.counter("drift_resets_total", label)
	s.bad = s.by("refused_messages_total", "reason", badFrames, badSequence, badReserved, badEmpty, badTopic)
	s.restarts = s.by("engine_restarts_total", "cause",
		causeSequence, causeReconnect, causeUnproven, causeEpoch, causeMetrics, causeAway)
	for v := range s.batches {
		s.batches[v] = m.counter("batches_total", fmt.Sprintf("%s,verdict=%q", label, verdict(v)))
	}
	for o := range s.replays {
		s.replays[o] = m.counter("replay_rounds_total", fmt.Sprintf("%s,outcome=%q", label, outcome(o)))
	}
	m.watch("queue_batches", label, func() float64 { n, _ := q.size(); return float64(n) })
	m.watch("queue_bytes", label, func() float64 { _, n := q.size(); return float64(n) })
	for is := range states {
		m.watch("state", fmt.Sprintf("%s,state=%q", label, is), func() float64 {
			if state.now() == is {
				return 1
			}
			return 0
		})
	}
	return s
}

// forget takes the source's metrics off the page.
func (s *sourceMeters) forget() {
	own := s.name("", s.label)
	own = own[len(metricPrefix) : len(own)-1] // {replica="...",rank="..."
	for _, name := range s.set.ListMetricNames() {
		if strings.HasPrefix(name, metricPrefix) && (strings.Contains(name, own+"}") || strings.Contains(name, own+",")) {
			s.set.UnregisterMetric(name)
		}
	}
}

// by makes a counter for each value of a label.
func (s *sourceMeters) by(what, name string, values ...string) map[string]*metrics.Counter {
	all := make(map[string]*metrics.Counter, len(values))
	for _, value := range values {
		all[value] = s.counter(what, fmt.Sprintf("%s,%s=%q", s.label, name, value))
	}
	return all
}

// refused counts messages that are no batches, by one of the bad... reasons.
func (s *sourceMeters) refused(reason string) *metrics.Counter { return s.bad[reason] }

// event counts events by what became of them. Both labels are closed sets.
func (s *sourceMeters) event(status engine.Status, reason engine.Reason) *metrics.Counter {
	key := eventKey{status, reason}
	c, ok := s.events[key]
	if !ok {
		c = s.counter("events_total", fmt.Sprintf("%s,verdict=%q,reason=%q", s.label, status, reason))
		s.events[key] = c
	}
	return c
}

// outboxMeters are the handles of one outbox, labelled with its server too.
type outboxMeters struct {
	*meters
	label      string
	operations *metrics.Counter
	heartbeats *metrics.Counter // jobs without changes
	errors     *metrics.Counter
	resyncs    map[string]*metrics.Counter  // by cause
	seconds    *metrics.PrometheusHistogram // of one report
	delay      *metrics.PrometheusHistogram // from the engine's time stamp to the server's ack
}

// outbox registers the metrics of the outbox o.
func (m *meters) outbox(o *outbox) *outboxMeters {
	server := fmt.Sprintf("server=%q", o.server)
	om := &outboxMeters{
		meters: m, label: server,
		operations: m.counter("sent_operations_total", server),
		heartbeats: m.counter("heartbeats_total", server),
		errors:     m.counter("report_errors_total", server),
		seconds:    m.histogram("report_seconds", server),
		delay:      m.histogram("event_delay_seconds", server),
		resyncs:    make(map[string]*metrics.Counter),
	}
	for _, cause := range resyncCauses {
		om.resyncs[cause] = m.counter("resyncs_total", server+fmt.Sprintf(",cause=%q", cause))
	}
	m.watch("outbox_operations", server, func() float64 { n, _ := o.size(); return float64(n) })
	m.watch("outbox_bytes", server, func() float64 { _, n := o.size(); return float64(n) })
	return om
}

// forget takes the metrics of an outbox off the page: addresses come and go
// without bound.
func (om *outboxMeters) forget() {
	for _, what := range []string{"sent_operations_total", "heartbeats_total", "report_errors_total", "report_seconds",
		"event_delay_seconds", "outbox_operations", "outbox_bytes"} {
		om.set.UnregisterMetric(om.name(what, om.label))
	}
	for _, cause := range resyncCauses {
		om.set.UnregisterMetric(om.name("resyncs_total", om.label+fmt.Sprintf(",cause=%q", cause)))
	}
}
