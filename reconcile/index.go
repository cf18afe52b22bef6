package reconcile

import (
	"context"
	"errors"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"inferencecache.io/inferencecache/api/v1alpha1"
	"inferencecache.io/inferencecache/internal/loops"
	"inferencecache.io/inferencecache/reconcile/judge"
)

// indexEvery is how often the state of the loops is looked at: a round in which
// no server answers brings nothing that would tell.
const indexEvery = 15 * time.Second

// Loops tell how the loops over servers do.
type Loops struct {
	Pull  interface{ State() loops.PullState }
	Probe interface{ State() loops.ProbeState }
}

// index has one key: the CacheIndex.
type index struct {
	client client.Client
	heard  *Heard
	pusher Pusher
	loops  Loops
}

// +kubebuilder:rbac:groups=inferencecache.io,resources=cacheindices,verbs=get;list;watch;create
// +kubebuilder:rbac:groups=inferencecache.io,resources=cacheindices/status,verbs=get;patch;update

// Reconcile writes what servers hold into the CacheIndex and the backends.
func (r *index) Reconcile(ctx context.Context, _ ctrl.Request) (ctrl.Result, error) {
	again := ctrl.Result{RequeueAfter: indexEvery}
	pulled := r.heard.Last()
	return again, errors.Join(r.writeIndex(ctx, pulled), r.writeBackends(ctx, pulled))
}

func (r *index) writeIndex(ctx context.Context, pulled *loops.Pulled) error {
	var have v1alpha1.CacheIndex
	err := r.client.Get(ctx, types.NamespacedName{Name: v1alpha1.CacheIndexName}, &have)
	if apierrors.IsNotFound(err) {
		have = v1alpha1.CacheIndex{ObjectMeta: metav1.ObjectMeta{Name: v1alpha1.CacheIndexName}}
		if err = r.client.Create(ctx, &have); apierrors.IsAlreadyExists(err) {
			return nil // not in the cache yet
		}
	}
	if err != nil {
		return fmt.Errorf("create or read the CacheIndex: %w", err)
	}
	now := metav1.NewTime(time.Now().Truncate(time.Second))
	next := judge.Index(have.Status, pulled, judge.Loops{Pull: r.loops.Pull.State(), Push: r.pusher.State(), Probe: r.loops.Probe.State()}, now)
	if equality.Semantic.DeepEqual(next, have.Status) {
		return nil
	}
	was := have.DeepCopy()
	have.Status = next
	return patched(r.client.Status().Patch(ctx, &have, client.MergeFrom(was)), "CacheIndex", &have)
}

// writeBackends fills in indexParticipation and no other field.
func (r *index) writeBackends(ctx context.Context, pulled *loops.Pulled) error {
	if pulled == nil {
		return nil
	}
	var list v1alpha1.CacheBackendList
	if err := r.client.List(ctx, &list); err != nil {
		return fmt.Errorf("list CacheBackends: %w", err)
	}
	known := map[types.NamespacedName]bool{}
	var errs []error
	for i := range list.Items {
		b := &list.Items[i]
		known[client.ObjectKeyFromObject(b)] = true
		errs = append(errs, r.participate(ctx, b, pulled.At))
	}
	r.heard.Keep(known)
	return errors.Join(errs...)
}

func (r *index) participate(ctx context.Context, b *v1alpha1.CacheBackend, at time.Time) error {
	if b.Domain() == "" {
		return nil
	}
	pods, err := engines(ctx, r.client, b)
	if err != nil {
		return err // what is there is not known, so nothing is said of it
	}
	replicas, _ := r.heard.Replicas(b.Namespace)
	p := judge.Participate(pods, replicas)
	next, changed := p.Status(b.Status.IndexParticipation, r.heard.HitRate(client.ObjectKeyFromObject(b), p, at))
	if !changed {
		return nil
	}
	was := b.DeepCopy()
	b.Status.IndexParticipation = next
	return patched(r.client.Status().Patch(ctx, b, client.MergeFrom(was)), "CacheBackend", b)
}

// engines are the pods of a backend's domain.
func engines(ctx context.Context, reader client.Reader, b *v1alpha1.CacheBackend) ([]corev1.Pod, error) {
	if b.Domain() == "" {
		return nil, nil
	}
	var pods corev1.PodList
	if err := reader.List(ctx, &pods, client.InNamespace(b.Namespace), client.MatchingLabels{v1alpha1.LabelCacheDomain: b.Domain()}); err != nil {
		return nil, fmt.Errorf("list the engine pods of CacheBackend %s/%s: %w", b.Namespace, b.Name, err)
	}
	return pods.Items, nil
}
