package sim

import (
	"errors"
	"fmt"
	"net"
	"slices"

	"github.com/spf13/pflag"
)

// Encodings of events and layouts of replay replies.
const (
	EncodingMap   = "map"   // events are maps tagged by "type": vLLM from 0.24
	EncodingArray = "array" // events are positional arrays: vLLM up to 0.23
	LayoutNew     = "new"   // replies are [topic, seq, payload]: vLLM from 0.26
	LayoutOld     = "old"   // replies are [seq, payload]: vLLM before 0.26
)

// Config describes one simulated replica. A zero field means its default.
type Config struct {
	Name           string  // for logs and /sim/state
	Model          string  // served model name
	Listen         string  // HTTP, host:port; port 0: one of the system's choice
	Events         string  // PUB endpoint, tcp://host:port; host * is every interface
	Replay         string  // ROUTER endpoint, likewise
	Topic          string  // first frame of every live message; vLLM's default is ""
	BlockSize      int     // tokens per block
	Blocks         int     // cache capacity, blocks
	PrefillRate    float64 // prompt tokens per second, one prompt at a time
	DecodeRate     float64 // generated tokens per second of one request
	MaxTokens      int     // completion length when a request names none, tokens
	MaxConcurrency int     // requests in prefill and decode at once
	Encoding       string  // EncodingMap or EncodingArray
	ReplayLayout   string  // LayoutNew or LayoutOld
	BufferSteps    int     // batches kept for replay
	HWM            int     // live messages queued per subscriber; more are dropped
	Seed           uint64  // of the block hashes; 0: random per process, as vLLM without PYTHONHASHSEED

	Ranks       int      // data-parallel ranks; each adds its number to configured ports
	LoRA        []string // adapters served besides Model, in the order of their numbers
	ReplayHWM   int      // replies queued for a client that does not read, the rest is dropped; 0: room for a whole replay
	NoEvents    bool     // nothing listens at the event endpoints, as in vLLM by default
	NoCaching   bool     // prefixes are not cached, so there is nothing to publish
	NoReplay    bool     // there is no replay, as in vLLM by default
	NoDiscovery bool     // no /kv_event_sources, as in vLLM before PR 55844
	NoLoRANames bool     // events name adapters by number alone, as vLLM before lora_name
	Epoch       bool     // topics name the process and /server_info exists, as in SGLang
	Snapshot    string   // ROUTER endpoint of SGLang's snapshots, which imply Epoch; "": none
}

// maxRanks is far above what one machine's ports and memory are good for.
const maxRanks = 1024

// Default is the configuration a zero Config stands for. BufferSteps, HWM and
// MaxTokens are vLLM's own defaults; the rates suit a demonstration.
func Default() Config {
	return Config{
		Name:           "sim",
		Model:          "sim",
		Listen:         "127.0.0.1:8101",
		Events:         "tcp://127.0.0.1:0",
		Replay:         "tcp://127.0.0.1:0",
		BlockSize:      16,
		Blocks:         4096,
		PrefillRate:    20_000,
		DecodeRate:     200,
		MaxTokens:      16,
		MaxConcurrency: 256,
		Encoding:       EncodingMap,
		ReplayLayout:   LayoutNew,
		BufferSteps:    10_000,
		HWM:            100_000,
		Ranks:          1,
	}
}

// Flags adds a flag for every field to fs, with the defaults of Default.
func (c *Config) Flags(fs *pflag.FlagSet) {
	d := Default()
	fs.StringVar(&c.Name, "name", d.Name, "name of the replica in logs")
	fs.StringVar(&c.Model, "model", d.Model, "served model name")
	fs.StringVar(&c.Listen, "listen", d.Listen, "HTTP address (port 0: any free port)")
	fs.StringVar(&c.Events, "events", d.Events, "endpoint that publishes KV events (port 0: any free port)")
	fs.StringVar(&c.Replay, "replay", d.Replay, "endpoint that replays KV events (port 0: any free port)")
	fs.StringVar(&c.Topic, "topic", d.Topic, "topic of published events")
	fs.IntVar(&c.BlockSize, "block-size", d.BlockSize, "tokens per cache block")
	fs.IntVar(&c.Blocks, "blocks", d.Blocks, "cache capacity in blocks")
	fs.Float64Var(&c.PrefillRate, "prefill-rate", d.PrefillRate, "prompt tokens per second")
	fs.Float64Var(&c.DecodeRate, "decode-rate", d.DecodeRate, "generated tokens per second of one request")
	fs.IntVar(&c.MaxTokens, "max-tokens", d.MaxTokens, "completion length when a request names none")
	fs.IntVar(&c.MaxConcurrency, "max-concurrency", d.MaxConcurrency, "requests running at once")
	fs.StringVar(&c.Encoding, "encoding", d.Encoding, "event encoding: map (vLLM from 0.24) or array (up to 0.23)")
	fs.StringVar(&c.ReplayLayout, "replay-layout", d.ReplayLayout, "replay replies: new (vLLM from 0.26, with topic) or old")
	fs.IntVar(&c.BufferSteps, "buffer-steps", d.BufferSteps, "batches kept for replay")
	fs.IntVar(&c.HWM, "hwm", d.HWM, "live messages queued per subscriber before they are dropped")
	fs.Uint64Var(&c.Seed, "seed", d.Seed, "seed of the block hashes (0: random per process)")
	fs.IntVar(&c.Ranks, "ranks", d.Ranks, "data-parallel ranks; each adds its number to configured ports")
	fs.StringSliceVar(&c.LoRA, "lora", d.LoRA, "names of LoRA adapters to serve besides the model")
	fs.IntVar(&c.ReplayHWM, "replay-hwm", d.ReplayHWM, "replay replies queued for a client that does not read before they are dropped (0: a whole replay; libzmq: 1000)")
	fs.BoolVar(&c.NoEvents, "no-events", d.NoEvents, "publish nothing: nobody listens at the event endpoints, as vLLM without --kv-events-config")
	fs.BoolVar(&c.NoCaching, "no-caching", d.NoCaching, "cache no prefixes, as vLLM with --no-enable-prefix-caching")
	fs.BoolVar(&c.NoReplay, "no-replay", d.NoReplay, "replay nothing, as vLLM without a replay endpoint")
	fs.BoolVar(&c.NoDiscovery, "no-discovery", d.NoDiscovery, "do not serve /kv_event_sources")
	fs.BoolVar(&c.NoLoRANames, "no-lora-names", d.NoLoRANames, "name adapters by number alone in events")
	fs.BoolVar(&c.Epoch, "epoch", d.Epoch, "name the process in topics and serve /server_info, as SGLang does")
	fs.StringVar(&c.Snapshot, "snapshot", d.Snapshot, "endpoint of SGLang's placement snapshots (empty: none); implies --epoch")
}

