package subscriber

import (
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"sync"
)

// Condition names one reason for which a router that runs would never match,
// or match too little. Each has a metric and, when it begins, a line in the log
// that says what to change.
type Condition string

const (
	NotConnected     Condition = "not_connected"       // no publisher at the endpoint
	NoEvents         Condition = "no_events"           // the engine works, and publishes nothing
	TopicMismatch    Condition = "topic_mismatch"      // it publishes under another topic
	PrefixCachingOff Condition = "prefix_caching_off"  // it caches no prefixes
	WrongBlockSize   Condition = "block_size_mismatch" // its blocks are not the server's
	RanksMissing     Condition = "ranks_missing"       // not all of its ranks are followed
	RankMismatch     Condition = "rank_mismatch"       // a stream is another rank's
	AdapterUnmapped  Condition = "adapter_unmapped"    // blocks of adapters without a name
	NothingIndexed   Condition = "nothing_indexed"     // it stores blocks, and none can be reported
	LookupMismatch   Condition = "lookup_mismatch"     // a server does not find what was reported to it
	RandomHashSeed   Condition = "random_hash_seed"    // its block names differ from process to process
	NoReplay         Condition = "no_replay"           // its history cannot be had
	UnknownEvents    Condition = "unknown_events"      // it sends kinds of event that this build does not know
	CapReached       Condition = "cap_reached"         // it holds more blocks than are kept track of
	EngineAsleep     Condition = "engine_asleep"       // it was put to sleep
	HeldDrifted      Condition = "held_drifted"        // more was taken for held than it has room for
	CacheUnseen      Condition = "cache_unseen"        // its cache answers, and nothing of it is known
)

// advice is what to change, for the log and for /debug/state.
var advice = map[Condition]string{
	NotConnected: "check --engine-endpoint; an engine whose own endpoint has no * in it connects instead of binding, so give it tcp://*:PORT; " +
		"its events are off by default (vLLM: --kv-events-config)",
	NoEvents: "check that the engine publishes events (vLLM: --kv-events-config with enable_kv_cache_events) and caches prefixes, " +
		"and that --engine-endpoint is the port of its own rank",
	TopicMismatch:    "give --topic as the engine has it, or leave it empty to take all topics",
	PrefixCachingOff: "start the engine with prefix caching (vLLM: --enable-prefix-caching)",
	WrongBlockSize:   "set --block-size here and --engine-block-size at the server to the size that the engine's events carry",
	RanksMissing:     "follow every data-parallel rank: --ranks, or let --discover-ranks find them",
	RankMismatch:     "check --ranks and --engine-endpoint: each rank adds its number to the port",
	AdapterUnmapped:  "name the adapters: --lora-adapter-names or --lora-adapter-names-file",
	NothingIndexed:   "see the reasons; the events of this engine's configuration cannot be matched to prompts",
	LookupMismatch: "a gateway's request would not find this replica: compare --model-id, --tenant-id, --hash-scheme and --block-size " +
		"with what the gateway and the server use",
	RandomHashSeed: "harmless for prompts sent as tokens or text; for keys shared over processes set PYTHONHASHSEED to one number in all engines",
	NoReplay:       "let the engine replay (vLLM: replay_endpoint in --kv-events-config) and check --engine-replay-endpoint",
	UnknownEvents:  "upgrade inferencecache; until then such an event may hide that blocks are gone",
	HeldDrifted: "events of this engine are lost or misread, and what was held has been read anew from its history; " +
		"if it comes again, let the engine replay, and report its version",
	CacheUnseen: "what the engine stored before this started is not known: let it replay (vLLM: replay_endpoint in --kv-events-config), " +
		"or restart the engine after its subscriber",
	EngineAsleep: "wake the engine (vLLM: POST /wake_up); until then it serves nothing",
	CapReached:   "raise --max-blocks, at about 105 bytes of memory for each",
}

// finding is a condition that holds, with what the advice does not know.
type finding struct {
	Condition Condition
	Detail    string // counts, sizes, names of flags' values; no tokens, salts or hashes
}

// conditions are those that hold now. The sentinel sets them, anybody reads.
type conditions struct {
	log *slog.Logger

	mu  sync.Mutex
	now map[Condition]string
}

// newConditions registers a gauge for each condition, 1 while it holds.
func newConditions(m *meters, log *slog.Logger) *conditions {
	c := &conditions{log: log, now: map[Condition]string{}}
	for _, name := range slices.Sorted(maps.Keys(advice)) {
		m.watch("condition", fmt.Sprintf("condition=%q", name), func() float64 {
			if c.holds(name) {
				return 1
			}
			return 0
		})
	}
	return c
}

func (c *conditions) holds(name Condition) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	_, ok := c.now[name]
	return ok
}

// list is a copy of what holds.
func (c *conditions) list() map[Condition]string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return maps.Clone(c.now)
}

// set replaces what holds and logs what began and what ended.
func (c *conditions) set(found []finding) {
	fresh := make(map[Condition]string, len(found))
	for _, f := range found {
		if _, twice := fresh[f.Condition]; !twice {
			fresh[f.Condition] = f.Detail
		}
	}
	c.mu.Lock()
	before := c.now
	c.now = fresh
	c.mu.Unlock()
	for _, name := range slices.Sorted(maps.Keys(fresh)) {
		if _, known := before[name]; !known {
			c.log.Warn("prompts may not be matched", "condition", name, "detail", fresh[name], "do", advice[name])
		}
	}
	for _, name := range slices.Sorted(maps.Keys(before)) {
		if _, still := fresh[name]; !still {
			c.log.Info("condition is over", "condition", name)
		}
	}
}
