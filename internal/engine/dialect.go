package engine

// Dialect is how one engine speaks: what its positional events mean and what
// it calls its load metrics. It is plain data; the events' map form and all
// value types are common to every engine and live in the decoder.
type Dialect struct {
	Name       string // as written in configuration: "vllm", "sglang"
	HashScheme string // domain of its block keys in the index

	Stored  []Field // layout of a positional BlockStored after the tag
	Removed []Field // layout of a positional BlockRemoved after the tag
	// RankKeys are the names of the rank in a map envelope, own name first.
	RankKeys []string

	BlockSize   int // default tokens a block; events carry the real one
	EventPort   int // default PUB port of rank 0; rank r adds r
	ReplayPort  int // port customary for the replay ROUTER; off by default
	MetricsPort int // default HTTP port of /metrics
	Load        Load
}

// Load names the Prometheus families a stats scraper reads. A name that is
// empty does not exist for the engine. Counters are named without "_total";
// engines write them with or without it.
type Load struct {
	Running string // gauge, requests running; summed over series; required
	Waiting string // gauge, requests queued; summed over series; required

	Usage    string // gauge, ratio 0..1 of the KV cache in use; the largest series counts
	UsageGPU string // same, fallback: the larger of UsageGPU and UsageCPU
	UsageCPU string

	Hits    string // counter, prefix-cache hits; hit rate = delta Hits / delta Queries
	Queries string // counter, prefix-cache queries
	HitRate string // gauge, ratio 0..1, of engines that compute it themselves

	T2Hits    string // counter, tokens found in the external tier
	T2Queries string // counter, tokens looked for in the external tier
}
