package server

import (
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/pflag"

	"inferencecache.io/inferencecache/internal/fingerprint"
	"inferencecache.io/inferencecache/internal/journal"
	"inferencecache.io/inferencecache/internal/policy"
	"inferencecache.io/inferencecache/internal/rank"
)

// Config is all that an operator can set of the server. The zero value is not
// usable: start from Flags' defaults.
type Config struct {
	Version string // of the program, to tell; not a flag

	EngineBlockSize int // tokens a block, for chains made here

	MemoryBytes   int64         // index budget; 0: the composer chooses
	MaxEntries    int64         // index cap in holder entries; 0: none
	SweepInterval time.Duration // pause between bounded sweeps of the index
	SweepSlots    int           // index slots looked at in one sweep
	MaxReplicas   int           // replicas with stats, over all tenants
	// ReplicaDeadAfter is how long a replica that promised heartbeats may be
	// silent; three times its promise if that is longer.
	ReplicaDeadAfter time.Duration
	// ReplicaSuspectAfter is how long one may be silent until that costs it.
	ReplicaSuspectAfter time.Duration
	MaxModelLabels      int // model names that metrics show by name
	Decisions           int // latest answers to remember
	Journal             journal.Config

	Policy policy.Policy // of a tenant without a policy
	Rank   rank.Compat   // profile Compat
	Cost   rank.Cost     // profile Cost

	MaxMessageBytes  int // of one request or stream message
	MaxBlocks        int // of one chain
	MaxTokens        int // of one prompt
	MaxPromptBytes   int // of one prompt_text
	EventBuffer      int // events a StreamCacheEvents reader may lag
	MaxEventStreams  int // StreamCacheEvents readers at a time
	Tokenize         bool
	MaxTokenizations int // at a time
	TokenizeTimeout  time.Duration
	TokenCacheBytes  int

	AllowedControllerSA string
	InsecureDisableAuth bool
	ControllerAudience  string
	PolicyAudience      string
	TLSCertFile         string
	TLSKeyFile          string
	ControlTLS          bool // TLS on the control listener too
}

