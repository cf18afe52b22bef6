package journal

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"time"

	"inferencecache.io/inferencecache/internal/kv"
)

// some are random records as a fleet makes them, and some that none would.
type some struct {
	rng    *rand.Rand
	now    time.Time
	chains [][]kv.Hash
	asked  int
}

func newSome(seed uint64) *some {
	return &some{rng: rand.New(rand.NewPCG(seed, 1)), now: noon}
}

func (s *some) chain() []kv.Hash {
	var chain []kv.Hash
	if len(s.chains) > 0 && s.rng.IntN(4) > 0 {
		from := s.chains[max(0, len(s.chains)-1-s.rng.IntN(50))]
		chain = slices.Clone(from[:s.rng.IntN(len(from)+1)])
	}
	for range s.rng.IntN(12) {
		chain = append(chain, kv.Hash(s.rng.Uint64()))
	}
	if len(chain) > 0 {
		s.chains = append(s.chains, chain)
	}
	switch s.rng.IntN(10) {
	case 0:
		chain = slices.Clone(chain)
		s.rng.Shuffle(len(chain), func(i, j int) { chain[i], chain[j] = chain[j], chain[i] })
	case 1:
		chain = append(slices.Clone(chain), chain...)
	case 2:
		chain = slices.Clone(chain)
		slices.Reverse(chain)
	}
	return chain
}

func (s *some) partition() kv.Partition {
	return kv.Partition{
		Scope:   kv.Scope{Tenant: fmt.Sprint("tenant-", s.rng.IntN(20)), Model: fmt.Sprint("model-", s.rng.IntN(20)), Scheme: "vllm"},
		Adapter: []string{"", "lora"}[s.rng.IntN(2)],
	}
}

func (s *some) replica() string { return fmt.Sprint("replica-", s.rng.IntN(5000)) }

func (s *some) number() int32 {
	return []int32{0, 16, int32(s.rng.Uint32()), -1}[s.rng.IntN(4)]
}

func (s *some) next() Record {
	s.now = s.now.Add(time.Duration(s.rng.IntN(2000)-300) * time.Microsecond)
	p := s.partition()
	switch s.rng.IntN(10) {
	case 0:
		return Clear{At: s.now, Scope: p.Scope, Replica: s.replica()}
	case 1, 2:
		return Remove{At: s.now, Scope: p.Scope, Adapter: p.Adapter, Replica: s.replica(), Keys: s.chain()}
	case 3, 4:
		r := Store{At: s.now, Scope: p.Scope, Adapter: p.Adapter, Replica: s.replica(), Keys: s.chain(), Tier: kv.Tier(s.rng.IntN(256)), Step: s.number()}
		if len(r.Keys) > 2 && s.rng.IntN(2) == 0 {
			r.Parent, r.HasParent, r.Keys = r.Keys[0], true, r.Keys[1:]
		}
		return r
	case 5, 6:
		return Outcome{At: s.now, RequestID: fmt.Sprint("request-", s.rng.IntN(s.asked+1)), Replica: s.replica(), CachedTokens: s.number(), PromptTokens: s.number(), OutputTokens: s.number()}
	}
	s.asked++
	r := Lookup{At: s.now, Partition: p, Keys: s.chain(), BlockTokens: s.number(), Tokens: s.number(), RequestID: fmt.Sprint("request-", s.asked), Chosen: s.replica(), Reason: "PREFIX_MATCH"}
	if s.rng.IntN(5) == 0 {
		r.Partition, r.RequestID, r.Chosen, r.Reason = kv.Partition{}, "", "", strings.Repeat("x", s.rng.IntN(maxName+1))
	}
	return r
}
