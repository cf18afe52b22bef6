package judge

import (
	"fmt"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"inferencecache.io/inferencecache/api/v1alpha1"
)

// base is Ready as the mode asks for it, before events and kernels.
func (j *judging) base(connector, remote verdict) verdict {
	switch {
	case !j.Backend.DeletionTimestamp.IsZero():
		return verdict{metav1.ConditionFalse, v1alpha1.ReasonDraining, "deleted: see Events for what it waits for", false, true}
	case j.Taken != "":
		return broken(v1alpha1.ReasonDomainTaken, "CacheBackend "+j.Taken+" is older and owns domain "+j.Backend.Domain()+": give this one a domain of its own")
	case !j.offloads():
		return j.plainBase()
	case !connector.isTrue():
		return connector
	case remote.reason != "" && !remote.isTrue() && j.Backend.RemoteGatesReady():
		return remote
	case remote.reason != "" && !remote.isTrue():
		return is(v1alpha1.ReasonConnectorReady, "engines are wired; the remote tier is not ready, which this backend tolerates")
	}
	return is(v1alpha1.ReasonConnectorReady, connector.message)
}

// plainBase is for modes without a server of ours: HiCache and events only.
func (j *judging) plainBase() verdict {
	reason, message := v1alpha1.ReasonEventsOnlyActive, "engines are observed"
	if j.Backend.CacheType() == v1alpha1.TypeHiCache && !j.Backend.EventsOnly() {
		reason, message = v1alpha1.ReasonHiCacheReady, "every engine pod runs with its host tier"
	}
	if j.Backend.Domain() == "" {
		return is(reason, message)
	}
	considered, starting := j.considered(), 0
	for _, e := range considered {
		if !e.ready {
			starting++
		}
	}
	if len(considered) == 0 || wants(j.Backend) {
		if v, ok := j.unwiredVerdict(); ok {
			return v
		}
	}
	if starting > 0 {
		return verdict{metav1.ConditionFalse, v1alpha1.ReasonEnginesNotReady,
			fmt.Sprintf("%d of %d engine pods are not ready yet", starting, len(considered)), false, true}
	}
	return is(reason, message)
}

// ready lowers base by events and by a strict kernel check.
func (j *judging) ready(base, events verdict, kernelsFail bool) verdict {
	v := base
	if v.isTrue() && j.Backend.RequiresEvents() && !events.isTrue() {
		v = events
	}
	if kernelsFail && (v.isTrue() || v.reason == events.reason) {
		v = broken(v1alpha1.ReasonKernelDegraded, "the strict kernel check of an engine pod failed: see EngineKernelsHealthy")
	}
	j.set(v1alpha1.ConditionReady, v)
	return v
}

// health says whether things are on their way, and whether one is broken.
func (j *judging) health(ready, connector, remote, events verdict) {
	progressing := not(ready.reason, ready.message)
	switch {
	case j.Failed != "":
		progressing = is(v1alpha1.ReasonApplyFailed, "trying again: "+j.Failed)
	case ready.moving:
		progressing = is(ready.reason, ready.message)
	case remote.moving:
		progressing = is(remote.reason, remote.message)
	case ready.isTrue():
		progressing = not(v1alpha1.ReasonSynced, "everything is as the spec asks")
	}
	j.set(v1alpha1.ConditionProgressing, progressing)

	degraded := not(v1alpha1.ReasonNotDegraded, "nothing is known to be broken")
	for _, part := range []verdict{ready, connector, remote} {
		if part.broken {
			degraded = is(part.reason, part.message)
			break
		}
	}
	if degraded.status == metav1.ConditionFalse && events.broken && j.Backend.RequiresEvents() {
		degraded = is(events.reason, events.message)
	}
	if degraded.status == metav1.ConditionFalse && j.Failed != "" {
		degraded = is(v1alpha1.ReasonApplyFailed, j.Failed)
	}
	j.set(v1alpha1.ConditionDegraded, degraded)
}
