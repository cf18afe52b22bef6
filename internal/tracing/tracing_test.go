package tracing

import (
	"context"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/VictoriaMetrics/metrics"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/trace"
	collector "go.opentelemetry.io/proto/slim/otlp/collector/trace/v1"
	pbtrace "go.opentelemetry.io/proto/slim/otlp/trace/v1"
	"go.uber.org/goleak"
	"google.golang.org/protobuf/proto"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// receiver is a collector that keeps what it gets.
type receiver struct {
	*httptest.Server
	mu       sync.Mutex
	got      []*pbtrace.Span
	resource map[string]string
	status   int
	answer   []byte
}

func newReceiver(t *testing.T) *receiver {
	t.Helper()
	r := &receiver{status: http.StatusOK, resource: map[string]string{}}
	r.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, q *http.Request) {
		body, err := io.ReadAll(q.Body)
		var export collector.ExportTraceServiceRequest
		if err == nil {
			err = proto.Unmarshal(body, &export)
		}
		if err != nil || q.Header.Get("Content-Type") != "application/x-protobuf" || q.URL.Path != "/v1/traces" {
			t.Errorf("%s of %q: %v", q.URL, q.Header.Get("Content-Type"), err)
		}
		r.mu.Lock()
		defer r.mu.Unlock()
		for _, group := range export.GetResourceSpans() {
			for _, kv := range group.GetResource().GetAttributes() {
				r.resource[kv.GetKey()] = kv.GetValue().GetStringValue()
			}
			for _, scope := range group.GetScopeSpans() {
				r.got = append(r.got, scope.GetSpans()...)
			}
		}
		w.WriteHeader(r.status)
		_, _ = w.Write(r.answer)
	}))
	t.Cleanup(r.Close)
	return r
}

func newExporter(url string, sample float64) *Exporter {
	return New(url+"/v1/traces", sample, []attribute.KeyValue{attribute.String("service.name", "test")}, slog.New(slog.DiscardHandler), metrics.NewSet())
}

// drain runs an exporter that is told to end, until all is sent or dropped.
func drain(t *testing.T, e *Exporter) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := e.Run(ctx); err != nil {
		t.Error(err)
	}
}

func expectCounts(t *testing.T, e *Exporter, sent, dropped, failures uint64) {
	t.Helper()
	if s, d, f := e.sent.Get(), e.dropped.Get(), e.failures.Get(); s != sent || d != dropped || f != failures {
		t.Errorf("%d sent, %d dropped, %d failures, want %d, %d and %d", s, d, f, sent, dropped, failures)
	}
}

// parent is a caller's span; sampled says whether it is traced.
func parent(ctx context.Context, sampled bool) context.Context {
	c := trace.SpanContextConfig{TraceID: trace.TraceID{1, 2, 3}, SpanID: trace.SpanID{4, 5, 6}, Remote: true}
	if sampled {
		c.TraceFlags = trace.FlagsSampled
	}
	return trace.ContextWithSpanContext(ctx, trace.NewSpanContext(c))
}

func TestSpansArriveAsTheyWereMade(t *testing.T) {
	r := newReceiver(t)
	e := newExporter(r.URL, 0)
	start := time.Now().Add(-time.Second)
	_, s := e.Tracer().Start(parent(t.Context(), true), "work", trace.WithTimestamp(start), trace.WithSpanKind(trace.SpanKindServer))
	s.SetAttributes(attribute.String("text", strings.Repeat("x", maxValue+1)), attribute.Int("number", 7), attribute.Bool("true", true), attribute.Float64("half", 0.5))
	s.End()
	drain(t, e)
	expectCounts(t, e, 1, 0, 0)
	if len(r.got) != 1 {
		t.Fatalf("%d spans", len(r.got))
	}
	got, in := r.got[0], s.SpanContext()
	if id, traceID := in.SpanID(), in.TraceID(); string(got.GetSpanId()) != string(id[:]) || string(got.GetTraceId()) != string(traceID[:]) {
		t.Errorf("ids %x %x", got.GetTraceId(), got.GetSpanId())
	}
	if string(got.GetParentSpanId()) != "\x04\x05\x06\x00\x00\x00\x00\x00" || got.GetFlags() != 0x301 || got.GetKind() != pbtrace.Span_SPAN_KIND_SERVER ||
		got.GetName() != "work" || got.GetStartTimeUnixNano() != uint64(start.UnixNano()) || got.GetEndTimeUnixNano() <= got.GetStartTimeUnixNano() {
		t.Errorf("span %v", got)
	}
	values := map[string]any{}
	for _, kv := range got.GetAttributes() {
		switch v := kv.GetValue(); kv.GetKey() {
		case "text":
			values["text"] = len(v.GetStringValue())
		case "number":
			values["number"] = v.GetIntValue()
		case "true":
			values["true"] = v.GetBoolValue()
		case "half":
			values["half"] = v.GetDoubleValue()
		}
	}
	if values["text"] != maxValue || values["number"] != int64(7) || values["true"] != true || values["half"] != 0.5 {
		t.Errorf("attributes %v", values)
	}
	if r.resource["service.name"] != "test" {
		t.Errorf("resource %v", r.resource)
	}
}

