package reconcile

import (
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"inferencecache.io/inferencecache/api/v1alpha1"
	"inferencecache.io/inferencecache/reconcile/judge"
	"inferencecache.io/inferencecache/webhook/inject"
)

// happening is one Event on a backend.
type happening struct {
	kind, reason, note string
}

// happenings are what became different between two statuses that were both
// written: the same state is told once, whoever is leader.
func happenings(before, after v1alpha1.CacheBackendStatus) (all []happening) {
	for _, kind := range []string{v1alpha1.ConditionConnectorReady, v1alpha1.ConditionRemoteStorageReady, v1alpha1.ConditionEventsFresh} {
		was, is := meta.FindStatusCondition(before.Conditions, kind), meta.FindStatusCondition(after.Conditions, kind)
		if is == nil || was != nil && was.Status == is.Status && was.Reason == is.Reason {
			continue
		}
		level := corev1.EventTypeNormal
		if is.Status != metav1.ConditionTrue && is.Reason != v1alpha1.ReasonAwaitingFirstEvent && is.Reason != v1alpha1.ReasonRemotePending {
			level = corev1.EventTypeWarning
		}
		// Two conditions can say the same, as when no engine runs.
		if h := (happening{level, is.Reason, is.Message}); !slices.Contains(all, h) {
			all = append(all, h)
		}
	}
	all = append(all, turns(before, after)...)
	if after.FailOpen != nil && (before.FailOpen == nil || *before.FailOpen) && !*after.FailOpen {
		all = append(all, happening{corev1.EventTypeWarning, v1alpha1.EventFailClosedEnabled, "Ready needs the remote tier from now on"})
	} else if before.FailOpen != nil && !*before.FailOpen && after.FailOpen != nil && *after.FailOpen {
		all = append(all, happening{corev1.EventTypeNormal, v1alpha1.EventFailOpenRestored, "Ready does not need the remote tier any more"})
	}
	if after.EngineSelectorMessage != "" && before.EngineSelectorMessage == "" {
		all = append(all, happening{corev1.EventTypeNormal, v1alpha1.EventSelectorUnmatched, after.EngineSelectorMessage})
	}
	return all
}

// turns are conditions whose change of status alone is worth an Event.
func turns(before, after v1alpha1.CacheBackendStatus) (all []happening) {
	turned := func(kind string, to metav1.ConditionStatus) *metav1.Condition {
		was, is := meta.FindStatusCondition(before.Conditions, kind), meta.FindStatusCondition(after.Conditions, kind)
		if is == nil || is.Status != to || was != nil && was.Status == to {
			return nil
		}
		return is
	}
	if c := turned(v1alpha1.ConditionDegraded, metav1.ConditionTrue); c != nil {
		all = append(all, happening{corev1.EventTypeWarning, v1alpha1.EventBackendDegraded, c.Reason + ": " + c.Message})
	}
	if c := turned(v1alpha1.ConditionDegraded, metav1.ConditionFalse); c != nil && meta.IsStatusConditionTrue(before.Conditions, v1alpha1.ConditionDegraded) {
		all = append(all, happening{corev1.EventTypeNormal, v1alpha1.EventBackendRecovered, c.Message})
	}
	if c := turned(v1alpha1.ConditionEngineUnwired, metav1.ConditionTrue); c != nil {
		all = append(all, happening{corev1.EventTypeWarning, v1alpha1.EventNotInjected, c.Message})
	}
	for _, kind := range []string{v1alpha1.ConditionEngineCompatibility, v1alpha1.ConditionKernelsHealthy} {
		if c := turned(kind, metav1.ConditionFalse); c != nil {
			all = append(all, happening{corev1.EventTypeWarning, c.Reason, c.Message})
		}
	}
	return all
}

func (r *backends) tellBackend(b *v1alpha1.CacheBackend, before, after v1alpha1.CacheBackendStatus) {
	for _, h := range happenings(before, after) {
		r.record.Eventf(b, nil, h.kind, h.reason, h.reason, "%s", h.note)
	}
}

// tellWithin is how old a pod may be to be told about: what was created long
// before this process has its Event from the one before.
const tellWithin = 5 * time.Minute

// tellPods tells of each new pod once what admission did to it. At admission a
// pod has no UID yet, so an Event from there would be on no object.
func (r *backends) tellPods(b *v1alpha1.CacheBackend, pods []corev1.Pod, m *memory) {
	present := map[types.UID]bool{}
	for i := range pods {
		p := &pods[i]
		present[p.UID] = true
		if m.told[p.UID] || time.Since(p.CreationTimestamp.Time) > tellWithin || !judge.Active(p) {
			continue
		}
		h, ok := podHappening(b, p)
		if !ok {
			continue
		}
		m.told[p.UID] = true
		r.record.Eventf(p, b, h.kind, h.reason, h.reason, "%s", h.note)
	}
	for uid := range m.told {
		if !present[uid] {
			delete(m.told, uid)
		}
	}
}

// podHappening is what there is to tell of a pod of the backend's domain.
func podHappening(b *v1alpha1.CacheBackend, p *corev1.Pod) (happening, bool) {
	reason := p.Annotations[v1alpha1.AnnotationInjectSkipped]
	switch {
	case inject.OptedOut(p):
		return happening{corev1.EventTypeNormal, v1alpha1.EventSkipped, "runs without cache, as its annotation asks"}, true
	case judge.Verified(b, p):
		return happening{corev1.EventTypeNormal, v1alpha1.EventInjected, fmt.Sprintf("wired to CacheBackend %s", b.Name)}, true
	case !judge.Unwired(b, p):
		return happening{}, false
	case reason == "":
		return happening{corev1.EventTypeWarning, v1alpha1.EventNotInjected, "runs without cache: it was created while the webhook was away; create it anew"}, true
	case slices.Contains(passing, reason):
		return happening{corev1.EventTypeWarning, v1alpha1.EventNotInjected, "runs without cache (" + reason + "): create it anew"}, true
	}
	return happening{corev1.EventTypeWarning, v1alpha1.EventNotInjected, "runs without cache (" + reason + "): change its template"}, true
}

// readiness is the status of Ready; Unknown if there is none.
func readiness(s v1alpha1.CacheBackendStatus) corev1.ConditionStatus {
	if c := meta.FindStatusCondition(s.Conditions, v1alpha1.ConditionReady); c != nil {
		return corev1.ConditionStatus(c.Status)
	}
	return corev1.ConditionUnknown
}
