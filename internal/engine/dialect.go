package engine

// Dialect is how one engine speaks: what its positional events mean and what
// it calls its load metrics. It is plain data; the events' map form and all
// value types are common to every engine and live in the decoder.
type Dialect struct {
	Name       string // as written in configuration: "vllm", "sglang", "trtllm"
	HashScheme string // domain of its block keys in the index

	Stored  []Field // layout of a positional BlockStored after the tag
	Removed []Field // layout of a positional BlockRemoved after the tag
	// RankKeys are the names of the rank in a map envelope, own name first.
	RankKeys []string

	BlockSize   int // default tokens a block; events carry the real one
	EventPort   int // default PUB port of rank 0; rank r adds r
	ReplayPort  int // port customary for the replay ROUTER; off by default
	MetricsPort int // default HTTP port of the metrics page
	MetricsPath string
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

	PromptTokens   string // counter, tokens of prompts, cached ones included
	CapacityTokens string // gauge, tokens the cache can hold; summed over series
	CapacityBlocks string // same in blocks of BlockTokens
	BlockTokens    string // gauge, tokens a block
	CacheConfig    string // info, see the labels below
	Sleep          string // gauge by sleep_state; "awake" is 0 while the engine sleeps

	// Prefill are the ways to tell how fast the engine computes prompts, best
	// first. The first whose series are all on the page counts.
	Prefill []Speed
}

// Labels of Load.CacheConfig, vLLM's vllm:cache_config_info. A value that is
// not known yet is "None".
const (
	LabelBlockSize     = "block_size"            // tokens; of hybrid models the smallest of all groups
	LabelBlocks        = "num_gpu_blocks"        // of all engines behind the page together
	LabelCacheTokens   = "kv_cache_size_tokens"  // of one engine; newer versions (pull request 42206)
	LabelPrefixCaching = "enable_prefix_caching" // "True" or "False"
)

// Series names the samples of one counter whose Label has one of Values,
// separated by commas; an empty Label takes all.
type Series struct{ Name, Label, Values string }

// Speed is prompt tokens computed per second between two pages: the growth of
// Tokens less that of every Cached, over that of Seconds.
type Speed struct {
	Tokens  Series
	Cached  []Series
	Seconds Series
}
