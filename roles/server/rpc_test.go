package server

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"connectrpc.com/connect"
	"connectrpc.com/grpcreflect"

	"inferencecache.io/inferencecache/internal/memhttp"
	pb "inferencecache.io/inferencecache/proto/inferencecache/v1alpha1"
	"inferencecache.io/inferencecache/proto/inferencecache/v1alpha1/inferencecachev1alpha1connect"
)

// serve puts r behind an in-memory listener for the length of the test and
// returns HTTP/1.1 and HTTP/2 clients.
func serve(t *testing.T, r *rig) (http1, http2 *http.Client) {
	t.Helper()
	mux := http.NewServeMux()
	r.Mount(mux)
	inside := memhttp.New(mux)
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	done := make(chan error, 2)
	go func() { done <- inside.Run(ctx) }()
	go func() { done <- r.Run(ctx) }()
	http1, http2 = inside.Client(false), inside.Client(true)
	t.Cleanup(func() {
		cancel()
		for range 2 {
			if err := <-done; err != nil {
				t.Error(err)
			}
		}
		http1.CloseIdleConnections()
		http2.CloseIdleConnections()
	})
	return http1, http2
}

func client(c connect.HTTPClient, options ...connect.ClientOption) inferencecachev1alpha1connect.InferenceCacheClient {
	return inferencecachev1alpha1connect.NewInferenceCacheClient(c, memhttp.URL, options...)
}

