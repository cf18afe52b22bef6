package server

import (
	"context"
	"time"

	"inferencecache.io/inferencecache/internal/journal"
	"inferencecache.io/inferencecache/internal/kv"
	pb "inferencecache.io/inferencecache/proto/inferencecache/v1alpha1"
)

// PublishEvent applies one change. It accepts everything: what it cannot use
// is dropped and counted.
func (s *Server) PublishEvent(_ context.Context, e *pb.CacheEvent) (*pb.Ack, error) {
	s.applyEvent(time.Now(), e)
	return s.ack(), nil
}

func (s *Server) applyEvent(now time.Time, e *pb.CacheEvent) {
	tenant, model, replica := e.GetTenantId(), e.GetModelId(), e.GetReplicaId()
	switch {
	case tenant == kv.ProbeTenant:
		s.meters.drop(dropProbeTenant, 1)
		return
	case replica == "":
		s.meters.drop(dropNoReplica, 1)
		return
	case max(len(tenant), len(model), len(replica), len(e.GetAdapterId())) > maxName:
		s.meters.drop(dropLongName, 1)
		return
	}
	at := stamp(now, e.GetTimestampUs())
	switch e.GetType() {
	case pb.CacheEvent_PREFIX_EVICTED:
		if len(e.GetPrefixHash()) == 0 {
			s.meters.drop(dropEmptyKey, 1)
			return
		}
		key := s.index.Key(e.GetPrefixHash())
		s.meters.applied(s.index.Remove(now, tenant, model, replica, e.GetAdapterId(), key, at))
		for _, fl := range s.fleets.every(tenant, model) {
			s.removals.add(at, source{fl.scope, replica}, e.GetAdapterId(), []kv.Hash{key})
			s.journal.Remove(journal.Remove{At: now, Scope: fl.scope, Adapter: e.GetAdapterId(), Replica: replica, Keys: []kv.Hash{key}})
		}
	case pb.CacheEvent_ALL_CLEARED:
		s.index.Clear(now, tenant, model, replica, at)
		s.replicas.clear(tenant, model, replica, at)
		s.fleets.clear(tenant, model, replica, at)
		for _, fl := range s.fleets.every(tenant, model) {
			s.journal.Clear(journal.Clear{At: now, Scope: fl.scope, Replica: replica})
		}
	case pb.CacheEvent_REPLICA_UPDATED:
		s.replicas.touch(tenant, model, replica, at)
		s.fleets.touch(now, tenant, model, replica, at)
	default:
		// PREFIX_ADDED has no scheme to index under; unknown types are the future's.
		return
	}
	s.events.publish(e)
}