// Flags registers the server's flags with their defaults.
func (c *Config) Flags(fs *pflag.FlagSet) {
	p, r := policy.Defaults(), rank.CompatDefaults()
	fs.IntVar(&c.EngineBlockSize, "engine-block-size", fingerprint.DefaultBlockSize, "tokens in an engine's block; must equal the engines' own")

	fs.Int64Var(&c.MemoryBytes, "index-memory", 0, "bytes the index may use (0: half of the memory limit of the container or machine)")
	fs.Int64Var(&c.MaxEntries, "index-max-entries", 0, "entries (replica x block) the index may hold (0: as many as fit in --index-memory)")
	fs.DurationVar(&c.SweepInterval, "sweep-interval", time.Second, "pause between two bounded sweeps for expired entries")
	fs.IntVar(&c.SweepSlots, "sweep-slots", 100_000, "index slots looked at in one sweep")
	fs.IntVar(&c.MaxReplicas, "max-replicas", 65_536, "replicas whose stats are kept, over all tenants")
	fs.DurationVar(&c.ReplicaDeadAfter, "replica-dead-after", 90*time.Second, "silence after which a replica that promised heartbeats is dead (at least three heartbeats)")
	fs.DurationVar(&c.ReplicaSuspectAfter, "replica-suspect-after", 30*time.Second, "silence after which a replica is avoided (at least three heartbeats)")
	fs.IntVar(&c.Decisions, "decisions", 1024, "latest answers to remember, for explain and for outcomes")
	c.Journal.Flags(fs)
	fs.IntVar(&c.MaxModelLabels, "max-model-labels", 1_000, "models that metrics name; later ones count as _other")

	fs.DurationVar(&c.Policy.TTL, "eviction-ttl", p.TTL, "age at which an index entry is forgotten, for tenants without a policy")
	fs.BoolVar(&c.Policy.LFU, "eviction-lfu", p.LFU, "evict the least used entries first instead of the oldest, for tenants without a policy")
	fs.Int32Var(&c.Policy.MinPrefixTokens, "minimum-prefix-tokens", p.MinPrefixTokens, "shorter prompts get no prefix hint, for tenants without a policy (0: off)")
	fs.Int32Var(&c.Policy.MinMatchedTokens, "minimum-matched-tokens", p.MinMatchedTokens, "replicas matching fewer tokens are not named, for tenants without a policy (0: off)")
	fs.Float32Var(&c.Policy.FloorScore, "routing-floor-score", p.FloorScore, "a best score below it is no match, for tenants whose policy has none (0: off)")
	fs.DurationVar(&c.Policy.Timeout, "lookup-timeout", p.Timeout, "budget of one lookup, for tenants without a policy (0: none)")
	fs.BoolVar(&c.Policy.ChainMatching, "chain-matching", p.ChainMatching, "match leading runs of blocks, for tenants without a policy")
	fs.BoolVar(&c.Policy.RequireChain, "require-chain", p.RequireChain, "answer only requests that carry a chain, for tenants without a policy")
	fs.BoolVar(&c.Policy.TenantHot, "tenant-hot", p.TenantHot, "allow TENANT_HOT answers, for tenants without a policy")
	fs.BoolVar(&c.Policy.Affinity, "affinity-routing", p.Affinity, "allow AFFINITY_HINT answers, for tenants without a policy")
	c.Policy.Profile = p.Profile
	fs.Var(&c.Policy.Profile, "ranking-profile", "how replicas are ranked, for tenants whose policy does not say: Cost (expected seconds) or Compat (the published formula)")
	fs.Int32Var(&c.Policy.TopK, "ranking-top-k", p.TopK, "replicas in an answer of profile Cost, for tenants whose policy does not say (0: all)")
	fs.BoolVar(&c.Policy.Shadow, "shadow", p.Shadow, "rank and record, but name no replica, for tenants whose policy does not say")
	c.Cost = rank.CostDefaults()
	fs.Float64Var(&c.Cost.Rate, "prefill-rate", c.Cost.Rate, "prompt tokens a second of a replica, until one has told its own")
	fs.Float64Var(&c.Cost.LoadRate[0], "t2-load-rate", c.Cost.LoadRate[0], "tokens a second that come from host memory (0: take them for absent)")
	fs.Float64Var(&c.Cost.LoadRate[1], "t3-load-rate", c.Cost.LoadRate[1], "tokens a second that come from remote storage (0: take them for absent)")
	fs.Float32Var(&c.Rank.PressureWeight, "pressure-weight", r.PressureWeight, "how much a replica's load lowers its score (0: not at all)")
	fs.Int32Var(&c.Rank.SLOTightTTFTMs, "slo-tight-ttft-ms", r.SLOTightTTFTMs, "a wanted time to first token below it favours fresh holds (0: off)")
	fs.Float32Var(&c.Rank.SLOTightBias, "slo-tight-bias", r.SLOTightBias, "how much it favours them (0: off)")
	fs.Float32Var(&c.Rank.TenantHotMinHitRate, "tenant-hot-min-hit-rate", r.TenantHotMinHitRate, "hit rate from which a replica is warm")
	fs.DurationVar(&c.Rank.TenantHotMaxAge, "tenant-hot-max-age", r.TenantHotMaxAge, "age at which stats do not make a replica warm any more (0: TENANT_HOT off)")

	fs.IntVar(&c.MaxMessageBytes, "max-message-bytes", 16<<20, "largest request or stream message")
	fs.IntVar(&c.MaxBlocks, "max-blocks-per-chain", 1<<20, "longest chain of blocks in one request or entry")
	fs.IntVar(&c.MaxTokens, "max-tokens", 1<<20, "longest prompt in tokens")
	fs.IntVar(&c.MaxPromptBytes, "max-prompt-bytes", 1<<20, "longest prompt_text")
	fs.IntVar(&c.EventBuffer, "event-buffer", 1024, "events a StreamCacheEvents reader may lag before it is cut off")
	fs.IntVar(&c.MaxEventStreams, "max-event-streams", 64, "StreamCacheEvents and StreamMetrics readers at a time")
	fs.BoolVar(&c.Tokenize, "tokenize-from-engines", false, "tokenize prompt_text by asking a live engine of the model (the server then calls the URLs that subscribers report)")
	fs.IntVar(&c.MaxTokenizations, "max-tokenizations", 64, "prompts tokenized at a time; more get no hint")
	fs.DurationVar(&c.TokenizeTimeout, "tokenize-timeout", 5*time.Second, "longest wait for an engine to tokenize a prompt")
	fs.IntVar(&c.TokenCacheBytes, "token-cache-bytes", 64<<20, "memory for tokenized prompts (0: none)")

	fs.StringVar(&c.AllowedControllerSA, "allowed-controller-sa", "", "the only user let in on the control listener, as system:serviceaccount:<namespace>:<name>")
	fs.BoolVar(&c.InsecureDisableAuth, "insecure-disable-auth", false, "let everyone in on the control listener")
	fs.StringVar(&c.ControllerAudience, "controller-audience", "inferencecache.io/controller", "token audience for /snapshot and /probe")
	fs.StringVar(&c.PolicyAudience, "policy-audience", "inferencecache.io/policy", "token audience for /policy")
	fs.StringVar(&c.TLSCertFile, "tls-cert-file", "", "serve TLS with this certificate (re-read when it changes)")
	fs.StringVar(&c.TLSKeyFile, "tls-key-file", "", "key of --tls-cert-file")
	fs.BoolVar(&c.ControlTLS, "control-tls", false, "use the TLS certificate on the control listener too")
}

