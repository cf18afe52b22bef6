package reconcile

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"inferencecache.io/inferencecache/api/v1alpha1"
	"inferencecache.io/inferencecache/internal/loops"
	"inferencecache.io/inferencecache/internal/status"
	"inferencecache.io/inferencecache/reconcile/render"
)

func TestManagedStorageIsMadeAndKept(t *testing.T) {
	t.Parallel()
	w := newWorld(t, backend(withRedis))
	r := w.backends()
	w.settle(r)
	if b := w.llama(); !slices.Contains(b.Finalizers, v1alpha1.FinalizerDrain) || b.Status.RemoteStorage.Endpoint != "llama-l3.team.svc.cluster.local:6379" {
		t.Errorf("finalizers %q, remote %+v", b.Finalizers, b.Status.RemoteStorage)
	}
	var secret corev1.Secret
	var deployment appsv1.Deployment
	if !w.get(&secret, "llama-l3") || len(secret.Data[v1alpha1.GeneratedPasswordKey]) < 20 || !w.get(&deployment, "llama-l3") {
		t.Fatalf("secret %v, deployment %v", secret.Name, deployment.Name)
	}
	word := deployment.Spec.Template.Annotations[render.AnnotationCredentials]

	// Somebody scales it away; then the Secret gets another password.
	deployment.Spec.Replicas = new(int32(0))
	w.must(w.client.Update(t.Context(), &deployment))
	w.settle(r)
	if w.get(&deployment, "llama-l3"); *deployment.Spec.Replicas != 1 {
		t.Error("a change of ours by somebody else stays")
	}
	secret.Data[v1alpha1.GeneratedPasswordKey] = []byte("another")
	w.must(w.client.Update(t.Context(), &secret))
	r.memo = map[types.NamespacedName]*memory{} // a new controller
	w.settle(r)
	if w.get(&deployment, "llama-l3"); deployment.Spec.Template.Annotations[render.AnnotationCredentials] == word {
		t.Error("a new password restarts nothing")
	}

	// The spec does not want it any more.
	b := w.llama()
	b.Spec.RemoteStorage = nil
	w.must(w.client.Update(t.Context(), b))
	w.settle(r)
	for _, o := range []client.Object{&appsv1.Deployment{}, &corev1.Service{}, &networkingv1.NetworkPolicy{}, &corev1.Secret{}} {
		if w.get(o, "llama-l3") {
			t.Errorf("%T is left", o)
		}
	}
}

func TestForeignObjectsAreNeverTakenOver(t *testing.T) {
	t.Parallel()
	nobodys := metav1.ObjectMeta{Namespace: "team", Name: "llama-l3", UID: "theirs"}
	anothers := *nobodys.DeepCopy()
	anothers.OwnerReferences = []metav1.OwnerReference{{APIVersion: v1alpha1.GroupVersion.String(), Kind: "CacheBackend", Name: "llama", UID: "older", Controller: new(true)}}
	var all []client.Object
	for _, theirs := range []metav1.ObjectMeta{nobodys, anothers} {
		all = append(all, &appsv1.Deployment{ObjectMeta: theirs, Status: appsv1.DeploymentStatus{AvailableReplicas: 1, UpdatedReplicas: 1}},
			&corev1.Service{ObjectMeta: theirs}, &networkingv1.NetworkPolicy{ObjectMeta: theirs}, &corev1.Secret{ObjectMeta: theirs})
	}
	for _, o := range all {
		w := newWorld(t, backend(withRedis), o)
		w.settle(w.backends())
		w.want("a foreign object", v1alpha1.ConditionRemoteStorageReady, v1alpha1.ReasonNameConflict)
		w.tells("a foreign object", v1alpha1.ReasonNameConflict)
		have := o.DeepCopyObject().(client.Object)
		if !w.get(have, "llama-l3") || have.GetUID() != "theirs" || len(have.GetLabels()) > 0 || len(have.GetAnnotations()) > 0 || len(have.GetOwnerReferences()) != len(o.GetOwnerReferences()) {
			t.Errorf("%T was changed: %+v", o, have)
		}
		b := w.llama()
		if s := b.Status.RemoteStorage; s == nil || s.Ready != metav1.ConditionFalse {
			t.Errorf("%T shows as ours: %+v", o, s)
		} else if _, service := o.(*corev1.Service); service && s.Endpoint != "" {
			t.Errorf("the endpoint is another's: %+v", s)
		}
		b.Spec.RemoteStorage = nil
		w.must(w.client.Update(t.Context(), b))
		w.settle(w.backends())
		if !w.get(have, "llama-l3") {
			t.Errorf("%T was deleted with our own", o)
		}
	}
}

