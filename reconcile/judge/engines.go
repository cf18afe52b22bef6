package judge

import (
	"cmp"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"inferencecache.io/inferencecache/api/v1alpha1"
	"inferencecache.io/inferencecache/webhook/inject"
)

// engine is one pod of the domain.
type engine struct {
	pod      *corev1.Pod
	active   bool // neither ending nor ended
	optedOut bool
	verified bool // wired by this backend
	outdated bool // from an older spec of it
	ready    bool
}

// counts reports whether the pod's coverage matters.
func (e *engine) counts() bool { return e.active && !e.optedOut }

func sortEngines(o Observed) []engine {
	engines := make([]engine, len(o.Pods))
	for i := range o.Pods {
		p := &o.Pods[i]
		verified := Verified(o.Backend, p)
		engines[i] = engine{
			pod: p, active: Active(p), optedOut: inject.OptedOut(p), ready: isReady(p), verified: verified,
			outdated: verified && p.Annotations[v1alpha1.AnnotationWiringHash] != o.Wiring,
		}
	}
	slices.SortFunc(engines, func(a, b engine) int { return cmp.Compare(a.pod.Name, b.pod.Name) })
	return engines
}

// Active reports whether a pod is neither ending nor ended.
func Active(p *corev1.Pod) bool {
	return p.DeletionTimestamp.IsZero() && p.Status.Phase != corev1.PodSucceeded && p.Status.Phase != corev1.PodFailed
}

// Verified reports whether a pod was wired by this backend, and not by one of
// its name that was before it.
func Verified(b *v1alpha1.CacheBackend, p *corev1.Pod) bool {
	return p.Annotations[v1alpha1.AnnotationInjectedBy] == b.Namespace+"/"+b.Name && p.Annotations[v1alpha1.AnnotationInjectedByUID] == string(b.UID)
}

// Unwired reports whether a pod of the domain should be wired and is not.
func Unwired(b *v1alpha1.CacheBackend, p *corev1.Pod) bool {
	return Active(p) && !inject.OptedOut(p) && wants(b) && !Verified(b, p)
}

// wants reports whether the webhook has anything to do to the pods.
func wants(b *v1alpha1.CacheBackend) bool {
	return !b.EventsOnly() || b.Spec.Integration.KVEvents != v1alpha1.KVEventsExternal
}

func isReady(p *corev1.Pod) bool {
	return slices.ContainsFunc(p.Status.Conditions, func(c corev1.PodCondition) bool {
		return c.Type == corev1.PodReady && c.Status == corev1.ConditionTrue
	})
}

// unverifiedReason is why a pod is not wired, as far as it says itself.
func (e *engine) unverifiedReason() string {
	return cmp.Or(e.pod.Annotations[v1alpha1.AnnotationInjectSkipped], v1alpha1.ReasonInjectionUnverified)
}

// container is the status of the engine's own container; nil: not started, or
// not to be told from others.
func (e *engine) container(runtime v1alpha1.Runtime) *corev1.ContainerStatus {
	var only *corev1.ContainerStatus
	others := 0
	for i := range e.pod.Status.ContainerStatuses {
		c := &e.pod.Status.ContainerStatuses[i]
		if c.Name == strings.ToLower(string(runtime)) {
			return c
		}
		if c.Name != v1alpha1.ContainerSubscriber {
			only = c
			others++
		}
	}
	if others != 1 {
		return nil
	}
	return only
}

func initStatus(p *corev1.Pod, name string) *corev1.ContainerStatus {
	return statusOf(p.Status.InitContainerStatuses, name)
}

func statusOf(all []corev1.ContainerStatus, name string) *corev1.ContainerStatus {
	if i := slices.IndexFunc(all, func(c corev1.ContainerStatus) bool { return c.Name == name }); i >= 0 {
		return &all[i]
	}
	return nil
}

// serves reports whether a server's container is up.
func serves(c *corev1.ContainerStatus) bool { return c != nil && c.Ready && c.State.Running != nil }

// died reports whether a container that is not up was, or cannot come up.
func died(c *corev1.ContainerStatus) bool {
	if c == nil || serves(c) {
		return false
	}
	if c.RestartCount > 0 || c.State.Terminated != nil {
		return true
	}
	waiting := c.State.Waiting
	return waiting != nil && slices.Contains([]string{"CrashLoopBackOff", "ImagePullBackOff", "ErrImagePull", "InvalidImageName", "CreateContainerConfigError"}, waiting.Reason)
}

// registered reports whether an engine started after its server did. An engine
// registers once, when it starts; a server that came up later does not know it.
func registered(engine, server *corev1.ContainerStatus) bool {
	if engine == nil || server == nil || engine.State.Running == nil || server.State.Running == nil {
		return true // there is nothing to compare yet
	}
	return !server.State.Running.StartedAt.After(engine.State.Running.StartedAt.Time)
}

// counts fills in how many pods there are, and of what kind.
func (j *judging) counts() {
	s := &j.status
	s.MatchedEnginePods, s.UnwiredEnginePods, s.OutdatedEnginePods, s.EngineSelectorMessage = nil, nil, nil, ""
	domain := j.Backend.Domain()
	if domain == "" {
		return
	}
	var matched, unwired, outdated int32
	for i := range j.engines {
		e := &j.engines[i]
		matched++
		if Unwired(j.Backend, e.pod) {
			unwired++
		}
		if e.counts() && e.outdated {
			outdated++
		}
	}
	s.MatchedEnginePods, s.UnwiredEnginePods, s.OutdatedEnginePods = &matched, &unwired, &outdated
	if matched == 0 {
		s.EngineSelectorMessage = "no pod of namespace " + j.Backend.Namespace + " has the label " + v1alpha1.LabelCacheDomain + "=" + domain +
			": give it to the pod template of the engines"
	}
}

// considered are the engines whose coverage matters.
func (j *judging) considered() (list []*engine) {
	for i := range j.engines {
		if j.engines[i].counts() {
			list = append(list, &j.engines[i])
		}
	}
	return list
}
