package reconcile

import (
	"fmt"

	"github.com/VictoriaMetrics/metrics"
	corev1 "k8s.io/api/core/v1"
)

// meters count what controller-runtime's own metrics do not tell. They bear no
// names of objects, which whoever may create some could invent without bound.
type meters struct {
	evictions *metrics.Counter
}

func newMeters(set *metrics.Set, r *backends) *meters {
	for _, ready := range []corev1.ConditionStatus{corev1.ConditionTrue, corev1.ConditionFalse, corev1.ConditionUnknown} {
		set.NewGauge(fmt.Sprintf("inferencecache_backends{ready=%q}", ready), func() float64 {
			return r.sum(func(m *memory) int32 {
				if m.ready == ready {
					return 1
				}
				return 0
			})
		})
	}
	set.NewGauge("inferencecache_unwired_pods", func() float64 { return r.sum(func(m *memory) int32 { return m.unwiredPods }) })
	return &meters{evictions: set.NewCounter("inferencecache_evicted_pods_total")}
}

// sum adds up something over the backends that were judged.
func (r *backends) sum(of func(*memory) int32) float64 {
	r.mu.Lock()
	defer r.mu.Unlock()
	total := int32(0)
	for _, m := range r.memo {
		if m.known {
			total += of(m)
		}
	}
	return float64(total)
}
