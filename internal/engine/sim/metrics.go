package sim

import (
	"fmt"
	"net/http"
	"strings"
)

// family is one metric of vLLM; value gives that of a rank.
type family struct {
	kind, name, help string
	value            func(c counters) any
}

var families = []family{
	{"gauge", "vllm:num_requests_running", "Number of requests in model execution batches.", func(c counters) any { return c.running }},
	{"gauge", "vllm:num_requests_waiting", "Number of requests waiting to be processed.", func(c counters) any { return c.waiting }},
	{"gauge", "vllm:kv_cache_usage_perc", "KV-cache usage. 1 means 100 percent usage.", func(c counters) any { return c.usage }},
	{"counter", "vllm:prefix_cache_queries_total", "Prefix cache queries, in terms of number of queried tokens.", func(c counters) any { return c.queries }},
	{"counter", "vllm:prefix_cache_hits_total", "Prefix cache hits, in terms of number of cached tokens.", func(c counters) any { return c.hits }},
	{"counter", "vllm:prompt_tokens_total", "Number of prefill tokens processed.", func(c counters) any { return c.prompt }},
	{"counter", "vllm:generation_tokens_total", "Number of generation tokens processed.", func(c counters) any { return c.generation }},
}

// serveMetrics is GET /metrics: the Prometheus text of vLLM, as far as the
// plane and common dashboards read it, with a series for each rank. All of it
// starts anew in a restart; the start time is that of rank 0.
func (e *Engine) serveMetrics(w http.ResponseWriter, _ *http.Request) {
	all := make([]counters, len(e.ranks))
	for i, r := range e.ranks {
		all[i] = r.current().measure()
	}
	var b strings.Builder
	head := func(kind, name, help string) {
		fmt.Fprintf(&b, "# HELP %[1]s %[2]s\n# TYPE %[1]s %[3]s\n", name, help, kind)
	}
	model := escapeLabel(e.cfg.Model)
	for _, f := range families {
		head(f.kind, f.name, f.help)
		for i, c := range all {
			fmt.Fprintf(&b, "%s{engine=\"%d\",model_name=\"%s\"} %v\n", f.name, i, model, f.value(c))
		}
	}
	head("gauge", "vllm:cache_config_info", "Information of the LLMEngine CacheConfig")
	caching := "True"
	if e.cfg.NoCaching {
		caching = "False"
	}
	for i := range all { // vLLM gives the blocks of all engines on each series
		fmt.Fprintf(&b, "vllm:cache_config_info{block_size=\"%d\",enable_prefix_caching=\"%s\",engine=\"%d\",model_name=\"%s\",num_gpu_blocks=\"%d\"} 1.0\n",
			e.cfg.BlockSize, caching, i, model, e.cfg.Blocks*len(all))
	}
	head("gauge", "vllm:engine_sleep_state", "Engine sleep state; awake = 0 means the engine is sleeping.")
	for i, c := range all {
		for level, state := range []string{"awake", "weights_offloaded", "discard_all"} {
			is := 0
			if level == c.sleep {
				is = 1
			}
			fmt.Fprintf(&b, "vllm:engine_sleep_state{engine=\"%d\",model_name=\"%s\",sleep_state=\"%s\"} %d\n", i, model, state, is)
		}
	}
	head("gauge", "process_start_time_seconds", "Start time of the process since unix epoch in seconds.")
	fmt.Fprintf(&b, "process_start_time_seconds %.3f\n", float64(e.current().born.UnixMilli())/1e3)
	w.Header().Set("Content-Type", "text/plain; version=0.0.4; charset=utf-8")
	_, _ = w.Write([]byte(b.String())) // the client is gone if this fails
}

// measure is the counters now.
func (p *process) measure() counters {
	p.mu.Lock()
	defer p.mu.Unlock()
	c := p.counts
	c.usage = float64(p.cache.used()) / float64(p.cfg.Blocks)
	return c
}

var labelEscapes = strings.NewReplacer(`\`, `\\`, `"`, `\"`, "\n", `\n`)

func escapeLabel(s string) string { return labelEscapes.Replace(s) }
