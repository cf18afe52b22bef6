package doctor

import (
	"cmp"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"inferencecache.io/inferencecache/api/v1alpha1"
	pb "inferencecache.io/inferencecache/proto/inferencecache/v1alpha1"
	controller "inferencecache.io/inferencecache/reconcile/judge"
)

// namedPods is how many pods an evidence names.
const namedPods = 5

// judgeCluster makes findings of what was seen of a cluster. It is pure.
func judgeCluster(i *inspection, now time.Time) (all []Finding) {
	for _, err := range i.unread {
		all = append(all, found("api-refuses", "", err.Error()))
	}
	all = append(all, causes(slices.Concat(
		judgeServers(i, now), judgeTokens(i), judgeLoops(i.indices), judgePolicies(i.policies, i.backends)))...)
	all = append(all, judgeWebhooks(i, now)...)
	for n := range i.backends {
		all = append(all, judgeBackend(&i.backends[n], i.objects.engines)...)
	}
	all = append(all, judgeHomeless(i.objects.engines, i.backends)...)
	for n := range i.tenants {
		all = append(all, judgeTenant(&i.tenants[n]))
	}
	for n := range i.engines {
		all = append(all, judgeFollower(&i.engines[n])...)
	}
	if i.skipped > 0 {
		all = append(all, found("engines-skipped", "", fmt.Sprintf("%d of %d", i.skipped, i.skipped+len(i.engines)), i.skipped))
	}
	order(all)
	return all
}

// judgeServers judges each server as if it were the only one, and then whether
// they agree.
func judgeServers(i *inspection, now time.Time) (all []Finding) {
	switch {
	case i.home == "":
		return []Finding{found("not-installed", "", "no Service "+serverService)}
	case len(i.objects.servers) == 0:
		return []Finding{found("server-unreachable", i.home, "no pod of a server runs")}
	}
	for _, name := range i.serversByName() {
		e := i.servers[name]
		for _, f := range judgeOne(e, i.tokens.controller != "", now) {
			if f.Resource == "" {
				f.Resource = name
			} else {
				f.Resource += " at " + name
			}
			all = append(all, f)
		}
	}
	return append(all, judgeAgreement(i)...)
}

// judgeOne judges one server without engines.
func judgeOne(e *evidence, controlled bool, now time.Time) []Finding {
	all := judgeServer(e)
	if e.health.err != nil {
		return all // what follows from it says nothing more
	}
	if controlled {
		all = append(all, judgeControl(e)...)
	}
	all = append(all, judgeFleet(e.fleet)...)
	all = append(all, judgeLookups(e.asked, e.indexed)...)
	return append(all, judgeCertificate(e.certificate, now)...)
}

// judgeAgreement compares what servers know of each replica: every subscriber
// reports to every server.
func judgeAgreement(i *inspection) []Finding {
	type view struct {
		server string
		blocks int64
		live   bool
	}
	views := map[string][]view{}
	asked := 0
	for _, name := range i.serversByName() {
		fleet := i.servers[name].fleet
		if fleet == nil {
			continue
		}
		asked++
		for _, r := range fleet.GetReplicas() {
			replica := r.GetTenantId() + "/" + r.GetReplicaId()
			views[replica] = append(views[replica], view{name, r.GetIndexedBlocks(), r.GetState() == pb.ReplicaState_REPLICA_ALIVE})
		}
	}
	if asked < 2 {
		return nil
	}
	var differ []string
	for _, replica := range slices.Sorted(maps.Keys(views)) {
		known := views[replica]
		if !slices.ContainsFunc(known, func(v view) bool { return v.live }) {
			continue // on its way out
		}
		low := slices.MinFunc(known, func(a, b view) int { return cmp.Compare(a.blocks, b.blocks) })
		high := slices.MaxFunc(known, func(a, b view) int { return cmp.Compare(a.blocks, b.blocks) })
		apart := high.blocks - low.blocks
		switch {
		case len(known) < asked:
			differ = append(differ, fmt.Sprintf("%s is known to %d of %d servers", replica, len(known), asked))
		case apart > countSlackBlocks && float64(apart) > countSlack*float64(high.blocks):
			differ = append(differ, fmt.Sprintf("%s has %d blocks at %s and %d at %s", replica, high.blocks, high.server, low.blocks, low.server))
		}
	}
	if len(differ) > 0 {
		return []Finding{found("servers-disagree", "", some(differ))}
	}
	return []Finding{found("servers-agree", "", "")}
}