func TestTheCallerDecidesWhatIsTraced(t *testing.T) {
	for _, v := range []struct {
		name   string
		sample float64
		ctx    context.Context
		want   uint64
	}{
		{"no caller, share 0", 0, t.Context(), 0},
		{"no caller, share 1", 1, t.Context(), 1},
		{"traced by the caller, share 0", 0, parent(t.Context(), true), 1},
		{"not traced by the caller, share 1", 1, parent(t.Context(), false), 0},
	} {
		t.Run(v.name, func(t *testing.T) {
			e := newExporter(newReceiver(t).URL, v.sample)
			_, s := e.Tracer().Start(v.ctx, "work")
			s.End()
			drain(t, e)
			expectCounts(t, e, v.want, 0, 0)
		})
	}
}

func TestSpansThatCannotBeSentAreDroppedAndCounted(t *testing.T) {
	away := httptest.NewServer(http.NotFoundHandler())
	away.Close()
	refusing := newReceiver(t)
	refusing.status = http.StatusServiceUnavailable
	for name, url := range map[string]string{"away": away.URL, "refusing": refusing.URL} {
		t.Run(name, func(t *testing.T) {
			e := newExporter(url, 1)
			for range 2 {
				_, s := e.Tracer().Start(t.Context(), "work")
				s.End()
			}
			drain(t, e)
			expectCounts(t, e, 0, 2, 1)
		})
	}
}

func TestAFullQueueDropsAtOnce(t *testing.T) {
	e := newExporter("http://127.0.0.1:1", 1) // nobody runs it
	for range queueSpans + 3 {
		_, s := e.Tracer().Start(t.Context(), "work")
		s.End()
	}
	expectCounts(t, e, 0, 3, 0)
}

func TestWhatACollectorRejectsIsCounted(t *testing.T) {
	r := newReceiver(t)
	answer, err := proto.Marshal(&collector.ExportTraceServiceResponse{PartialSuccess: &collector.ExportTracePartialSuccess{RejectedSpans: 1}})
	if err != nil {
		t.Fatal(err)
	}
	r.answer = answer
	e := newExporter(r.URL, 1)
	for range 3 {
		_, s := e.Tracer().Start(t.Context(), "work")
		s.End()
	}
	drain(t, e)
	expectCounts(t, e, 2, 1, 0)
}

func TestEndpoints(t *testing.T) {
	for _, v := range []struct {
		endpoint, traces, all, want, wrong string
	}{
		{"", "http://t:1", "http://a:1", "", ""}, // the environment alone turns nothing on
		{"http://c:4318", "http://t:1/x", "http://a:1", "http://c:4318/v1/traces", ""},
		{"http://c:4318/", "", "", "http://c:4318/v1/traces", ""},
		{"env", "http://t:1/x", "http://a:1", "http://t:1/x", ""},
		{"env", "", "http://a:1/base/", "http://a:1/base/v1/traces", ""},
		{"env", "", "", "", "neither"},
		{"env", "", "a:1", "", "OTEL_EXPORTER_OTLP_ENDPOINT"},
		{"c:4318", "", "", "", "--otlp-endpoint"},
		{"grpc://c:4317", "", "", "", "--otlp-endpoint"},
	} {
		c := Config{Endpoint: v.endpoint, Sample: 1}
		got, err := "", c.Validate()
		if err == nil {
			got, err = c.URL(func(name string) string {
				return map[string]string{"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": v.traces, "OTEL_EXPORTER_OTLP_ENDPOINT": v.all}[name]
			})
		}
		if v.wrong != "" && (err == nil || !strings.Contains(err.Error(), v.wrong)) || v.wrong == "" && (err != nil || got != v.want) {
			t.Errorf("%+v: %q, %v", v, got, err)
		}
	}
	for _, sample := range []float64{-0.1, 1.1} {
		if c := (Config{Sample: sample}); c.Validate() == nil {
			t.Errorf("a share of %v", sample)
		}
	}
}
