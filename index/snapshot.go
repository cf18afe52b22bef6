package index

import (
	"cmp"
	"slices"
	"strings"
	"time"

	"inferencecache.io/inferencecache/internal/kv"
)

// Counts of the whole index. Keys may include some that a clear or kill took
// and no sweep has met yet; Entries are right at once. The probe tenant counts
// in neither. Bytes are all that was allocated for entries.
type Counts struct{ Keys, Entries, Bytes int64 }

// ReplicaCount is what a replica holds of a model, under all schemes.
type ReplicaCount struct {
	Tenant, Model, Replica string
	Entries                int64
	Last                   time.Time // newest stamp, or vouch for all of them
}

// TenantCount is a tenant with live entries.
type TenantCount struct {
	Tenant string
	Keys   int64
}

// ModelCount is a model with live entries, summed over tenants.
type ModelCount struct {
	Model string
	Keys  int64
}

// Members returns the sorted ids of the replicas with a live entry in the
// scope. The slice is shared: do not change it.
func (x *Index) Members(name kv.Scope) []string {
	s := x.scope(name)
	if s == nil {
		return nil
	}
	return s.list()
}

// Holders counts the live entries of each replica in the scope.
func (x *Index) Holders(name kv.Scope) map[string]int64 {
	s := x.scope(name)
	if s == nil {
		return nil
	}
	s.mu.RLock()
	defer s.mu.RUnlock()
	count := make(map[string]int64, len(s.byID))
	for id, ord := range s.byID {
		if n := s.ords[ord].entries.Load(); n > 0 {
			count[id] = n
		}
	}
	return count
}

// Miss says how much of a scope is known, in O(1).
func (x *Index) Miss(name kv.Scope) Miss {
	t := x.tenant(name.Tenant)
	switch {
	case t != nil && t.live.Load() > 0:
	case x.live.Load() == 0:
		return Empty
	default:
		return UnknownTenant
	}
	t.mu.RLock()
	defer t.mu.RUnlock()
	if m := t.models[name.Model]; m == nil || m.live.Load() == 0 {
		return UnknownModel
	}
	if s := t.scopes[scopeName{name.Model, name.Scheme}]; s == nil || s.live.Load() == 0 {
		return UnknownScheme
	}
	return KnownScope
}

// all tenants.
func (x *Index) all() []*tenant {
	x.mu.RLock()
	defer x.mu.RUnlock()
	all := make([]*tenant, 0, len(x.tenants))
	for _, t := range x.tenants {
		all = append(all, t)
	}
	return all
}

// counted tenants have live entries and are not the probe's.
func (x *Index) counted() []*tenant {
	return slices.DeleteFunc(x.all(), func(t *tenant) bool { return t.probe || t.live.Load() == 0 })
}

// Counts returns the sizes of the index.
func (x *Index) Counts() Counts {
	c := Counts{Entries: x.live.Load(), Bytes: x.budget.used.Load()}
	for _, t := range x.counted() {
		c.Keys += t.keys.Load()
	}
	return c
}

// Keys returns the distinct keys of a tenant's model, as Counts counts them.
func (x *Index) Keys(tenant, model string) int64 {
	t := x.tenant(tenant)
	if t == nil {
		return 0
	}
	t.mu.RLock()
	defer t.mu.RUnlock()
	return t.models[model].count()
}

func (m *model) count() int64 {
	if m == nil || m.live.Load() == 0 {
		return 0
	}
	return m.keys.Load()
}

// Tenants lists the tenants with live entries, sorted.
func (x *Index) Tenants() []TenantCount {
	var list []TenantCount
	for _, t := range x.counted() {
		list = append(list, TenantCount{Tenant: t.name, Keys: t.keys.Load()})
	}
	slices.SortFunc(list, func(a, b TenantCount) int { return strings.Compare(a.Tenant, b.Tenant) })
	return list
}

// Models lists the models with live entries, sorted.
func (x *Index) Models() []ModelCount {
	sum := map[string]int64{}
	for _, t := range x.counted() {
		t.mu.RLock()
		for name, m := range t.models {
			if m.live.Load() > 0 {
				sum[name] += m.count()
			}
		}
		t.mu.RUnlock()
	}
	var list []ModelCount
	for name, keys := range sum {
		list = append(list, ModelCount{Model: name, Keys: keys})
	}
	slices.SortFunc(list, func(a, b ModelCount) int { return strings.Compare(a.Model, b.Model) })
	return list
}

// Replicas lists who has live entries, sorted by tenant, model and replica.
func (x *Index) Replicas() []ReplicaCount {
	type name struct{ model, replica string }
	var list []ReplicaCount
	for _, t := range x.counted() {
		sum := map[name]ReplicaCount{}
		for _, s := range t.every(func(scopeName) bool { return true }) {
			s.mu.RLock()
			for id, ord := range s.byID {
				o := s.ords[ord]
				n := o.entries.Load()
				if n == 0 {
					continue
				}
				key := name{s.Model, id}
				r, ok := sum[key]
				if last := time.UnixMilli(max(o.newest.Load(), o.vouched.Load())); !ok || last.After(r.Last) {
					r.Last = last
				}
				r.Tenant, r.Model, r.Replica = t.name, s.Model, id
				r.Entries += n
				sum[key] = r
			}
			s.mu.RUnlock()
			s.unpin()
		}
		for _, r := range sum {
			list = append(list, r)
		}
	}
	slices.SortFunc(list, func(a, b ReplicaCount) int {
		return cmp.Or(strings.Compare(a.Tenant, b.Tenant), strings.Compare(a.Model, b.Model), strings.Compare(a.Replica, b.Replica))
	})
	return list
}
