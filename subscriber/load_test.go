package subscriber

import (
	"errors"
	"io"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/testing/protocmp"

	"inferencecache.io/inferencecache/internal/engine/sglang"
	"inferencecache.io/inferencecache/internal/engine/vllm"
	pb "inferencecache.io/inferencecache/proto/inferencecache/v1alpha1"
)

const vllmPage = `# HELP vllm:num_requests_running Number of requests.
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{engine="0",model_name="m"} 10.0
vllm:num_requests_running{engine="1",model_name="m"} 20.0
vllm:num_requests_running{engine="0",model_name="m",priority="5"} 1000.0
vllm:num_requests_waiting{engine="0",model_name="m",priority=""} 2.0 1779901681000
vllm:num_requests_waiting{engine="0",model_name="other \"quoted, }\\"} 400
vllm:kv_cache_usage_perc{engine="0",model_name="m"} 0.25
vllm:kv_cache_usage_perc{engine="1",model_name="m"} 0.5
vllm:kv_cache_usage_perc{engine="2",model_name="m"} NaN
vllm:prefix_cache_hits_total{model_name="m"} 100
vllm:prefix_cache_queries_total{model_name="m"} 400
vllm:external_prefix_cache_hits_total{model_name="m"} 7
vllm:external_prefix_cache_queries_total{model_name="m"} 9 # {trace_id="x"} 1
garbage {
`

func TestLoadReadsVLLM(t *testing.T) {
	t.Parallel()
	r := loadReader{families: vllm.Dialect.Load, usage: usageAuto, model: "m", capacity: 1000, ceiling: 64}
	got, _, err := r.read(strings.NewReader(vllmPage))
	if err != nil {
		t.Fatal(err)
	}
	want := &pb.ReplicaStats{
		CacheMemoryBytes: 500, Pressure: 0.5, T2HitTokens: 7, T2QueryTokens: 9,
		RunningRequests: proto.Float64(30), WaitingRequests: proto.Float64(2), CacheUsage: proto.Float64(0.5),
		OffloadHitTokens: proto.Int64(7), OffloadQueryTokens: proto.Int64(9),
	}
	if diff := cmp.Diff(want, got, protocmp.Transform()); diff != "" {
		t.Errorf("first page (-want +got):\n%s", diff)
	}
	later := strings.NewReplacer("hits_total{model_name=\"m\"} 100", "hits_total{model_name=\"m\"} 130",
		"queries_total{model_name=\"m\"} 400", "queries_total{model_name=\"m\"} 440").Replace(vllmPage)
	if got, _, err = r.read(strings.NewReader(later)); err != nil || got.HitRate != 0.75 {
		t.Errorf("second page: hit rate %v, err %v, want 30 hits of 40 queries", got.GetHitRate(), err)
	}
	if got, _, err = r.read(strings.NewReader(vllmPage)); err != nil || got.HitRate != 0 {
		t.Errorf("after a reset: hit rate %v, err %v, want 0", got.GetHitRate(), err)
	}
}

func TestLoadReadsSGLang(t *testing.T) {
	t.Parallel()
	r := loadReader{families: sglang.Dialect.Load, usage: usageAuto, capacity: 100, ceiling: 10}
	got, _, err := r.read(strings.NewReader(`sglang:num_running_reqs{model_name="m"} 30
sglang:num_queue_reqs{model_name="m"} 0
sglang:token_usage 0.4
sglang:cache_hit_rate 0.625
`))
	want := &pb.ReplicaStats{
		CacheMemoryBytes: 40, Pressure: 1, HitRate: 0.625,
		RunningRequests: proto.Float64(30), WaitingRequests: proto.Float64(0),
		CacheUsage: proto.Float64(0.4), PrefixHitRate: proto.Float64(0.625),
	}
	if diff := cmp.Diff(want, got, protocmp.Transform()); diff != "" || err != nil {
		t.Errorf("err %v (-want +got):\n%s", err, diff)
	}
}

func TestLoadPicksUsageGauge(t *testing.T) {
	t.Parallel()
	const load = "vllm:num_requests_running 0\nvllm:num_requests_waiting 0\n"
	const old = load + "vllm:gpu_cache_usage_perc 0.1\nvllm:cpu_cache_usage_perc 0.3\n"
	const all = old + "vllm:kv_cache_usage_perc 0.2\n"
	for _, tc := range []struct {
		usage, page string
		want        int64
	}{
		{usageAuto, all, 20}, {usageAuto, old, 30}, {usageAuto, load, 0},
		{usageKV, all, 20}, {usageKV, old, 0}, {usageGPU, all, 10}, {usageCPU, all, 30},
	} {
		r := loadReader{families: vllm.Dialect.Load, usage: tc.usage, capacity: 100}
		got, _, err := r.read(strings.NewReader(tc.page))
		if err != nil || got.CacheMemoryBytes != tc.want {
			t.Errorf("%s: %d, err %v, want %d", tc.usage, got.GetCacheMemoryBytes(), err, tc.want)
		}
	}
}

