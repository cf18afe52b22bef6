package webhook

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"maps"
	"strings"
	"testing"
	"time"

	"github.com/VictoriaMetrics/metrics"
	"github.com/google/go-cmp/cmp"
	admissionv1 "k8s.io/api/admission/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/tools/events"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/webhook/admission"

	"inferencecache.io/inferencecache/api/v1alpha1"
)

// neighbours is what the API server has, or the error it answers with.
type neighbours struct {
	backends []v1alpha1.CacheBackend
	policies []v1alpha1.CachePolicy
	tenants  []v1alpha1.CacheTenant
	grants   string
	err      error
	cached   *neighbours // what the cache knows; nil: the same
}

func (n *neighbours) List(_ context.Context, list client.ObjectList, _ ...client.ListOption) error {
	switch l := list.(type) {
	case *v1alpha1.CacheBackendList:
		l.Items = n.backends
	case *v1alpha1.CachePolicyList:
		l.Items = n.policies
	case *v1alpha1.CacheTenantList:
		l.Items = n.tenants
	}
	return n.err
}

func (n *neighbours) Get(_ context.Context, _ client.ObjectKey, o client.Object, _ ...client.GetOption) error {
	o.SetAnnotations(map[string]string{v1alpha1.AnnotationTenantGrants: n.grants})
	return n.err
}

func TestViolationsAreAnsweredAsInvalid(t *testing.T) {
	t.Parallel()
	taken := &neighbours{backends: []v1alpha1.CacheBackend{named(t, "first", "d", false)}}
	second := named(t, "second", "d", false)
	if _, err := (&backends{taken, linkOptions}).ValidateCreate(t.Context(), &second); !apierrors.IsInvalid(err) {
		t.Errorf("a taken domain: %v", err)
	}
	if _, err := (&backends{taken, linkOptions}).ValidateUpdate(t.Context(), &second, &second); !apierrors.IsInvalid(err) {
		t.Errorf("a taken domain, on update: %v", err)
	}
	one := &neighbours{policies: []v1alpha1.CachePolicy{{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "first"}}}}
	policy := &v1alpha1.CachePolicy{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "second"}}
	if _, err := (&policies{one}).ValidateCreate(t.Context(), policy); !apierrors.IsInvalid(err) {
		t.Errorf("a second policy: %v", err)
	}
	tenant := &v1alpha1.CacheTenant{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "t"}, Spec: v1alpha1.CacheTenantSpec{TenantID: "other"}}
	if _, err := (&tenants{&neighbours{}}).ValidateCreate(t.Context(), tenant); !apierrors.IsInvalid(err) {
		t.Errorf("another's tenant: %v", err)
	}
	if _, err := (&tenants{&neighbours{grants: "other"}}).ValidateCreate(t.Context(), tenant); err != nil {
		t.Errorf("a granted tenant: %v", err)
	}
}

// TestUnansweredQuestionIsARefusal: a rule about neighbours that cannot be
// seen is not taken for kept.
func TestUnansweredQuestionIsARefusal(t *testing.T) {
	t.Parallel()
	blind := &neighbours{err: errors.New("no answer")}
	b := named(t, "b", "d", false)
	_, errBackend := (&backends{blind, linkOptions}).ValidateCreate(t.Context(), &b)
	_, errPolicy := (&policies{blind}).ValidateCreate(t.Context(), &v1alpha1.CachePolicy{})
	_, errTenant := (&tenants{blind}).ValidateCreate(t.Context(), &v1alpha1.CacheTenant{})
	for kind, err := range map[string]error{"CacheBackend": errBackend, "CachePolicy": errPolicy, "CacheTenant": errTenant} {
		if err == nil || !strings.Contains(err.Error(), "no answer") {
			t.Errorf("%s: %v", kind, err)
		}
	}
	// What is going need not ask.
	gone := named(t, "b", "d", true)
	if _, err := (&backends{blind, linkOptions}).ValidateUpdate(t.Context(), &b, &gone); err != nil {
		t.Errorf("a CacheBackend being deleted: %v", err)
	}
	leaving := &v1alpha1.CacheTenant{ObjectMeta: metav1.ObjectMeta{DeletionTimestamp: &metav1.Time{Time: time.Unix(1, 0)}}}
	if _, err := (&tenants{blind}).ValidateUpdate(t.Context(), leaving, leaving); err != nil {
		t.Errorf("a CacheTenant being deleted: %v", err)
	}
}

