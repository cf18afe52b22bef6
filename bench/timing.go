package bench

import (
	"runtime"
	"slices"
	"time"
)

// median of values, which it sorts.
func median[T time.Duration | float64](values []T) T {
	slices.Sort(values)
	return values[len(values)/2]
}

// alternate times ours and theirs in turns, so that what disturbs the machine
// meets both, and returns the median time of one call. It takes about twice
// the given time, or as long as the turns take with one call each.
func alternate(each time.Duration, turns int, ours, theirs func(i int)) (own, other time.Duration) {
	slice := each / time.Duration(turns)
	var owns, others []time.Duration
	i, j := 0, 0
	for range turns {
		owns = append(owns, timeCalls(slice, &i, ours))
		others = append(others, timeCalls(slice, &j, theirs))
	}
	return max(1, median(owns)), max(1, median(others))
}

// timeCalls calls f with i, i+1 and so on for about the given time. The clock
// is read after 1, 2, 4 ... calls, so that reading it costs nothing.
func timeCalls(slice time.Duration, i *int, f func(i int)) time.Duration {
	start, calls := time.Now(), 0
	for step := 1; ; step = min(2*step, 1024) {
		for range step {
			f(*i)
			*i++
		}
		calls += step
		if took := time.Since(start); took >= slice {
			return took / time.Duration(calls)
		}
	}
}

// heapObjects that are in use after two collections; the first leaves what
// finalizers hold.
func heapObjects() uint64 {
	var m runtime.MemStats
	runtime.GC()
	runtime.GC()
	runtime.ReadMemStats(&m)
	return m.HeapObjects
}

// perSecond is the rate of n things in d.
func perSecond(n int, d time.Duration) float64 { return float64(n) / max(d, 1).Seconds() }

// ratio says how many times as fast we are.
func ratio(theirs, ours time.Duration) float64 { return float64(theirs) / float64(max(1, ours)) }
