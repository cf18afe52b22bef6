// Package trtllm is TensorRT-LLM's dialect of KV events and load metrics. It is
// data only; package engine decodes.
package trtllm

import (
	"inferencecache.io/inferencecache/internal/engine"
	"inferencecache.io/inferencecache/internal/engine/vllm"
)

// Dialect of TensorRT-LLM. Its events are maps with vLLM's field names, plus
// mm_keys and string tokens; positional ones, which it is not known to send,
// are read as vLLM's. Block hashes are its own, hence a scheme of its own.
//
// Its metrics (tensorrt_llm/metrics/collector.py) are under
// /prometheus/metrics, not /metrics. The gauges come with iteration statistics
// (enable_iter_perf_stats), the per-request counters with return_perf_metrics.
// Versions before the trtllm_ prefix and the two load gauges report no load.
var Dialect = engine.Dialect{
	Name:       "trtllm",
	HashScheme: "trtllm",
	Stored:     vllm.Dialect.Stored,
	Removed:    vllm.Dialect.Removed,
	RankKeys:   []string{"data_parallel_rank", "attn_dp_rank", "dp_rank"},

	BlockSize:   32,
	EventPort:   5557,
	ReplayPort:  5558,
	MetricsPort: 8000,
	MetricsPath: "/prometheus/metrics",
	Load: engine.Load{
		Running: "trtllm_num_requests_running",
		Waiting: "trtllm_num_requests_waiting",
		Usage:   "trtllm_kv_cache_utilization",
		HitRate: "trtllm_kv_cache_hit_rate", // since the start of the engine

		CapacityBlocks: "trtllm_kv_cache_max_blocks",
		BlockTokens:    "trtllm_kv_cache_tokens_per_block",
		PromptTokens:   "trtllm_prompt_tokens",

		// Both counted when a request ends. Prefill time is from a request's
		// first turn to its first token.
		Prefill: []engine.Speed{{
			Tokens:  engine.Series{Name: "trtllm_prompt_tokens"},
			Cached:  []engine.Series{{Name: "trtllm_prompt_cached_tokens"}},
			Seconds: engine.Series{Name: "trtllm_request_prefill_time_seconds_sum"},
		}},
	},
}
