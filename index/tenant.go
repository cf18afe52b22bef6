package index

import (
	"slices"
	"sync"
	"sync/atomic"
	"unsafe"

	"inferencecache.io/inferencecache/internal/kv"
)

// tenant is a tenant's scopes and what all of them count together.
type tenant struct {
	index  *Index
	name   string
	probe  bool // kv.ProbeTenant: outside of all counts and caps
	limits atomic.Pointer[Limits]
	pins   atomic.Int32
	live   atomic.Int64
	keys   atomic.Int64
	held   atomic.Int64

	mu     sync.RWMutex
	scopes map[scopeName]*scope
	models map[string]*model

	list  list  // partitions
	clock clock // where the search for victims of MaxKeys goes on; under victims.mu
}

type scopeName struct{ model, scheme string }

type model struct {
	live, keys atomic.Int64
}

// list of partitions, in the order that sweeps and victim searches go through.
type list struct {
	mu    sync.Mutex
	parts []*partition
}

func (l *list) add(p *partition) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.parts = append(l.parts, p)
}

// remove returns where p was; all behind it move up.
func (l *list) remove(p *partition) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	i := slices.Index(l.parts, p)
	l.parts = slices.Delete(l.parts, i, i+1)
	return i
}

// at returns partition i, nil behind the last.
func (l *list) at(i int) *partition {
	l.mu.Lock()
	defer l.mu.Unlock()
	if i >= len(l.parts) {
		return nil
	}
	return l.parts[i]
}

func (l *list) len() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.parts)
}

// tenant by name, nil if there is none.
func (x *Index) tenant(name string) *tenant {
	x.mu.RLock()
	defer x.mu.RUnlock()
	return x.tenants[name]
}

// limitsOf a tenant, whether or not it exists.
func (x *Index) limitsOf(name string) *Limits {
	x.mu.RLock()
	defer x.mu.RUnlock()
	if t := x.tenants[name]; t != nil {
		return t.limits.Load()
	}
	l := x.limitsLocked(name)
	return &l
}

func (t *tenant) scope(model, scheme string) *scope {
	t.mu.RLock()
	defer t.mu.RUnlock()
	return t.scopes[scopeName{model, scheme}]
}

func (x *Index) scope(s kv.Scope) *scope {
	t := x.tenant(s.Tenant)
	if t == nil {
		return nil
	}
	return t.scope(s.Model, s.Scheme)
}

// pinScope returns a scope that will not be freed before unpin; without make it
// may be nil.
func (x *Index) pinScope(name kv.Scope, make bool) *scope {
	t := x.pinTenant(name.Tenant, make)
	if t == nil {
		return nil
	}
	defer t.pins.Add(-1)
	key := scopeName{name.Model, name.Scheme}
	t.mu.RLock()
	s := t.scopes[key]
	if s != nil {
		s.pins.Add(1)
	}
	t.mu.RUnlock()
	if s != nil || !make {
		return s
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	s = t.scopes[key]
	if s == nil {
		s = t.newScopeLocked(name)
	}
	s.pins.Add(1)
	return s
}

func (s *scope) unpin() { s.pins.Add(-1) }

func (x *Index) pinTenant(name string, make bool) *tenant {
	x.mu.RLock()
	t := x.tenants[name]
	if t != nil {
		t.pins.Add(1)
	}
	x.mu.RUnlock()
	if t != nil || !make {
		return t
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	t = x.tenants[name]
	if t == nil {
		t = x.newTenantLocked(name)
	}
	t.pins.Add(1)
	return t
}

func (x *Index) newTenantLocked(name string) *tenant {
	t := &tenant{
		index:  x,
		name:   name,
		probe:  name == kv.ProbeTenant,
		scopes: map[scopeName]*scope{},
		models: map[string]*model{},
	}
	limits := x.limitsLocked(name)
	t.limits.Store(&limits)
	x.tenants[name] = t
	return t
}

func (t *tenant) newScopeLocked(name kv.Scope) *scope {
	m := t.models[name.Model]
	if m == nil {
		m = &model{}
		t.models[name.Model] = m
	}
	s := &scope{
		Scope:      name,
		tenant:     t,
		model:      m,
		byID:       map[string]uint16{},
		cleared:    map[string]tick{},
		partitions: map[string]*partition{},
	}
	t.scopes[scopeName{name.Model, name.Scheme}] = s
	return s
}

const partitionBytes = int64(unsafe.Sizeof(partition{}))

// partitionLocked returns a partition, made if there is none; nil without budget.
func (s *scope) partitionLocked(adapter string) *partition {
	if p := s.partitions[adapter]; p != nil {
		return p
	}
	if !s.tenant.index.budget.swap(0, partitionBytes, keepNought) {
		return nil
	}
	p := &partition{scope: s, adapter: adapter}
	s.partitions[adapter] = p
	s.tenant.list.add(p)
	s.tenant.index.list.add(p)
	return p
}

// every pinned scope of the tenant for which ok holds; the caller unpins them.
func (t *tenant) every(ok func(scopeName) bool) []*scope {
	t.mu.RLock()
	defer t.mu.RUnlock()
	var all []*scope
	for name, s := range t.scopes {
		if ok(name) {
			s.pins.Add(1)
			all = append(all, s)
		}
	}
	return all
}
