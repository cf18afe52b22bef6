package roles

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"testing"
	"time"

	"github.com/VictoriaMetrics/metrics"
	"github.com/google/go-cmp/cmp"

	"inferencecache.io/inferencecache/internal/engine/sim"
	"inferencecache.io/inferencecache/roles/server"
	"inferencecache.io/inferencecache/subscriber"
)

// pair is one simulated engine with its subscriber before a real server.
type pair struct {
	engine     *sim.Engine
	subscriber *subscriber.Subscriber
	server     *server.Server
}

func newPair(t *testing.T, engine sim.Config, change func(*subscriber.Config)) *pair {
	t.Helper()
	return newPairIn(t, metrics.NewSet(), engine, change)
}

func newPairIn(t *testing.T, set *metrics.Set, engine sim.Config, change func(*subscriber.Config)) *pair {
	t.Helper()
	s, address, _ := serveAt(t, "127.0.0.1:0")
	log := slog.New(slog.NewTextHandler(t.Output(), nil))
	engine.Listen = "127.0.0.1:0"
	e := sim.New(engine, slog.New(slog.DiscardHandler))
	if err := e.Listen(); err != nil {
		t.Fatal(err)
	}
	background(t, func(ctx context.Context) { _ = e.Run(ctx) })
	config := subscriber.DefaultConfig()
	config.ReplicaID, config.ModelID, config.TenantID, config.Servers = "r", "m", "t", []string{address}
	config.EngineEndpoint, config.ReplayEndpoint = e.EventsEndpoint(), e.ReplayEndpoint()
	config.EngineMetricsURL, config.StatsInterval = e.URL()+"/metrics", time.Second
	if engine.Snapshot != "" {
		config.SnapshotEndpoint = e.SnapshotEndpoints()[0]
	}
	if change != nil {
		change(&config)
	}
	sub, err := subscriber.New(config, subscriber.Deps{Logger: log, Metrics: set})
	if err != nil {
		t.Fatal(err)
	}
	background(t, func(ctx context.Context) { _ = sub.Run(ctx) })
	return &pair{e, sub, s}
}

func (p *pair) wait(t *testing.T, what string, condition func() bool) {
	t.Helper()
	deadline := time.Now().Add(3 * time.Minute) // a mismatch takes 40 s to be sure of on an idle machine
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for !condition() {
		if time.Now().After(deadline) {
			t.Fatalf("waited in vain for %s; %+v, server %v", what, p.subscriber.Debug(), held(p.server))
		}
		<-tick.C
	}
}

// prompt completes a prompt of so many blocks that shares nothing.
func (p *pair) prompt(t *testing.T, r *sim.Rank, number, blocks int, change func(*sim.Request)) {
	t.Helper()
	tokens := make([]uint32, 16*blocks)
	for i := range tokens {
		tokens[i] = uint32(number<<12 + i)
	}
	request := sim.Request{Tokens: tokens, MaxTokens: 1}
	if change != nil {
		change(&request)
	}
	if _, err := r.Serve(t.Context(), request); err != nil {
		t.Fatal(err)
	}
}

// expectHeld waits until the server knows as many blocks as the engine holds.
func (p *pair) expectHeld(t *testing.T, what string, want int) {
	t.Helper()
	p.wait(t, what, func() bool { return held(p.server)["r"] == want })
}

// Whatever happens on the wire, the server ends with what the engine holds, in
// either encoding and either layout of replays.
func TestFaultsOfTheWireEndExact(t *testing.T) {
	for _, form := range []sim.Config{
		{Encoding: sim.EncodingMap, ReplayLayout: sim.LayoutNew},
		{Encoding: sim.EncodingArray, ReplayLayout: sim.LayoutOld},
	} {
		t.Run(form.Encoding+" "+form.ReplayLayout, func(t *testing.T) {
			t.Parallel()
			form.Blocks, form.PrefillRate = 500, 1e6
			p := newPair(t, form, nil)
			p.wait(t, "the connection", func() bool { return p.subscriber.State() == subscriber.Exact })
			rank := p.engine.Ranks()[0]
			number := 0
			for _, fault := range []struct {
				name string
				do   func()
			}{
				{"drop", func() { rank.Drop(2) }},
				{"duplicate", func() { rank.Duplicate(2) }},
				{"reorder", func() { rank.Reorder() }},
				{"hole in the replay", func() { rank.Drop(3); rank.Hole(1) }},
				{"truncated replay", func() { rank.Drop(3); rank.Truncate(1) }},
				{"refused replay", func() { rank.Drop(1); rank.Refuse(1) }},
				{"bad frames", func() { rank.BadFrames() }},
				{"lost tail", func() { rank.Drop(1000) }},
				{"restart", func() { rank.Restart() }},
			} {
				fault.do()
				for range 4 {
					number++
					p.prompt(t, rank, number, 5, nil)
				}
				p.expectHeld(t, fault.name, p.engine.State().HeldBlocks)
				if fault.name == "lost tail" {
					rank.Restart() // ends the drop
				}
			}
			p.wait(t, "an exact stream", func() bool { return p.subscriber.State() == subscriber.Exact })
		})
	}
}

