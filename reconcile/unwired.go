package reconcile

import (
	"cmp"
	"context"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"inferencecache.io/inferencecache/api/v1alpha1"
	"inferencecache.io/inferencecache/reconcile/judge"
)

// passing are the reasons for which a pod that is created anew may be wired.
// The others are the pod's own: its successor would be refused too.
var passing = []string{"", v1alpha1.SkipNoBackend, v1alpha1.SkipBackendDeleting, v1alpha1.SkipLookupFailed, v1alpha1.SkipEndpointMissing}

// evictUnwired evicts one pod that would be wired if it were created now, where
// the backend asks for it.
func (r *backends) evictUnwired(ctx context.Context, b *v1alpha1.CacheBackend, pods []corev1.Pod, m *memory) (time.Duration, error) {
	if b.Spec.UnwiredPods != v1alpha1.UnwiredEvict {
		return 0, nil
	}
	candidates := evictable(b, pods, m.evicted)
	if len(candidates) == 0 {
		return 0, nil
	}
	if !settled(b, pods) {
		return evictAgain, nil
	}
	m.evicted = time.Now()
	return evictAgain, r.evict(ctx, b, candidates[0], "it runs without cache; its successor will be wired")
}

// evictable are the pods that eviction would help, oldest first. A pod without
// a controller would not come back. One that is younger than the last eviction
// came back unwired: then evicting does not help, and stops.
func evictable(b *v1alpha1.CacheBackend, pods []corev1.Pod, last time.Time) (list []*corev1.Pod) {
	for i := range pods {
		p := &pods[i]
		if !judge.Unwired(b, p) || !slices.Contains(passing, p.Annotations[v1alpha1.AnnotationInjectSkipped]) {
			continue
		}
		if !last.IsZero() && p.CreationTimestamp.Add(time.Second).After(last) {
			return nil
		}
		if metav1.GetControllerOf(p) != nil {
			list = append(list, p)
		}
	}
	slices.SortFunc(list, func(a, b *corev1.Pod) int {
		return cmp.Or(a.CreationTimestamp.Compare(b.CreationTimestamp.Time), cmp.Compare(a.Name, b.Name))
	})
	return list
}

// settled reports whether every pod of the domain that is wired is ready and
// none is on its way out.
func settled(b *v1alpha1.CacheBackend, pods []corev1.Pod) bool {
	for i := range pods {
		p := &pods[i]
		ready := slices.ContainsFunc(p.Status.Conditions, func(c corev1.PodCondition) bool {
			return c.Type == corev1.PodReady && c.Status == corev1.ConditionTrue
		})
		if !p.DeletionTimestamp.IsZero() || judge.Active(p) && judge.Verified(b, p) && !ready {
			return false
		}
	}
	return true
}
