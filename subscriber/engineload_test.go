package subscriber

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/testing/protocmp"

	"inferencecache.io/inferencecache/internal/engine"
	"inferencecache.io/inferencecache/internal/engine/sglang"
	"inferencecache.io/inferencecache/internal/engine/trtllm"
	"inferencecache.io/inferencecache/internal/engine/vllm"
	pb "inferencecache.io/inferencecache/proto/inferencecache/v1alpha1"
)

// The load gauges alone.
var idlePages = map[string]string{
	"vllm":   "vllm:num_requests_running 0\nvllm:num_requests_waiting 0\n",
	"sglang": "sglang:num_running_reqs 0\nsglang:num_queue_reqs 0\n",
	"trtllm": "trtllm_num_requests_running 0\ntrtllm_num_requests_waiting 0\n",
}

var loadDialects = map[string]engine.Dialect{"vllm": vllm.Dialect, "sglang": sglang.Dialect, "trtllm": trtllm.Dialect}

// readPages reads pages of one engine in turn, the load gauges added to each, and
// returns what the last one says.
func readPages(t *testing.T, dialect string, bodies ...string) (*pb.ReplicaStats, facts) {
	t.Helper()
	r := loadReader{families: loadDialects[dialect].Load, usage: usageAuto, ceiling: 1}
	var stats *pb.ReplicaStats
	var seen facts
	for _, body := range bodies {
		var err error
		if stats, seen, err = r.read(strings.NewReader(idlePages[dialect] + body)); err != nil {
			t.Fatal(err)
		}
	}
	return stats, seen
}

func TestLoadReadsTensorRTLLM(t *testing.T) {
	t.Parallel()
	r := loadReader{families: trtllm.Dialect.Load, usage: usageAuto, capacity: 100, ceiling: 10}
	const l = `{engine_type="trtllm",model_name="m"} `
	read := func(prompts, cached int, seconds float64) *pb.ReplicaStats {
		t.Helper()
		got, _, err := r.read(strings.NewReader("trtllm_num_requests_running" + l + "4\ntrtllm_num_requests_waiting" + l + "1\n" +
			"trtllm_kv_cache_utilization" + l + "0.25\ntrtllm_kv_cache_hit_rate" + l + "0.75\n" +
			"trtllm_kv_cache_max_blocks" + l + "1000\ntrtllm_kv_cache_tokens_per_block" + l + "32\n" +
			fmt.Sprintf("trtllm_prompt_tokens_total%s%d\ntrtllm_prompt_cached_tokens_total%s%d\n", l, prompts, l, cached) +
			fmt.Sprintf("trtllm_request_prefill_time_seconds_sum%s%v\n", l, seconds)))
		if err != nil {
			t.Fatal(err)
		}
		return got
	}
	want := &pb.ReplicaStats{
		CacheMemoryBytes: 25, HitRate: 0.75, Pressure: 0.5,
		RunningRequests: proto.Float64(4), WaitingRequests: proto.Float64(1), CacheCapacityTokens: proto.Int64(32_000),
		CacheUsage: proto.Float64(0.25), PrefixHitRate: proto.Float64(0.75),
	}
	if diff := cmp.Diff(want, read(1000, 100, 3), protocmp.Transform()); diff != "" {
		t.Errorf("first page (-want +got):\n%s", diff)
	}
	want.PrefillTokensPerSecond = proto.Float64(450)
	if diff := cmp.Diff(want, read(2000, 200, 5), protocmp.Transform()); diff != "" {
		t.Errorf("second page (-want +got):\n%s", diff)
	}
	_, _, err := r.read(strings.NewReader("trtllm_kv_cache_utilization 0.5\n")) // a version without the load gauges
	if err == nil || errors.Is(err, errNoFamily) {
		t.Errorf("page without load gauges: %v", err)
	}
}

