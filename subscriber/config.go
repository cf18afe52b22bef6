package subscriber

import (
	"errors"
	"fmt"
	"net"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/pflag"

	"inferencecache.io/inferencecache/internal/engine"
	"inferencecache.io/inferencecache/internal/engine/sglang"
	"inferencecache.io/inferencecache/internal/engine/trtllm"
	"inferencecache.io/inferencecache/internal/engine/vllm"
	"inferencecache.io/inferencecache/internal/kv"
)

// Config is what one subscriber is told. Its zero value is not valid; start
// from DefaultConfig or Flags.
type Config struct {
	EngineEndpoint   string        // PUB endpoint to dial: tcp://host:port or ipc://path
	ReplayEndpoint   string        // ROUTER endpoint that replays; "auto": the port after EngineEndpoint's; empty: none
	SnapshotEndpoint string        // ROUTER endpoint of SGLang's snapshots; empty: none
	SnapshotInterval time.Duration // between two of them
	DiscoverRanks    bool          // ask the engine where its ranks publish, and follow its answer
	Ranks            string        // data-parallel ranks, "0-3,8"; each adds its number to the ports
	Topic            string        // prefix of the topics to take; empty: all
	Servers          []string      // http://host:port, https://host:port, host:port; dns://name:port, dns+https://name:port
	ReplicaID        string        // the replica's name in the index; the pod's name
	ModelID          string
	TenantID         string        // the pod's namespace
	HashScheme       string        // domain of the block keys: "vllm", "sglang", "trtllm"
	EngineDialect    string        // "vllm", "sglang" or "trtllm"; empty: from HashScheme
	EngineURL        string        // base of the engine's HTTP API; empty: from EngineMetricsURL
	BlockSize        int           // tokens a block that the server indexes; 0: any
	Window           time.Duration // how long a change may wait for company
	EngineMetricsURL string        // empty: no stats
	StatsInterval    time.Duration
	EngineCacheBytes int64  // size of the engine's cache; 0: not reported
	Ceiling          int64  // requests at which pressure is 1; 0 or less: pressure is 0
	CacheTier        string // usage gauge: auto, kv, gpu, cpu
	EngineModelName  string // take only metrics with this model_name; empty: all
	HasLowerTier     bool   // an offload tier exists that the engine does not report
	Adapters         string // id=name,... of LoRA adapters, for engines that send no names
	AdaptersFile     string // file with the same, a pair a line; read again when it changes
	MaxFrameBytes    int64  // of one ZeroMQ frame
	QueueBytes       int    // payloads that wait for the worker
	OutboxBytes      int    // changes that wait for one server
	MaxBlocks        int    // blocks held
	MaxOrphans       int    // blocks that wait for their parent

	HeartbeatInterval time.Duration // longest silence towards a server
}

// DefaultConfig is the configuration of the flags' defaults.
func DefaultConfig() Config {
	return Config{
		EngineEndpoint:   "tcp://127.0.0.1:5557",
		ReplayEndpoint:   autoReplay,
		SnapshotInterval: time.Minute,
		DiscoverRanks:    true,
		Ranks:            "0",
		Servers:          []string{"127.0.0.1:9090"},
		HashScheme:       vllm.Dialect.HashScheme,
		Window:           100 * time.Millisecond,
		EngineMetricsURL: "http://127.0.0.1:8000/metrics",
		StatsInterval:    10 * time.Second,
		Ceiling:          256,
		CacheTier:        usageAuto,
		MaxFrameBytes:    64 << 20,
		QueueBytes:       16 << 20,
		OutboxBytes:      8 << 20,
		MaxBlocks:        DefaultMaxBlocks,
		MaxOrphans:       DefaultMaxOrphans,

		HeartbeatInterval: 10 * time.Second,
	}
}

