package sim

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"
)

// ErrRestarted ends the requests of a process that a restart killed.
var ErrRestarted = errors.New("engine restarted")

// PromptError says that a prompt can never be served.
type PromptError struct{ reason string }

func (e *PromptError) Error() string { return e.reason }

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

	mu     sync.Mutex
	root   blockHash
	cache  *cache
	events []event       // of this step, not yet with the feed
	freed  chan struct{} // closed and renewed when blocks are given back
	counts counters
}

// counters since the process was born; tokens unless said otherwise.
type counters struct {
	running, waiting int    // requests, now
	requests         uint64 // completed
	evictions        uint64 // blocks
	queries, hits    uint64
	prompt           uint64
	generation       uint64
}

func newProcess(cfg Config, live *socket) *process {
	return &process{
		cfg:   cfg,
		born:  time.Now(),
		feed:  newFeed(cfg, live),
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

// complete runs one request. tokens must not change afterwards.
func (p *process) complete(ctx context.Context, tokens []uint32, maxTokens int) (Usage, error) {
	if len(tokens) == 0 {
		return Usage{}, &PromptError{"the prompt is empty"}
	}
	if most := p.cfg.contextLength(); len(tokens) > most {
		return Usage{}, &PromptError{fmt.Sprintf(
			"the prompt has %d tokens, the cache holds %d (%d blocks of %d)",
			len(tokens), most, p.cfg.Blocks, p.cfg.BlockSize)}
	}
	l, cached, err := p.admit(ctx, tokens)
	if err != nil {
		return Usage{}, err
	}
	defer p.leave(l)
	if err := p.prefill(ctx, l, tokens, cached); err != nil {
		return Usage{}, err
	}
	if err := p.spend(ctx, maxTokens, p.cfg.DecodeRate); err != nil {
		return Usage{}, err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.counts.requests++
	p.counts.generation += uint64(maxTokens)
	return Usage{Prompt: len(tokens), Cached: cached, Completion: maxTokens}, nil
}

// admit waits for a seat, the turn and blocks. On success the caller holds all
// three: prefill passes the turn on, leave gives back the rest.
func (p *process) admit(ctx context.Context, tokens []uint32) (l *lease, cached int, err error) {
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
		l, freed := p.allocate(tokens)
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
func (p *process) allocate(tokens []uint32) (*lease, <-chan struct{}) {
	p.mu.Lock()
	defer p.mu.Unlock()
	size := p.cfg.BlockSize
	l, evicted, ok := p.cache.allocate(p.root.chain(tokens, size), (len(tokens)+size-1)/size)
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
	return min(l.matched, (tokens-1)/p.cfg.BlockSize) * p.cfg.BlockSize
}

// prefill computes what is not cached, then stores and publishes the new
// blocks. If it is cut short only the evictions are published.
func (p *process) prefill(ctx context.Context, l *lease, tokens []uint32, cached int) error {
	defer func() { <-p.turn }()
	err := p.spend(ctx, len(tokens)-cached, p.cfg.PrefillRate)
	p.mu.Lock()
	defer p.mu.Unlock()
	if err == nil {
		p.noteStored(l, tokens)
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

// noteEvicted adds one BlockRemoved per block, as vLLM does. p.mu is held.
func (p *process) noteEvicted(hashes []blockHash) {
	for _, hash := range hashes {
		p.events = append(p.events, event{kind: blockRemoved, hashes: []blockHash{hash}})
	}
	p.counts.evictions += uint64(len(hashes))
}

// noteStored names the new full blocks of a lease. p.mu is held.
func (p *process) noteStored(l *lease, tokens []uint32) {
	fresh := p.cache.store(l)
	if len(fresh) == 0 {
		return
	}
	size := p.cfg.BlockSize
	e := event{
		kind:      blockStored,
		hashes:    fresh,
		tokens:    tokens[l.matched*size : len(l.hashes)*size],
		blockSize: size,
	}
	if l.matched > 0 {
		e.parent, e.hasParent = l.hashes[l.matched-1], true
	}
	p.events = append(p.events, e)
}

// flush hands the events of this step to the feed. p.mu is held, so batches
// are in the order of what they describe.
func (p *process) flush() {
	if len(p.events) == 0 {
		return
	}
	p.feed.put(p.events)
	p.events = nil
}