// A page with nothing but the load says nothing else, twice.
func TestLoadKnowsOnlyWhatThePageSays(t *testing.T) {
	t.Parallel()
	for dialect := range loadDialects {
		got, seen := readPages(t, dialect, "", "")
		want := &pb.ReplicaStats{RunningRequests: new(float64), WaitingRequests: new(float64)}
		if diff := cmp.Diff(want, got, protocmp.Transform()); diff != "" {
			t.Errorf("%s (-want +got):\n%s", dialect, diff)
		}
		if diff := cmp.Diff(facts{PromptTokens: -1, CachedTokens: -1}, seen); diff != "" {
			t.Errorf("%s facts (-want +got):\n%s", dialect, diff)
		}
	}
}

func TestCacheCapacity(t *testing.T) {
	t.Parallel()
	info := func(labels string) string { return "vllm:cache_config_info{" + labels + "} 1\n" }
	for name, tc := range map[string]struct {
		dialect, page string
		want          int64 // 0: unknown
	}{
		"vLLM, one engine":       {"vllm", info(`block_size="16",engine="0",num_gpu_blocks="1000"`), 16_000},
		"vLLM, no engine label":  {"vllm", info(`block_size="16",num_gpu_blocks="1000"`), 16_000},
		"vLLM, blocks of both":   {"vllm", info(`block_size="16",engine="0",num_gpu_blocks="2000"`) + info(`block_size="16",engine="1",num_gpu_blocks="2000"`), 32_000},
		"vLLM, tokens of each":   {"vllm", info(`block_size="4",engine="0",kv_cache_size_tokens="5000",num_gpu_blocks="9"`) + info(`block_size="4",engine="1",kv_cache_size_tokens="7000",num_gpu_blocks="9"`), 12_000},
		"vLLM, tokens of one":    {"vllm", info(`block_size="16",engine="0",kv_cache_size_tokens="5000",num_gpu_blocks="10"`) + info(`block_size="16",engine="1",kv_cache_size_tokens="None",num_gpu_blocks="10"`), 160},
		"vLLM, blocks not known": {"vllm", info(`block_size="16",engine="0",num_gpu_blocks="None"`), 0},
		"vLLM, size not known":   {"vllm", info(`block_size="None",engine="0",num_gpu_blocks="1000"`), 0},
		"vLLM, negative":         {"vllm", info(`block_size="-16",engine="0",num_gpu_blocks="-1000"`), 0},
		"vLLM, no blocks":        {"vllm", info(`block_size="16",engine="0"`), 0},
		"SGLang":                 {"sglang", "sglang:max_total_num_tokens 5000\n", 5000},
		"SGLang, ranks": {"sglang", `sglang:max_total_num_tokens{dp_rank="0",tp_rank="0"} 5000
sglang:max_total_num_tokens{dp_rank="0",tp_rank="1"} 5000
sglang:max_total_num_tokens{dp_rank="1",tp_rank="2"} 4000
sglang:max_total_num_tokens{dp_rank="1",tp_rank="3"} 4000
`, 9000},
		"SGLang, zero":                 {"sglang", "sglang:max_total_num_tokens 0\n", 0},
		"TensorRT-LLM, no block size":  {"trtllm", "trtllm_kv_cache_max_blocks 1000\n", 0},
		"TensorRT-LLM, no block count": {"trtllm", "trtllm_kv_cache_tokens_per_block 32\n", 0},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got, _ := readPages(t, tc.dialect, tc.page)
			if got.GetCacheCapacityTokens() != tc.want || (got.CacheCapacityTokens != nil) != (tc.want != 0) {
				t.Errorf("got %v, want %d", got.CacheCapacityTokens, tc.want)
			}
		})
	}
}