// Losses that nothing makes up for leave less, never more.
func TestFaultsBeyondRepairLeaveLess(t *testing.T) {
	t.Parallel()
	p := newPair(t, sim.Config{PrefillRate: 1e6}, nil)
	rank := p.engine.Ranks()[0]
	p.prompt(t, rank, 1, 5, nil)
	p.expectHeld(t, "the first prompt", 5)
	rank.Skip(1) // numbers that are never sent, as TensorRT-LLM's when its queue is full
	p.prompt(t, rank, 2, 3, nil)
	p.expectHeld(t, "what came after", 3)
	if state := p.subscriber.State(); state != subscriber.Degraded {
		t.Errorf("state %s, want degraded", state)
	}
	if !p.engine.Clear() {
		t.Fatal("a block is in use")
	}
	p.expectHeld(t, "the clear", 0)
	p.prompt(t, rank, 3, 2, nil)
	p.expectHeld(t, "after the clear", 2)
	p.wait(t, "an exact stream", func() bool { return p.subscriber.State() == subscriber.Exact })
}

// An engine that is put to sleep holds nothing, although it does not say so in an
// event before it wakes, and who reads its history later does not believe it.
func TestSleepForgetsWhatIsHeld(t *testing.T) {
	for _, level := range []int{1, 2} {
		t.Run(fmt.Sprint(level), func(t *testing.T) {
			t.Parallel()
			p := newPair(t, sim.Config{PrefillRate: 1e6}, nil)
			rank := p.engine.Ranks()[0]
			p.prompt(t, rank, 1, 5, nil)
			p.expectHeld(t, "the prompt", 5)
			rank.Drop(1)
			p.prompt(t, rank, 2, 4, nil) // a tail that is found to be lost while it sleeps
			if !rank.Sleep(level) {
				t.Fatal("a block is in use")
			}
			sent := rank.State().NextSequence
			p.wait(t, "the condition", func() bool { _, ok := p.subscriber.Debug().Conditions[subscriber.EngineAsleep]; return ok })
			p.expectHeld(t, "nothing while it sleeps", 0)
			if now := rank.State().NextSequence; now != sent {
				t.Errorf("%d batches sent in sleep", now-sent)
			}
			rank.Wake()
			p.wait(t, "the end of the condition", func() bool { _, ok := p.subscriber.Debug().Conditions[subscriber.EngineAsleep]; return !ok })
			p.prompt(t, rank, 3, 3, nil)
			p.expectHeld(t, "what came after", 3)
			p.wait(t, "an exact stream", func() bool { return p.subscriber.State() == subscriber.Exact })
		})
	}
}

// Each rank of an engine is found, with events in a sequence of its own.
func TestRanksAreDiscovered(t *testing.T) {
	t.Parallel()
	p := newPair(t, sim.Config{Ranks: 3, PrefillRate: 1e6}, nil)
	p.wait(t, "three ranks", func() bool { return len(p.subscriber.Debug().Sources) == 3 })
	for i, rank := range p.engine.Ranks() {
		p.prompt(t, rank, i, 4+i, nil)
	}
	p.expectHeld(t, "all ranks' blocks", 4+5+6)
	p.engine.Ranks()[1].Restart()
	p.expectHeld(t, "the others' blocks", 4+6)
	p.wait(t, "exact streams", func() bool { return p.subscriber.State() == subscriber.Exact })
}

// Salted prompts cannot be reached, those of adapters only under their names,
// and offloaded blocks stay in their tier.
func TestSaltsAdaptersAndTiersStayApart(t *testing.T) {
	t.Parallel()
	p := newPair(t, sim.Config{LoRA: []string{"sql"}, PrefillRate: 1e6}, nil)
	rank := p.engine.Ranks()[0]
	p.prompt(t, rank, 1, 5, func(r *sim.Request) { r.Salt = "tenant-a" })
	p.prompt(t, rank, 1, 4, func(r *sim.Request) { r.Adapter = "sql" })
	p.expectHeld(t, "the adapter's blocks", 4)
	p.wait(t, "the salted blocks", func() bool { return p.subscriber.Debug().Separate == 5 })
	p.prompt(t, rank, 2, 3, nil)
	p.expectHeld(t, "the base model's", 7)
	rank.Offload(3)
	p.wait(t, "offloaded blocks", func() bool { d := p.subscriber.Debug(); return d.Separate == 5 && d.Held["T1"]+d.Held["T2"] == 7 })
}

