package judge

import (
	"fmt"
	"slices"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"inferencecache.io/inferencecache/api/v1alpha1"
	"inferencecache.io/inferencecache/internal/loops"
	"inferencecache.io/inferencecache/internal/policy"
	"inferencecache.io/inferencecache/internal/status"
	"inferencecache.io/inferencecache/reconcile/compile"
)

// maxServers bounds the servers that a status lists.
const maxServers = 64

// Policy is the status of one CachePolicy: whether it is the one of its
// namespace, and which servers serve by it.
func Policy(p *v1alpha1.CachePolicy, standing compile.Standing, pushed loops.PushState, now metav1.Time) v1alpha1.CachePolicyStatus {
	s := *p.Status.DeepCopy()
	s.ObservedGeneration, s.Servers = p.Generation, nil
	accepted, programmed := is(v1alpha1.ReasonPolicyChosen, "this is the policy of its namespace"), verdict{}
	if standing.InForce {
		s.Servers, programmed = programs(p, pushed)
	} else {
		accepted = not(standing.Reason, "CachePolicy "+standing.By+" comes first by name: a namespace has one policy")
		programmed = not(v1alpha1.ReasonPolicyNotEffective, "servers do not get this policy, since it is not accepted")
	}
	setCondition(&s.Conditions, p.Generation, now, v1alpha1.ConditionAccepted, accepted)
	setCondition(&s.Conditions, p.Generation, now, v1alpha1.ConditionProgrammed, programmed)
	return s
}

func programs(p *v1alpha1.CachePolicy, pushed loops.PushState) (servers []v1alpha1.PolicyServer, v verdict) {
	behind, refused := 0, 0
	for _, server := range pushed.Servers {
		row := v1alpha1.PolicyServer{Name: server.Name, Generation: generation(server.Sources, "CachePolicy", p.Namespace, p.Name)}
		if row.Generation != p.Generation {
			behind++
			if server.Refused {
				refused++
				row.Message = truncated(server.Problem)
			}
		}
		servers = append(servers, row)
	}
	n := len(servers)
	switch {
	case n == 0:
		v = not(v1alpha1.ReasonNoServers, "no server is known: see the endpoints of the server's Service")
	case refused > 0:
		v = not(v1alpha1.ReasonServersRefused, fmt.Sprintf("%d of %d servers refused it: see status.servers", refused, n))
	case behind > 0:
		v = not(v1alpha1.ReasonServersPending, fmt.Sprintf("%d of %d servers have not acknowledged this generation", behind, n))
	default:
		v = is(v1alpha1.ReasonServersProgrammed, "every server serves by this generation")
	}
	return servers[:min(n, maxServers)], v
}

func generation(sources []policy.Source, kind, namespace, name string) int64 {
	i := slices.IndexFunc(sources, func(s policy.Source) bool { return s.Kind == kind && s.Namespace == namespace && s.Name == name })
	if i < 0 {
		return 0
	}
	return sources[i].Generation
}

// Tenant is the status of one CacheTenant. tenants are what servers hold; nil:
// none was asked yet, and what was seen before stands. Whoever has no right to
// a tenant is not told what it holds.
func Tenant(t *v1alpha1.CacheTenant, standing compile.Standing, tenants []status.Tenant, now metav1.Time) v1alpha1.CacheTenantStatus {
	s := *t.Status.DeepCopy()
	s.ObservedGeneration = t.Generation
	var quota *int64
	if t.Spec.Quota != nil {
		quota = t.Spec.Quota.MaxIndexEntries
	}
	if tenants != nil {
		entries := int64(0)
		if i := slices.IndexFunc(tenants, func(h status.Tenant) bool { return h.TenantID == t.Tenant() }); i >= 0 {
			entries = tenants[i].IndexEntries
		}
		s.IndexEntries = &entries
	}
	ready, exceeded := verdict{}, not(v1alpha1.ReasonNoQuota, "no quota is set")
	switch {
	case standing.Reason == v1alpha1.ReasonTenantNotGranted:
		s.IndexEntries = nil
		ready = not(standing.Reason, "tenant "+t.Tenant()+" is not this namespace's: whoever may edit Namespaces can grant it by the annotation "+v1alpha1.AnnotationTenantGrants)
	case !standing.InForce:
		ready = not(standing.Reason, "CacheTenant "+standing.By+" bounds tenant "+t.Tenant())
	case s.IndexEntries == nil:
		ready = unknown(v1alpha1.ReasonUnreachable, "no server was asked yet")
	default:
		ready = is(v1alpha1.ReasonTenantObserved, "servers were asked what they hold of it")
	}
	switch {
	case !standing.InForce:
		exceeded = not(v1alpha1.ReasonQuotaNotEffective, "this quota is not in force")
	case quota != nil && s.IndexEntries != nil && *s.IndexEntries > *quota:
		exceeded = is(v1alpha1.ReasonOverEntryBudget, "a server holds more entries than the quota; the next sweep evicts them")
	case quota != nil:
		exceeded = not(v1alpha1.ReasonWithinBudget, "servers hold no more than the quota")
	}
	setCondition(&s.Conditions, t.Generation, now, v1alpha1.ConditionReady, ready)
	setCondition(&s.Conditions, t.Generation, now, v1alpha1.ConditionQuotaExceeded, exceeded)
	return s
}

func setCondition(all *[]metav1.Condition, generation int64, now metav1.Time, kind string, v verdict) {
	meta.SetStatusCondition(all, metav1.Condition{Type: kind, Status: v.status, Reason: v.reason, Message: v.message,
		ObservedGeneration: generation, LastTransitionTime: now})
}
