package server

import (
	"math"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/testing/protocmp"

	pb "inferencecache.io/inferencecache/proto/inferencecache/v1alpha1"
)

// engineStatsOf is what GetCacheState says after one report.
func engineStatsOf(t *testing.T, reported *pb.ReplicaStats) *pb.ReplicaStats {
	t.Helper()
	r := newRig(t)
	u := update("r-1")
	u.Stats = reported
	r.report(u)
	got, err := r.GetCacheState(t.Context(), &pb.GetCacheStateRequest{TenantId: "t", ModelId: "m"})
	if err != nil || len(got.GetReplicas()) != 1 {
		t.Fatalf("state %v, err %v", got, err)
	}
	return got.GetReplicas()[0]
}

func TestEngineStatsAreReturnedAsReported(t *testing.T) {
	t.Parallel()
	for name, stats := range map[string]*pb.ReplicaStats{
		"nothing known": {},
		"zeros are known": {
			RunningRequests: new(float64), WaitingRequests: new(float64), PrefillTokensPerSecond: new(float64),
			CacheCapacityTokens: new(int64), CacheUsage: new(float64), PrefixHitRate: new(float64),
			OffloadHitTokens: new(int64), OffloadQueryTokens: new(int64),
		},
		"all known": {
			RunningRequests: proto.Float64(3), WaitingRequests: proto.Float64(1.5), PrefillTokensPerSecond: proto.Float64(9000),
			CacheCapacityTokens: proto.Int64(500_000), CacheUsage: proto.Float64(1), PrefixHitRate: proto.Float64(.5),
			OffloadHitTokens: proto.Int64(7), OffloadQueryTokens: proto.Int64(9),
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got := engineStatsOf(t, stats)
			got.ReplicaId = ""
			if diff := cmp.Diff(stats, got, protocmp.Transform()); diff != "" {
				t.Errorf("(-reported +got):\n%s", diff)
			}
		})
	}
}

func TestImplausibleEngineStatsAreUnknown(t *testing.T) {
	t.Parallel()
	for name, v := range map[string]float64{"NaN": math.NaN(), "+Inf": math.Inf(1), "-Inf": math.Inf(-1), "negative": -1, "giant": 1e300} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			whole := int64(-1)
			if v > 0 {
				whole = math.MaxInt64
			}
			got := engineStatsOf(t, &pb.ReplicaStats{
				RunningRequests: &v, WaitingRequests: &v, PrefillTokensPerSecond: &v, CacheUsage: &v, PrefixHitRate: &v,
				CacheCapacityTokens: &whole, OffloadHitTokens: &whole, OffloadQueryTokens: &whole,
			})
			if diff := cmp.Diff(&pb.ReplicaStats{ReplicaId: "r-1"}, got, protocmp.Transform()); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
	above := math.Nextafter(1, 2)
	if got := engineStatsOf(t, &pb.ReplicaStats{CacheUsage: &above, PrefixHitRate: &above}); got.CacheUsage != nil || got.PrefixHitRate != nil {
		t.Errorf("ratios above 1: %v", got)
	}
}

// A newer report without a number makes it unknown again, and an older report
// changes nothing.
func TestEngineStatsAreThoseOfTheNewestReport(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	now := time.Now()
	report := func(at time.Time, running *float64) *float64 {
		t.Helper()
		u := update("r-1")
		u.TimestampUs = at.UnixMicro()
		u.Stats = &pb.ReplicaStats{RunningRequests: running}
		r.report(u)
		got, err := r.GetCacheState(t.Context(), &pb.GetCacheStateRequest{TenantId: "t", ModelId: "m"})
		if err != nil || len(got.GetReplicas()) != 1 {
			t.Fatalf("state %v, err %v", got, err)
		}
		return got.GetReplicas()[0].RunningRequests
	}
	report(now.Add(-3*time.Second), proto.Float64(1))
	if got := report(now.Add(-time.Second), proto.Float64(2)); got == nil || *got != 2 {
		t.Errorf("newer report: %v, want 2", got)
	}
	if got := report(now.Add(-2*time.Second), proto.Float64(3)); got == nil || *got != 2 {
		t.Errorf("older report: %v, want 2", got)
	}
	if got := report(now, nil); got != nil {
		t.Errorf("report without the number: %v, want unknown", *got)
	}
}
