package roles

import (
	"bytes"
	"io"
	"net/http"
	"net/http/httptest"
	"regexp"
	"strings"
	"sync"
	"testing"

	collector "go.opentelemetry.io/proto/slim/otlp/collector/trace/v1"
	pbtrace "go.opentelemetry.io/proto/slim/otlp/trace/v1"
	"google.golang.org/protobuf/proto"
)

// spans is a collector: what it got, decoded and as bytes.
type spans struct {
	mu  sync.Mutex
	got []*pbtrace.Span
	raw []byte
}

func (s *spans) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, _ := io.ReadAll(r.Body)
	var export collector.ExportTraceServiceRequest
	if err := proto.Unmarshal(body, &export); err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.raw = append(s.raw, body...)
	for _, group := range export.GetResourceSpans() {
		for _, scope := range group.GetScopeSpans() {
			s.got = append(s.got, scope.GetSpans()...)
		}
	}
}

// named are the spans of the lookup with a request id.
func (s *spans) named(request string) (found []*pbtrace.Span) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, span := range s.got {
		if attributes(span)["inferencecache.request_id"] == request {
			found = append(found, span)
		}
	}
	return found
}

func attributes(span *pbtrace.Span) map[string]any {
	values := map[string]any{}
	for _, kv := range span.GetAttributes() {
		switch v := kv.GetValue(); {
		case v.GetStringValue() != "":
			values[kv.GetKey()] = v.GetStringValue()
		case v.GetIntValue() != 0:
			values[kv.GetKey()] = v.GetIntValue()
		default:
			values[kv.GetKey()] = v.GetBoolValue()
		}
	}
	return values
}

// A lookup with a traceparent becomes a span below the caller's, which says what
// was decided and nothing of the prompt; a collector that goes away is not felt.
func TestLookupsAreTraced(t *testing.T) {
	got := &spans{}
	receiver := httptest.NewServer(got)
	defer receiver.Close()
	server, _, engines, stop := started(t, "--otlp-endpoint="+receiver.URL)
	defer stop()

	const prompt = "A prompt about travels that is longer than sixty-four tokens of one byte each, so that it is matched."
	const body = `{"tenantId":"demo","modelId":"sim","hashScheme":"vllm","promptText":"` + prompt + `",`
	const lookup = "/inferencecache.v1alpha1.InferenceCache/LookupRoute"
	ask := func(request, traceparent string) string {
		t.Helper()
		q, err := http.NewRequestWithContext(t.Context(), http.MethodPost, server+lookup, strings.NewReader(body+`"requestId":"`+request+`"}`))
		if err != nil {
			t.Fatal(err)
		}
		q.Header.Set("Content-Type", "application/json")
		if traceparent != "" {
			q.Header.Set("traceparent", traceparent)
		}
		response, err := http.DefaultClient.Do(q)
		if err != nil {
			t.Fatal(err)
		}
		defer response.Body.Close()
		text, err := io.ReadAll(response.Body)
		if err != nil {
			t.Fatal(err)
		}
		return string(text)
	}
	post(t, engines[1]+"/v1/completions", `{"model":"sim","prompt":"`+prompt+`","max_tokens":1}`)
	eventually(t, "a match", func() bool { // by lookups that leave no trace
		return strings.Contains(post(t, server+lookup, body+`"selfCheck":true}`), "PREFIX_MATCH")
	})

	ask("traced", "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01")
	ask("untraced", "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-00")
	ask("root", "")
	eventually(t, "the span", func() bool { return len(got.named("traced")) == 1 })
	span := got.named("traced")[0]
	if string(span.GetTraceId()) != "\x0a\xf7\x65\x19\x16\xcd\x43\xdd\x84\x48\xeb\x21\x1c\x80\x31\x9c" || string(span.GetParentSpanId()) != "\xb7\xad\x6b\x71\x69\x20\x33\x31" ||
		span.GetName() != "LookupRoute" || span.GetEndTimeUnixNano() <= span.GetStartTimeUnixNano() {
		t.Errorf("span %v", span)
	}
	said := attributes(span)
	for key, want := range map[string]any{
		"tenant": "demo", "model": "sim", "hash_scheme": "vllm", "input": "prompt_text", "profile": "Cost", "reason_code": "PREFIX_MATCH",
		"hint_used": true, "replica": "sim-2", "candidates": int64(3), "matched_tokens": int64(len(prompt) / 16 * 16),
	} {
		if said["inferencecache."+key] != want {
			t.Errorf("%s is %v, want %v", key, said["inferencecache."+key], want)
		}
	}
	eventually(t, "the span without a parent", func() bool { return len(got.named("root")) == 1 })
	if root := got.named("root")[0]; len(root.GetParentSpanId()) != 0 {
		t.Errorf("a span without a caller: %v", root)
	}
	got.mu.Lock()
	if len(got.got) != 2 {
		t.Errorf("%d spans of two lookups: %v", len(got.got), got.got)
	}
	if bytes.Contains(got.raw, []byte("travels")) {
		t.Error("the prompt is in a span")
	}
	got.mu.Unlock()
	checkMetrics(t, get(t, server+"/metrics"))

	receiver.Close()
	for range 20 {
		if answer := ask("after", ""); !strings.Contains(answer, "replicaScores") {
			t.Fatalf("without a collector: %s", answer)
		}
	}
	failed := regexp.MustCompile(`(?m)^inferencecache_trace_export_failures_total [1-9]`) // a batch a second
	eventually(t, "drops to be counted", func() bool { return failed.MatchString(get(t, server+"/metrics")) })
}
