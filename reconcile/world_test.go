package reconcile

import (
	"context"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/VictoriaMetrics/metrics"
	"go.uber.org/goleak"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/events"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"inferencecache.io/inferencecache/api/v1alpha1"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// world is an API server in memory and what is written to it.
type world struct {
	t      *testing.T
	client client.Client
	told   *events.FakeRecorder

	mu     sync.Mutex // guards what follows
	writes []string
	fail   string // writes whose name contains it fail
}

func newWorld(t *testing.T, objects ...client.Object) *world {
	t.Helper()
	w := &world{t: t, told: events.NewFakeRecorder(1000)}
	w.client = fake.NewClientBuilder().WithScheme(NewScheme()).
		WithStatusSubresource(&v1alpha1.CacheBackend{}, &v1alpha1.CachePolicy{}, &v1alpha1.CacheTenant{}, &v1alpha1.CacheIndex{}).
		WithObjects(objects...).WithInterceptorFuncs(w.interceptor()).Build()
	return w
}

// note remembers one write, or refuses it.
func (w *world) note(verb string, o client.Object) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	name := verb + " " + strings.TrimPrefix(strings.ToLower(typeName(o)), "*") + " " + o.GetName()
	if w.fail != "" && strings.Contains(name, w.fail) {
		return apierrors.NewInternalError(context.DeadlineExceeded)
	}
	w.writes = append(w.writes, name)
	return nil
}

func typeName(o client.Object) string {
	kind := o.GetObjectKind().GroupVersionKind().Kind
	switch o.(type) {
	case *v1alpha1.CacheBackend:
		kind = "CacheBackend"
	case *v1alpha1.CachePolicy:
		kind = "CachePolicy"
	case *v1alpha1.CacheTenant:
		kind = "CacheTenant"
	case *v1alpha1.CacheIndex:
		kind = "CacheIndex"
	case *corev1.Pod:
		kind = "Pod"
	}
	if kind == "" {
		kind = "object"
	}
	return kind
}

func (w *world) interceptor() interceptor.Funcs {
	return interceptor.Funcs{
		Create: func(ctx context.Context, c client.WithWatch, o client.Object, opts ...client.CreateOption) error {
			if err := w.note("create", o); err != nil {
				return err
			}
			if o.GetUID() == "" {
				o.SetUID(types.UID("uid-" + o.GetName()))
			}
			if created := o.GetCreationTimestamp(); created.IsZero() {
				o.SetCreationTimestamp(metav1.Now())
			}
			return c.Create(ctx, o, opts...)
		},
		Update: func(ctx context.Context, c client.WithWatch, o client.Object, opts ...client.UpdateOption) error {
			if err := w.note("update", o); err != nil {
				return err
			}
			return c.Update(ctx, o, opts...)
		},
		Patch: func(ctx context.Context, c client.WithWatch, o client.Object, p client.Patch, opts ...client.PatchOption) error {
			if err := w.note("patch", o); err != nil {
				return err
			}
			return c.Patch(ctx, o, p, opts...)
		},
		Delete: func(ctx context.Context, c client.WithWatch, o client.Object, opts ...client.DeleteOption) error {
			if err := w.note("delete", o); err != nil {
				return err
			}
			return c.Delete(ctx, o, opts...)
		},
		SubResourcePatch: func(ctx context.Context, c client.Client, sub string, o client.Object, p client.Patch, opts ...client.SubResourcePatchOption) error {
			if err := w.note(sub, o); err != nil {
				return err
			}
			return c.SubResource(sub).Patch(ctx, o, p, opts...)
		},
		SubResourceCreate: func(ctx context.Context, c client.Client, sub string, o, what client.Object, opts ...client.SubResourceCreateOption) error {
			if err := w.note(sub, o); err != nil {
				return err
			}
			return c.SubResource(sub).Create(ctx, o, what, opts...)
		},
	}
}

// wrote returns the writes since the last call.
func (w *world) wrote() []string {
	w.mu.Lock()
	defer w.mu.Unlock()
	writes := w.writes
	w.writes = nil
	return writes
}

// quiet fails if anything was written.
func (w *world) quiet(what string) {
	w.t.Helper()
	if writes := w.wrote(); len(writes) > 0 {
		w.t.Errorf("%s: wrote %q", what, writes)
	}
}

// happened returns the Events since the last call, as "Type Reason note".
func (w *world) happened() (all []string) {
	for {
		select {
		case e := <-w.told.Events:
			all = append(all, e)
		default:
			return all
		}
	}
}

func (w *world) tells(what, part string) {
	w.t.Helper()
	if all := w.happened(); !slices.ContainsFunc(all, func(e string) bool { return strings.Contains(e, part) }) {
		w.t.Errorf("%s: no Event %q in %q", what, part, all)
	}
}

