package server

import (
	"fmt"
	"log/slog"
	"testing"
	"time"

	"github.com/VictoriaMetrics/metrics"

	pb "inferencecache.io/inferencecache/proto/inferencecache/v1alpha1"
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
