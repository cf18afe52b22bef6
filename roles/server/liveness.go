package server

import (
	"time"

	"inferencecache.io/inferencecache/index"
	pb "inferencecache.io/inferencecache/proto/inferencecache/v1alpha1"
)

// How a replica ended, as label values.
const (
	causeSilence = "silence"
	causeGoodbye = "goodbye"
	causeAsleep  = "asleep" // not dead, but cannot be used
)

// deathChecks in the time after which a silent replica is dead.
const deathChecks = 10

// vouches says whether an update shows that what its source reported before
// still holds: the source promised to say so again, and it sees its engine.
// Without the promise the entries may as well age.
func vouches(u *pb.CacheStateUpdate) bool {
	if u.GetHeartbeatMs() == 0 {
		return false
	}
	switch u.GetStreamState() {
	case pb.StreamState_STREAM_EXACT, pb.StreamState_STREAM_DEGRADED, pb.StreamState_STREAM_BOOTSTRAPPING:
		return true
	}
	return false
}

// bury forgets what a source reported up to seen, and the stats of its replica.
func (s *Server) bury(now time.Time, from source, seen time.Time, cause string) {
	batch := index.Batch{Scope: from.scope, Replica: from.replica, Seen: seen, Ops: []index.Op{{Kind: index.Clear}}}
	s.index.Apply(now, &batch)
	s.writeBatch(now, &batch)
	s.events.publishBatch(&batch)
	s.replicas.clear(from.scope.Tenant, from.scope.Model, from.replica, now)
	s.fleets.bury(from.scope, from.replica, seen, cause)
	s.meters.deaths[cause].Inc()
}

// checkDead buries the replicas that have gone without a word.
func (s *Server) checkDead(now time.Time) {
	dead := s.sources.silent(now, s.config.ReplicaDeadAfter, func(from source, seen time.Time) {
		s.bury(now, from, seen, causeSilence)
	})
	for _, from := range dead {
		s.log.Info("replica is dead", "cause", causeSilence, "tenant", from.scope.Tenant, "model", from.scope.Model,
			"scheme", from.scope.Scheme, "replica", from.replica)
	}
}