// Flags adds a flag for every field to fs, with the defaults of DefaultConfig.
func (c *Config) Flags(fs *pflag.FlagSet) {
	d := DefaultConfig()
	fs.StringVar(&c.EngineEndpoint, "engine-endpoint", d.EngineEndpoint, "ZeroMQ endpoint of the engine's KV events (tcp://host:port or ipc://path)")
	fs.StringVar(&c.ReplayEndpoint, "engine-replay-endpoint", d.ReplayEndpoint, "ZeroMQ endpoint of the engine's replay (auto: with one rank, the port after --engine-endpoint's; empty: none)")
	fs.StringVar(&c.SnapshotEndpoint, "engine-snapshot-endpoint", d.SnapshotEndpoint, "ZeroMQ endpoint of SGLang's snapshots, to confirm what is held (empty: none)")
	fs.DurationVar(&c.SnapshotInterval, "engine-snapshot-interval", d.SnapshotInterval, "time between two snapshots")
	fs.BoolVar(&c.DiscoverRanks, "discover-ranks", d.DiscoverRanks, "ask the engine's HTTP API where its data-parallel ranks publish, and follow those instead of --ranks")
	fs.StringVar(&c.Ranks, "ranks", d.Ranks, "data-parallel ranks to follow, as in 0-3,8; each adds its number to the ports")
	fs.StringVar(&c.Topic, "topic", d.Topic, "take only topics that start with this (empty: all)")
	fs.StringSliceVar(&c.Servers, "server", d.Servers, "server to report to (http://host:port or host:port; dns://name:port or dns+https://name:port for every address of a name); may be repeated")
	fs.StringVar(&c.ReplicaID, "replica-id", d.ReplicaID, "name of the replica (required)")
	fs.StringVar(&c.ModelID, "model-id", d.ModelID, "model that the engine serves (required)")
	fs.StringVar(&c.TenantID, "tenant-id", d.TenantID, "tenant of the replica, its namespace (required)")
	fs.StringVar(&c.HashScheme, "hash-scheme", d.HashScheme, "domain of the block keys in the index")
	fs.StringVar(&c.EngineDialect, "engine-dialect", d.EngineDialect, "how the engine speaks: vllm, sglang or trtllm (empty: by --hash-scheme)")
	fs.StringVar(&c.EngineURL, "engine-url", d.EngineURL, "base URL of the engine's HTTP API (empty: that of --engine-metrics-url)")
	fs.IntVar(&c.BlockSize, "block-size", d.BlockSize, "tokens a block that the server indexes (0: any)")
	fs.DurationVar(&c.Window, "window", d.Window, "how long changes are collected before they are sent")
	fs.DurationVar(&c.HeartbeatInterval, "heartbeat-interval", d.HeartbeatInterval, "longest silence towards a server, which takes several times that for death")
	fs.StringVar(&c.EngineMetricsURL, "engine-metrics-url", d.EngineMetricsURL, "metrics page of the engine; TensorRT-LLM's is /prometheus/metrics (empty: report no load)")
	fs.DurationVar(&c.StatsInterval, "stats-interval", d.StatsInterval, "time between two reports of the load")
	fs.Int64Var(&c.EngineCacheBytes, "engine-cache-size-bytes", d.EngineCacheBytes, "size of the engine's KV cache (0: not reported)")
	fs.Int64Var(&c.Ceiling, "max-concurrency-ceiling", d.Ceiling, "running and waiting requests that count as full load (0: report no pressure)")
	fs.StringVar(&c.CacheTier, "cache-tier", d.CacheTier, "usage gauge to read: auto, kv, gpu or cpu")
	fs.StringVar(&c.EngineModelName, "engine-model-name", d.EngineModelName, "read only metrics with this model_name (empty: all)")
	fs.BoolVar(&c.HasLowerTier, "ignore-block-removed", d.HasLowerTier, "the engine offloads to a tier it does not report: an evicted block moves there")
	fs.StringVar(&c.Adapters, "lora-adapter-names", d.Adapters, "names of LoRA adapters by id: 1=sql-lora,2=chat-lora")
	fs.StringVar(&c.AdaptersFile, "lora-adapter-names-file", d.AdaptersFile, "file with id=name lines of LoRA adapters, on top of --lora-adapter-names; read again when it changes")
	fs.Int64Var(&c.MaxFrameBytes, "max-frame-bytes", d.MaxFrameBytes, "largest ZeroMQ frame to accept")
	fs.IntVar(&c.QueueBytes, "queue-bytes", d.QueueBytes, "event payloads that may wait to be decoded")
	fs.IntVar(&c.OutboxBytes, "outbox-bytes", d.OutboxBytes, "changes that may wait for one server before it gets everything anew")
	fs.IntVar(&c.MaxBlocks, "max-blocks", d.MaxBlocks, "blocks to keep track of")
	fs.IntVar(&c.MaxOrphans, "max-orphans", d.MaxOrphans, "blocks that may wait for the block before them")
}