// Validate joins every problem of c; zero fields are fine.
func (c *Config) Validate() error {
	v := c.withDefaults()
	var problems []error
	check := func(ok bool, format string, args ...any) {
		if !ok {
			problems = append(problems, fmt.Errorf(format, args...))
		}
	}
	positive := func(flag string, n int) { check(n > 0, "--%s must be positive, got %d", flag, n) }
	positive("block-size", v.BlockSize)
	positive("blocks", v.Blocks)
	positive("max-tokens", v.MaxTokens)
	positive("max-concurrency", v.MaxConcurrency)
	positive("buffer-steps", v.BufferSteps)
	positive("hwm", v.HWM)
	positive("ranks", v.Ranks)
	check(v.Ranks <= maxRanks, "--ranks must be at most %d, got %d", maxRanks, v.Ranks)
	check(v.ReplayHWM >= 0, "--replay-hwm must not be negative, got %d", v.ReplayHWM)
	for i, name := range v.LoRA {
		check(name != "" && name != v.Model && !slices.Contains(v.LoRA[:i], name),
			"--lora: %q is empty, the model's name or there twice", name)
	}
	check(v.MaxTokens <= maxCompletion, "--max-tokens must be at most %d, got %d", maxCompletion, v.MaxTokens)
	// The upper bound of the rates keeps NaN and infinity out as well.
	check(v.PrefillRate > 0 && v.PrefillRate <= 1e12, "--prefill-rate must be positive, got %v", v.PrefillRate)
	check(v.DecodeRate > 0 && v.DecodeRate <= 1e12, "--decode-rate must be positive, got %v", v.DecodeRate)
	check(slices.Contains([]string{EncodingMap, EncodingArray}, v.Encoding),
		"--encoding must be %s or %s, got %q", EncodingMap, EncodingArray, v.Encoding)
	check(slices.Contains([]string{LayoutNew, LayoutOld}, v.ReplayLayout),
		"--replay-layout must be %s or %s, got %q", LayoutNew, LayoutOld, v.ReplayLayout)
	_, _, err := net.SplitHostPort(v.Listen)
	check(err == nil, "--listen %q is not host:port: %w", v.Listen, err)
	endpoint := func(flag, value string) {
		last, err := offset(value, max(v.Ranks, 1)-1)
		if err == nil {
			_, err = tcpAddress(last)
		}
		check(err == nil, "--%s: %w", flag, err)
	}
	endpoint("events", v.Events)
	endpoint("replay", v.Replay)
	if v.Snapshot != "" {
		endpoint("snapshot", v.Snapshot)
	}
	return errors.Join(problems...)
}

// withDefaults replaces zero fields by those of Default.
func (c *Config) withDefaults() Config {
	v, d := *c, Default()
	orDefault(&v.Name, d.Name)
	orDefault(&v.Model, d.Model)
	orDefault(&v.Listen, d.Listen)
	orDefault(&v.Events, d.Events)
	orDefault(&v.Replay, d.Replay)
	orDefault(&v.BlockSize, d.BlockSize)
	orDefault(&v.Blocks, d.Blocks)
	orDefault(&v.PrefillRate, d.PrefillRate)
	orDefault(&v.DecodeRate, d.DecodeRate)
	orDefault(&v.MaxTokens, d.MaxTokens)
	orDefault(&v.MaxConcurrency, d.MaxConcurrency)
	orDefault(&v.Encoding, d.Encoding)
	orDefault(&v.ReplayLayout, d.ReplayLayout)
	orDefault(&v.BufferSteps, d.BufferSteps)
	orDefault(&v.HWM, d.HWM)
	orDefault(&v.Ranks, d.Ranks)
	v.Epoch = v.Epoch || v.Snapshot != ""
	return v
}

func orDefault[T comparable](field *T, value T) {
	var zero T
	if *field == zero {
		*field = value
	}
}
