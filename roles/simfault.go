package roles

import (
	"cmp"
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"time"

	"inferencecache.io/inferencecache/internal/engine/sim"
	"inferencecache.io/inferencecache/internal/life"
	"inferencecache.io/inferencecache/subscriber"
)

// simFault is something that is wrong with the first simulated engine of
// --role=all, by the id under which `doctor` finds it.
type simFault struct {
	id         string
	engine     func(*sim.Config)                // before it starts; nil: as it is
	subscriber func(*subscriber.Config)         // likewise
	act        func(context.Context, *sim.Rank) // over and over while it works; nil: nothing
}

// faultEvery is how often a fault is brought about that passes.
const faultEvery = 5 * time.Second

var simFaults = []simFault{
	{id: "events-off", engine: func(c *sim.Config) { c.NoEvents = true }},
	{id: "topic-mismatch", engine: func(c *sim.Config) { c.Topic, c.NoDiscovery = "kv", true }, subscriber: func(c *subscriber.Config) { c.Topic = "kv-events" }},
	{id: "prefix-caching-off", engine: func(c *sim.Config) { c.NoCaching = true }},
	{id: "block-size-mismatch", engine: func(c *sim.Config) { c.BlockSize *= 2 }},
	{id: "ranks-missing", engine: func(c *sim.Config) { c.Ranks, c.NoDiscovery = 2, true }},
	{id: "model-mismatch", engine: func(c *sim.Config) { c.Model += "-v2" }},
	{id: "random-hash-seed", act: func(_ context.Context, r *sim.Rank) {
		if r.Clear() { // as after a restart: what is held under old names would never be found again
			r.Reseed()
		}
	}},
	{id: "no-replay", engine: func(c *sim.Config) { c.NoReplay, c.NoDiscovery = true, true }, subscriber: func(c *subscriber.Config) { c.ReplayEndpoint = "tcp://127.0.0.1:1" }},
	{id: "unknown-events", act: func(_ context.Context, r *sim.Rank) { r.Unknown() }},
	{id: "engine-asleep", act: func(_ context.Context, r *sim.Rank) { r.Sleep(1) }},
	{id: "engine-stalled", act: func(_ context.Context, r *sim.Rank) { r.Stall(time.Hour) }},
	{id: "adapter-unmapped", engine: func(c *sim.Config) { c.LoRA, c.NoLoRANames = []string{"poet"}, true }, act: func(ctx context.Context, r *sim.Rank) {
		prompt := make([]uint32, 64)
		for i := range prompt {
			prompt[i] = rand.Uint32N(1 << 15)
		}
		_, _ = r.Serve(ctx, sim.Request{Tokens: prompt, MaxTokens: 1, Adapter: "poet"})
	}},
}

// findSimFault is the fault with an id; nil for "".
func findSimFault(id string) (*simFault, error) {
	if id == "" {
		return nil, nil
	}
	var ids []string
	for i := range simFaults {
		if simFaults[i].id == id {
			return &simFaults[i], nil
		}
		ids = append(ids, simFaults[i].id)
	}
	slices.Sort(ids)
	return nil, fmt.Errorf("--sim-fault %q: want one of %s", id, strings.Join(ids, ", "))
}

// spoilEngine and spoilSubscriber change what the first engine and its subscriber are started with.
func (f *simFault) spoilEngine(c *sim.Config) {
	if f != nil && f.engine != nil {
		f.engine(c)
	}
}

func (f *simFault) spoilSubscriber(c *subscriber.Config) {
	if f != nil && f.subscriber != nil {
		f.subscriber(c)
	}
}

// keepSpoiling brings about what passes, until the process stops.
func (p *process) keepSpoiling(f *simFault, engine *sim.Engine) {
	if f == nil || f.act == nil {
		return
	}
	p.add(life.Hands, "fault "+f.id, func(ctx context.Context) error {
		tick := time.NewTicker(faultEvery)
		defer tick.Stop()
		for {
			select {
			case <-ctx.Done():
				return nil
			case <-tick.C:
				f.act(ctx, engine.Ranks()[0])
			}
		}
	})
}

// load is how many prompts a second the simulated engines get: a fault shows in
// what an engine does.
func (p *process) load() float64 {
	if p.fault != nil {
		return cmp.Or(p.simLoad, 4)
	}
	return p.simLoad
}
