package webhook

import (
	"fmt"

	"github.com/VictoriaMetrics/metrics"
)

// What became of a pod, as counted.
const (
	resultWired   = "wired"
	resultSkipped = "skipped" // admitted without cache; the reason says why
	resultDenied  = "denied"
)

// meters count what was decided. Reasons are constants, so series are bounded.
type meters struct{ set *metrics.Set }

func newMeters(set *metrics.Set) *meters { return &meters{set} }

func (m *meters) pod(result, reason string) {
	m.set.GetOrCreateCounter(fmt.Sprintf("inferencecache_pod_injections_total{result=%q,reason=%q}", result, reason)).Inc()
}
