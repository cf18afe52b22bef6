package reconcile

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/events"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"

	"inferencecache.io/inferencecache/api/v1alpha1"
	"inferencecache.io/inferencecache/reconcile/judge"
	"inferencecache.io/inferencecache/webhook/inject"
)

// backends reconciles one CacheBackend at a time: gather, act, judge, write.
type backends struct {
	client client.Client
	nodes  client.Reader // pods that serve nodes
	live   client.Reader // past the caches, for single objects
	config Config
	heard  *Heard
	dials  *Dials
	record events.EventRecorder
	log    *slog.Logger
	meters *meters

	mu   sync.Mutex // guards memo
	memo map[types.NamespacedName]*memory
}

// memory is what is known of a backend besides the API: nothing that a restart
// could not do without.
type memory struct {
	secretAt    time.Time // when its Secret was last looked at
	secret      secretState
	evicted     time.Time          // when a pod was last evicted
	told        map[types.UID]bool // pods that have their Event
	known       bool               // its status was judged since the start
	ready       corev1.ConditionStatus
	unwiredPods int32
}

// +kubebuilder:rbac:groups=inferencecache.io,resources=cachebackends,verbs=get;list;watch;patch;update
// +kubebuilder:rbac:groups=inferencecache.io,resources=cachebackends/status,verbs=get;patch;update
// +kubebuilder:rbac:groups=inferencecache.io,resources=cachebackends/finalizers,verbs=update
// +kubebuilder:rbac:groups=events.k8s.io,resources=events,verbs=create;patch

// Reconcile implements the controller.
func (r *backends) Reconcile(ctx context.Context, request ctrl.Request) (ctrl.Result, error) {
	var b v1alpha1.CacheBackend
	if err := r.client.Get(ctx, request.NamespacedName, &b); err != nil {
		if client.IgnoreNotFound(err) == nil {
			r.forget(request.NamespacedName)
			return ctrl.Result{}, nil
		}
		return ctrl.Result{}, fmt.Errorf("read CacheBackend %s: %w", request.NamespacedName, err)
	}
	m := r.remember(request.NamespacedName)
	o, err := r.gather(ctx, &b)
	if err != nil {
		return ctrl.Result{}, err // what there is is not known, so the status stands
	}
	var again time.Duration
	var done bool
	if b.DeletionTimestamp.IsZero() {
		again, err = r.act(ctx, &b, &o, m)
	} else {
		again, done, err = r.drain(ctx, &b, &o)
	}
	if done {
		r.forget(request.NamespacedName)
		return ctrl.Result{}, err
	}
	if err != nil {
		o.Failed = cause(err)
	}
	judged := judge.Backend(o)
	if writeErr := r.write(ctx, &b, judged.Status, m); apierrors.IsConflict(writeErr) {
		// The other writer of this status came first, or the cache is behind.
		return ctrl.Result{RequeueAfter: time.Second}, err
	} else if writeErr != nil {
		return ctrl.Result{}, errors.Join(err, writeErr)
	}
	r.tellPods(&b, o.Pods, m)
	return ctrl.Result{RequeueAfter: sooner(again, judged.Again)}, err
}

// gather reads what the status is made of, all of it from caches.
func (r *backends) gather(ctx context.Context, b *v1alpha1.CacheBackend) (o judge.Observed, err error) {
	o = judge.Observed{Backend: b, Now: time.Now(), Wiring: inject.WiringHash(b, r.config.Inject())}
	if o.Pods, err = engines(ctx, r.client, b); err != nil {
		return o, err
	}
	if o.Taken, err = r.older(ctx, b); err != nil {
		return o, err
	}
	var pods corev1.PodList
	if err := r.nodes.List(ctx, &pods, client.InNamespace(b.Namespace), client.MatchingLabels{v1alpha1.LabelBackendUID: string(b.UID)}); err != nil {
		return o, fmt.Errorf("list the LMCache servers of CacheBackend %s/%s: %w", b.Namespace, b.Name, err)
	}
	o.Servers = pods.Items
	replicas, known := r.heard.Replicas(b.Namespace)
	o.Heard = judge.Heard{Known: known, Last: judge.Participate(o.Pods, replicas).Last}
	if nodeLocal(b) && !r.config.allowsNodeLocal(b.Namespace) {
		o.Forbidden = "namespace " + b.Namespace + " may not have LMCache servers on nodes: see --node-local-namespaces of the controller"
	}
	return o, nil
}

