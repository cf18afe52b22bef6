package bridge

import (
	"cmp"
	"maps"
	"slices"

	"inferencecache.io/inferencecache/internal/status"
)

// Merge makes one snapshot of those of several servers, each of which hears of
// every replica. One that has just started knows little yet, so the largest
// count is the truest; of what engines say themselves the latest counts.
// Replicas come out by tenant and id, tenants by id.
func Merge(snapshots []status.Snapshot) status.Snapshot {
	type key struct{ tenant, replica string }
	replicas := map[key]status.Replica{}
	tenants := map[string]status.Tenant{}
	var merged status.Snapshot
	for _, s := range snapshots {
		merged.TotalPrefixes = max(merged.TotalPrefixes, s.TotalPrefixes)
		merged.HotPrefixes = max(merged.HotPrefixes, s.HotPrefixes)
		for _, r := range s.Replicas {
			k := key{r.Tenant, r.ReplicaID}
			if known, ok := replicas[k]; ok {
				r = mergeReplica(known, r)
			}
			replicas[k] = r
		}
		for _, t := range s.Tenants {
			if known, ok := tenants[t.TenantID]; ok {
				t = mergeTenant(known, t)
			}
			tenants[t.TenantID] = t
		}
	}
	merged.Replicas = slices.SortedFunc(maps.Values(replicas), func(a, b status.Replica) int {
		return cmp.Or(cmp.Compare(a.Tenant, b.Tenant), cmp.Compare(a.ReplicaID, b.ReplicaID))
	})
	merged.Tenants = slices.SortedFunc(maps.Values(tenants), func(a, b status.Tenant) int {
		return cmp.Compare(a.TenantID, b.TenantID)
	})
	return merged
}

func mergeReplica(a, b status.Replica) status.Replica {
	if b.LastUpdate.After(a.LastUpdate) {
		a, b = b, a
	}
	a.PrefixCount = max(a.PrefixCount, b.PrefixCount)
	if b.LastEventAt.After(a.LastEventAt) {
		a.LastEventAt = b.LastEventAt
	}
	return a
}

func mergeTenant(a, b status.Tenant) status.Tenant {
	if b.HitRateReported && !a.HitRateReported {
		a, b = b, a
	}
	a.IndexEntries = max(a.IndexEntries, b.IndexEntries)
	return a
}