func TestDefaultsShowWhatIsInForce(t *testing.T) {
	t.Parallel()
	b := &v1alpha1.CacheBackend{}
	p := &v1alpha1.CachePolicy{}
	c := &v1alpha1.CacheTenant{ObjectMeta: metav1.ObjectMeta{Namespace: "ns"}}
	own := &v1alpha1.CacheTenant{ObjectMeta: metav1.ObjectMeta{Namespace: "ns"}, Spec: v1alpha1.CacheTenantSpec{TenantID: "other"}}
	set := &v1alpha1.CachePolicy{Spec: v1alpha1.CachePolicySpec{Strategy: &v1alpha1.StrategySpec{RequireChain: new(true)}, Ranking: &v1alpha1.RankingSpec{Profile: v1alpha1.RankingCompat}}}
	if err := errors.Join((&backends{}).Default(t.Context(), b), (&policies{}).Default(t.Context(), p), (&policies{}).Default(t.Context(), set),
		(&tenants{}).Default(t.Context(), c), (&tenants{}).Default(t.Context(), own)); err != nil {
		t.Fatal(err)
	}
	if d := b.Spec.Observation.FirstEventTimeout; d == nil || d.Duration != v1alpha1.DefaultFirstEventTimeout {
		t.Errorf("first event timeout %v", d)
	}
	if s := p.Spec.Strategy; s == nil || !*s.EnableChainMatching || *s.RequireChain || !*s.EnableTenantHot || p.Spec.Ranking.Profile != v1alpha1.RankingCost {
		t.Errorf("strategy %+v, ranking %+v", s, p.Spec.Ranking)
	}
	if !*set.Spec.Strategy.RequireChain || set.Spec.Strategy.EnableTenantHot != nil || set.Spec.Ranking.Profile != v1alpha1.RankingCompat {
		t.Errorf("what was set is changed: %+v, %+v", set.Spec.Strategy, set.Spec.Ranking)
	}
	if c.Spec.TenantID != "ns" || own.Spec.TenantID != "other" {
		t.Errorf("tenants %q and %q", c.Spec.TenantID, own.Spec.TenantID)
	}
}

// admit sends a pod through the linker.
func admit(t *testing.T, n *neighbours, pod *corev1.Pod, dry bool) (response admission.Response, told []string, counted string) {
	t.Helper()
	raw, err := json.Marshal(pod)
	if err != nil {
		t.Fatal(err)
	}
	scheme := runtime.NewScheme()
	if err := corev1.AddToScheme(scheme); err != nil {
		t.Fatal(err)
	}
	recorder, set := events.NewFakeRecorder(10), metrics.NewSet()
	cached := n
	if n.cached != nil {
		cached = n.cached
	}
	h := &linker{live: n, cached: cached, decoder: admission.NewDecoder(scheme), options: linkOptions, events: recorder, meters: newMeters(set), log: slog.New(slog.DiscardHandler)}
	request := admission.Request{AdmissionRequest: admissionv1.AdmissionRequest{Namespace: "ns", Object: runtime.RawExtension{Raw: raw}, DryRun: &dry}}
	response = h.Handle(t.Context(), request)
	close(recorder.Events)
	for e := range recorder.Events {
		told = append(told, e)
	}
	var page strings.Builder
	set.WritePrometheus(&page)
	return response, told, strings.TrimSpace(page.String())
}

// TestForgedAnnotationsAreTakenOff: also of pods that nothing is looked up for,
// and where looking up fails.
func TestForgedAnnotationsAreTakenOff(t *testing.T) {
	t.Parallel()
	forged := map[string]string{v1alpha1.AnnotationInjectedBy: "ns/x", v1alpha1.AnnotationInjectedByUID: "x",
		v1alpha1.AnnotationInjectedGeneration: "1", v1alpha1.AnnotationWiringHash: "x", v1alpha1.AnnotationInjectSkipped: "x", "mine": "kept"}
	for domain, want := range map[string]map[string]string{
		"d": {v1alpha1.AnnotationInjectSkipped: v1alpha1.SkipLookupFailed, "mine": "kept"},
		"":  {"mine": "kept"},
	} {
		pod := enginePod(domain, maps.Clone(forged))
		response, _, _ := admit(t, &neighbours{err: errors.New("no answer")}, pod, false)
		for _, p := range response.Patches {
			key, ok := strings.CutPrefix(p.Path, "/metadata/annotations/")
			key = strings.ReplaceAll(key, "~1", "/")
			switch value, _ := p.Value.(string); {
			case !ok:
				t.Errorf("domain %q: %s %s", domain, p.Operation, p.Path)
			case p.Operation == "remove":
				delete(pod.Annotations, key)
			default:
				pod.Annotations[key] = value
			}
		}
		if diff := cmp.Diff(want, pod.Annotations); diff != "" || !response.Allowed {
			t.Errorf("domain %q: allowed %t, annotations %s", domain, response.Allowed, diff)
		}
	}
}