func TestOwnPasswordIsAwaited(t *testing.T) {
	t.Parallel()
	w := newWorld(t, backend(func(b *v1alpha1.CacheBackend) {
		withRedis(b)
		b.Spec.RemoteStorage.Redis = &v1alpha1.RedisSpec{Authentication: &v1alpha1.RedisAuthentication{Password: v1alpha1.SecretKey{Name: "own", Key: "pw"}}}
	}))
	r := w.backends()
	w.settle(r)
	w.want("no Secret", v1alpha1.ConditionRemoteStorageReady, v1alpha1.ReasonRemoteSecretMissing)
	if w.get(&appsv1.Deployment{}, "llama-l3") || w.get(&corev1.Secret{}, "llama-l3") {
		t.Error("Redis was made without its password, or with another")
	}
	w.must(w.client.Create(t.Context(), &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: "team", Name: "own"}}))
	w.settle(r)
	if !w.get(&appsv1.Deployment{}, "llama-l3") {
		t.Error("Redis is not made")
	}
}

func TestFailedWritesAreTriedAgainAndTellNothing(t *testing.T) {
	t.Parallel()
	w := newWorld(t, backend(withRedis))
	r := w.backends()
	w.fail = "status cachebackend"
	if _, err := w.reconcile(r); err == nil {
		t.Error("a status that cannot be written is no error")
	}
	if all := w.happened(); len(all) > 0 {
		t.Errorf("told %q", all)
	}
	w.fail = ""
	w.settle(r)
	w.tells("written at last", v1alpha1.EventSelectorUnmatched)
	w = newWorld(t, backend(hostOnly), engine("e-0", nil))
	r = w.backends()
	r.client = interceptor.NewClient(w.client.(client.WithWatch), interceptor.Funcs{
		SubResourcePatch: func(context.Context, client.Client, string, client.Object, client.Patch, ...client.SubResourcePatchOption) error {
			return apierrors.NewConflict(schema.GroupResource{}, "llama", nil)
		},
	})
	if result, err := w.reconcile(r); err != nil || result.RequeueAfter == 0 {
		t.Errorf("another writer came first: again after %s, error %v", result.RequeueAfter, err)
	}
	if all := w.happened(); len(all) > 0 {
		t.Errorf("another writer came first: told %q", all)
	}
	w = newWorld(t, backend(withRedis))
	r = w.backends()
	w.fail = "create object llama-l3"
	if _, err := w.reconcile(r); err == nil {
		t.Error("objects that cannot be made are no error")
	}
	w.want("cannot be made", v1alpha1.ConditionDegraded, v1alpha1.ReasonApplyFailed)
	w.fail = ""
	w.settle(w.backends())
	w.want("works again", v1alpha1.ConditionDegraded, v1alpha1.ReasonNotDegraded)
}

func TestBackendBecomesReadyAndThenIsQuiet(t *testing.T) {
	t.Parallel()
	w := newWorld(t, backend(hostOnly), engine("e-0", nil))
	r := w.backends()
	w.settle(r)
	w.want("nothing heard", v1alpha1.ConditionReady, v1alpha1.ReasonAwaitingFirstEvent)
	r.heard.Receive(t.Context(), loops.Pulled{At: time.Now(), Snapshot: status.Snapshot{Replicas: []status.Replica{{ReplicaID: "e-0", Tenant: "team", LastEventAt: time.Now()}}}})
	result := w.settle(r)
	w.want("heard", v1alpha1.ConditionReady, v1alpha1.ReasonConnectorReady)
	if result.RequeueAfter <= 0 || result.RequeueAfter > 2*time.Minute {
		t.Errorf("looks again after %s, and silence is stale after 2m", result.RequeueAfter)
	}
	if b := w.llama(); len(b.Finalizers) > 0 {
		t.Errorf("nothing to drain, and finalizers %q", b.Finalizers)
	}
	told := w.happened()
	injected := 0
	for _, e := range told {
		if strings.Contains(e, v1alpha1.EventInjected) {
			injected++
		}
	}
	if injected != 1 {
		t.Errorf("told %d times that the pod is wired: %q", injected, told)
	}
	for range 3 {
		if _, err := w.reconcile(r); err != nil {
			t.Fatal(err)
		}
	}
	w.quiet("nothing happens")
	if all := w.happened(); len(all) > 0 {
		t.Errorf("nothing happens, and told %q", all)
	}
}