// Validate joins everything that is wrong with c. Authentication is checked
// apart, by ValidateAuth.
func (c *Config) Validate() error {
	var errs []error
	positive := func(flag string, v int64) {
		if v <= 0 {
			errs = append(errs, fmt.Errorf("--%s %d: must be above 0", flag, v))
		}
	}
	positive("engine-block-size", int64(c.EngineBlockSize))
	positive("sweep-interval", int64(c.SweepInterval))
	positive("sweep-slots", int64(c.SweepSlots))
	positive("max-replicas", int64(c.MaxReplicas))
	positive("replica-dead-after", int64(c.ReplicaDeadAfter))
	positive("replica-suspect-after", int64(c.ReplicaSuspectAfter))
	positive("max-model-labels", int64(c.MaxModelLabels))
	if c.Decisions < 0 || c.Policy.TopK < 0 {
		errs = append(errs, errors.New("--decisions and --ranking-top-k must not be negative"))
	}
	if !(c.Cost.Rate > 0) || !(c.Cost.LoadRate[0] >= 0) || !(c.Cost.LoadRate[1] >= 0) {
		errs = append(errs, errors.New("--prefill-rate must be above 0, --t2-load-rate and --t3-load-rate must not be negative"))
	}
	positive("eviction-ttl", int64(c.Policy.TTL))
	positive("max-message-bytes", int64(c.MaxMessageBytes))
	positive("max-blocks-per-chain", int64(c.MaxBlocks))
	positive("max-tokens", int64(c.MaxTokens))
	positive("max-prompt-bytes", int64(c.MaxPromptBytes))
	positive("event-buffer", int64(c.EventBuffer))
	positive("max-event-streams", int64(c.MaxEventStreams))
	positive("max-tokenizations", int64(c.MaxTokenizations))
	positive("tokenize-timeout", int64(c.TokenizeTimeout))
	if c.MemoryBytes < 0 {
		errs = append(errs, fmt.Errorf("--index-memory %d: must not be negative", c.MemoryBytes))
	}
	if c.MaxEntries < 0 {
		errs = append(errs, fmt.Errorf("--index-max-entries %d: must not be negative", c.MaxEntries))
	}
	if c.Policy.RequireChain && !c.Policy.ChainMatching {
		errs = append(errs, errors.New("--require-chain needs --chain-matching"))
	}
	if (c.TLSCertFile == "") != (c.TLSKeyFile == "") {
		errs = append(errs, errors.New("--tls-cert-file and --tls-key-file: give both or neither"))
	}
	if c.ControlTLS && c.TLSCertFile == "" {
		errs = append(errs, errors.New("--control-tls needs --tls-cert-file and --tls-key-file"))
	}
	errs = append(errs, c.Journal.Validate())
	return errors.Join(errs...)
}

// ValidateAuth refuses to serve the control listener unguarded by mistake.
func (c *Config) ValidateAuth() error {
	sa := c.AllowedControllerSA
	switch {
	case sa == "" && !c.InsecureDisableAuth:
		return errors.New("the control listener needs --allowed-controller-sa, or --insecure-disable-auth to let everyone in")
	case sa != "" && c.InsecureDisableAuth:
		return errors.New("--allowed-controller-sa and --insecure-disable-auth contradict each other: give one")
	case sa == "":
		return nil
	case strings.TrimSpace(sa) != sa:
		return fmt.Errorf("--allowed-controller-sa %q: has spaces around it", sa)
	}
	var errs []error
	for flag, v := range map[string]string{"controller-audience": c.ControllerAudience, "policy-audience": c.PolicyAudience} {
		if v == "" || strings.TrimSpace(v) != v {
			errs = append(errs, fmt.Errorf("--%s %q: must not be empty or have spaces around it", flag, v))
		}
	}
	return errors.Join(errs...)
}