func TestPrefixHitRate(t *testing.T) {
	t.Parallel()
	cache := func(hits, queries int) string {
		return fmt.Sprintf("vllm:prefix_cache_hits_total %d\nvllm:prefix_cache_queries_total %d\n", hits, queries)
	}
	for name, tc := range map[string]struct {
		dialect string
		pages   []string
		want    *float64
	}{
		"first page":             {"vllm", []string{cache(1, 2)}, nil},
		"since the last page":    {"vllm", []string{cache(100, 200), cache(101, 204)}, proto.Float64(.25)},
		"no hits":                {"vllm", []string{cache(1, 2), cache(1, 4)}, proto.Float64(0)},
		"no new queries":         {"vllm", []string{cache(1, 2), cache(1, 2)}, nil},
		"after a reset":          {"vllm", []string{cache(10, 20), cache(1, 2)}, nil},
		"the page after a reset": {"vllm", []string{cache(10, 20), cache(1, 2), cache(2, 4)}, proto.Float64(.5)},
		"only another counter fell": {"vllm", []string{
			cache(1, 2) + "vllm:prompt_tokens 9\n", cache(2, 4) + "vllm:prompt_tokens 8\n"}, nil},
		"another process": {"vllm", []string{
			cache(1, 2) + "process_start_time_seconds 100\n", cache(2, 4) + "process_start_time_seconds 200\n"}, nil},
		"no counters":      {"vllm", []string{cache(1, 2), ""}, nil},
		"SGLang":           {"sglang", []string{"sglang:cache_hit_rate 0\n"}, proto.Float64(0)},
		"SGLang, no gauge": {"sglang", []string{""}, nil},
		"SGLang, NaN":      {"sglang", []string{"sglang:cache_hit_rate NaN\n"}, nil},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got, _ := readPages(t, tc.dialect, tc.pages...)
			if diff := cmp.Diff(tc.want, got.PrefixHitRate); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}

func TestUsageAndOffloadAreKnownOrNot(t *testing.T) {
	t.Parallel()
	got, _ := readPages(t, "vllm", "vllm:cpu_cache_usage_perc 0\nvllm:external_prefix_cache_hits_total 0\n")
	if got.CacheUsage == nil || got.OffloadHitTokens == nil || got.OffloadQueryTokens != nil {
		t.Errorf("zeros of a page are known, what it lacks is not: %v", got)
	}
	if got, _ = readPages(t, "sglang", "sglang:token_usage 1.5\n"); got.CacheUsage == nil || *got.CacheUsage != 1 {
		t.Errorf("usage %v, want 1", got.CacheUsage)
	}
	r := loadReader{families: vllm.Dialect.Load, usage: usageKV, ceiling: 1}
	got, _, err := r.read(strings.NewReader(idlePages["vllm"] + "vllm:gpu_cache_usage_perc 0.5\n"))
	if err != nil || got.CacheUsage != nil {
		t.Errorf("usage of another tier: %v, err %v", got.CacheUsage, err)
	}
}

func TestPrefillSpeed(t *testing.T) {
	t.Parallel()
	vllmPair := func(computed int, seconds float64) string {
		return fmt.Sprintf("vllm:request_prefill_kv_computed_tokens_sum{engine=\"0\"} %d\nvllm:request_prefill_time_seconds_sum{engine=\"0\"} %v\n", computed, seconds)
	}
	vllmOld := func(prompt, hits int, seconds float64) string {
		return fmt.Sprintf("vllm:prompt_tokens_total %d\nvllm:prefix_cache_hits_total %d\nvllm:request_prefill_time_seconds_sum %v\n", prompt, hits, seconds)
	}
	external := func(hits int) string { return fmt.Sprintf("vllm:external_prefix_cache_hits_total %d\n", hits) }
	// Two schedulers that serve one copy report the same tokens.
	sglangTokens := func(computed int) string {
		return fmt.Sprintf(`sglang:realtime_tokens_total{mode="prefill_compute",tp_rank="0"} %[1]d
sglang:realtime_tokens_total{mode="prefill_compute",tp_rank="1"} %[1]d
sglang:realtime_tokens_total{mode="prefill_cache",tp_rank="0"} 1000000
`, computed)
	}
	device := func(extend, mixed float64) string {
		return fmt.Sprintf(`sglang:forward_execution_seconds_total{category="extend",tp_rank="0"} %v
sglang:forward_execution_seconds_total{category="mixed",tp_rank="0"} %v
sglang:forward_execution_seconds_total{category="decode",tp_rank="0"} 1000000
`, extend, mixed)
	}
	stage := func(seconds float64) string {
		return fmt.Sprintf("sglang:per_stage_req_latency_seconds_sum{stage=\"prefill_forward\"} %v\nsglang:per_stage_req_latency_seconds_sum{stage=\"decode_loop\"} 1000000\n", seconds)
	}
	sglangOld := func(prompt, device, host int) string {
		return fmt.Sprintf("sglang:prompt_tokens_total %d\nsglang:cached_tokens_total{cache_source=\"device\"} %d\nsglang:cached_tokens_total{cache_source=\"host\"} %d\n", prompt, device, host)
	}
	for name, tc := range map[string]struct {
		dialect       string
		first, second string
		want          *float64
	}{
		"vLLM":                     {"vllm", vllmPair(1000, 5), vllmPair(3000, 9), proto.Float64(500)},
		"vLLM, nothing computed":   {"vllm", vllmPair(1000, 5), vllmPair(1000, 9), nil},
		"vLLM, no time passed":     {"vllm", vllmPair(1000, 5), vllmPair(3000, 5), nil},
		"vLLM, reset":              {"vllm", vllmPair(1000, 5), vllmPair(900, 9), nil},
		"vLLM, reset of the time":  {"vllm", vllmPair(1000, 5), vllmPair(3000, 1), nil},
		"vLLM, first appearance":   {"vllm", "", vllmPair(3000, 5), nil},
		"vLLM, gone":               {"vllm", vllmPair(1000, 5), "", nil},
		"vLLM, another process":    {"vllm", vllmPair(1000, 5) + "process_start_time_seconds 1\n", vllmPair(3000, 9) + "process_start_time_seconds 2\n", nil},
		"older vLLM":               {"vllm", vllmOld(1000, 100, 5), vllmOld(3000, 1100, 9), proto.Float64(250)},
		"older vLLM, external":     {"vllm", vllmOld(1000, 100, 5) + external(0), vllmOld(3000, 1100, 9) + external(200), proto.Float64(200)},
		"older vLLM, all cached":   {"vllm", vllmOld(1000, 100, 5), vllmOld(3000, 2200, 9), nil},
		"SGLang, device timer":     {"sglang", sglangTokens(1000) + device(4, 1) + stage(10), sglangTokens(3000) + device(5, 2) + stage(30), proto.Float64(1000)},
		"SGLang, mixed comes late": {"sglang", sglangTokens(1000) + "sglang:forward_execution_seconds_total{category=\"extend\"} 4\n", sglangTokens(3000) + "sglang:forward_execution_seconds_total{category=\"extend\"} 5\nsglang:forward_execution_seconds_total{category=\"mixed\"} 1\n", proto.Float64(1000)},
		"SGLang, old timer":        {"sglang", sglangTokens(1000) + "sglang:gpu_execution_seconds_total{category=\"forward_prefill\"} 4\n", sglangTokens(3000) + "sglang:gpu_execution_seconds_total{category=\"forward_prefill\"} 8\n", proto.Float64(500)},
		"SGLang, no timer":         {"sglang", sglangTokens(1000) + stage(10), sglangTokens(3000) + stage(20), proto.Float64(200)},
		"older SGLang":             {"sglang", sglangOld(1000, 100, 10) + stage(10), sglangOld(3000, 1000, 110) + stage(20), proto.Float64(100)},
		"SGLang, no cached tokens": {"sglang", "sglang:prompt_tokens_total 1\n" + stage(10), "sglang:prompt_tokens_total 9\n" + stage(20), nil},
		"SGLang, no time":          {"sglang", sglangTokens(1000), sglangTokens(3000), nil},
		"TensorRT-LLM, no cached":  {"trtllm", "trtllm_prompt_tokens_total 1\ntrtllm_request_prefill_time_seconds_sum 1\n", "trtllm_prompt_tokens_total 9\ntrtllm_request_prefill_time_seconds_sum 2\n", nil},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got, _ := readPages(t, tc.dialect, tc.first, tc.second)
			if diff := cmp.Diff(tc.want, got.PrefillTokensPerSecond); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}

func TestFacts(t *testing.T) {
	t.Parallel()
	const config = `vllm:cache_config_info{block_size="16",enable_prefix_caching="False",engine="0",num_gpu_blocks="9"} 1` + "\n"
	yes, no := true, false
	const sleep = "vllm:engine_sleep_state{engine=\"%d\",sleep_state=%q} %d\n"
	asleep := func(level int, awake ...int) (page string) {
		for i, v := range awake {
			page += fmt.Sprintf(sleep, i, "awake", v) +
				fmt.Sprintf(sleep, i, "weights_offloaded", (1-v)*(level&1)) + fmt.Sprintf(sleep, i, "discard_all", (1-v)*(level>>1))
		}
		return page
	}
	for name, tc := range map[string]struct {
		dialect string
		pages   []string
		want    facts
	}{
		"all": {"vllm", []string{config + asleep(1, 0, 0) + "vllm:num_requests_running{engine=\"0\"} 1\nvllm:num_requests_running{engine=\"1\"} 1\n" +
			"process_start_time_seconds 1.7799e+09\nvllm:prompt_tokens_total{engine=\"0\"} 40\nvllm:prompt_tokens_total{engine=\"1\"} 2\n"},
			facts{Started: 1.7799e+09, PromptTokens: 42, CachedTokens: -1, PrefixCaching: "False", Capacity: 144, BlockSize: 16, Engines: 2, Asleep: &yes, Emptied: true}},
		"nothing yet":       {"vllm", []string{`vllm:cache_config_info{block_size="None",enable_prefix_caching="None"} 1` + "\n"}, facts{PromptTokens: -1, CachedTokens: -1}},
		"one engine awake":  {"vllm", []string{asleep(1, 0, 1)}, facts{PromptTokens: -1, CachedTokens: -1, Asleep: &no}},
		"awake":             {"vllm", []string{asleep(1, 1)}, facts{PromptTokens: -1, CachedTokens: -1, Asleep: &no}},
		"asleep at level 2": {"vllm", []string{asleep(2, 0)}, facts{PromptTokens: -1, CachedTokens: -1, Asleep: &yes, Emptied: true}},
		"paused":            {"vllm", []string{asleep(0, 0)}, facts{PromptTokens: -1, CachedTokens: -1, Asleep: &yes}},
		"level not said":    {"vllm", []string{fmt.Sprintf(sleep, 0, "awake", 0)}, facts{PromptTokens: -1, CachedTokens: -1, Asleep: &yes, Emptied: true}},
		"grew":              {"vllm", []string{"vllm:prompt_tokens_total 1\n", "vllm:prompt_tokens_total 2\n"}, facts{PromptTokens: 2, CachedTokens: -1}},
		"stood still":       {"vllm", []string{"vllm:prompt_tokens_total 2\n", "vllm:prompt_tokens_total 2\n"}, facts{PromptTokens: 2, CachedTokens: -1}},
		"fell":              {"vllm", []string{"vllm:prompt_tokens_total 2\n", "vllm:prompt_tokens_total 0\n"}, facts{Fell: true, CachedTokens: -1}},
		"fell before":       {"vllm", []string{"vllm:prompt_tokens_total 2\n", "vllm:prompt_tokens_total 0\n", "vllm:prompt_tokens_total 1\n"}, facts{PromptTokens: 1, CachedTokens: -1}},
		"fell while away":   {"vllm", []string{"vllm:prompt_tokens_total 2\n", "", "vllm:prompt_tokens_total 1\n"}, facts{Fell: true, PromptTokens: 1, CachedTokens: -1}},
		"away and back":     {"vllm", []string{"vllm:prompt_tokens_total 2\n", "", "vllm:prompt_tokens_total 2\n"}, facts{PromptTokens: 2, CachedTokens: -1}},
		"fell by rounding":  {"sglang", []string{"sglang:forward_execution_seconds_total{category=\"extend\"} 0.6000000000000001\n", "sglang:forward_execution_seconds_total{category=\"extend\"} 0.6\n"}, facts{PromptTokens: -1, CachedTokens: -1}},
		"seconds fell":      {"sglang", []string{"sglang:forward_execution_seconds_total{category=\"extend\"} 0.7\n", "sglang:forward_execution_seconds_total{category=\"extend\"} 0.6\n"}, facts{Fell: true, PromptTokens: -1, CachedTokens: -1}},
		"negative sample":   {"vllm", []string{"vllm:request_prefill_time_seconds_sum 5\n", "vllm:request_prefill_time_seconds_sum -900\n"}, facts{PromptTokens: -1, CachedTokens: -1}},
		"hits":              {"vllm", []string{"vllm:prefix_cache_hits_total{engine=\"0\"} 3\nvllm:prefix_cache_hits_total{engine=\"1\"} 4\n"}, facts{PromptTokens: -1, CachedTokens: 7}},
		"another start": {"vllm", []string{"process_start_time_seconds 1\n", "process_start_time_seconds 2\n"},
			facts{Started: 2, PromptTokens: -1, CachedTokens: -1}},
		"SGLang": {"sglang", []string{"sglang:page_size 64\nsglang:max_total_num_tokens 6400\nsglang:cached_tokens_total 5\nsglang:prompt_tokens_total{is_streaming=\"true\"} 3\nsglang:prompt_tokens_total{is_streaming=\"false\"} 4\n"},
			facts{PromptTokens: 7, CachedTokens: 5, BlockSize: 64, Capacity: 6400}},
		"TensorRT-LLM": {"trtllm", []string{"trtllm_kv_cache_tokens_per_block{engine_type=\"trtllm\"} 32\ntrtllm_prompt_tokens_total 5\n"},
			facts{PromptTokens: 5, CachedTokens: -1, BlockSize: 32}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			_, got := readPages(t, tc.dialect, tc.pages...)
			if diff := cmp.Diff(tc.want, got); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}

// The model filter leaves what describes the process, unless it names another
// model; a page about the process alone is still a foreign page.
func TestModelFilterKeepsWhatNamesNoModel(t *testing.T) {
	t.Parallel()
	r := loadReader{families: vllm.Dialect.Load, usage: usageAuto, model: "m"}
	_, got, err := r.read(strings.NewReader(`vllm:num_requests_running{model_name="m"} 1
vllm:num_requests_waiting{model_name="m"} 1
vllm:prompt_tokens_total{model_name="n"} 5
vllm:cache_config_info{block_size="16"} 1
vllm:cache_config_info{block_size="32",model_name="n"} 1
process_start_time_seconds 7
`))
	if diff := cmp.Diff(facts{Started: 7, PromptTokens: -1, CachedTokens: -1, BlockSize: 16}, got); diff != "" || err != nil {
		t.Errorf("err %v (-want +got):\n%s", err, diff)
	}
	if _, _, err := r.read(strings.NewReader("process_start_time_seconds 7\n")); !errors.Is(err, errNoFamily) {
		t.Errorf("foreign page: %v", err)
	}
}

func TestReadingsAreBounded(t *testing.T) {
	t.Parallel()
	r := loadReader{families: vllm.Dialect.Load}
	_, _, err := r.read(strings.NewReader(idlePages["vllm"] + strings.Repeat("vllm:prompt_tokens 1\n", maxReadings)))
	if !errors.Is(err, errTooManyReadings) {
		t.Errorf("a page of one series over and over: %v", err)
	}
}