func TestDomainHasOneOwner(t *testing.T) {
	t.Parallel()
	elder := backend(hostOnly)
	elder.Name, elder.UID, elder.CreationTimestamp = "elder", "u0", metav1.NewTime(time.Now().Add(-time.Hour))
	younger := backend(withRedis)
	younger.CreationTimestamp = metav1.Now()
	w := newWorld(t, elder, younger)
	w.settle(w.backends())
	w.want("younger", v1alpha1.ConditionReady, v1alpha1.ReasonDomainTaken)
	if w.get(&appsv1.Deployment{}, "llama-l3") {
		t.Error("it made storage that nobody uses")
	}
}

func TestDeletedBackendWaitsForItsEngines(t *testing.T) {
	t.Parallel()
	w := newWorld(t, backend(withRedis), engine("e-0", nil))
	r := w.backends()
	w.settle(r)
	w.must(w.client.Delete(t.Context(), w.llama()))
	w.settle(r)
	w.want("in use", v1alpha1.ConditionReady, v1alpha1.ReasonDraining)
	if !w.get(&appsv1.Deployment{}, "llama-l3") {
		t.Error("Redis went from under an engine")
	}
	w.must(w.client.Delete(t.Context(), engine("e-0", nil)))
	if _, err := w.reconcile(r); err != nil {
		t.Fatal(err)
	}
	if w.get(&v1alpha1.CacheBackend{}, "llama") {
		t.Error("it is not in use, and still there")
	}
	w.settle(r) // of nothing
	if len(r.memo) > 0 {
		t.Error("a backend that is gone is remembered")
	}
}

// TestGoneBackendIsNotDialled: one without anything to drain goes at once.
func TestGoneBackendIsNotDialled(t *testing.T) {
	t.Parallel()
	w := newWorld(t, backend(func(b *v1alpha1.CacheBackend) {
		withRedis(b)
		b.Spec.RemoteStorage.Ownership, b.Spec.RemoteStorage.Endpoint = v1alpha1.External, "redis:6379"
	}))
	r := w.backends()
	w.settle(r)
	if len(r.dials.wanted) != 1 || len(r.memo) != 1 {
		t.Fatalf("dials %v", r.dials.wanted)
	}
	w.must(w.client.Delete(t.Context(), w.llama()))
	w.settle(r)
	if len(r.dials.wanted) > 0 || len(r.memo) > 0 {
		t.Errorf("it is gone, and dialled %v, remembered %v", r.dials.wanted, r.memo)
	}
}

// TestNothingIsSaidOfPodsThatCannotBeRead: not that there are none, either.
func TestNothingIsSaidOfPodsThatCannotBeRead(t *testing.T) {
	t.Parallel()
	elsewhere := backend(hostOnly)
	elsewhere.Namespace, elsewhere.UID = "well", "u2"
	there := engine("e-0", func(p *corev1.Pod) { p.Namespace = "well" })
	w := newWorld(t, backend(hostOnly), engine("e-0", nil), elsewhere, there)
	r := w.backends()
	hear := func(prefixes int64) {
		r.heard.Receive(t.Context(), loops.Pulled{At: time.Now(), Answered: []string{"s-0"}, Snapshot: status.Snapshot{Replicas: []status.Replica{
			{ReplicaID: "e-0", Tenant: "team", PrefixCount: prefixes, LastEventAt: time.Now(), LastUpdate: time.Now()},
			{ReplicaID: "e-0", Tenant: "well", PrefixCount: prefixes, LastEventAt: time.Now(), LastUpdate: time.Now()}}}})
	}
	p := &pusher{}
	x := &index{client: w.client, heard: r.heard, pusher: p, loops: Loops{Pull: pull{p}, Probe: probe{p}}}
	hear(7)
	w.settle(r)
	if _, err := x.Reconcile(t.Context(), ctrl.Request{}); err != nil {
		t.Fatal(err)
	}
	before := w.llama().Status
	if before.IndexParticipation == nil || before.IndexParticipation.PrefixCount != 7 {
		t.Fatalf("participation %+v", before.IndexParticipation)
	}
	x.client = interceptor.NewClient(w.client.(client.WithWatch), interceptor.Funcs{
		List: func(ctx context.Context, c client.WithWatch, list client.ObjectList, opts ...client.ListOption) error {
			o := client.ListOptions{}
			if _, pods := list.(*corev1.PodList); pods && o.ApplyOptions(opts).Namespace == "team" {
				return errors.New("no answer")
			}
			return c.List(ctx, list, opts...)
		},
	})
	r.client = x.client
	hear(9)
	if _, err := x.Reconcile(t.Context(), ctrl.Request{}); err == nil {
		t.Error("the index: pods that cannot be read are no error")
	}
	if _, err := w.reconcile(r); err == nil {
		t.Error("the backend: pods that cannot be read are no error")
	}
	if diff := cmp.Diff(before, w.llama().Status); diff != "" {
		t.Errorf("the status does not stand: %s", diff)
	}
	var well v1alpha1.CacheBackend
	w.must(w.client.Get(t.Context(), types.NamespacedName{Namespace: "well", Name: "llama"}, &well))
	if part := well.Status.IndexParticipation; part == nil || part.PrefixCount != 9 {
		t.Errorf("another namespace: participation %+v", part)
	}
}

