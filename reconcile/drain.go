package reconcile

import (
	"context"
	"errors"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"

	"inferencecache.io/inferencecache/api/v1alpha1"
	"inferencecache.io/inferencecache/reconcile/judge"
)

const (
	evictAgain = 10 * time.Second // until the next eviction is tried
	drainAgain = 30 * time.Second // until engines are counted again; pods that go tell sooner
)

// drains reports whether something would be taken from under engines if the
// backend were gone at once.
func drains(b *v1alpha1.CacheBackend) bool { return nodeLocal(b) || managed(b) }

// drain takes a deleted backend down in order: no new engines (the webhook sees
// to that), engines gone or out of time, servers of nodes with their memory,
// then the finalizer; what is owned goes with the backend. done: it is gone.
func (r *backends) drain(ctx context.Context, b *v1alpha1.CacheBackend, o *judge.Observed) (again time.Duration, done bool, _ error) {
	if !controllerutil.ContainsFinalizer(b, v1alpha1.FinalizerDrain) {
		return 0, true, nil
	}
	r.dials.Forget(client.ObjectKeyFromObject(b))
	left, using := drainTime(b, o.Now), users(b, o.Pods)
	if len(using) > 0 && left > 0 && b.Spec.DeletionPolicy != v1alpha1.DeletionImmediate {
		if b.Spec.DeletionPolicy != v1alpha1.DeletionEvict {
			return min(left, drainAgain), false, nil
		}
		return min(left, evictAgain), false, r.evictOne(ctx, b, using, o.Pods, "its cache is being deleted")
	}
	tidyAgain, err := r.tidyCleaners(ctx, b, o.Servers)
	serversAgain, removeErr := r.removeServers(ctx, b, o.Servers)
	if err = errors.Join(err, removeErr); err != nil || sooner(tidyAgain, serversAgain) != 0 {
		return sooner(tidyAgain, serversAgain), false, err
	}
	controllerutil.RemoveFinalizer(b, v1alpha1.FinalizerDrain)
	return 0, true, client.IgnoreNotFound(r.patchFinalizers(ctx, b))
}

// drainTime is what is left of the time for engines to go.
func drainTime(b *v1alpha1.CacheBackend, now time.Time) time.Duration {
	timeout := v1alpha1.DefaultDrainTimeout
	if b.Spec.DrainTimeout != nil {
		timeout = b.Spec.DrainTimeout.Duration
	}
	return b.DeletionTimestamp.Add(timeout).Sub(now)
}

// users are the engines that use what a backend runs.
func users(b *v1alpha1.CacheBackend, pods []corev1.Pod) (using []*corev1.Pod) {
	for i := range pods {
		if judge.Active(&pods[i]) && judge.Verified(b, &pods[i]) {
			using = append(using, &pods[i])
		}
	}
	return using
}

// evictOne evicts the first of some pods, unless one of the domain is on its
// way out, or is not back yet.
func (r *backends) evictOne(ctx context.Context, b *v1alpha1.CacheBackend, some []*corev1.Pod, all []corev1.Pod, why string) error {
	for i := range all {
		if !all[i].DeletionTimestamp.IsZero() {
			return nil
		}
	}
	return r.evict(ctx, b, some[0], why)
}

// +kubebuilder:rbac:groups="",resources=pods/eviction,verbs=create

// evict asks for one pod to go. Disruption budgets may forbid it for now.
func (r *backends) evict(ctx context.Context, b *v1alpha1.CacheBackend, pod *corev1.Pod, why string) error {
	eviction := &policyv1.Eviction{DeleteOptions: &metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &pod.UID}}}
	err := r.client.SubResource("eviction").Create(ctx, pod.DeepCopy(), eviction)
	switch {
	case apierrors.IsTooManyRequests(err), apierrors.IsNotFound(err), apierrors.IsConflict(err):
		return nil // a budget; gone; replaced by one of its name
	case err != nil:
		return fmt.Errorf("evict pod %s: %w", pod.Name, err)
	}
	r.meters.evictions.Inc()
	r.record.Eventf(b, pod, corev1.EventTypeNormal, v1alpha1.EventUnwiredPodEvicted, "Evict", "evicted pod %s: %s", pod.Name, why)
	return nil
}
