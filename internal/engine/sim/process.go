package sim

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"
)

// ErrRestarted ends the requests of a process that a restart killed.
var ErrRestarted = errors.New("engine restarted")

// ErrAsleep refuses requests while the engine sleeps.
var ErrAsleep = errors.New("engine is asleep")

// PromptError says that a prompt can never be served.
type PromptError struct{ reason string }

func (e *PromptError) Error() string { return e.reason }

// Request is one prompt and what it asks for.
type Request struct {
	Tokens    []uint32 // must not change afterwards
	MaxTokens int      // to generate
	Adapter   string   // one of Config.LoRA; "" is the base model
	Salt      string   // keeps its blocks apart from those of other salts; "" is none
}

// Usage is what one request cost, in tokens.
type Usage struct {
	Prompt     int
	Cached     int // of Prompt, found in the cache
	Completion int
}

// process is all that dies in a restart: scheduler, cache, seed, counters and
// the feed with its sequence and replay buffer.
//
// A request takes a seat (at most MaxConcurrency), then the only prefill turn,
// both in order of arrival, then blocks. It computes what the cache lacks,
// names the new blocks and publishes them, passes the turn on, and decodes.
type process struct {
	cfg   Config
	born  time.Time
	feed  *feed
	seats chan struct{}
	turn  chan struct{}
	dead  chan struct{} // closed by kill

	mu       sync.Mutex
	root     blockHash
	cache    *cache
	events   []event       // of this step, not yet with the feed
	freed    chan struct{} // closed and renewed when blocks are given back
	counts   counters
	uncached uint64 // prompts so far, with Config.NoCaching
}

// counters since the process was born; tokens unless said otherwise.
type counters struct {
	running, waiting int    // requests, now
	sleep            int    // level; 0: awake
	requests         uint64 // completed
	evictions        uint64 // blocks
	queries, hits    uint64
	prompt           uint64
	generation       uint64
	// usage is the share of blocks in use by running requests, from 0 to 1:
	// vLLM counts cached blocks that nobody uses as free. Set by measure alone.
	usage float64
}

func newProcess(cfg Config, rank int, live *socket) *process {
	return &process{
		cfg:   cfg,
		born:  time.Now(),
		feed:  newFeed(cfg, rank, live),
		seats: make(chan struct{}, cfg.MaxConcurrency),
		turn:  make(chan struct{}, 1),
		dead:  make(chan struct{}),
		root:  newRoot(cfg.Seed),
		cache: newCache(cfg.Blocks),
		freed: make(chan struct{}),
	}
}

// kill ends every request with ErrRestarted and silences the feed.
func (p *process) kill() {
	p.feed.close()
	close(p.dead)
}

// contextLength is the longest prompt, in tokens: what the cache can hold.
func (c Config) contextLength() int { return c.Blocks * c.BlockSize }

// serve runs one request.
func (p *process) serve(ctx context.Context, r Request) (Usage, error) {
	v, err := p.check(r)
	if err != nil {
		return Usage{}, err
	}
	l, cached, err := p.admit(ctx, r.Tokens, v)
	if err != nil {
		return Usage{}, err
	}
	defer p.leave(l)
	if err := p.prefill(ctx, l, r.Tokens, v, cached); err != nil {
		return Usage{}, err
	}
	if err := p.spend(ctx, r.MaxTokens, p.cfg.DecodeRate); err != nil {
		return Usage{}, err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.counts.requests++
	p.counts.generation += uint64(r.MaxTokens)
	return Usage{Prompt: len(r.Tokens), Cached: cached, Completion: r.MaxTokens}, nil
}

// check refuses what can never be served, and says what besides the tokens
// goes into the blocks.
func (p *process) check(r Request) (variant, error) {
	if len(r.Tokens) == 0 {
		return variant{}, &PromptError{"the prompt is empty"}
	}
	if most := p.cfg.contextLength(); len(r.Tokens) > most {
		return variant{}, &PromptError{fmt.Sprintf(
			"the prompt has %d tokens, the cache holds %d (%d blocks of %d)",
			len(r.Tokens), most, p.cfg.Blocks, p.cfg.BlockSize)}
	}
	if p.asleep() {
		return variant{}, ErrAsleep
	}
	v := variant{adapter: r.Adapter, salt: r.Salt}
	if r.Adapter != "" {
		v.adapterID = slices.Index(p.cfg.LoRA, r.Adapter) + 1
		if v.adapterID == 0 {
			return variant{}, &PromptError{fmt.Sprintf("there is no LoRA adapter %q", r.Adapter)}
		}
	}
	return v, nil
}

func (p *process) asleep() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.counts.sleep > 0
}