func TestDeletionPolicies(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		edit  func(*v1alpha1.CacheBackend)
		gone  bool
		wrote string
	}{
		"immediate":   {func(b *v1alpha1.CacheBackend) { b.Spec.DeletionPolicy = v1alpha1.DeletionImmediate }, true, "patch cachebackend"},
		"out of time": {func(b *v1alpha1.CacheBackend) { b.Spec.DrainTimeout = &metav1.Duration{} }, true, "patch cachebackend"},
		"evict":       {func(b *v1alpha1.CacheBackend) { b.Spec.DeletionPolicy = v1alpha1.DeletionEvict }, false, "eviction pod e-0"},
	} {
		w := newWorld(t, backend(func(b *v1alpha1.CacheBackend) { withRedis(b); c.edit(b) }), engine("e-0", nil), engine("e-1", nil))
		r := w.backends()
		w.settle(r)
		w.must(w.client.Delete(t.Context(), w.llama()))
		w.wrote()
		if _, err := w.reconcile(r); err != nil {
			t.Fatal(name, err)
		}
		writes := w.wrote()
		if !slices.ContainsFunc(writes, func(s string) bool { return strings.HasPrefix(s, c.wrote) }) || slices.Contains(writes, "eviction pod e-1") {
			t.Errorf("%s: wrote %q, want %q", name, writes, c.wrote)
		}
		if w.get(&v1alpha1.CacheBackend{}, "llama") == c.gone {
			t.Errorf("%s: gone should be %v", name, c.gone)
		}
	}
}

func TestUnwiredPodsAreEvictedOneByOneWhereAsked(t *testing.T) {
	t.Parallel()
	old := metav1.NewTime(time.Now().Add(-time.Hour))
	missed := func(p *corev1.Pod) { p.Annotations, p.CreationTimestamp = nil, old }
	w := newWorld(t, backend(hostOnly), engine("a", missed), engine("b", missed),
		engine("bare", func(p *corev1.Pod) { missed(p); p.OwnerReferences = nil }),
		engine("refused", func(p *corev1.Pod) {
			missed(p)
			p.Annotations = map[string]string{v1alpha1.AnnotationInjectSkipped: v1alpha1.SkipForeignConnector}
		}))
	r := w.backends()
	w.settle(r)
	w.want("not asked", v1alpha1.ConditionEngineUnwired, v1alpha1.ReasonPodsUnwired)
	w.tells("not asked", v1alpha1.EventNotInjected)
	b := w.llama()
	b.Spec.UnwiredPods = v1alpha1.UnwiredEvict
	w.must(w.client.Update(t.Context(), b))
	w.wrote()
	if _, err := w.reconcile(r); err != nil {
		t.Fatal(err)
	}
	if writes := w.wrote(); !slices.Contains(writes, "eviction pod a") || slices.Contains(writes, "eviction pod b") {
		t.Errorf("wrote %q", writes)
	}
	// It comes back unwired: eviction does not help.
	w.must(w.client.Create(t.Context(), engine("a-2", func(p *corev1.Pod) {
		p.Annotations, p.CreationTimestamp = nil, metav1.NewTime(time.Now().Add(time.Minute))
	})))
	w.wrote()
	if _, err := w.reconcile(r); err != nil {
		t.Fatal(err)
	}
	if writes := w.wrote(); slices.ContainsFunc(writes, func(s string) bool { return strings.HasPrefix(s, "eviction") }) {
		t.Errorf("goes on evicting: %q", writes)
	}
}
