// Package engine is the model of what an inference engine says about its KV
// cache, and the decoder that reads it from the wire: one msgpack payload in,
// one Batch of events out, each event with a verdict of its own.
//
// It holds no state and knows no residency, no adapter map and no transport:
// the subscriber owns those. The subpackages vllm, sglang and trtllm are its
// dialects; a caller picks one and hands it to Decode.
//
//	payload   [ts, events, rank?, ...]  or  {ts, events, data_parallel_rank, ...}
//	event     ["BlockStored", hashes, parent, tokens, size, lora_id, medium, ...]
//	      or  {"type": "BlockStored", "block_hashes": ..., ...}
//
// Both forms of an event may meet in one batch (vLLM up to 0.23 and SGLang
// until September 2026 write arrays, later versions maps).
//
// A Batch views the payload it was decoded from: keep the payload unchanged as
// long as the batch is in use.
package engine
