package server

import pb "inferencecache.io/inferencecache/proto/inferencecache/v1alpha1"

// maxEngineStat is beyond any count of requests or tokens and any speed of an
// engine: what is above it is a mistake.
const maxEngineStat = 1e15

// engineStats are what an engine says of itself; nil is unknown. They are
// never changed in place, so copies may share them.
type engineStats struct {
	running, waiting     *float64 // requests
	prefill              *float64 // tokens computed a second
	usage, hitRate       *float64 // 0-1
	capacity             *int64   // tokens
	offloadHit, offloadQ *int64   // tokens, cumulative
}

// newEngineStats copies the plausible ones of a report.
func newEngineStats(s *pb.ReplicaStats) engineStats {
	return engineStats{
		running:    plausible(s.RunningRequests, maxEngineStat),
		waiting:    plausible(s.WaitingRequests, maxEngineStat),
		prefill:    plausible(s.PrefillTokensPerSecond, maxEngineStat),
		usage:      plausible(s.CacheUsage, 1),
		hitRate:    plausible(s.PrefixHitRate, 1),
		capacity:   plausible(s.CacheCapacityTokens, maxEngineStat),
		offloadHit: plausible(s.OffloadHitTokens, maxEngineStat),
		offloadQ:   plausible(s.OffloadQueryTokens, maxEngineStat),
	}
}

// plausible is a copy of v, or nil if v is not from 0 to limit. Not a number
// is not.
func plausible[T int64 | float64](v *T, limit T) *T {
	if v == nil || !(*v >= 0 && *v <= limit) {
		return nil
	}
	value := *v
	return &value
}

// fill puts the numbers into s.
func (e engineStats) fill(s *pb.ReplicaStats) {
	s.RunningRequests, s.WaitingRequests = e.running, e.waiting
	s.PrefillTokensPerSecond = e.prefill
	s.CacheCapacityTokens = e.capacity
	s.CacheUsage, s.PrefixHitRate = e.usage, e.hitRate
	s.OffloadHitTokens, s.OffloadQueryTokens = e.offloadHit, e.offloadQ
}
