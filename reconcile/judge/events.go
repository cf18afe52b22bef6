package judge

import (
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"inferencecache.io/inferencecache/api/v1alpha1"
)

// events judges whether engines are heard of, and keeps the two moments that
// waiting is counted from: the first event ever, and when the base of Ready
// last became true. Silence is fresh for staleAfter; what went stale is fresh
// again only by an event half that old, so that engines heard of just as often
// as staleAfter do not make Ready flap.
func (j *judging) events(base verdict) verdict {
	if base.isTrue() && (j.status.FirstAvailableAt == nil || !j.wasAvailable()) {
		j.status.FirstAvailableAt = j.now.DeepCopy()
	}
	last := j.Heard.Last
	if p := j.Backend.Status.IndexParticipation; !j.Heard.Known && p != nil && p.LastEventAt != nil {
		last = p.LastEventAt.Time
	}
	if !last.IsZero() && j.status.FirstKVEventObservedAt == nil {
		first := metav1.NewTime(last.Truncate(time.Second))
		j.status.FirstKVEventObservedAt = &first
	}
	v := j.freshness(base, last)
	j.set(v1alpha1.ConditionEventsFresh, v)
	return v
}

// wasAvailable reports whether the base of Ready was true the last time: what
// can lower Ready from there says so by its reason.
func (j *judging) wasAvailable() bool {
	was := j.before(v1alpha1.ConditionReady)
	if was == nil {
		return false
	}
	switch was.Reason {
	case v1alpha1.ReasonAwaitingFirstEvent, v1alpha1.ReasonNoEventsObserved, v1alpha1.ReasonEventsStale, v1alpha1.ReasonKernelDegraded:
		return true
	}
	return was.Status == metav1.ConditionTrue
}

func (j *judging) freshness(base verdict, last time.Time) verdict {
	was := j.before(v1alpha1.ConditionEventsFresh)
	switch {
	case j.Backend.Domain() != "" && len(j.considered()) == 0:
		return unknown(v1alpha1.ReasonNoEnginePods, "no engine pod of the domain runs")
	case !j.Heard.Known && was != nil && was.Reason != v1alpha1.ReasonNoEnginePods:
		j.soon(retry) // no server was asked yet: what was, stands
		return verdict{was.Status, was.Reason, was.Message, was.Status == metav1.ConditionFalse && was.Reason != v1alpha1.ReasonAwaitingFirstEvent, was.Reason == v1alpha1.ReasonAwaitingFirstEvent}
	case last.IsZero() && !j.Backend.RequiresEvents():
		return unknown(v1alpha1.ReasonEventsNotRequired, "no event was seen, and none is required")
	case last.IsZero():
		return j.awaiting(base)
	}
	return j.silence(last, was != nil && was.Reason == v1alpha1.ReasonEventsStale)
}

// awaiting is for backends of which nothing was ever heard.
func (j *judging) awaiting(base verdict) verdict {
	waiting := verdict{metav1.ConditionFalse, v1alpha1.ReasonAwaitingFirstEvent, "no engine has reported an event yet", false, true}
	if !base.isTrue() {
		return waiting
	}
	timeout := j.Backend.FirstEventTimeout()
	if left := j.status.FirstAvailableAt.Add(timeout).Sub(j.Now); left > 0 {
		j.soon(min(left, retry))
		return waiting
	}
	j.soon(retry)
	return broken(v1alpha1.ReasonNoEventsObserved, "no engine reported an event within "+timeout.String()+
		": see the logs of the subscribers, and that engines run with --kv-events-config")
}

func (j *judging) silence(last time.Time, wasStale bool) verdict {
	staleAfter := j.Backend.StaleAfter()
	since, allowed := last, staleAfter
	if wasStale {
		allowed = staleAfter / 2
	} else if anchor := j.status.FirstAvailableAt; anchor != nil && anchor.After(last) {
		// Engines that have just started may take as long as the first time.
		since, allowed = anchor.Time, max(staleAfter, j.Backend.FirstEventTimeout())
	}
	if left := since.Add(allowed).Sub(j.Now); left > 0 {
		j.soon(left)
		return is(v1alpha1.ReasonEventsObserved, "engines are heard of")
	}
	j.soon(retry)
	return broken(v1alpha1.ReasonEventsStale, "nothing was heard of any engine for "+staleAfter.String()+": see the logs of the subscribers")
}
