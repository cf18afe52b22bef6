package subscriber

import (
	"fmt"

	"github.com/VictoriaMetrics/metrics"

	"inferencecache.io/inferencecache/internal/engine"
	"inferencecache.io/inferencecache/internal/kv"
)

// meters are the handles of one subscriber's metrics, all labelled with its
// replica: several subscribers of one process share a set.
type meters struct {
	connects        *metrics.Counter
	disconnects     *metrics.Counter
	receivedBytes   *metrics.Counter
	queueDropped    *metrics.Counter
	lastSequence    *metrics.Gauge
	missing         *metrics.Counter
	undecodable     *metrics.Counter
	implausible     *metrics.Counter
	held            [3]*metrics.Gauge // by best tier: T1, T2, T3
	orphans         *metrics.Gauge
	orphansAttached *metrics.Counter
	orphansDropped  *metrics.Counter
	evicted         *metrics.Counter
	scrapes         *metrics.Counter
	scrapeErrors    *metrics.Counter

	bad     map[string]*metrics.Counter
	batches [verdictRestart + 1]*metrics.Counter
	events  map[eventKey]*metrics.Counter // by the stream's goroutine alone
	set     *metrics.Set
	replica string
}

type eventKey struct {
	status engine.Status
	reason engine.Reason
}

const metricPrefix = "inferencecache_subscriber_"

// newMeters registers the metrics of one replica. The gauges that look at live
// values are read from queue and state when the page is written.
func newMeters(set *metrics.Set, replica string, q *queue, state *machine) *meters {
	m := &meters{set: set, replica: replica, events: make(map[eventKey]*metrics.Counter)}
	m.connects = m.counter("connects_total", "")
	m.disconnects = m.counter("disconnects_total", "")
	m.receivedBytes = m.counter("received_bytes_total", "")
	m.queueDropped = m.counter("queue_dropped_batches_total", "")
	m.lastSequence = m.gauge("last_sequence", "")
	m.missing = m.counter("missing_batches_total", "")
	m.undecodable = m.counter("undecodable_batches_total", "")
	m.implausible = m.counter("implausible_timestamps_total", "")
	for i := range m.held {
		m.held[i] = m.gauge("held_blocks", fmt.Sprintf("tier=%q", kv.T1+kv.Tier(i)))
	}
	m.orphans = m.gauge("orphan_blocks", "")
	m.orphansAttached = m.counter("attached_orphans_total", "")
	m.orphansDropped = m.counter("dropped_orphans_total", "")
	m.evicted = m.counter("evicted_blocks_total", "")
	m.scrapes = m.counter("scrapes_total", "")
	m.scrapeErrors = m.counter("scrape_errors_total", "")
	m.bad = make(map[string]*metrics.Counter)
	for _, reason := range []string{badFrames, badSequence, badReserved, badEmpty, badTopic} {
		m.bad[reason] = m.counter("refused_messages_total", fmt.Sprintf("reason=%q", reason))
	}
	for v := range m.batches {
		m.batches[v] = m.counter("batches_total", fmt.Sprintf("verdict=%q", verdict(v)))
	}
	m.watch("queue_batches", "", func() float64 { n, _ := q.size(); return float64(n) })
	m.watch("queue_bytes", "", func() float64 { _, n := q.size(); return float64(n) })
	for _, s := range []trust{connecting, live, degraded} {
		m.watch("state", fmt.Sprintf("state=%q", s), func() float64 {
			if state.now() == s {
				return 1
			}
			return 0
		})
	}
	return m
}

// refused counts messages that are no batches, by one of the bad... reasons.
func (m *meters) refused(reason string) *metrics.Counter { return m.bad[reason] }

// event counts events by what became of them. Both labels are closed sets.
func (m *meters) event(status engine.Status, reason engine.Reason) *metrics.Counter {
	key := eventKey{status, reason}
	c, ok := m.events[key]
	if !ok {
		c = m.counter("events_total", fmt.Sprintf("verdict=%q,reason=%q", status, reason))
		m.events[key] = c
	}
	return c
}

func (m *meters) counter(what, labels string) *metrics.Counter {
	return m.set.GetOrCreateCounter(m.name(what, labels))
}

func (m *meters) gauge(what, labels string) *metrics.Gauge {
	return m.set.GetOrCreateGauge(m.name(what, labels), nil)
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

// outboxMeters are the handles of one outbox, labelled with its server too.
type outboxMeters struct {
	operations *metrics.Counter
	errors     *metrics.Counter
	resyncs    map[string]*metrics.Counter // by cause
	seconds    *metrics.Histogram          // of one report
	delay      *metrics.Histogram          // from the engine's time stamp to the server's ack
}

// outbox registers the metrics of the outbox o.
func (m *meters) outbox(o *outbox) *outboxMeters {
	server := fmt.Sprintf("server=%q", o.server)
	om := &outboxMeters{
		operations: m.counter("sent_operations_total", server),
		errors:     m.counter("report_errors_total", server),
		seconds:    m.set.GetOrCreateHistogram(m.name("report_seconds", server)),
		delay:      m.set.GetOrCreateHistogram(m.name("event_delay_seconds", server)),
		resyncs:    make(map[string]*metrics.Counter),
	}
	for _, cause := range []string{causeStart, causeOverflow, causeRestart} {
		om.resyncs[cause] = m.counter("resyncs_total", server+fmt.Sprintf(",cause=%q", cause))
	}
	m.watch("outbox_operations", server, func() float64 { n, _ := o.size(); return float64(n) })
	m.watch("outbox_bytes", server, func() float64 { _, n := o.size(); return float64(n) })
	return om
}
