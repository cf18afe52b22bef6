package sim

import (
	"fmt"
	"net/http"
	"strings"
)

// serveMetrics is GET /metrics: the Prometheus text of vLLM, as far as the
// plane and common dashboards read it. All of it starts anew in a restart.
// kv_cache_usage_perc is the share of blocks in use by running requests, from
// 0 to 1: vLLM counts cached blocks that nobody uses as free.
func (e *Engine) serveMetrics(w http.ResponseWriter, _ *http.Request) {
	p := e.current()
	p.mu.Lock()
	c, used := p.counts, p.cache.used()
	p.mu.Unlock()
	usage := float64(used) / float64(e.cfg.Blocks)
	born := float64(p.born.UnixMilli()) / 1e3

	w.Header().Set("Content-Type", "text/plain; version=0.0.4; charset=utf-8")
	var b strings.Builder
	model := `{engine="0",model_name="` + escapeLabel(e.cfg.Model) + `"}`
	write := func(kind, name, labels, help string, value any) {
		fmt.Fprintf(&b, "# HELP %[1]s %[2]s\n# TYPE %[1]s %[3]s\n%[1]s%[4]s %[5]v\n", name, help, kind, labels, value)
	}
	write("gauge", "vllm:num_requests_running", model, "Number of requests in model execution batches.", c.running)
	write("gauge", "vllm:num_requests_waiting", model, "Number of requests waiting to be processed.", c.waiting)
	write("gauge", "vllm:kv_cache_usage_perc", model, "KV-cache usage. 1 means 100 percent usage.", usage)
	write("counter", "vllm:prefix_cache_queries_total", model, "Prefix cache queries, in terms of number of queried tokens.", c.queries)
	write("counter", "vllm:prefix_cache_hits_total", model, "Prefix cache hits, in terms of number of cached tokens.", c.hits)
	write("counter", "vllm:prompt_tokens_total", model, "Number of prefill tokens processed.", c.prompt)
	write("counter", "vllm:generation_tokens_total", model, "Number of generation tokens processed.", c.generation)
	write("gauge", "vllm:cache_config_info",
		fmt.Sprintf(`{block_size="%d",enable_prefix_caching="True",engine="0",model_name="%s",num_gpu_blocks="%d"}`,
			e.cfg.BlockSize, escapeLabel(e.cfg.Model), e.cfg.Blocks),
		"Information of the LLMEngine CacheConfig", "1.0")
	write("gauge", "process_start_time_seconds", "", "Start time of the process since unix epoch in seconds.", fmt.Sprintf("%.3f", born))
	_, _ = w.Write([]byte(b.String())) // the client is gone if this fails
}

var labelEscapes = strings.NewReplacer(`\`, `\\`, `"`, `\"`, "\n", `\n`)

func escapeLabel(s string) string { return labelEscapes.Replace(s) }