func TestEveryOutcomeIsAnsweredCountedAndTold(t *testing.T) {
	t.Parallel()
	owned := func(p *corev1.Pod) *corev1.Pod {
		p.OwnerReferences = []metav1.OwnerReference{{APIVersion: "apps/v1", Kind: "ReplicaSet", Name: "engine", UID: "1", Controller: new(true)}}
		return p
	}
	foreign := enginePod("d", nil)
	foreign.Spec.Containers[0].Args = append(foreign.Spec.Containers[0].Args, "--kv-transfer-config", `{"kv_connector":"NixlConnector","kv_role":"kv_both"}`)
	one := &neighbours{backends: []v1alpha1.CacheBackend{named(t, "a", "d", false)}}
	two := &neighbours{backends: []v1alpha1.CacheBackend{named(t, "a", "d", false), named(t, "b", "d", false)}}
	for name, v := range map[string]struct {
		neighbours *neighbours
		pod        *corev1.Pod
		dry        bool
		allowed    bool
		patched    bool
		warned     string
		counted    string
		told       string
	}{
		"wired":          {one, enginePod("d", nil), false, true, true, "", `inferencecache_pod_injections_total{result="wired",reason=""} 1`, ""},
		"claimed twice":  {two, enginePod("d", nil), false, false, false, "", `inferencecache_pod_injections_total{result="denied",reason="ambiguous-domain"} 1`, ""},
		"not wirable":    {one, foreign, false, true, true, v1alpha1.SkipForeignConnector, `inferencecache_pod_injections_total{result="skipped",reason="foreign-connector"} 1`, "Warning NotInjected"},
		"nobody's":       {&neighbours{}, owned(enginePod("d", nil)), false, true, true, v1alpha1.SkipNoBackend, `inferencecache_pod_injections_total{result="skipped",reason="no-backend"} 1`, "Warning NotInjected"},
		"nobody's, bare": {&neighbours{}, enginePod("d", nil), false, true, true, v1alpha1.SkipNoBackend, `inferencecache_pod_injections_total{result="skipped",reason="no-backend"} 1`, ""},
		"no answer": {&neighbours{err: errors.New("no answer")}, owned(enginePod("d", nil)), false, true, true, v1alpha1.SkipLookupFailed,
			`inferencecache_pod_injections_total{result="skipped",reason="lookup-failed"} 1`, "Warning NotInjected"},
		"remembered": {&neighbours{err: errors.New("no answer"), cached: one}, enginePod("d", nil), false, true, true, "",
			`inferencecache_pod_injections_total{result="wired",reason=""} 1`, ""},
		"only asked":     {one, foreign, true, true, true, v1alpha1.SkipForeignConnector, "", ""},
		"no cache's pod": {one, &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "p"}}, false, true, false, "", "", ""},
	} {
		response, told, counted := admit(t, v.neighbours, v.pod, v.dry)
		if response.Allowed != v.allowed || len(response.Patches) > 0 != v.patched {
			t.Errorf("%s: allowed %t with %d patches", name, response.Allowed, len(response.Patches))
		}
		if warned := strings.Join(response.Warnings, "\n"); !strings.Contains(warned, v.warned) || v.warned == "" && warned != "" {
			t.Errorf("%s: warned %q", name, warned)
		}
		if counted != v.counted {
			t.Errorf("%s: counted %q", name, counted)
		}
		if said := strings.Join(told, "\n"); !strings.HasPrefix(said, v.told) || v.told == "" && said != "" {
			t.Errorf("%s: told %q", name, said)
		}
	}
}
