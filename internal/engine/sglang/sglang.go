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
	Load: engine.Load{
		Running: "sglang:num_running_reqs",
		Waiting: "sglang:num_queue_reqs",
		Usage:   "sglang:token_usage",
		HitRate: "sglang:cache_hit_rate",
	},
}
