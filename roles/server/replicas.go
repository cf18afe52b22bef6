package server

import (
	"cmp"
	"context"
	"maps"
	"slices"
	"sync"
	"time"

	"inferencecache.io/inferencecache/internal/kv"
	"inferencecache.io/inferencecache/internal/rank"
	"inferencecache.io/inferencecache/internal/status"
	pb "inferencecache.io/inferencecache/proto/inferencecache/v1alpha1"
)

// replicas is what replicas reported of themselves: stats by (tenant, model,
// replica), whatever the hash scheme or adapter.
type replicas struct {
	limit int
	mu    sync.RWMutex // guards what follows
	rows  map[modelOf]map[string]row
	count int
}

type modelOf struct{ tenant, model string }

type row struct {
	memory         int64
	hitRate        float32
	pressure       float32
	t2Hit, t2Query int64
	engine         engineStats
	version        string
	engineURL      string
	state          pb.StreamState // as last said; unspecified: never
	lastSeen       time.Time      // any sign of life
	reported       time.Time      // when the numbers were stamped; zero: no numbers yet
}

func newReplicas(limit int) *replicas {
	return &replicas{limit: limit, rows: map[modelOf]map[string]row{}}
}

// takeStats stores the stats of an update, and what it says of its stream; the update's replica id wins over
// the nested one, which nobody vouches for. ok is false if there are too many
// replicas.
func (s *Server) takeStats(seen time.Time, u *pb.CacheStateUpdate) (ok bool) {
	stats, url, state := u.GetStats(), u.GetEngineUrl(), u.GetStreamState()
	if stats == nil && url == "" && state == pb.StreamState_STREAM_STATE_UNSPECIFIED {
		return true
	}
	if len(url) > maxName || len(stats.GetClientVersion()) > maxName {
		s.meters.drop(dropLongName, 1)
		return true
	}
	return s.replicas.update(u.GetTenantId(), u.GetModelId(), u.GetReplicaId(), func(r *row) {
		if url != "" {
			r.engineURL = url
		}
		if state != pb.StreamState_STREAM_STATE_UNSPECIFIED && !seen.Before(r.lastSeen) {
			r.state = state
		}
		if seen.After(r.lastSeen) {
			r.lastSeen = seen
		}
		if stats == nil || seen.Before(r.reported) {
			return
		}
		r.reported = seen
		r.memory = stats.GetCacheMemoryBytes()
		r.hitRate = rank.Finite(stats.GetHitRate())
		r.pressure = rank.Finite(stats.GetPressure())
		r.t2Hit, r.t2Query = stats.GetT2HitTokens(), stats.GetT2QueryTokens()
		r.engine = newEngineStats(stats)
		r.version = stats.GetClientVersion()
	})
}

// update changes a row, making it if there is room; ok is false if not.
func (r *replicas) update(tenant, model, replica string, change func(*row)) (ok bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	key := modelOf{tenant, model}
	byReplica := r.rows[key]
	current, known := byReplica[replica]
	if !known {
		if r.count >= r.limit {
			return false
		}
		if byReplica == nil {
			byReplica = map[string]row{}
			r.rows[key] = byReplica
		}
		r.count++
	}
	change(&current)
	byReplica[replica] = current
	return true
}

// touch notes a sign of life of a replica with a row; it never makes one and
// never revives old numbers.
func (r *replicas) touch(tenant, model, replica string, at time.Time) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if current, ok := r.rows[modelOf{tenant, model}][replica]; ok && at.After(current.lastSeen) {
		current.lastSeen = at
		r.rows[modelOf{tenant, model}][replica] = current
	}
}

// clear forgets a replica's stats unless they are newer than at.
func (r *replicas) clear(tenant, model, replica string, at time.Time) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if current, ok := r.rows[modelOf{tenant, model}][replica]; ok && !current.reported.After(at) {
		r.dropLocked(modelOf{tenant, model}, replica)
	}
}

func (r *replicas) dropLocked(key modelOf, replica string) {
	delete(r.rows[key], replica)
	r.count--
	if len(r.rows[key]) == 0 {
		delete(r.rows, key)
	}
}

// expire drops rows without a sign of life for their tenant's TTL.
func (r *replicas) expire(now time.Time, ttl func(tenant string) time.Duration) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for key, byReplica := range r.rows {
		limit := ttl(key.tenant)
		for replica, current := range byReplica {
			if now.Sub(current.lastSeen) >= limit {
				r.dropLocked(key, replica)
			}
		}
	}
}

// loads returns a reader of the loads of one model's replicas.
func (r *replicas) loads(tenant, model string) rank.Loads {
	key := modelOf{tenant, model}
	return func(replica string) (rank.Load, bool) {
		r.mu.RLock()
		defer r.mu.RUnlock()
		current, ok := r.rows[key][replica]
		return rank.Load{Pressure: current.pressure, HitRate: current.hitRate, Reported: current.reported}, ok
	}
}

// engines returns the HTTP addresses of a model's replicas, the one heard of
// last first.
func (r *replicas) engines(tenant, model string) []string {
	r.mu.RLock()
	byReplica := r.rows[modelOf{tenant, model}]
	known := make([]row, 0, len(byReplica))
	for _, current := range byReplica {
		if current.engineURL != "" {
			known = append(known, current)
		}
	}
	r.mu.RUnlock()
	slices.SortFunc(known, func(a, b row) int {
		return cmp.Or(b.lastSeen.Compare(a.lastSeen), cmp.Compare(a.engineURL, b.engineURL))
	})
	urls := make([]string, 0, len(known))
	for _, current := range known {
		if !slices.Contains(urls, current.engineURL) {
			urls = append(urls, current.engineURL)
		}
	}
	return urls
}

