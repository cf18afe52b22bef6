package server

import (
	"cmp"
	"context"
	"slices"
	"time"

	"inferencecache.io/inferencecache/internal/kv"
	pb "inferencecache.io/inferencecache/proto/inferencecache/v1alpha1"
)

// Bounds of one GetFleet answer: what is sent when nothing is asked for, and at
// most.
const (
	usualReplicas, mostReplicas = 1000, 10_000
	usualPrefixes, mostPrefixes = 10, 100
)

// GetFleet implements the RPC. It is for people and checks: it copies what it
// needs under short locks, fleet by fleet, and lookups go on meanwhile. Thus an
// answer is no snapshot of one instant.
func (s *Server) GetFleet(_ context.Context, r *pb.GetFleetRequest) (*pb.GetFleetResponse, error) {
	now := time.Now()
	answer := &pb.GetFleetResponse{Server: s.viewSelf(now), States: map[string]int64{}, AtUs: now.UnixMicro()}
	all := s.fleets.view(now, func(scope kv.Scope) bool { return fits(r, scope) })
	for i := range all {
		answer.States[all[i].state.String()]++
	}
	for _, v := range chosen(all, bounded(r.GetMaxReplicas(), usualReplicas, mostReplicas)) {
		answer.Replicas = append(answer.Replicas, v.wire(now))
	}
	s.addStats(now, answer.Replicas)
	s.addIndexed(answer.Replicas)
	answer.HotPrefixes, answer.Decisions = s.hottest(now, r, bounded(r.GetTopK(), usualPrefixes, mostPrefixes))
	return answer, nil
}

// fits says whether a request wants a scope.
func fits(r *pb.GetFleetRequest, scope kv.Scope) bool {
	wants := func(wanted, is string) bool { return wanted == "" || wanted == is }
	return wants(r.GetTenantId(), scope.Tenant) && wants(r.GetModelId(), scope.Model) && wants(r.GetHashScheme(), scope.Scheme)
}

func bounded(asked int32, usual, most int) int {
	if asked <= 0 {
		return usual
	}
	return min(int(asked), most)
}

// viewSelf is the server's row.
func (s *Server) viewSelf(now time.Time) *pb.FleetServer {
	counts, set := s.index.Counts(), s.policies.Load()
	return &pb.FleetServer{
		Version: s.config.Version, Epoch: s.epoch, UptimeMs: now.Sub(s.started).Milliseconds(),
		IndexKeys: counts.Keys, IndexEntries: counts.Entries, IndexBytes: counts.Bytes, IndexBytesLimit: s.config.MemoryBytes,
		Lookups: s.meters.byReason(), Updates: int64(s.meters.updates.Get()), PolicyVersion: int64(set.Version), PolicyAgeMs: age(now, set.Adopted),
		PromisedTokens: int64(s.meters.promised.Get()), FoundTokens: int64(s.meters.found.Get()),
	}
}

// age of something in milliseconds; -1 if it never was.
func age(now, at time.Time) int64 {
	if at.IsZero() {
		return -1
	}
	return max(0, now.Sub(at).Milliseconds())
}

// memberView is a member of a fleet as it was at one moment.
type memberView struct {
	scope   kv.Scope
	state   pb.ReplicaState
	detail  string
	backlog float64 // seconds
	loaded  bool
	hints   int64
	member  // a copy
}

// view copies every member of the fleets that fit.
func (f *fleets) view(now time.Time, fit func(kv.Scope) bool) (all []memberView) {
	for _, fl := range f.all() {
		if !fit(fl.scope) {
			continue
		}
		fl.mu.Lock()
		for _, m := range fl.members {
			v := memberView{scope: fl.scope, hints: m.hinted.sum(f.seconds(now)), member: *m}
			v.state, v.detail = f.judge(now, m)
			v.backlog, v.loaded = m.load.backlog(f.seconds(now))
			all = append(all, v)
		}
		fl.mu.Unlock()
	}
	return all
}

