// Package sglang is SGLang's dialect of KV events and load metrics. It is data
// only; package engine decodes.
package sglang

import "inferencecache.io/inferencecache/internal/engine"

// Dialect of SGLang. Positional events stop at lora_id (2025), at medium (2026)
// or at a map of metadata (0.5.18 on); map events came in September 2026.
var Dialect = engine.Dialect{
	Name:       "sglang",
	HashScheme: "sglang",
	Stored: []engine.Field{
		engine.BlockHashes, engine.ParentHash, engine.TokenIDs, engine.BlockSize,
		engine.LoraID, engine.Medium, engine.NameOrMetadata,
	},
	Removed:  []engine.Field{engine.BlockHashes, engine.Medium},
	RankKeys: []string{"attn_dp_rank", "dp_rank", "data_parallel_rank"},

	BlockSize:   16,
	EventPort:   5557,
	ReplayPort:  5558,
	MetricsPort: 30000,
	MetricsPath: "/metrics",
	Load: engine.Load{
		Running: "sglang:num_running_reqs",
		Waiting: "sglang:num_queue_reqs",
		Usage:   "sglang:token_usage",
		HitRate: "sglang:cache_hit_rate", // of the prompts computed last

		PromptTokens:   "sglang:prompt_tokens",
		CapacityTokens: "sglang:max_total_num_tokens",
		BlockTokens:    "sglang:page_size",
		Prefill:        prefill,
	},
}

// prefill prefers the seconds that the GPU spent on batches with prompts, which
// exist with SGLANG_ENABLE_METRICS_DEVICE_TIMER=1 only, under a name that
// changed in 2026. Otherwise it is the time of requests from their first turn
// to the end of their prompt, in which requests of one batch all count
// (python/sglang/srt/observability/). Versions without realtime_tokens count
// prompts and what was cached of them when requests end.
var prefill = []engine.Speed{
	{Tokens: computed, Seconds: engine.Series{Name: "sglang:forward_execution_seconds", Label: "category", Values: "extend,mixed"}},
	{Tokens: computed, Seconds: engine.Series{Name: "sglang:gpu_execution_seconds", Label: "category", Values: "extend,mixed,forward_prefill"}},
	{Tokens: computed, Seconds: forward},
	{
		Tokens:  engine.Series{Name: "sglang:prompt_tokens"},
		Cached:  []engine.Series{{Name: "sglang:cached_tokens"}},
		Seconds: forward,
	},
}

var (
	computed = engine.Series{Name: "sglang:realtime_tokens", Label: "mode", Values: "prefill_compute"}
	forward  = engine.Series{Name: "sglang:per_stage_req_latency_seconds_sum", Label: "stage", Values: "prefill_forward"}
)