func TestEveryProtocolAnswersTheSame(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	http1, http2 := serve(t, r)
	stream, err := client(http2, connect.WithGRPC()).ReportCacheState(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	now := time.Now().UnixMicro() // one stamp: equal scores go by replica id
	for _, replica := range []string{"r-1", "r-2"} {
		u := update(replica, chainEntry(0, 64))
		u.TimestampUs = now
		if err := stream.Send(u); err != nil {
			t.Fatal(err)
		}
	}
	ack, err := stream.CloseAndReceive()
	if err != nil || !ack.GetAccepted() || ack.GetReasonCode() != "" || ack.GetServerEpoch() != r.epoch {
		t.Fatalf("ack %v, %v", ack, err)
	}
	r.holds("r-3", 9000, 64)
	for name, c := range map[string]inferencecachev1alpha1connect.InferenceCacheClient{
		"gRPC":         client(http2, connect.WithGRPC()),
		"gRPC-Web":     client(http1, connect.WithGRPCWeb()),
		"Connect":      client(http1),
		"Connect JSON": client(http1, connect.WithProtoJSON()),
	} {
		answer, err := c.LookupRoute(t.Context(), request(chain(0, 64)))
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		r.want(answer, prefixMatch, "r-1:64", "r-2:64")
	}

	body, _ := json.Marshal(map[string]any{"tenantId": "t", "modelId": "m", "hashScheme": "vllm", "tokenIds": span(0, 64)})
	response, err := http1.Post(memhttp.URL+inferencecachev1alpha1connect.InferenceCacheLookupRouteProcedure, "application/json", bytes.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	text, _ := io.ReadAll(response.Body)
	if !strings.Contains(string(text), `"reasonCode":"PREFIX_MATCH"`) {
		t.Errorf("plain JSON answered %s", text)
	}
}

func TestReflectionAndHealth(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	http1, http2 := serve(t, r)
	reflection := grpcreflect.NewClient(http2, memhttp.URL, connect.WithGRPC()).NewStream(t.Context())
	names, err := reflection.ListServices()
	if err != nil {
		t.Fatal(err)
	}
	if got := fmt.Sprint(names); !strings.Contains(got, "inferencecache.v1alpha1.InferenceCache") || !strings.Contains(got, "grpc.health.v1.Health") {
		t.Errorf("reflection lists %v", names)
	}
	files, err := reflection.FileByFilename("inferencecache/v1alpha1/inferencecache.proto")
	if err != nil || len(files) == 0 {
		t.Errorf("no file by its published path: %v", err)
	}
	_, _ = reflection.Close()
	check := func(service string) string {
		response, err := http1.Post(memhttp.URL+"/grpc.health.v1.Health/Check", "application/json", strings.NewReader(fmt.Sprintf(`{"service":%q}`, service)))
		if err != nil {
			t.Fatal(err)
		}
		defer response.Body.Close()
		text, _ := io.ReadAll(response.Body)
		return string(text)
	}
	deadline := time.Now().Add(5 * time.Second)
	for !strings.Contains(check(""), `SERVING_STATUS_SERVING`) && time.Now().Before(deadline) { // until Run has begun
	}
	if got := check(""); !strings.Contains(got, `SERVING_STATUS_SERVING`) {
		t.Errorf("health %s", got)
	}
	if got := check("nobody"); !strings.Contains(got, "not_found") {
		t.Errorf("health of an unknown service: %s", got)
	}
	r.Drain()
	if got := check(""); !strings.Contains(got, `STATUS_NOT_SERVING`) {
		t.Errorf("health while draining: %s", got)
	}
}

func TestOversizedMessageIsAClearError(t *testing.T) {
	t.Parallel()
	r := newRig(t, func(c *Config) { c.MaxMessageBytes = 1000 })
	_, http2 := serve(t, r)
	_, err := client(http2, connect.WithGRPC()).LookupRoute(t.Context(), request(chain(0, 4096)))
	if connect.CodeOf(err) != connect.CodeResourceExhausted {
		t.Errorf("got %v", err)
	}
	r.holds("r-1", 0, 64)
	answer, err := client(http2, connect.WithGRPC()).LookupRoute(t.Context(), request(packed(0, 64)))
	if err != nil {
		t.Fatal(err)
	}
	r.want(answer, prefixMatch, "r-1:64")
}

func TestCancelledReportIsCanceledNotAcknowledged(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	_, http2 := serve(t, r)
	ctx, cancel := context.WithCancel(t.Context())
	stream, err := client(http2, connect.WithGRPC()).ReportCacheState(ctx)
	if err != nil {
		t.Fatal(err)
	}
	if err := stream.Send(update("r-1", chainEntry(0, 64))); err != nil {
		t.Fatal(err)
	}
	cancel()
	if _, err := stream.CloseAndReceive(); connect.CodeOf(err) != connect.CodeCanceled {
		t.Errorf("got %v", err)
	}
}

func TestSyncCacheStateAcknowledgesEachUpdate(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	_, http2 := serve(t, r)
	stream, err := client(http2, connect.WithGRPC()).SyncCacheState(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	p := r.producer("r-1")
	p.sequence = 4
	exchange := func(operations ...*pb.CacheOperation) *pb.Ack {
		t.Helper()
		p.sequence++
		if err := stream.Send(p.update(time.Now(), operations...)); err != nil {
			t.Fatal(err)
		}
		ack, err := stream.Receive()
		if err != nil || !ack.Accepted || ack.Sequence != p.sequence || ack.ServerEpoch != r.epoch {
			t.Fatalf("update %d: %v, %v", p.sequence, ack, err)
		}
		return ack
	}
	if ack := exchange(); !ack.Resync {
		t.Error("a source that begins in the middle was believed")
	}
	if ack := exchange(clearAll, storeChain); ack.Resync || len(r.holders(time.Now())) != 1 {
		t.Errorf("after a CLEAR: %v, held by %q", ack, r.holders(time.Now()))
	}
	if ack := exchange(); ack.Resync {
		t.Error("an update in order was not believed")
	}

	r.Drain() // while the stream is idle
	if _, err := stream.Receive(); connect.CodeOf(err) != connect.CodeUnavailable {
		t.Errorf("a draining server ended the stream with %v", err)
	}
	late, err := client(http2, connect.WithGRPC()).SyncCacheState(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	_ = late.Send(p.update(time.Now()))
	if _, err := late.Receive(); connect.CodeOf(err) != connect.CodeUnavailable {
		t.Errorf("a stream opened while draining ended with %v", err)
	}
	for _, s := range []interface {
		CloseRequest() error
		CloseResponse() error
	}{stream, late} {
		_, _ = s.CloseRequest(), s.CloseResponse()
	}
}

func TestStreamCacheEvents(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	_, http2 := serve(t, r)
	c := client(http2, connect.WithGRPC())
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	stream, err := c.StreamCacheEvents(ctx, &pb.StreamEventsRequest{TenantId: "t", Types: []pb.CacheEvent_Type{pb.CacheEvent_PREFIX_ADDED, pb.CacheEvent_ALL_CLEARED}})
	if err != nil {
		t.Fatal(err)
	}
	other := update("r-0", chainEntry(0, 64))
	other.TenantId = "u"
	r.report(other)
	r.holds("r-1", 0, 64)
	r.applyEvent(time.Now(), &pb.CacheEvent{Type: pb.CacheEvent_PREFIX_EVICTED, TenantId: "t", ModelId: "m", ReplicaId: "r-1", PrefixHash: []byte("12345678")})
	r.applyEvent(time.Now(), &pb.CacheEvent{Type: pb.CacheEvent_ALL_CLEARED, TenantId: "t", ModelId: "m", ReplicaId: "r-1"})
	var got []string
	for range 2 {
		if !stream.Receive() {
			t.Fatal(stream.Err())
		}
		e := stream.Msg()
		got = append(got, fmt.Sprint(e.GetType(), e.GetReplicaId(), len(e.GetPackedHashes())))
	}
	if want := "[PREFIX_ADDED r-1 32 ALL_CLEARED r-1 0]"; strings.NewReplacer(" ", "").Replace(fmt.Sprint(got)) != strings.ReplaceAll(want, " ", "") {
		t.Errorf("got %v, want %s", got, want)
	}
	r.Drain()
	for stream.Receive() {
	}
	if connect.CodeOf(stream.Err()) != connect.CodeUnavailable {
		t.Errorf("on drain the stream ended with %v", stream.Err())
	}
	_ = stream.Close()
}

func TestSlowReaderIsCutOffAndCounted(t *testing.T) {
	t.Parallel()
	r := newRig(t, func(c *Config) { c.EventBuffer = 4 })
	reader, err := r.events.join(func(*pb.CacheEvent) bool { return true })
	if err != nil {
		t.Fatal(err)
	}
	for range 6 {
		r.holds("r-1", 0, 16)
	}
	received := 0
	for range reader.events {
		received++
	}
	if received != 4 || !errors.Is(reader.why, errSlow) {
		t.Errorf("received %d, then %v", received, reader.why)
	}
	if got := r.metric(`inferencecache_event_streams_cut_total{reason="slow_reader"}`); got != 1 {
		t.Errorf("counted %v", got)
	}
	r.events.leave(reader) // once more: must be harmless
}

func TestStreamsAreBounded(t *testing.T) {
	t.Parallel()
	r := newRig(t, func(c *Config) { c.MaxEventStreams = 1 })
	leave, err := r.admitReader()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := r.admitReader(); connect.CodeOf(err) != connect.CodeResourceExhausted {
		t.Errorf("a second reader: %v", err)
	}
	leave()
	if leave, err = r.admitReader(); err != nil {
		t.Error(err)
	} else {
		leave()
	}
}

func TestStreamMetrics(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.ask(chain(0, 64))
	_, http2 := serve(t, r)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	stream, err := client(http2, connect.WithGRPC()).StreamMetrics(ctx, &pb.StreamMetricsRequest{Names: []string{"inferencecache_lookup_route_calls_total"}})
	if err != nil {
		t.Fatal(err)
	}
	if !stream.Receive() {
		t.Fatal(stream.Err())
	}
	m := stream.Msg()
	if m.GetType() != "counter" || m.GetValue() != 1 || m.GetLabels()["reason_code"] != noHint || m.GetTimestampUs() == 0 {
		t.Errorf("metric %v", m)
	}
	cancel()
	_ = stream.Close()
}

// engine is a stand-in for an engine's tokenizer: one token a byte.
func engine(t *testing.T, asked *int, hold <-chan struct{}) *httptest.Server {
	t.Helper()
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, q *http.Request) {
		*asked++
		if hold != nil {
			select {
			case <-hold:
			case <-q.Context().Done():
			}
		}
		var body struct {
			Model    string
			Messages []struct{ Role, Content string }
			Generate bool `json:"add_generation_prompt"`
		}
		if err := json.NewDecoder(q.Body).Decode(&body); err != nil || q.URL.Path != "/tokenize" || body.Model != "m" || len(body.Messages) != 1 || body.Messages[0].Role != "user" || !body.Generate {
			http.Error(w, "unexpected", http.StatusBadRequest)
			return
		}
		tokens := []uint32{}
		for _, b := range []byte(body.Messages[0].Content) {
			tokens = append(tokens, uint32(b))
		}
		_ = json.NewEncoder(w).Encode(map[string]any{"tokens": tokens, "count": len(tokens)})
	}))
	t.Cleanup(s.Close)
	return s
}

func text(s string) func(*pb.LookupRouteRequest) {
	return func(q *pb.LookupRouteRequest) { q.PromptText = s }
}

func (r *rig) engineAt(url string) {
	u := update("r-1")
	u.EngineUrl = url
	r.report(u)
}

func TestPromptTextIsTokenizedByALiveEngine(t *testing.T) {
	t.Parallel()
	asked := 0
	e := engine(t, &asked, nil)
	r := newRig(t, func(c *Config) { c.Tokenize = true })
	t.Cleanup(r.tokens.close)
	prompt := strings.Repeat("0123456789abcdef", 5)
	r.want(r.ask(text(prompt)), noHint) // nobody to ask yet
	r.engineAt(e.URL)
	tokens := make([]uint32, 0, 80)
	for _, b := range []byte(prompt) {
		tokens = append(tokens, uint32(b))
	}
	hashes := chainOf(tokens)
	r.report(update("r-1", &pb.PrefixEntry{BlockHashes: wire(hashes), BlockTokenCounts: counts(5, 16)}))
	for range 3 {
		answer := r.ask(text(prompt))
		r.want(answer, prefixMatch, "r-1:80")
		if len(answer.GetTokenIds()) != 80 {
			t.Errorf("echoed %d tokens", len(answer.GetTokenIds()))
		}
	}
	if asked != 1 {
		t.Errorf("the engine was asked %d times, want once", asked)
	}
	short := r.ask(text("short"))
	r.want(short, noHint)
	if len(short.GetTokenIds()) != 5 {
		t.Errorf("a sub-block prompt echoed %d tokens, want 5", len(short.GetTokenIds()))
	}
	r.want(r.ask(text(prompt), exactKey([]byte("k"))), affinityHint, "r-1:0") // an explicit key wins
}

func TestTokenizingIsBoundedInTimeAndNumber(t *testing.T) {
	t.Parallel()
	asked := 0
	hold := make(chan struct{})
	e := engine(t, &asked, hold)
	defer close(hold)
	r := newRig(t, func(c *Config) { c.Tokenize, c.MaxTokenizations = true, 1 })
	t.Cleanup(r.tokens.close)
	r.engineAt(e.URL)
	p := published()
	p.Timeout = 50 * time.Millisecond
	r.adopt("t", p)
	r.want(r.ask(text("a slow prompt, longer than a block")), timedOut)
	r.tokens.places <- struct{}{} // one is running: the house is full
	started := time.Now()
	r.want(r.ask(text("another prompt, longer than a block")), noHint)
	if time.Since(started) > 40*time.Millisecond {
		t.Error("a saturated tokenizer queued")
	}
	<-r.tokens.places
}

func TestTokenizerRefusesWhatItCannotTrust(t *testing.T) {
	t.Parallel()
	r := newRig(t, func(c *Config) { c.Tokenize = true })
	t.Cleanup(r.tokens.close)
	redirects := 0
	odd := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, q *http.Request) {
		redirects++
		http.Redirect(w, q, "http://192.0.2.1/", http.StatusFound)
	}))
	t.Cleanup(odd.Close)
	for _, url := range []string{"file:///etc/passwd", "not a url", odd.URL} {
		r.engineAt(url)
		r.want(r.ask(text("a prompt that is longer than a block "+url)), noHint)
	}
	if redirects != 1 {
		t.Errorf("followed redirects: %d requests", redirects)
	}
}