// judge says what lookups make of a member, the worst of all that is true of it.
func (f *fleets) judge(now time.Time, m *member) (pb.ReplicaState, string) {
	switch why := f.excluded(now, m); {
	case why == causeAsleep:
		return pb.ReplicaState_REPLICA_ASLEEP, "its engine was put to sleep"
	case why != "":
		return pb.ReplicaState_REPLICA_DEAD, deathText[why]
	case m.truth.liar:
		return pb.ReplicaState_REPLICA_QUARANTINED, "engines found too little of what it was said to hold"
	case m.state == pb.StreamState_STREAM_STALE:
		return pb.ReplicaState_REPLICA_SUSPECT, "its subscriber has lost its engine"
	case f.suspicious(now, m):
		return pb.ReplicaState_REPLICA_SUSPECT, "nothing was heard of it for longer than --replica-suspect-after"
	}
	return pb.ReplicaState_REPLICA_ALIVE, ""
}

// chosen cuts a list, which it moves about, to the most that are wanted: those
// in trouble stay. The rest is in order of names.
func chosen(all []memberView, most int) []memberView {
	byName := func(a, b memberView) int {
		return cmp.Or(cmp.Compare(a.scope.Tenant, b.scope.Tenant), cmp.Compare(a.scope.Model, b.scope.Model),
			cmp.Compare(a.scope.Scheme, b.scope.Scheme), cmp.Compare(a.name, b.name))
	}
	if len(all) > most {
		trouble := func(v memberView) int {
			if v.state == pb.ReplicaState_REPLICA_ALIVE {
				return 1
			}
			return 0
		}
		slices.SortFunc(all, func(a, b memberView) int { return cmp.Or(cmp.Compare(trouble(a), trouble(b)), byName(a, b)) })
		all = all[:most]
	}
	slices.SortFunc(all, byName)
	return all
}

func (v *memberView) wire(now time.Time) *pb.FleetReplica {
	r := &pb.FleetReplica{
		TenantId: v.scope.Tenant, ModelId: v.scope.Model, HashScheme: v.scope.Scheme, ReplicaId: v.name,
		State: v.state, StateDetail: v.detail, StreamState: v.member.state,
		LoadAgeMs: -1, LoadKnown: v.loaded, BacklogMs: v.backlog * 1000, RecentHints: v.hints,
		HeldAgeMs: age(now, v.toldAt), BlockSize: v.blockSize,
		HeardAgeMs: age(now, v.heard), ChangedAgeMs: age(now, v.changed), ClearedAgeMs: age(now, v.cleared),
		Audit: &pb.TruthAudit{
			Outcomes: v.audited.outcomes, PromisedTokens: v.audited.promised, FoundTokens: v.audited.found,
			Share: float64(v.truth.share()), Quarantined: v.truth.liar, QuarantineAgeMs: -1,
		},
	}
	if v.truth.liar {
		r.Audit.QuarantineAgeMs = age(now, v.truth.since)
	}
	if !v.toldAt.IsZero() {
		r.Held = &pb.HeldBlocks{T1: v.told[0], T2: v.told[1], T3: v.told[2]}
	}
	return r
}

// addStats adds what replicas said of themselves.
func (s *Server) addStats(now time.Time, shown []*pb.FleetReplica) {
	s.replicas.mu.RLock()
	defer s.replicas.mu.RUnlock()
	for _, r := range shown {
		known, ok := s.replicas.rows[modelOf{r.TenantId, r.ModelId}][r.ReplicaId]
		if !ok {
			continue
		}
		r.EngineUrl = known.engineURL
		if !known.reported.IsZero() {
			r.Stats, r.LoadAgeMs = known.wire(r.ReplicaId), age(now, known.reported)
		}
	}
}

// addIndexed adds what the index has of each.
func (s *Server) addIndexed(shown []*pb.FleetReplica) {
	entries := map[kv.Scope]map[string]int64{}
	for _, r := range shown {
		scope := kv.Scope{Tenant: r.TenantId, Model: r.ModelId, Scheme: r.HashScheme}
		if _, asked := entries[scope]; !asked {
			entries[scope] = s.index.Holders(scope)
		}
		r.IndexedBlocks = entries[scope][r.ReplicaId]
	}
}
