package server

import (
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net"
	"net/http"
	"slices"
	"sync"
	"testing"
	"time"

	"connectrpc.com/connect"
	"github.com/VictoriaMetrics/metrics"
	sdk "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/trace"

	pb "inferencecache.io/inferencecache/proto/inferencecache/v1alpha1"
	"inferencecache.io/inferencecache/proto/inferencecache/v1alpha1/inferencecachev1alpha1connect"
)

// BenchmarkLookupRoute is the handler without a network: 8 replicas that hold
// runs of different lengths of the prompt.
func BenchmarkLookupRoute(b *testing.B) {
	for _, blocks := range []int{64, 512} {
		for name, form := range map[string]func(int, int) func(*pb.LookupRouteRequest){"packed": packed, "chain": chain, "tokens": tokens} {
			b.Run(fmt.Sprintf("blocks=%d/%s", blocks, name), func(b *testing.B) {
				var c Config
				configure(&c)
				s := New(c, slog.New(slog.DiscardHandler), metrics.NewSet())
				for i := range 8 {
					s.ingest(time.Now(), update(fmt.Sprint("r-", i), chainEntry(0, 16*blocks*(i+1)/8)))
				}
				q := request(form(0, 16*blocks))
				b.ReportAllocs()
				for b.Loop() {
					answer, err := s.LookupRoute(b.Context(), q)
					if err != nil || answer.GetReasonCode() != prefixMatch {
						b.Fatal(answer, err)
					}
				}
				b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/float64(blocks), "ns/block")
			})
		}
	}
}

// BenchmarkLoopback is LookupRoute over TCP, 512 blocks, 8 replicas: by gRPC, by
// Connect over HTTP/1.1, and a health check by gRPC, which is what a call costs
// that does nothing.
func BenchmarkLoopback(b *testing.B) {
	var c Config
	configure(&c)
	s := New(c, slog.New(slog.DiscardHandler), metrics.NewSet())
	for i := range 8 {
		s.ingest(time.Now(), update(fmt.Sprint("r-", i), chainEntry(0, 16*512*(i+1)/8)))
	}
	h2, both := new(http.Protocols), new(http.Protocols)
	h2.SetUnencryptedHTTP2(true)
	both.SetUnencryptedHTTP2(true)
	both.SetHTTP1(true)
	mux := http.NewServeMux()
	s.Mount(mux)
	server := &http.Server{Handler: mux, Protocols: both}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		b.Fatal(err)
	}
	go func() { _ = server.Serve(listener) }()
	defer server.Close()
	byGRPC := &http.Transport{Protocols: h2}
	byHTTP1 := &http.Transport{MaxIdleConnsPerHost: 8}
	defer byGRPC.CloseIdleConnections()
	defer byHTTP1.CloseIdleConnections()
	client := func(transport *http.Transport, procedure string, options ...connect.ClientOption) *connect.Client[pb.LookupRouteRequest, pb.LookupRouteResponse] {
		return connect.NewClient[pb.LookupRouteRequest, pb.LookupRouteResponse](&http.Client{Transport: transport},
			"http://"+listener.Addr().String()+procedure, options...)
	}
	ask := func(client *connect.Client[pb.LookupRouteRequest, pb.LookupRouteResponse], q *pb.LookupRouteRequest) func() error {
		return func() error {
			answer, err := client.CallUnary(b.Context(), connect.NewRequest(q))
			if err == nil && q.ModelId != "" && answer.Msg.GetReasonCode() != prefixMatch {
				return fmt.Errorf("answer: %v", answer.Msg)
			}
			return err
		}
	}
	const lookupRoute = inferencecachev1alpha1connect.InferenceCacheLookupRouteProcedure
	q := request(packed(0, 16*512))
	for name, call := range map[string]func() error{
		"LookupRoute":         ask(client(byGRPC, lookupRoute, connect.WithGRPC()), q),
		"LookupRoute/connect": ask(client(byHTTP1, lookupRoute), q),
		"nothing":             ask(client(byGRPC, "/grpc.health.v1.Health/Check", connect.WithGRPC()), &pb.LookupRouteRequest{}),
	} {
		b.Run(name, func(b *testing.B) {
			for b.Loop() {
				if err := call(); err != nil {
					b.Fatal(err)
				}
			}
		})
		b.Run(name+"/callers=8", func(b *testing.B) { crowd(b, 8, 0, call) })
		b.Run(name+"/callers=8/rest=10ms", func(b *testing.B) { crowd(b, 8, 10*time.Millisecond, call) })
	}
}

// crowd lets several callers make one call after the other each, with rests of
// that mean between, and reports how long the calls take. Without rests the
// machine is never idle, and the time is mostly that of waiting for a core.
func crowd(b *testing.B, callers int, rest time.Duration, call func() error) {
	took := make([][]time.Duration, callers)
	var all sync.WaitGroup
	b.ResetTimer()
	for i := range callers {
		all.Go(func() {
			for range max(1, b.N/callers) {
				time.Sleep(time.Duration(2 * rand.Float64() * float64(rest)))
				start := time.Now()
				if err := call(); err != nil {
					b.Error(err)
					return
				}
				took[i] = append(took[i], time.Since(start))
			}
		})
	}
	all.Wait()
	sorted := slices.Sorted(slices.Values(slices.Concat(took...)))
	for _, share := range []int{50, 99} {
		b.ReportMetric(float64(sorted[len(sorted)*share/100].Microseconds()), fmt.Sprintf("p%d-us", share))
	}
}

// BenchmarkTracing is LookupRoute of 64 packed blocks, 8 replicas, without
// tracing, with a caller that is not traced, and traced.
func BenchmarkTracing(b *testing.B) {
	var c Config
	configure(&c)
	for _, v := range []struct {
		name   string
		tracer trace.Tracer
	}{
		{"off", nil},
		{"unsampled", sdk.NewTracerProvider(sdk.WithSampler(sdk.NeverSample())).Tracer("")},
		{"sampled", sdk.NewTracerProvider(sdk.WithSampler(sdk.AlwaysSample())).Tracer("")},
	} {
		b.Run(v.name, func(b *testing.B) {
			s := New(c, slog.New(slog.DiscardHandler), metrics.NewSet())
			if v.tracer != nil {
				s.Trace(v.tracer)
			}
			for i := range 8 {
				s.ingest(time.Now(), update(fmt.Sprint("r-", i), chainEntry(0, 16*64*(i+1)/8)))
			}
			q := request(packed(0, 16*64))
			b.ReportAllocs()
			for b.Loop() {
				if answer, _ := s.LookupRoute(b.Context(), q); answer.GetReasonCode() != prefixMatch {
					b.Fatal(answer)
				}
			}
		})
	}
}