func TestTokenCacheIsBounded(t *testing.T) {
	t.Parallel()
	r := newRig(t, func(c *Config) { c.Tokenize = true; c.TokenCacheBytes = 10 * (entryOverhead + 4) })
	for i := range 100 {
		r.tokens.keep(cacheKey(fmt.Sprint(i)), []uint32{1})
	}
	if len(r.tokens.by) != 10 || r.tokens.recent.Len() != 10 || r.tokens.size > r.tokens.limit {
		t.Errorf("%d entries, %d bytes", len(r.tokens.by), r.tokens.size)
	}
	if _, ok := r.tokens.cached(cacheKey("99")); !ok {
		t.Error("the newest is gone")
	}
	r.tokens.keep(cacheKey("giant"), make([]uint32, 10_000))
	if len(r.tokens.by) != 10 {
		t.Error("a giant emptied the cache")
	}
}

func TestShortAnswersAreNotCompressed(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	http1, _ := serve(t, r)
	q, err := http.NewRequestWithContext(t.Context(), http.MethodPost, memhttp.URL+inferencecachev1alpha1connect.InferenceCacheLookupRouteProcedure,
		strings.NewReader(`{"model_id":"m","block_size":16,"token_ids":[1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16]}`))
	if err != nil {
		t.Fatal(err)
	}
	q.Header.Set("Content-Type", "application/json")
	q.Header.Set("Accept-Encoding", "gzip")
	answer, err := http1.Do(q)
	if err != nil {
		t.Fatal(err)
	}
	defer answer.Body.Close()
	body, err := io.ReadAll(answer.Body)
	if err != nil || !json.Valid(body) || answer.Header.Get("Content-Encoding") != "" {
		t.Fatalf("%q, %q, %v", body, answer.Header.Get("Content-Encoding"), err)
	}
}
