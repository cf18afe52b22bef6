// Package rank decides the order in which replicas are named. It is pure: from
// what replicas hold, what they reported and what the operator wants to a
// ranked list. It reads no clock, no index and no policy store.
//
// Compat is the published formula of inferencecache.v1alpha1, reproduced to
// the bit in float32:
//
//	score = matched_tokens x freshness x pressure factor x SLO bias x distinguishing power
package rank

import (
	"cmp"
	"math"
	"slices"
	"time"

	"inferencecache.io/inferencecache/internal/kv"
)

// Hold is a replica's claim on a prompt: its longest leading run.
type Hold struct {
	Replica string
	Tokens  int32     // matched
	Seen    time.Time // oldest stamp in the run
	Tier    kv.Tier   // coldest tier in the run
}

// Load is what a replica last reported of itself.
type Load struct {
	Pressure float32   // 0-1
	HitRate  float32   // 0-1
	Reported time.Time // when these numbers were measured; zero: never
}

// Loads looks up the load of a replica; ok is false if it never reported.
type Loads func(replica string) (load Load, ok bool)

// Scored is one ranked replica.
type Scored struct {
	Replica string
	Score   float32
	Tokens  int32
	Prob    float32 // estimated probability of a cache hit
	Tier    kv.Tier
}

// Compat holds the knobs of the published formula.
type Compat struct {
	PressureWeight      float32
	SLOTightTTFTMs      int32   // a wanted TTFT below it is tight; 0: off
	SLOTightBias        float32 // how much a tight SLO favours fresh holds; 0: off
	TenantHotMinHitRate float32
	TenantHotMaxAge     time.Duration // 0 turns TENANT_HOT off
}

// CompatDefaults are the published constants.
func CompatDefaults() Compat {
	return Compat{
		PressureWeight:      1,
		SLOTightTTFTMs:      200,
		SLOTightBias:        1,
		TenantHotMinHitRate: 0.1,
		TenantHotMaxAge:     5 * time.Minute,
	}
}

// Question is what a prefix ranking is about.
type Question struct {
	Now    time.Time
	TTL    time.Duration // of the tenant's entries and stats
	TTFTMs int32         // wanted time to first token; 0: not said
	Total  int           // replicas with an entry in the scope
	Chain  bool          // holds come from a chain, not from one exact key
}

// Prefix ranks holders, best first, appending to dst. Holds of a chain without
// a matched token are left out.
func (c Compat) Prefix(dst []Scored, q Question, holds []Hold, loads Loads) []Scored {
	first := len(dst)
	for _, h := range holds {
		if q.Chain && h.Tokens <= 0 {
			continue
		}
		fresh := Freshness(q.Now.Sub(h.Seen), q.TTL)
		score := float32(h.Tokens) * fresh
		score *= c.prefixPressure(q, h.Replica, loads)
		score *= c.bias(q.TTFTMs, fresh)
		dst = append(dst, Scored{Replica: h.Replica, Score: score, Tokens: h.Tokens, Prob: fresh, Tier: h.Tier})
	}
	distinguish(dst[first:], q)
	Sort(dst[first:])
	return dst
}

// distinguish multiplies each score by 1 - matching/total: a prefix that every
// replica holds tells them not apart. Exact matches share one factor; in a
// chain, matching counts the replicas that match at least as much.
func distinguish(scored []Scored, q Question) {
	var depths []int32
	if q.Chain {
		depths = make([]int32, 0, len(scored))
		for _, s := range scored {
			depths = append(depths, s.Tokens)
		}
		slices.Sort(depths)
	}
	for i := range scored {
		matching := len(scored)
		if q.Chain {
			shallower, _ := slices.BinarySearch(depths, scored[i].Tokens)
			matching -= shallower
		}
		scored[i].Score *= power(matching, q.Total)
	}
}

func power(matching, total int) float32 {
	switch {
	case total <= 1:
		return 1
	case matching >= total:
		return 0
	}
	return float32(1 - float64(matching)/float64(total))
}

// TenantHot ranks warm replicas by reported hit rate, appending to dst, best
// first. Members are the replicas with an entry in the scope.
func (c Compat) TenantHot(dst []Scored, q Question, members []string, loads Loads) []Scored {
	if c.TenantHotMaxAge <= 0 {
		return dst
	}
	first := len(dst)
	for _, replica := range members {
		load, ok := loads(replica)
		if !ok || load.Reported.IsZero() || load.HitRate < c.TenantHotMinHitRate {
			continue
		}
		recency := Freshness(q.Now.Sub(load.Reported), c.TenantHotMaxAge)
		if recency <= 0 {
			continue
		}
		score := load.HitRate * recency
		score *= c.pressure(load.Pressure)
		score *= c.bias(q.TTFTMs, recency)
		dst = append(dst, Scored{Replica: replica, Score: score, Prob: load.HitRate})
	}
	Sort(dst[first:])
	return dst
}

// prefixPressure is 1 for a replica whose stats are older than the tenant's
// TTL: an old number must neither favour nor punish.
func (c Compat) prefixPressure(q Question, replica string, loads Loads) float32 {
	load, ok := loads(replica)
	if !ok || load.Reported.IsZero() || Freshness(q.Now.Sub(load.Reported), q.TTL) <= 0 {
		return 1
	}
	return c.pressure(load.Pressure)
}

// The conversions keep a fused multiply-add from changing the last bit.
func (c Compat) pressure(pressure float32) float32 {
	return min(1, max(0, 1-float32(c.PressureWeight*pressure)))
}

func (c Compat) bias(ttftMs int32, decay float32) float32 {
	if ttftMs <= 0 || ttftMs >= c.SLOTightTTFTMs || c.SLOTightBias <= 0 {
		return 1
	}
	return 1 + float32(decay*c.SLOTightBias)
}

// Freshness falls linearly from 1 at age 0 to 0 at ttl, computed in float64
// and narrowed. An age below zero counts as 0.
func Freshness(age, ttl time.Duration) float32 {
	switch {
	case age <= 0:
		return 1
	case age >= ttl:
		return 0
	}
	return float32(1 - float64(age)/float64(ttl))
}

// Sort orders by score, highest first, then by replica id.
func Sort(scored []Scored) {
	slices.SortFunc(scored, func(a, b Scored) int {
		if a.Score != b.Score {
			return cmp.Compare(b.Score, a.Score)
		}
		return cmp.Compare(a.Replica, b.Replica)
	})
}

// Finite replaces NaN and the infinities, which no comparison survives, by 0.
func Finite(v float32) float32 {
	if math.IsNaN(float64(v)) || math.IsInf(float64(v), 0) {
		return 0
	}
	return v
}