// Validate joins every problem of c.
func (c *Config) Validate() error {
	var problems []error
	check := func(ok bool, format string, args ...any) {
		if !ok {
			problems = append(problems, fmt.Errorf(format, args...))
		}
	}
	note := func(err error) {
		if err != nil {
			problems = append(problems, err)
		}
	}
	check(c.ReplicaID != "", "--replica-id is required")
	check(c.ModelID != "", "--model-id is required")
	check(c.TenantID != "", "--tenant-id is required")
	check(c.TenantID != kv.ProbeTenant, "--tenant-id %s is reserved", kv.ProbeTenant)
	check(c.HashScheme != "", "--hash-scheme must not be empty")
	_, err := guardedEndpoint(c.EngineEndpoint)
	note(wrap("--engine-endpoint", err))
	if c.ReplayEndpoint != "" && c.ReplayEndpoint != autoReplay {
		_, err := guardedEndpoint(c.ReplayEndpoint)
		note(wrap("--engine-replay-endpoint", err))
	}
	if c.SnapshotEndpoint != "" {
		_, err := guardedEndpoint(c.SnapshotEndpoint)
		note(wrap("--engine-snapshot-endpoint", err))
	}
	_, err = c.endpoints()
	note(err)
	check(len(c.Servers) > 0, "--server is required")
	for i, server := range c.Servers {
		base, _, err := parseServer(server)
		note(wrap("--server", err))
		check(err != nil || !slices.ContainsFunc(c.Servers[:i], func(other string) bool {
			earlier, _, err := parseServer(other)
			return err == nil && earlier == base
		}), "--server %s is given twice", server)
	}
	_, err = c.dialect()
	note(err)
	_, err = parseAdapters(c.Adapters)
	note(wrap("--lora-adapter-names", err))
	if c.EngineMetricsURL != "" {
		note(wrap("--engine-metrics-url", checkURL(c.EngineMetricsURL)))
	}
	if c.EngineURL != "" {
		note(wrap("--engine-url", checkURL(c.EngineURL)))
	}
	check(slices.Contains([]string{usageAuto, usageKV, usageGPU, usageCPU}, c.CacheTier),
		"--cache-tier must be auto, kv, gpu or cpu, got %q", c.CacheTier)
	check(c.SnapshotInterval > 0, "--engine-snapshot-interval must be positive, got %s", c.SnapshotInterval)
	check(c.Window > 0, "--window must be positive, got %s", c.Window)
	check(c.HeartbeatInterval > 0, "--heartbeat-interval must be positive, got %s", c.HeartbeatInterval)
	check(c.StatsInterval > 0, "--stats-interval must be positive, got %s", c.StatsInterval)
	check(c.BlockSize >= 0, "--block-size must not be negative, got %d", c.BlockSize)
	check(c.EngineCacheBytes >= 0, "--engine-cache-size-bytes must not be negative, got %d", c.EngineCacheBytes)
	check(c.MaxFrameBytes > 0, "--max-frame-bytes must be positive, got %d", c.MaxFrameBytes)
	check(c.QueueBytes > 0, "--queue-bytes must be positive, got %d", c.QueueBytes)
	check(c.OutboxBytes > 0, "--outbox-bytes must be positive, got %d", c.OutboxBytes)
	check(c.MaxBlocks > 0, "--max-blocks must be positive, got %d", c.MaxBlocks)
	check(c.MaxOrphans > 0, "--max-orphans must be positive, got %d", c.MaxOrphans)
	return errors.Join(problems...)
}

func wrap(flag string, err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("%s: %w", flag, err)
}

// dialect is how the engine speaks.
func (c *Config) dialect() (engine.Dialect, error) {
	name := c.EngineDialect
	if name == "" {
		name = c.HashScheme
	}
	for _, d := range []engine.Dialect{vllm.Dialect, sglang.Dialect, trtllm.Dialect} {
		if d.Name == name {
			return d, nil
		}
	}
	if c.EngineDialect == "" {
		return engine.Dialect{}, fmt.Errorf("--hash-scheme %q names no engine: give --engine-dialect", c.HashScheme)
	}
	return engine.Dialect{}, fmt.Errorf("--engine-dialect must be vllm, sglang or trtllm, got %q", name)
}

// engineURL is the base of the engine's HTTP API.
func (c *Config) engineURL() string {
	if c.EngineURL != "" {
		return strings.TrimRight(c.EngineURL, "/")
	}
	return baseURL(c.EngineMetricsURL)
}

// serverURL is the base URL of a --server; a bare host:port is plain text.
func serverURL(server string) (string, error) {
	if !strings.Contains(server, "://") {
		if _, _, err := net.SplitHostPort(server); err != nil {
			return "", fmt.Errorf("%q: want http://host:port or host:port", server)
		}
		server = "http://" + server
	}
	return strings.TrimRight(server, "/"), checkURL(server)
}

func checkURL(s string) error {
	u, err := url.Parse(s)
	if err != nil {
		return err
	}
	if u.Scheme != "http" && u.Scheme != "https" || u.Host == "" {
		return fmt.Errorf("%q: want http://host:port or https://host:port", s)
	}
	return nil
}

// parseAdapters reads id=name pairs. A doubt is an error: a wrong name would
// mix up two adapters' blocks.
func parseAdapters(list string) (map[int64]string, error) {
	adapters := make(map[int64]string)
	for pair := range strings.SplitSeq(list, ",") {
		pair = strings.TrimSpace(pair)
		if pair == "" {
			continue
		}
		id, name, ok := strings.Cut(pair, "=")
		name = strings.TrimSpace(name)
		if !ok || name == "" {
			return nil, fmt.Errorf("%q: want id=name", pair)
		}
		number, err := strconv.ParseInt(strings.TrimSpace(id), 10, 64)
		if err != nil {
			return nil, fmt.Errorf("%q: the id is not a whole number", pair)
		}
		if _, twice := adapters[number]; twice {
			return nil, fmt.Errorf("id %d is given twice", number)
		}
		adapters[number] = name
	}
	return adapters, nil
}