// A page that cannot be trusted is an error and leaves the hit rate's baseline.
func TestLoadMakesUpNothing(t *testing.T) {
	t.Parallel()
	r := loadReader{families: vllm.Dialect.Load, usage: usageAuto, ceiling: 1}
	f := func(page string) error {
		t.Helper()
		_, _, err := r.read(strings.NewReader(page))
		return err
	}
	const load = "vllm:num_requests_running 1\nvllm:num_requests_waiting 1\n"
	if err := f(load + "vllm:prefix_cache_hits 5\nvllm:prefix_cache_queries 10\n"); err != nil {
		t.Fatal(err)
	}
	if err := f("go_goroutines 12\n"); !errors.Is(err, errNoFamily) {
		t.Errorf("foreign page: %v", err)
	}
	for _, page := range []string{
		"vllm:num_requests_running 1\nvllm:prefix_cache_hits 900\nvllm:prefix_cache_queries 900\n",
		"vllm:num_requests_running 1\nvllm:num_requests_waiting NaN\nvllm:prefix_cache_hits 900\nvllm:prefix_cache_queries 900\n",
		"vllm:num_requests_running 1\nvllm:num_requests_waiting{priority=\"1\"} 3\n",
	} {
		if err := f(page); err == nil || !strings.Contains(err.Error(), vllm.Dialect.Load.Waiting) {
			t.Errorf("page without a usable waiting gauge: %v", err)
		}
	}
	if err := f(load + "vllm:prefix_cache_hits 1000\n"); err != nil { // no queries: the baseline stays
		t.Fatal(err)
	}
	got, _, err := r.read(strings.NewReader(load + "vllm:prefix_cache_hits 6\nvllm:prefix_cache_queries 14\n"))
	if err != nil || got.HitRate != 0.25 {
		t.Errorf("hit rate %v, err %v, want 1 of 4", got.GetHitRate(), err)
	}
}

// endless is a page that never ends.
type endless struct{ read int }

func (e *endless) Read(p []byte) (int, error) {
	n := copy(p, strings.Repeat("metric 1\n", 100))
	e.read += n
	return n, nil
}

func TestScrapeIsBounded(t *testing.T) {
	t.Parallel()
	page := &endless{}
	if err := readSamples(page, func(sample) {}); !errors.Is(err, errPageTooLarge) {
		t.Errorf("endless page: %v", err)
	}
	if page.read > maxPageBytes+maxLineBytes {
		t.Errorf("read %d bytes", page.read)
	}
	if err := readSamples(strings.NewReader(strings.Repeat("x", maxLineBytes+1)), func(sample) {}); err == nil {
		t.Error("endless line was accepted")
	}
}

func TestSampleLabels(t *testing.T) {
	t.Parallel()
	f := func(line, label, want string, wantOK bool) {
		t.Helper()
		s, ok := parseSample([]byte(line))
		if !ok {
			t.Fatalf("%s: no sample", line)
		}
		if got, ok := s.label(label); got != want || ok != wantOK {
			t.Errorf("%s: label %s is %q, %v, want %q", line, label, got, ok, want)
		}
	}
	f(`m{a="1",b="2"} 1`, "b", "2", true)
	f(`m{ a = "1" , b = "2" , } 1`, "b", "2", true)
	f(`m{a="x,b=\"3\"",b="2"} 1`, "b", "2", true)
	f(`m{a="b}c"} 1`, "a", "b}c", true)
	f(`m{a="\\\"\n"} 1`, "a", "\\\"\n", true)
	f(`m{ab="1"} 1`, "b", "", false)
	f(`m 1`, "b", "", false)
	f(`m{} 1`, "b", "", false)
	f(`m{b=2} 1`, "b", "", false)
}

func FuzzScrape(f *testing.F) {
	f.Add(vllmPage)
	f.Add(`m{a="\`)
	f.Add(`m{a="1",} 1e400`)
	f.Fuzz(func(t *testing.T, page string) {
		_ = readSamples(strings.NewReader(page), func(s sample) {
			s.label("priority")
			if s.value != s.value {
				t.Error("not a number")
			}
		})
		r := loadReader{families: vllm.Dialect.Load, usage: usageAuto, capacity: 1 << 40, ceiling: 256, model: "m"}
		stats, _, err := r.read(io.LimitReader(strings.NewReader(page), 1<<20))
		if err == nil && (stats.GetCacheUsage() < 0 || stats.GetCacheUsage() > 1 || stats.GetCacheCapacityTokens() < 0 || stats.GetPrefillTokensPerSecond() < 0 ||
			stats.PrefixHitRate != nil && !(*stats.PrefixHitRate >= 0 && *stats.PrefixHitRate <= 1) || stats.Pressure < 0 || stats.Pressure > 1 || stats.HitRate < 0 || stats.HitRate > 1 || stats.CacheMemoryBytes < 0) {
			t.Errorf("stats out of range: %v", stats)
		}
	})
}