// judgeTokens says whether servers can tell tokens apart.
func judgeTokens(i *inspection) (all []Finding) {
	if i.tokens.err != nil {
		return []Finding{found("token-unavailable", "", i.tokens.err.Error())}
	}
	for _, name := range slices.Sorted(maps.Keys(i.tokens.wrong)) {
		a := i.tokens.wrong[name]
		if a.status == http.StatusOK && i.servers[name].snapshot.status == http.StatusOK {
			all = append(all, found("audience-ignored", name, "/snapshot answers a token for /policy"))
		}
	}
	return all
}

// judgeWebhooks says whether the API server can ask the controller.
func judgeWebhooks(i *inspection, now time.Time) (all []Finding) {
	if i.home == "" {
		return nil
	}
	switch {
	case len(i.hooks) == 0:
		return []Finding{found("webhook-missing", "", "no webhook configuration names Service "+i.home+"/"+webhookService)}
	case len(i.controllers) == 0:
		return []Finding{found("webhook-unreachable", "", "no pod of the controller runs")}
	}
	for _, h := range i.serving {
		if h.err != nil {
			all = append(all, found("webhook-unreachable", h.pod, h.err.Error()))
			continue
		}
		if left := h.chain[0].NotAfter.Sub(now); left < webhookSoon {
			all = append(all, found("webhook-certificate-expires", h.pod, h.chain[0].NotAfter.UTC().Format(time.RFC3339), int(left.Hours())))
		}
		for _, hook := range i.hooks {
			if err := trusted(hook.bundle, h.chain, i.home, now); err != nil {
				all = append(all, found("webhook-untrusted", hook.name, fmt.Sprintf("certificate of %s: %v", h.pod, err)))
				break
			}
		}
	}
	if len(all) == 0 && len(i.serving) > 0 {
		all = append(all, found("webhooks-answer", "", ""))
	}
	return all
}

// webhookSoon is how long before its end the webhooks' certificate should have
// been renewed: a certificate of our own is, after two thirds of its time.
const webhookSoon = 72 * time.Hour

// judgeLoops repeats what the controller says of its way to the servers.
func judgeLoops(indices []v1alpha1.CacheIndex) (all []Finding) {
	for n := range indices {
		for kind, id := range map[string]string{
			v1alpha1.ConditionSnapshotsRead: "snapshots-unread", v1alpha1.ConditionPolicyPushed: "policies-unpushed", v1alpha1.ConditionSelfTest: "self-test-failed",
		} {
			if c := meta.FindStatusCondition(indices[n].Status.Conditions, kind); c != nil && c.Status == metav1.ConditionFalse {
				all = append(all, found(id, indices[n].Name, said(c)))
			}
		}
	}
	return all
}

// judgeBackend says what keeps a CacheBackend from working, the causes and not
// what follows from them.
func judgeBackend(b *v1alpha1.CacheBackend, engines []corev1.Pod) (all []Finding) {
	name := b.Namespace + "/" + b.Name
	conditions := b.Status.Conditions
	fails := func(kind string) *metav1.Condition {
		if c := meta.FindStatusCondition(conditions, kind); c != nil && c.Status == metav1.ConditionFalse {
			return c
		}
		return nil
	}
	if !b.DeletionTimestamp.IsZero() {
		return []Finding{found("backend-deleting", name, "since "+b.DeletionTimestamp.UTC().Format(time.RFC3339))}
	}
	if unwired := unwiredPods(b, engines); len(unwired) > 0 {
		all = append(all, found("pods-unwired", name, some(unwired), len(unwired)))
	}
	if c := fails(v1alpha1.ConditionEventsFresh); c != nil {
		switch c.Reason {
		case v1alpha1.ReasonEventsStale:
			all = append(all, found("events-stale", name, said(c)))
		case v1alpha1.ReasonNoEventsObserved:
			all = append(all, found("events-never", name, said(c)))
		}
	}
	if c := fails(v1alpha1.ConditionRemoteStorageReady); c != nil {
		all = append(all, found("remote-storage-down", name, said(c)))
	}
	if c := fails(v1alpha1.ConditionKernelsHealthy); c != nil {
		all = append(all, found("kernels-broken", name, said(c)))
	}
	if c := fails(v1alpha1.ConditionEngineCompatibility); c != nil {
		all = append(all, found("engine-crash-looping", name, said(c)))
	}
	if c := meta.FindStatusCondition(conditions, v1alpha1.ConditionT2Degraded); c != nil && c.Status == metav1.ConditionTrue {
		all = append(all, found("host-tier-serves-nothing", name, said(c)))
	}
	ready := meta.FindStatusCondition(conditions, v1alpha1.ConditionReady)
	switch matched := b.Status.MatchedEnginePods; {
	case len(all) > 0: // Ready follows from that
	case matched != nil && *matched == 0:
		all = append(all, found("no-engine-pods", name, "domain "+b.Domain()))
	case ready == nil:
		all = append(all, found("backend-not-ready", name, "no status yet: does a controller run?"))
	case ready.Status != metav1.ConditionTrue:
		all = append(all, found("backend-not-ready", name, said(ready)))
	default:
		all = append(all, found("backend-ready", name, ""))
	}
	return all
}

