// Package compile makes of CachePolicies and CacheTenants the document that
// servers are sent, and says of each object whether it is in force and why not.
// It is pure: the same objects, in any order, give the same answer. The
// reconciler calls it with what the API server holds, a process without a
// cluster with what it read from files; so it applies the API's defaults
// itself. It writes no status and pushes nothing.
package compile

import (
	"cmp"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"inferencecache.io/inferencecache/api/v1alpha1"
	"inferencecache.io/inferencecache/internal/policy"
)

// Input is everything that there is, in any order.
type Input struct {
	Policies []v1alpha1.CachePolicy
	Tenants  []v1alpha1.CacheTenant
	// Grants are, by namespace, what its annotation
	// v1alpha1.AnnotationTenantGrants says.
	Grants map[string]string
}

// Output is the document and the standing of every object.
type Output struct {
	Document policy.Document
	Policies map[types.NamespacedName]Standing
	Tenants  map[types.NamespacedName]Standing
}

// Standing tells whether an object is in force.
type Standing struct {
	InForce bool
	Reason  string // a reason of v1alpha1's conditions
	By      string // namespace/name of the object in its place, if there is one
}

// What the API puts in place of absent fields.
const (
	defaultFloor   = 0.1 // routingFloorScore
	defaultMatched = 64  // minimumMatchedTokens
)

// Compile decides. A namespace has one policy: the first by name. A tenant has
// one quota: that of the namespace of its name, then the first by namespace and
// name; other namespaces need a grant.
func Compile(in Input) Output {
	out := Output{
		Policies: make(map[types.NamespacedName]Standing, len(in.Policies)),
		Tenants:  make(map[types.NamespacedName]Standing, len(in.Tenants)),
	}
	compilePolicies(in, &out)
	compileTenants(in, &out)
	return out
}

func compilePolicies(in Input, out *Output) {
	sorted := slices.SortedFunc(slices.Values(in.Policies), func(a, b v1alpha1.CachePolicy) int {
		return byName(&a.ObjectMeta, &b.ObjectMeta)
	})
	var chosen types.NamespacedName
	for i := range sorted {
		p := &sorted[i]
		if i > 0 && chosen.Namespace == p.Namespace {
			out.Policies[key(&p.ObjectMeta)] = Standing{false, v1alpha1.ReasonPolicyShadowed, chosen.String()}
			continue
		}
		chosen = key(&p.ObjectMeta)
		out.Policies[chosen] = Standing{true, v1alpha1.ReasonPolicyChosen, ""}
		out.Document.Policies = append(out.Document.Policies, knobs(p.Namespace, &p.Spec))
		out.Document.Sources = append(out.Document.Sources, source("CachePolicy", &p.ObjectMeta))
	}
}

// knobs says on the wire what a spec says. There 0 is off and absent the
// server's default; here absent is the API's default.
func knobs(namespace string, s *v1alpha1.CachePolicySpec) policy.Knobs {
	k := policy.Knobs{
		Namespace:            namespace,
		MinimumPrefixTokens:  atLeastZero(s.MinimumPrefixTokens, 0),
		MinimumMatchedTokens: atLeastZero(s.MinimumMatchedTokens, defaultMatched),
		RoutingFloorScore:    new(floor(s.RoutingFloorScore)),
		LookupTimeoutMs:      atLeastZero(s.LookupTimeoutMs, 0),
		AffinityRouting:      new(s.AffinityRouting == nil || *s.AffinityRouting != v1alpha1.Disabled),
		Eviction:             strings.ToLower(string(cmp.Or(s.Eviction, v1alpha1.EvictionLRU))),
		Shadow:               s.Shadow,
	}
	if s.Ranking != nil {
		k.Ranking = &policy.Ranking{Profile: string(s.Ranking.Profile), TopK: s.Ranking.TopK}
	}
	if s.EvictionTTL != nil {
		k.EvictionTTL = max(0, s.EvictionTTL.Duration)
	}
	if s.Strategy != nil {
		k.Strategy = &policy.Strategy{
			EnableChainMatching: s.Strategy.EnableChainMatching,
			RequireChain:        s.Strategy.RequireChain,
			EnableTenantHot:     s.Strategy.EnableTenantHot,
		}
	}
	return k
}

func atLeastZero(v *int32, absent int32) int32 {
	if v == nil {
		return absent
	}
	return max(0, *v)
}

// floor reads a decimal. What is none cannot have passed admission; it counts
// as absent, since a floor by mistake would silence every hint.
func floor(text *string) float32 {
	if text == nil {
		return defaultFloor
	}
	v, err := strconv.ParseFloat(*text, 32)
	if err != nil || math.IsNaN(v) || math.IsInf(v, 0) || v < 0 {
		return defaultFloor
	}
	return float32(v)
}

func compileTenants(in Input, out *Output) {
	claims := map[string][]*v1alpha1.CacheTenant{}
	for i := range in.Tenants {
		t := &in.Tenants[i]
		id := t.Tenant()
		if !v1alpha1.Granted(t.Namespace, id, in.Grants[t.Namespace]) {
			out.Tenants[key(&t.ObjectMeta)] = Standing{false, v1alpha1.ReasonTenantNotGranted, ""}
			continue
		}
		claims[id] = append(claims[id], t)
	}
	for _, id := range slices.Sorted(maps.Keys(claims)) {
		claimants := claims[id]
		slices.SortFunc(claimants, func(a, b *v1alpha1.CacheTenant) int {
			if own := a.Namespace == id; own != (b.Namespace == id) {
				if own {
					return -1
				}
				return 1
			}
			return byName(&a.ObjectMeta, &b.ObjectMeta)
		})
		i := slices.IndexFunc(claimants, func(t *v1alpha1.CacheTenant) bool { return quota(t) != nil })
		if i >= 0 {
			out.Document.Tenants = append(out.Document.Tenants, policy.Quota{TenantID: id, MaxIndexEntries: max(0, *quota(claimants[i]))})
			out.Document.Sources = append(out.Document.Sources, source("CacheTenant", &claimants[i].ObjectMeta))
		}
		for j, t := range claimants {
			standing := Standing{true, v1alpha1.ReasonTenantObserved, ""}
			if i >= 0 && j != i {
				owner := key(&claimants[i].ObjectMeta)
				standing = Standing{false, v1alpha1.ReasonDuplicateTenantID, owner.String()}
			}
			out.Tenants[key(&t.ObjectMeta)] = standing
		}
	}
}

func quota(t *v1alpha1.CacheTenant) *int64 {
	if t.Spec.Quota == nil {
		return nil
	}
	return t.Spec.Quota.MaxIndexEntries
}

func source(kind string, m *metav1.ObjectMeta) policy.Source {
	return policy.Source{Kind: kind, Namespace: m.Namespace, Name: m.Name, Generation: m.Generation}
}

func key(m *metav1.ObjectMeta) types.NamespacedName {
	return types.NamespacedName{Namespace: m.Namespace, Name: m.Name}
}

func byName(a, b *metav1.ObjectMeta) int {
	return cmp.Or(cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name))
}