// older names the backend that owns the same domain by being there first.
func (r *backends) older(ctx context.Context, b *v1alpha1.CacheBackend) (string, error) {
	if b.Domain() == "" {
		return "", nil
	}
	var list v1alpha1.CacheBackendList
	if err := r.client.List(ctx, &list, client.InNamespace(b.Namespace)); err != nil {
		return "", fmt.Errorf("list the CacheBackends of namespace %s: %w", b.Namespace, err)
	}
	for i := range list.Items {
		other := &list.Items[i]
		if other.UID != b.UID && other.DeletionTimestamp.IsZero() && other.Domain() == b.Domain() &&
			cmp.Or(other.CreationTimestamp.Compare(b.CreationTimestamp.Time), cmp.Compare(other.Name, b.Name)) < 0 {
			return other.Name, nil
		}
	}
	return "", nil
}

// act brings about what the spec asks for, and fills in what it saw doing so.
func (r *backends) act(ctx context.Context, b *v1alpha1.CacheBackend, o *judge.Observed, m *memory) (time.Duration, error) {
	if drains(b) && controllerutil.AddFinalizer(b, v1alpha1.FinalizerDrain) {
		// Before there is anything to drain.
		if err := r.patchFinalizers(ctx, b); err != nil {
			return 0, err
		}
	}
	if o.Taken != "" {
		return retryTaken, nil // its pods are the other's
	}
	storageErr := r.storage(ctx, b, o, m)
	again, nodeErr := r.serveNodes(ctx, b, o)
	evictAgain, evictErr := r.evictUnwired(ctx, b, o.Pods, m)
	return sooner(again, evictAgain), errors.Join(storageErr, nodeErr, evictErr)
}

// retryTaken is how soon a backend whose domain is another's looks again.
const retryTaken = 30 * time.Second

// patchFinalizers writes the finalizers of b, if it is still as it was read.
func (r *backends) patchFinalizers(ctx context.Context, b *v1alpha1.CacheBackend) error {
	was := &v1alpha1.CacheBackend{ObjectMeta: *b.ObjectMeta.DeepCopy()}
	if controllerutil.ContainsFinalizer(b, v1alpha1.FinalizerDrain) {
		controllerutil.RemoveFinalizer(was, v1alpha1.FinalizerDrain)
	} else {
		controllerutil.AddFinalizer(was, v1alpha1.FinalizerDrain)
	}
	next := &v1alpha1.CacheBackend{ObjectMeta: *b.ObjectMeta.DeepCopy()}
	if err := r.client.Patch(ctx, next, client.MergeFromWithOptions(was, client.MergeFromWithOptimisticLock{})); err != nil {
		return fmt.Errorf("change the finalizers of CacheBackend %s/%s: %w", b.Namespace, b.Name, err)
	}
	b.ResourceVersion = next.ResourceVersion
	return nil
}

// write patches what differs, then tells what happened. What could not be
// written did not happen.
func (r *backends) write(ctx context.Context, b *v1alpha1.CacheBackend, next v1alpha1.CacheBackendStatus, m *memory) error {
	before := b.Status
	if !equality.Semantic.DeepEqual(next, before) {
		was := b.DeepCopy()
		b.Status = next
		err := r.client.Status().Patch(ctx, b, client.MergeFromWithOptions(was, client.MergeFromWithOptimisticLock{}))
		if err = patched(err, "CacheBackend", b); err != nil {
			return err
		}
		r.tellBackend(b, before, next)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	m.known, m.ready, m.unwiredPods = true, readiness(next), 0
	if n := next.UnwiredEnginePods; n != nil {
		m.unwiredPods = *n
	}
	return nil
}

func (r *backends) remember(name types.NamespacedName) *memory {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.memo[name] == nil {
		r.memo[name] = &memory{told: map[types.UID]bool{}}
	}
	return r.memo[name]
}

func (r *backends) forget(name types.NamespacedName) {
	r.dials.Forget(name)
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.memo, name)
}

// nodeLocal reports whether a backend asks for servers on nodes.
func nodeLocal(b *v1alpha1.CacheBackend) bool {
	return !b.EventsOnly() && b.Spec.LMCache != nil && b.Spec.LMCache.Topology == v1alpha1.NodeLocal && b.Spec.LMCache.NodeLocal != nil
}

// managed reports whether a backend asks for Redis of its own.
func managed(b *v1alpha1.CacheBackend) bool {
	return !b.EventsOnly() && b.Spec.LMCache != nil && b.Spec.RemoteStorage != nil && b.Spec.RemoteStorage.Ownership == v1alpha1.Managed
}

// sooner is the earlier of two waits, 0 meaning never.
func sooner(a, b time.Duration) time.Duration {
	if a == 0 || b != 0 && b < a {
		return b
	}
	return a
}

// cause is an error at a length that a status may have.
func cause(err error) string {
	const limit = 512
	text := err.Error()
	if len(text) > limit {
		text = strings.ToValidUTF8(text[:limit], "") + "..."
	}
	return text
}