// unwiredPods are pods of a backend's domain that run without cache and did not
// ask for it, with the reason.
func unwiredPods(b *v1alpha1.CacheBackend, engines []corev1.Pod) (all []string) {
	for n := range engines {
		p := &engines[n]
		if p.Namespace == b.Namespace && b.Owns(p.Labels) && controller.Unwired(b, p) {
			all = append(all, p.Name+": "+cmp.Or(p.Annotations[v1alpha1.AnnotationInjectSkipped], "nobody was asked when it was created"))
		}
	}
	slices.Sort(all)
	return all
}

// judgeHomeless finds pods of domains that no backend has.
func judgeHomeless(engines []corev1.Pod, backends []v1alpha1.CacheBackend) []Finding {
	var homeless []string
	for n := range engines {
		p := &engines[n]
		owned := slices.ContainsFunc(backends, func(b v1alpha1.CacheBackend) bool { return b.Namespace == p.Namespace && b.Owns(p.Labels) })
		if !owned && controller.Active(p) {
			homeless = append(homeless, fmt.Sprintf("%s/%s: domain %s", p.Namespace, p.Name, p.Labels[v1alpha1.LabelCacheDomain]))
		}
	}
	if len(homeless) == 0 {
		return nil
	}
	slices.Sort(homeless)
	return []Finding{found("no-backend", "", some(homeless), len(homeless))}
}

// judgePolicies says for each namespace with backends by what it is served.
func judgePolicies(policies []v1alpha1.CachePolicy, backends []v1alpha1.CacheBackend) (all []Finding) {
	covered := map[string]bool{}
	for n := range policies {
		p := &policies[n]
		name := p.Namespace + "/" + p.Name
		covered[p.Namespace] = true
		accepted, programmed := meta.FindStatusCondition(p.Status.Conditions, v1alpha1.ConditionAccepted), meta.FindStatusCondition(p.Status.Conditions, v1alpha1.ConditionProgrammed)
		switch {
		case accepted != nil && accepted.Status == metav1.ConditionFalse:
			all = append(all, found("policy-shadowed", name, said(accepted)))
		case programmed == nil || programmed.Status != metav1.ConditionTrue || programmed.ObservedGeneration != p.Generation:
			evidence := "no status yet: does a controller run?"
			if programmed != nil {
				evidence = said(programmed)
			}
			all = append(all, found("policy-unprogrammed", name, evidence))
		default:
			all = append(all, found("policy-programmed", name, ""))
		}
	}
	without := map[string]bool{}
	for n := range backends {
		if !covered[backends[n].Namespace] {
			without[backends[n].Namespace] = true
		}
	}
	for _, namespace := range slices.Sorted(maps.Keys(without)) {
		all = append(all, found("no-policy", namespace, ""))
	}
	return all
}

func judgeTenant(t *v1alpha1.CacheTenant) Finding {
	name := t.Namespace + "/" + t.Name
	if c := meta.FindStatusCondition(t.Status.Conditions, v1alpha1.ConditionQuotaExceeded); c != nil && c.Status == metav1.ConditionTrue {
		return found("quota-exceeded", name, said(c))
	}
	if c := meta.FindStatusCondition(t.Status.Conditions, v1alpha1.ConditionReady); c != nil && c.Status == metav1.ConditionFalse {
		return found("tenant-not-effective", name, said(c))
	}
	return found("tenant-within-quota", name, "")
}

// judgeFollower judges an engine, unless its subscriber is silent.
func judgeFollower(e *engine) []Finding {
	if e.silent != nil {
		return []Finding{found("subscriber-silent", e.Tenant+"/"+e.Replica, e.silent.Error())}
	}
	return judgeEngine(e)
}

// said is what a condition says.
func said(c *metav1.Condition) string { return c.Reason + ": " + c.Message }

// some names the first of many.
func some(all []string) string {
	if len(all) <= namedPods {
		return strings.Join(all, "; ")
	}
	return fmt.Sprintf("%s; and %d more", strings.Join(all[:namedPods], "; "), len(all)-namedPods)
}