func (w *world) backends() *backends {
	r := &backends{client: w.client, nodes: w.client, live: w.client, heard: NewHeard(), dials: NewDials(Ping), record: w.told,
		config: Config{Namespace: "system", ServerService: "servers", LMCacheImage: "lmcache", NodeLocalNamespaces: []string{"*"}},
		log:    slog.New(slog.DiscardHandler), memo: map[types.NamespacedName]*memory{}}
	r.meters = newMeters(metrics.NewSet(), r)
	return r
}

// reconcile runs one controller on the backend team/llama.
func (w *world) reconcile(r *backends) (ctrl.Result, error) {
	w.t.Helper()
	return r.Reconcile(w.t.Context(), ctrl.Request{NamespacedName: types.NamespacedName{Namespace: "team", Name: "llama"}})
}

// settle reconciles until nothing is written any more.
func (w *world) settle(r *backends) ctrl.Result {
	w.t.Helper()
	for range 10 {
		w.wrote()
		result, err := w.reconcile(r)
		if err != nil {
			w.t.Fatal(err)
		}
		if len(w.wrote()) == 0 {
			return result
		}
	}
	w.t.Fatal("it never stops writing")
	return ctrl.Result{}
}

func (w *world) get(o client.Object, name string) bool {
	w.t.Helper()
	err := w.client.Get(w.t.Context(), types.NamespacedName{Namespace: "team", Name: name}, o)
	if client.IgnoreNotFound(err) != nil {
		w.t.Fatal(err)
	}
	return err == nil
}

func (w *world) llama() *v1alpha1.CacheBackend {
	w.t.Helper()
	b := &v1alpha1.CacheBackend{}
	if !w.get(b, "llama") {
		w.t.Fatal("the backend is gone")
	}
	return b
}

// want checks one condition of the backend.
func (w *world) want(what, kind, reason string) {
	w.t.Helper()
	c := meta.FindStatusCondition(w.llama().Status.Conditions, kind)
	if c == nil || c.Reason != reason {
		w.t.Errorf("%s: %s is %+v, want reason %s", what, kind, c, reason)
	}
}

// must writes an object as somebody else would.
func (w *world) must(err error) {
	w.t.Helper()
	if err != nil {
		w.t.Fatal(err)
	}
}

func backend(spec func(*v1alpha1.CacheBackend)) *v1alpha1.CacheBackend {
	b := &v1alpha1.CacheBackend{ObjectMeta: metav1.ObjectMeta{Namespace: "team", Name: "llama", UID: "u1", Generation: 1}}
	b.Spec.Runtime, b.Spec.CacheDomain = v1alpha1.RuntimeVLLM, "llama"
	spec(b)
	return b
}

func hostOnly(b *v1alpha1.CacheBackend) {
	b.Spec.LMCache = &v1alpha1.LMCacheSpec{Topology: v1alpha1.PodLocal, PodLocal: &v1alpha1.PodLocalSpec{
		Server: v1alpha1.PodLocalServer{L1Capacity: resource.MustParse("1Gi")}}}
}

func onNodes(b *v1alpha1.CacheBackend) {
	b.Spec.LMCache = &v1alpha1.LMCacheSpec{Topology: v1alpha1.NodeLocal, NodeLocal: &v1alpha1.NodeLocalSpec{
		Server: v1alpha1.NodeLocalServer{L1Capacity: resource.MustParse("1Gi")}}}
}

func withRedis(b *v1alpha1.CacheBackend) {
	hostOnly(b)
	b.Spec.RemoteStorage = &v1alpha1.RemoteStorageSpec{Provider: v1alpha1.ProviderRedis, Ownership: v1alpha1.Managed}
}

// engine is a wired and ready pod of the domain.
func engine(name string, edit func(*corev1.Pod)) *corev1.Pod {
	yes := true
	p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "team", Name: name, UID: types.UID(name), CreationTimestamp: metav1.Now(),
		Labels:          map[string]string{v1alpha1.LabelCacheDomain: "llama"},
		Annotations:     map[string]string{v1alpha1.AnnotationInjectedBy: "team/llama", v1alpha1.AnnotationInjectedByUID: "u1"},
		OwnerReferences: []metav1.OwnerReference{{APIVersion: "apps/v1", Kind: "ReplicaSet", Name: "rs", UID: "rs", Controller: &yes}}}}
	p.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}}
	p.Status.InitContainerStatuses = []corev1.ContainerStatus{{Name: v1alpha1.ContainerMPServer, Ready: true,
		State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{}}}}
	if edit != nil {
		edit(p)
	}
	return p
}
