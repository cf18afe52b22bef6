// Package vllm is vLLM's dialect of KV events and load metrics. LMCache speaks
// it too, through vLLM. It is data only; package engine decodes.
package vllm

import "inferencecache.io/inferencecache/internal/engine"

// Dialect of vLLM. Positional events grew by one field at a time from 0.9.0
// (five) to 0.23 (eleven), and map events followed; a field an engine version
// does not know is absent. Index 12 and 4 are where Dynamo's consolidator
// appends the locality.
var Dialect = engine.Dialect{
	Name:       "vllm",
	HashScheme: "vllm",
	Stored: []engine.Field{
		engine.BlockHashes, engine.ParentHash, engine.TokenIDs, engine.BlockSize,
		engine.LoraID, engine.Medium, engine.NameOrMetadata, engine.ExtraKeys,
		engine.GroupIdx, engine.SpecKind, engine.SlidingWindow, engine.Locality,
	},
	Removed:  []engine.Field{engine.BlockHashes, engine.Medium, engine.GroupIdx, engine.Locality},
	RankKeys: []string{"data_parallel_rank", "dp_rank", "attn_dp_rank"},

	BlockSize:   16,
	EventPort:   5557,
	ReplayPort:  5558,
	MetricsPort: 8000,
	MetricsPath: "/metrics",
	Load: engine.Load{
		Running:   "vllm:num_requests_running",
		Waiting:   "vllm:num_requests_waiting",
		Usage:     "vllm:kv_cache_usage_perc",
		UsageGPU:  "vllm:gpu_cache_usage_perc",
		UsageCPU:  "vllm:cpu_cache_usage_perc",
		Hits:      "vllm:prefix_cache_hits",
		Queries:   "vllm:prefix_cache_queries",
		T2Hits:    "vllm:external_prefix_cache_hits",
		T2Queries: "vllm:external_prefix_cache_queries",

		PromptTokens: "vllm:prompt_tokens",
		CacheConfig:  "vllm:cache_config_info",
		Sleep:        "vllm:engine_sleep_state",
		Prefill:      prefill,
	},
}

// prefill divides by the time from a request's first turn to its first token,
// summed over requests that ended (vllm/v1/metrics/stats.py). Requests that
// share a step all count its time: it is the speed one request sees, below
// that of the whole engine. Newer versions sum up the tokens computed for the
// same requests (pull request 30189); older ones say only what all requests
// asked for and found.
var prefill = []engine.Speed{
	{
		Tokens:  engine.Series{Name: "vllm:request_prefill_kv_computed_tokens_sum"},
		Seconds: prefillSeconds,
	},
	{
		Tokens: engine.Series{Name: "vllm:prompt_tokens"},
		Cached: []engine.Series{
			{Name: "vllm:prefix_cache_hits"}, {Name: "vllm:external_prefix_cache_hits"},
		},
		Seconds: prefillSeconds,
	},
	{
		Tokens:  engine.Series{Name: "vllm:prompt_tokens"},
		Cached:  []engine.Series{{Name: "vllm:prefix_cache_hits"}},
		Seconds: prefillSeconds,
	},
}

var prefillSeconds = engine.Series{Name: "vllm:request_prefill_time_seconds_sum"}
