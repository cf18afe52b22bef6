// Package tracing sends spans to a collector of OpenTelemetry, by OTLP in
// protobuf over HTTP. Who makes spans does not wait for it: what a collector
// does not take in time is dropped and counted. It knows nothing of what spans
// are about.
//
// Sampling, ids and limits are the SDK's, which adds OTEL_RESOURCE_ATTRIBUTES.
// The way out is our own: the SDK's exporter links all of gRPC, and its queue
// does not tell what it dropped.
package tracing

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"time"

	"github.com/VictoriaMetrics/metrics"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/sdk/resource"
	sdk "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/trace"
)

const (
	queueSpans  = 4096 // that wait to be sent; more are dropped
	batchSpans  = 512
	batchEvery  = time.Second
	sendTimeout = 5 * time.Second
	stopTimeout = time.Second // for what is left when the process ends
	// maxValue bounds attribute values, which may be names that clients chose.
	maxValue      = 256
	maxAttributes = 64
)

// Exporter sends the spans of its tracer. Safe for concurrent use.
type Exporter struct {
	url      string
	log      *slog.Logger
	client   *http.Client
	provider *sdk.TracerProvider
	queue    chan sdk.ReadOnlySpan // full: spans are dropped; never closed

	sent, dropped, failures *metrics.Counter
	failing                 bool // of Run alone
}

var _ sdk.SpanProcessor = (*Exporter)(nil)

// New returns an exporter to url that traces a share of what has no parent. The
// attributes say what process spans are of. Nothing is sent before Run.
func New(url string, sample float64, about []attribute.KeyValue, log *slog.Logger, set *metrics.Set) *Exporter {
	e := &Exporter{
		url:      url,
		log:      log,
		client:   &http.Client{Timeout: sendTimeout, Transport: &http.Transport{Proxy: http.ProxyFromEnvironment}},
		queue:    make(chan sdk.ReadOnlySpan, queueSpans),
		sent:     set.NewCounter(`inferencecache_trace_spans_total{result="sent"}`),
		dropped:  set.NewCounter(`inferencecache_trace_spans_total{result="dropped"}`),
		failures: set.NewCounter("inferencecache_trace_export_failures_total"),
	}
	e.provider = sdk.NewTracerProvider(
		sdk.WithSampler(sdk.ParentBased(sdk.TraceIDRatioBased(sample))),
		sdk.WithResource(resource.NewSchemaless(about...)),
		sdk.WithRawSpanLimits(sdk.SpanLimits{AttributeValueLengthLimit: maxValue, AttributeCountLimit: maxAttributes}),
		sdk.WithSpanProcessor(e),
	)
	return e
}

// Tracer makes the spans.
func (e *Exporter) Tracer() trace.Tracer {
	return e.provider.Tracer("inferencecache.io/inferencecache")
}

// OnStart is the SDK's; nothing happens.
func (e *Exporter) OnStart(context.Context, sdk.ReadWriteSpan) {}

// OnEnd takes a span to be sent, or drops it if too many wait.
func (e *Exporter) OnEnd(s sdk.ReadOnlySpan) {
	if !s.SpanContext().IsSampled() {
		return
	}
	select {
	case e.queue <- s:
	default:
		e.dropped.Inc()
	}
}

// Shutdown is the SDK's; Run ends by its context.
func (e *Exporter) Shutdown(context.Context) error { return nil }

// ForceFlush is the SDK's; Run sends every second.
func (e *Exporter) ForceFlush(context.Context) error { return nil }

// Run sends batches until ctx ends, and then what is left.
func (e *Exporter) Run(ctx context.Context) error {
	defer e.client.CloseIdleConnections()
	ticker := time.NewTicker(batchEvery)
	defer ticker.Stop()
	batch := make([]sdk.ReadOnlySpan, 0, batchSpans)
	flush := func(ctx context.Context) {
		e.deliver(ctx, batch)
		clear(batch)
		batch = batch[:0]
	}
	for {
		select {
		case <-ctx.Done():
			last, cancel := context.WithTimeout(context.WithoutCancel(ctx), stopTimeout)
			defer cancel()
			for {
				select {
				case s := <-e.queue:
					if batch = append(batch, s); len(batch) == batchSpans {
						flush(last)
					}
				default:
					flush(last)
					return nil
				}
			}
		case s := <-e.queue:
			if batch = append(batch, s); len(batch) == batchSpans {
				flush(ctx)
			}
		case <-ticker.C:
			flush(ctx)
		}
	}
}

// deliver sends a batch once: a collector that cannot take it now gets the next
// ones, and meanwhile the queue bounds what is kept.
func (e *Exporter) deliver(ctx context.Context, batch []sdk.ReadOnlySpan) {
	if len(batch) == 0 {
		return
	}
	rejected, err := e.post(ctx, batch)
	if err != nil {
		rejected = len(batch)
		e.failures.Inc()
	}
	e.dropped.Add(rejected)
	e.sent.Add(len(batch) - rejected)
	if failing := err != nil; failing != e.failing {
		e.failing = failing
		if failing {
			e.log.Warn("collector takes no spans; they are dropped until it does", "url", e.url, "err", err)
		} else {
			e.log.Info("collector takes spans again", "url", e.url)
		}
	}
}

// post returns how many spans the collector says it has rejected.
func (e *Exporter) post(ctx context.Context, batch []sdk.ReadOnlySpan) (rejected int, err error) {
	body, err := encode(batch)
	if err != nil {
		return 0, fmt.Errorf("encode spans: %w", err)
	}
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, e.url, body)
	if err != nil {
		return 0, err
	}
	request.Header.Set("Content-Type", "application/x-protobuf")
	response, err := e.client.Do(request)
	if err != nil {
		return 0, err
	}
	defer response.Body.Close()
	said, err := io.ReadAll(io.LimitReader(response.Body, 64<<10))
	if err != nil {
		return 0, err
	}
	if response.StatusCode/100 != 2 {
		return 0, fmt.Errorf("status %s", response.Status)
	}
	return min(len(batch), rejections(said)), nil
}
