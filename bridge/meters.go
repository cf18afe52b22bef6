package bridge

import (
	"fmt"

	"github.com/VictoriaMetrics/metrics"
)

// results counts requests by their result; every one has a series from the
// start, since absent would read as "unknown".
type results struct{ by map[string]*metrics.Counter }

func newResults(set *metrics.Set, name string) *results {
	return countResults(set, name, "", resultOK, resultToken, resultUnreachable, resultRefused, resultRejected, resultUnreadable)
}

// newStageResults counts one stage of the self-test.
func newStageResults(set *metrics.Set, name, stage string) *results {
	return countResults(set, name, fmt.Sprintf(",stage=%q", stage),
		resultOK, resultFailed, resultToken, resultUnreachable, resultRefused, resultRejected, resultUnreadable)
}

func countResults(set *metrics.Set, name, labels string, values ...string) *results {
	r := &results{by: map[string]*metrics.Counter{}}
	for _, result := range values {
		r.by[result] = set.NewCounter(fmt.Sprintf("%s{result=%q%s}", name, result, labels))
	}
	return r
}

func (r *results) count(result string) { r.by[result].Inc() }