// An engine's snapshots agree with what is held, while its cache changes.
func TestSnapshotsConfirmWhatIsHeld(t *testing.T) {
	t.Parallel()
	set := metrics.NewSet()
	p := newPairIn(t, set, sim.Config{Snapshot: "tcp://127.0.0.1:0", Blocks: 100, PrefillRate: 1e6}, func(c *subscriber.Config) {
		c.SnapshotInterval = 200 * time.Millisecond
	})
	applied := set.GetOrCreateCounter(`inferencecache_subscriber_snapshots_total{replica="r",rank="0",outcome="applied"}`)
	refuted := set.GetOrCreateCounter(`inferencecache_subscriber_refuted_blocks_total{replica="r",rank="0"}`)
	rank := p.engine.Ranks()[0]
	for number := 0; applied.Get() < 5; number++ {
		p.prompt(t, rank, number, 7, nil) // soon others have to go
		p.wait(t, "the prompt", func() bool { return held(p.server)["r"] == p.engine.State().HeldBlocks })
		if number > 5000 {
			t.Fatalf("%d snapshots applied", applied.Get())
		}
	}
	if n := refuted.Get(); n != 0 {
		t.Errorf("%d blocks refuted of an engine that lost nothing", n)
	}
	p.expectHeld(t, "everything", p.engine.State().HeldBlocks)
}

// Each mistake that makes a router match nothing is named.
func TestSilentMistakesAreNamed(t *testing.T) {
	for _, tc := range []struct {
		condition subscriber.Condition
		engine    sim.Config
		change    func(*subscriber.Config)
	}{
		{subscriber.TopicMismatch, sim.Config{Topic: "other"}, func(c *subscriber.Config) { c.Topic, c.DiscoverRanks = "kv-events", false }},
		{subscriber.WrongBlockSize, sim.Config{BlockSize: 32}, func(c *subscriber.Config) { c.BlockSize = 16 }},
		{subscriber.LookupMismatch, sim.Config{BlockSize: 32}, nil}, // the server's is 16
		{subscriber.RanksMissing, sim.Config{Ranks: 2}, func(c *subscriber.Config) { c.DiscoverRanks = false }},
		{subscriber.NoReplay, sim.Config{NoReplay: true, NoDiscovery: true}, func(c *subscriber.Config) { c.ReplayEndpoint = "tcp://127.0.0.1:1" }},
	} {
		t.Run(string(tc.condition), func(t *testing.T) {
			t.Parallel()
			tc.engine.PrefillRate = 1e6
			p := newPair(t, tc.engine, tc.change)
			done := make(chan struct{})
			stop := background(t, func(ctx context.Context) {
				tick := time.NewTicker(200 * time.Millisecond)
				defer tick.Stop()
				for number := 1; ; number++ {
					tokens := make([]uint32, 320)
					for i := range tokens {
						tokens[i] = uint32(number<<12 + i)
					}
					_, _ = p.engine.Complete(ctx, tokens, 1)
					select {
					case <-done:
						return
					case <-ctx.Done():
						return
					case <-tick.C:
					}
				}
			})
			p.wait(t, string(tc.condition), func() bool { _, ok := p.subscriber.Debug().Conditions[tc.condition]; return ok })
			close(done)
			stop()
		})
	}
}

// A healthy engine has no condition, though its prompts are looked up.
func TestHealthyEngineHasNoCondition(t *testing.T) {
	t.Parallel()
	set := metrics.NewSet()
	p := newPairIn(t, set, sim.Config{PrefillRate: 1e6, Seed: 1}, nil)
	p.prompt(t, p.engine.Ranks()[0], 1, 20, nil)
	p.expectHeld(t, "the prompt", 20)
	checks := set.GetOrCreateCounter(`inferencecache_subscriber_self_checks_total{replica="r"}`)
	p.wait(t, "a lookup of the prompt", func() bool { return checks.Get() > 0 })
	if diff := cmp.Diff(map[subscriber.Condition]subscriber.Advice{}, maps.Clone(p.subscriber.Debug().Conditions)); diff != "" {
		t.Errorf("conditions (-want +got):\n%s", diff)
	}
}
