package replay

import (
	"slices"
	"time"

	"inferencecache.io/inferencecache/internal/kv"
	"inferencecache.io/inferencecache/internal/rank"
)

// question is a prompt to be routed.
type question struct {
	keys   []kv.Hash
	number int // of the request
}

// policies choose a replica. All are told the same: reports of the loads, as
// old as they are, and the index. Those of others are models of published
// designs, not their code.
var policies = map[string]func(*fleet, *question) int{
	"round-robin":    func(f *fleet, q *question) int { return q.number % len(f.replicas) },
	"least-backlog":  leastBacklog,
	"longest-prefix": longestPrefix,
	"thresholds":     thresholds,
	"compat":         compat,
	"block-cost":     blockCost,
	"cost":           costly,
}

// Policies are the names, in the order of the table.
var Policies = []string{"round-robin", "least-backlog", "longest-prefix", "thresholds", "compat", "block-cost", "cost"}

// least picks the replica with the lowest value; ties are broken by lot.
func (f *fleet) least(value func(i int, r *replica) float64) int {
	best, lowest, equal := 0, 0.0, 0
	for i, r := range f.replicas {
		switch v := value(i, r); {
		case equal == 0 || v < lowest:
			best, lowest, equal = i, v, 1
		case v == lowest:
			if equal++; f.rng.IntN(equal) == 0 {
				best = i
			}
		}
	}
	return best
}

// expected is a replica's backlog as the reports say, which falls with time.
func (r *replica) expected(now float64) float64 { return max(0, r.reported.backlog-(now-r.told)) }

func leastBacklog(f *fleet, _ *question) int {
	return f.least(func(_ int, r *replica) float64 { return r.expected(f.now) })
}

func longestPrefix(f *fleet, q *question) int {
	depths := f.router.look(f.now, q.keys)
	return f.least(func(i int, _ *replica) float64 { return -float64(depths[i]) })
}

// thresholds is SGLang's cache-aware router: the shortest queue if the queues
// are unequal, else the longest match if it is most of the prompt, else the
// shortest queue.
func thresholds(f *fleet, q *question) int {
	const absolute, relative, enough = 32, 1.0001, 0.5
	low, high := f.replicas[0].reported.running, 0
	for _, r := range f.replicas {
		low, high = min(low, r.reported.running), max(high, r.reported.running)
	}
	shortest := func() int {
		return f.least(func(_ int, r *replica) float64 { return float64(r.reported.running) })
	}
	if high-low > absolute && float64(high) > relative*float64(low) {
		return shortest()
	}
	depths := f.router.look(f.now, q.keys)
	if best := slices.Max(depths); float64(best) > enough*float64(len(q.keys)) {
		return f.least(func(i int, r *replica) float64 { return -float64(depths[i]) })
	}
	return shortest()
}

// compat is the published formula over what engines said last, with round robin
// where it gives no hint. Blocks are taken to be reported again by every use.
func compat(f *fleet, q *question) int {
	const ceiling = 256 // requests of full pressure
	depths := f.router.look(f.now, q.keys)
	var holds []rank.Hold
	for i, depth := range depths {
		if depth > 0 {
			holds = append(holds, rank.Hold{
				Replica: f.router.names[i], Tokens: int32(depth * f.config.BlockTokens), Seen: clock(f.now), Tier: kv.T1,
			})
		}
	}
	question := rank.Question{Now: clock(f.now), TTL: 30 * time.Minute, Total: len(f.router.index.Members(scope)), Chain: true}
	scored := rank.CompatDefaults().Prefix(nil, question, holds, func(replica string) (rank.Load, bool) {
		r := f.replicas[f.router.number[replica]]
		return rank.Load{Pressure: min(1, float32(r.reported.running)/ceiling), Reported: clock(r.told)}, true
	})
	if len(scored) == 0 || scored[0].Score <= 0 {
		return q.number % len(f.replicas)
	}
	return f.router.number[scored[0].Replica]
}

// blockCost is Dynamo's cost: blocks to prefill, and of the prompts that wait
// for theirs, which count whole until it is done, and one for each request that
// is being decoded.
func blockCost(f *fleet, q *question) int {
	depths := f.router.look(f.now, q.keys)
	return f.least(func(i int, r *replica) float64 {
		return float64(len(q.keys)-depths[i]+r.reported.blocks) + float64(r.reported.running-r.reported.waiting)
	})
}

// costly is our own: the real ranking over what the server would know.
func costly(f *fleet, q *question) int {
	depths, later := f.router.look(f.now, q.keys), f.router.foresee(f.now, q.keys)
	f.router.popular.Ask(f.now, 0, q.keys)
	asked := f.router.popular.Rates(f.now, 0, q.keys)
	candidates := make([]rank.Candidate, len(f.replicas))
	for i, r := range f.replicas {
		candidates[i] = rank.Candidate{
			Replica: f.router.names[i], Backlog: r.speculative(f.now), Loaded: true, Rate: f.config.PrefillRate,
			Tokens: [3]int32{int32(depths[i] * f.config.BlockTokens)}, Soon: int32(later[i] * f.config.BlockTokens),
			Asked: asked.Behind(depths[i]), Lot: f.rng.Uint64(),
		}
	}
	ranked, _ := rank.CostDefaults().Rank(&f.router.ranking, candidates, rank.Query{Prompt: int32(len(q.keys) * f.config.BlockTokens), Top: 1})
	best := f.router.number[ranked[0].Replica]
	f.router.soon.Sent(f.now, 0, q.keys, uint32(best))
	f.replicas[best].hinted = append(f.replicas[best].hinted, hint{f.now, ranked[0].Prefill})
	return best
}

// speculative is the expected backlog with what was sent there since.
func (r *replica) speculative(now float64) float64 {
	backlog := r.reported.backlog
	at := r.told
	for _, h := range r.hinted {
		backlog = max(0, backlog-(h.at-at)) + h.seconds
		at = h.at
	}
	return max(0, backlog-(now-at))
}