// load is how busy the process is: vLLM's measure for the choice of a rank, in
// which a request that waits counts as four that run.
func (p *process) load() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return 4*p.counts.waiting + p.counts.running
}

// admit waits for a seat, the turn and blocks. On success the caller holds all
// three: prefill passes the turn on, leave gives back the rest.
func (p *process) admit(ctx context.Context, tokens []uint32, v variant) (l *lease, cached int, err error) {
	p.mu.Lock()
	p.counts.waiting++
	p.mu.Unlock()
	defer func() {
		p.mu.Lock()
		p.counts.waiting--
		p.mu.Unlock()
	}()
	if err := p.acquire(ctx, p.seats); err != nil {
		return nil, 0, err
	}
	if err := p.acquire(ctx, p.turn); err != nil {
		<-p.seats
		return nil, 0, err
	}
	for {
		l, freed := p.allocate(tokens, v)
		if l != nil {
			return l, p.cachedTokens(l, len(tokens)), nil
		}
		select {
		case <-freed:
			continue
		case <-ctx.Done():
			err = ctx.Err()
		case <-p.dead:
			err = ErrRestarted
		}
		<-p.turn
		<-p.seats
		return nil, 0, err
	}
}

func (p *process) acquire(ctx context.Context, slots chan<- struct{}) error {
	select {
	case slots <- struct{}{}:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	case <-p.dead:
		return ErrRestarted
	}
}

// allocate takes the blocks of a prompt. Without room it returns nil and a
// channel that closes when there may be some. Like vLLM it notes evictions as
// it allocates, so they come before the store that they make room for.
func (p *process) allocate(tokens []uint32, v variant) (*lease, <-chan struct{}) {
	p.mu.Lock()
	defer p.mu.Unlock()
	size := p.cfg.BlockSize
	if p.cfg.NoCaching { // no other prompt is like it
		p.uncached++
		v.salt = fmt.Sprint("uncached ", p.uncached)
	}
	l, evicted, ok := p.cache.allocate(p.root.chain(tokens, size, v), (len(tokens)+size-1)/size)
	if !ok {
		return nil, p.freed
	}
	p.noteEvicted(evicted)
	p.counts.running++
	p.counts.queries += uint64(len(tokens))
	p.counts.hits += uint64(p.cachedTokens(l, len(tokens)))
	return l, nil
}

// cachedTokens is what a prompt need not compute. vLLM always computes the
// last token, so a prompt that is cached to its end loses its last block.
func (p *process) cachedTokens(l *lease, tokens int) int {
	return min(l.matched+l.loaded, (tokens-1)/p.cfg.BlockSize) * p.cfg.BlockSize
}

// prefill computes what is not cached, then stores and publishes the new
// blocks. If it is cut short only the evictions are published.
func (p *process) prefill(ctx context.Context, l *lease, tokens []uint32, v variant, cached int) error {
	defer func() { <-p.turn }()
	err := p.spend(ctx, len(tokens)-cached, p.cfg.PrefillRate)
	p.mu.Lock()
	defer p.mu.Unlock()
	if err == nil {
		p.noteStored(l, tokens, v)
		p.counts.prompt += uint64(len(tokens))
	}
	p.flush()
	return err
}

// leave gives back the blocks and the seat of a request.
func (p *process) leave(l *lease) {
	p.mu.Lock()
	p.cache.release(l)
	p.counts.running--
	close(p.freed)
	p.freed = make(chan struct{})
	p.mu.Unlock()
	<-p.seats
}

// spend lets the time pass that tokens take at rate per second.
func (p *process) spend(ctx context.Context, tokens int, rate float64) error {
	timer := time.NewTimer(time.Duration(float64(tokens) / rate * float64(time.Second)))
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	case <-p.dead:
		return ErrRestarted
	}
}
