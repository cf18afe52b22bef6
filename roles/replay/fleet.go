package replay

import (
	"container/heap"
	"context"
	"math/rand/v2"
	"slices"
	"time"

	"inferencecache.io/inferencecache/internal/kv"
	"inferencecache.io/inferencecache/internal/trace"
)

// Request is one of a trace, with keys in place of its ids.
type Request struct {
	At     time.Duration
	Output int // tokens
	Keys   []kv.Hash
}

// Requests takes over a trace.
func Requests(lines []trace.Request) []Request {
	all := make([]Request, len(lines))
	for i, line := range lines {
		all[i] = Request{At: line.At, Output: line.Output, Keys: make([]kv.Hash, len(line.Blocks))}
		for j, id := range line.Blocks {
			all[i].Keys[j] = kv.Hash(trace.Spread(id))
		}
	}
	return all
}

// Config is a fleet.
type Config struct {
	Replicas    int
	CacheBlocks int           // of each replica
	BlockTokens int           // of a block
	PrefillRate float64       // prompt tokens a second of one replica
	DecodeToken time.Duration // for each token of an answer
	ReportEvery time.Duration // between two load reports of a replica; 0: its load is known at any time
	EventLag    time.Duration // from a change of a cache until the router knows; 0: at once
	Seed        uint64        // of ties
}

// DefaultConfig is the fleet of the design's table.
func DefaultConfig() Config {
	return Config{Replicas: 8, CacheBlocks: 2000, BlockTokens: trace.MooncakeBlock, PrefillRate: 8000, DecodeToken: 30 * time.Millisecond, Seed: 1}
}

// replica is one engine of the fleet. Times are seconds of the trace.
type replica struct {
	cache *cache
	free  float64  // when its last prompt is done
	work  float64  // seconds of prefill, all together
	ends  ends     // of running requests, decode included
	queue []queued // prompts whose prefill is not done, in order

	reported load // what the router was last told
	told     float64
	hinted   []hint // sent there since, as the router knows
}

// load is what a replica says of itself.
type load struct {
	backlog float64 // seconds of prefill before a new prompt
	running int     // requests in prefill, queue or decode
	waiting int     // of these, those whose prefill is not done
	blocks  int     // that they have to compute
}

// queued is a prompt on its way through prefill.
type queued struct {
	done   float64
	blocks int // to compute
}

type hint struct {
	at, seconds float64
}

// ends is a heap of the times at which requests end.
type ends []float64

func (e ends) Len() int           { return len(e) }
func (e ends) Less(i, j int) bool { return e[i] < e[j] }
func (e ends) Swap(i, j int)      { e[i], e[j] = e[j], e[i] }
func (e *ends) Push(x any)        { *e = append(*e, x.(float64)) }
func (e *ends) Pop() any {
	old := *e
	last := old[len(old)-1]
	*e = old[:len(old)-1]
	return last
}

// change is one of a cache, on its way to the router.
type change struct {
	at      float64
	replica int
	stored  []kv.Hash
	parent  kv.Hash
	depth   int // blocks before stored
	evicted []kv.Hash
}

// fleet is a run.
type fleet struct {
	config   Config
	replicas []*replica
	router   *router
	pending  []change // oldest first
	rng      *rand.Rand
	now      float64
}

// Run plays the requests to a fleet that is routed by the named policy, one of
// Policies, and calls progress now and then with the share that is done. It
// fails only if ctx ends.
func Run(ctx context.Context, config Config, requests []Request, policy string, progress func(done float64)) (Result, error) {
	f := &fleet{config: config, rng: rand.New(rand.NewPCG(config.Seed, 7))}
	for i := range config.Replicas {
		r := &replica{cache: newCache(config.CacheBlocks)}
		// Reports are spread over the interval, as those of real engines are.
		r.told = -config.ReportEvery.Seconds() * float64(i) / float64(config.Replicas)
		f.replicas = append(f.replicas, r)
	}
	f.router = newRouter(config.Replicas)
	pick := policies[policy]
	outcome := newTally(policy, len(requests))
	for i := range requests {
		f.now = requests[i].At.Seconds()
		f.advance()
		q := question{keys: requests[i].Keys, number: i}
		at := pick(f, &q)
		outcome.add(f.serve(at, &requests[i]))
		if i%256 == 0 {
			if ctx.Err() != nil {
				return Result{}, ctx.Err()
			}
			progress(float64(i) / float64(len(requests)))
		}
	}
	return outcome.result(f), nil
}

// advance lets time pass: requests end, reports and events arrive.
func (f *fleet) advance() {
	lag, every := f.config.EventLag.Seconds(), f.config.ReportEvery.Seconds()
	for len(f.pending) > 0 && f.pending[0].at+lag <= f.now {
		f.router.hear(&f.pending[0])
		f.pending = f.pending[1:]
	}
	for _, r := range f.replicas {
		switch {
		case every == 0:
			r.report(f.now)
		case f.now-r.told >= every:
			r.report(r.told + every*float64(int((f.now-r.told)/every)))
		}
		r.pass(f.now)
	}
}

// report tells the router the load at a time.
func (r *replica) report(at float64) {
	r.pass(at)
	l := load{backlog: r.backlog(at), running: len(r.ends), waiting: len(r.queue)}
	for _, q := range r.queue {
		l.blocks += q.blocks
	}
	r.told, r.reported, r.hinted = at, l, r.hinted[:0]
}

// pass lets prefills and requests end.
func (r *replica) pass(at float64) {
	for len(r.ends) > 0 && r.ends[0] <= at {
		heap.Pop(&r.ends)
	}
	for len(r.queue) > 0 && r.queue[0].done <= at {
		r.queue = r.queue[1:]
	}
}

func (r *replica) backlog(now float64) float64 { return max(0, r.free-now) }

// serve gives a replica a request and returns what became of it.
func (f *fleet) serve(at int, request *Request) (served outcome) {
	r := f.replicas[at]
	keys := request.Keys
	hit := r.cache.match(keys)
	seconds := float64((len(keys)-hit)*f.config.BlockTokens) / f.config.PrefillRate
	r.free = max(f.now, r.free) + seconds
	r.work += seconds
	heap.Push(&r.ends, r.free+float64(request.Output)*f.config.DecodeToken.Seconds())
	r.queue = append(r.queue, queued{r.free, len(keys) - hit})

	c := change{at: f.now, replica: at, evicted: r.cache.use(keys)}
	if hit < len(keys) {
		c.stored, c.depth = keys[hit:], hit
		if hit > 0 {
			c.parent = keys[hit-1]
		}
		c.stored = slices.DeleteFunc(slices.Clone(c.stored), func(k kv.Hash) bool { return r.cache.at[k] == 0 })
	}
	if f.config.EventLag == 0 {
		f.router.hear(&c)
	} else {
		f.pending = append(f.pending, c)
	}
	return outcome{ttft: r.free - f.now, blocks: len(keys), hit: hit}
}