// states counts the replicas by what they say of their streams.
func (r *replicas) states() []int {
	count := make([]int, len(streamStates))
	r.mu.RLock()
	defer r.mu.RUnlock()
	for _, byReplica := range r.rows {
		for _, current := range byReplica {
			state := int(current.state)
			if state < 0 || state >= len(count) {
				state = 0
			}
			count[state]++
		}
	}
	return count
}

func (r *replicas) len() int {
	r.mu.RLock()
	defer r.mu.RUnlock()
	return r.count
}

// GetCacheState lists the replicas with stats for a model.
func (s *Server) GetCacheState(_ context.Context, request *pb.GetCacheStateRequest) (*pb.GetCacheStateResponse, error) {
	answer := &pb.GetCacheStateResponse{Summary: &pb.CacheSummary{}}
	tenant, model := request.GetTenantId(), request.GetModelId()
	if tenant == kv.ProbeTenant {
		return answer, nil
	}
	answer.Summary.TotalPrefixes = s.index.Keys(tenant, model)
	s.replicas.mu.RLock()
	byReplica := maps.Clone(s.replicas.rows[modelOf{tenant, model}])
	s.replicas.mu.RUnlock()
	for _, replica := range slices.Sorted(maps.Keys(byReplica)) {
		r := byReplica[replica]
		if r.reported.IsZero() {
			continue
		}
		answer.Replicas = append(answer.Replicas, r.wire(replica))
	}
	return answer, nil
}

// wire is what was reported last.
func (r *row) wire(replica string) *pb.ReplicaStats {
	stats := &pb.ReplicaStats{
		ReplicaId: replica, CacheMemoryBytes: r.memory, HitRate: r.hitRate, Pressure: r.pressure,
		ClientVersion: r.version, T2HitTokens: r.t2Hit, T2QueryTokens: r.t2Query,
	}
	r.engine.fill(stats)
	return stats
}

// Snapshot implements bridge.Snapshotter from counters; it scans no entries.
func (s *Server) Snapshot() status.Snapshot {
	byReplica := map[modelOf]*status.Replica{} // by tenant and replica
	at := func(tenant, replica string) *status.Replica {
		key := modelOf{tenant, replica}
		if byReplica[key] == nil {
			byReplica[key] = &status.Replica{ReplicaID: replica, Tenant: tenant}
		}
		return byReplica[key]
	}
	for _, held := range s.index.Replicas() {
		r := at(held.Tenant, held.Replica)
		r.PrefixCount += held.Entries
		if held.Last.After(r.LastEventAt) {
			r.LastEventAt = held.Last.UTC()
		}
	}
	s.replicas.project(at)

	tenants := map[string]*status.Tenant{}
	tenant := func(id string) *status.Tenant {
		if tenants[id] == nil {
			tenants[id] = &status.Tenant{TenantID: id}
		}
		return tenants[id]
	}
	var snapshot status.Snapshot
	for _, t := range s.index.Tenants() {
		tenant(t.Tenant).IndexEntries = t.Keys
		snapshot.TotalPrefixes += t.Keys
	}
	reporting := map[string]int{}
	for _, r := range byReplica {
		snapshot.Replicas = append(snapshot.Replicas, *r)
		if r.StatsReported {
			reporting[r.Tenant]++
			tenant(r.Tenant).HitRate += float64(r.HitRate)
		}
	}
	for id, n := range reporting {
		tenants[id].HitRate /= float64(n)
		tenants[id].HitRateReported = true
	}
	for _, t := range tenants {
		snapshot.Tenants = append(snapshot.Tenants, *t)
	}
	slices.SortFunc(snapshot.Replicas, func(a, b status.Replica) int {
		return cmp.Or(cmp.Compare(a.Tenant, b.Tenant), cmp.Compare(a.ReplicaID, b.ReplicaID))
	})
	slices.SortFunc(snapshot.Tenants, func(a, b status.Tenant) int { return cmp.Compare(a.TenantID, b.TenantID) })
	return snapshot
}

// project fills snapshot rows with stats. A replica that serves several models
// shows the row seen last, of equals the one of the first model by name.
func (r *replicas) project(at func(tenant, replica string) *status.Replica) {
	r.mu.RLock()
	defer r.mu.RUnlock()
	keys := slices.SortedFunc(maps.Keys(r.rows), func(a, b modelOf) int {
		return cmp.Or(cmp.Compare(a.tenant, b.tenant), cmp.Compare(a.model, b.model))
	})
	for _, key := range keys {
		for replica, current := range r.rows[key] {
			if current.reported.IsZero() {
				continue
			}
			shown := at(key.tenant, replica)
			if shown.StatsReported && !current.lastSeen.After(shown.LastUpdate) {
				continue
			}
			shown.StatsReported = true
			shown.LastUpdate = current.lastSeen.UTC()
			shown.CacheMemoryBytes, shown.HitRate, shown.Pressure = current.memory, current.hitRate, current.pressure
			shown.T2HitTokens, shown.T2QueryTokens = current.t2Hit, current.t2Query
		}
	}
}
