// Package policy is what operators asked of the server: as they wrote it
// (Document, which the bridge carries), and resolved: one immutable Set behind
// one atomic pointer, read once per request and then passed as a value. It
// knows nothing of Kubernetes.
package policy

import (
	"fmt"
	"sync/atomic"
	"time"
)

// Profile is how replicas are ranked.
type Profile uint8

const (
	Cost   Profile = iota // by expected seconds
	Compat                // by the published formula
)

func (p Profile) String() string {
	if p == Compat {
		return "Compat"
	}
	return "Cost"
}

// Set reads the name of a profile, and implements the flag package's Value.
func (p *Profile) Set(name string) error {
	for _, one := range []Profile{Cost, Compat} {
		if one.String() == name {
			*p = one
			return nil
		}
	}
	return fmt.Errorf("ranking profile %q: want Cost or Compat", name)
}

// Type of the flag's value.
func (p *Profile) Type() string { return "profile" }

// Policy is one tenant's resolved knobs. The zero value of a limit is "off".
type Policy struct {
	TTL              time.Duration // age at which an entry is absent; > 0
	LFU              bool          // eviction by use, then age; else by age
	MinPrefixTokens  int32         // shorter prompts get no prefix hint
	MinMatchedTokens int32         // replicas matching fewer are not named
	FloorScore       float32       // a best score below it is no match
	Timeout          time.Duration // budget of one lookup; 0: none
	ChainMatching    bool          // match leading runs of blocks
	RequireChain     bool          // answer only requests that carry a chain
	TenantHot        bool          // allow TENANT_HOT
	Affinity         bool          // allow AFFINITY_HINT
	Profile          Profile       // how replicas are ranked
	TopK             int32         // replicas in an answer of profile Cost; 0: all
	Shadow           bool          // rank and record, but name nobody
}

// Defaults are the knobs of a tenant without a policy, as published.
func Defaults() Policy {
	return Policy{
		TTL:              30 * time.Minute,
		MinMatchedTokens: 64,
		FloorScore:       0.1,
		ChainMatching:    true,
		TenantHot:        true,
		Affinity:         true,
		TopK:             8,
	}
}

// Set is everything one push said. It is immutable once adopted.
type Set struct {
	Default  Policy
	Policies map[string]Policy // by tenant
	Quotas   map[string]int64  // by tenant, distinct keys; absent: unbounded
	Version  int               // of the body it came from; 0: built-in defaults
	Adopted  time.Time
}

// For returns the policy that governs a tenant.
func (s *Set) For(tenant string) Policy {
	if p, ok := s.Policies[tenant]; ok {
		return p
	}
	return s.Default
}

// Store hands the current Set to readers. Safe for concurrent use.
type Store struct{ set atomic.Pointer[Set] }

// NewStore starts with no policies: every tenant lives under defaults.
func NewStore(defaults Policy) *Store {
	s := &Store{}
	s.set.Store(&Set{Default: defaults})
	return s
}

// Load returns the current Set; call it once per request.
func (s *Store) Load() *Set { return s.set.Load() }

// Adopt replaces the Set whole: what the new one does not name reverts to
// defaults.
func (s *Store) Adopt(set *Set) { s.set.Store(set) }
