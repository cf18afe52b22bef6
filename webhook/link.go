package webhook

import (
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"inferencecache.io/inferencecache/api/v1alpha1"
	"inferencecache.io/inferencecache/webhook/inject"
)

// link is what becomes of a pod.
type link struct {
	inject.Outcome
	backend *v1alpha1.CacheBackend // whose domain the pod is of; nil: nobody's
	denial  string                 // why it must not be; empty: admit Outcome.Pod
}

// linkPod decides about a pod, given the backends of its namespace. It is
// pure, and a pod that it has wired it leaves as it is.
func linkPod(pod *corev1.Pod, backends []v1alpha1.CacheBackend, options inject.Options) link {
	skip := func(reason, format string, args ...any) link {
		return link{Outcome: inject.Refuse(pod, inject.Refusal{Reason: reason, Message: fmt.Sprintf(format, args...)})}
	}
	domain := pod.Labels[v1alpha1.LabelCacheDomain]
	if domain == "" {
		return link{Outcome: inject.Outcome{Pod: inject.Clean(pod)}}
	}
	if inject.OptedOut(pod) {
		return skip(v1alpha1.SkipAnnotation, "its annotation %s asks for that", v1alpha1.AnnotationSkipInject)
	}
	owners, leaving := ownersOf(pod, backends)
	switch {
	case len(owners) > 1:
		return link{denial: fmt.Sprintf("cache domain %q is claimed by CacheBackends %s: a pod has one cache. Delete all but one of them, or give them domains of their own",
			domain, strings.Join(names(owners), " and "))}
	case len(owners) == 1:
		return link{Outcome: inject.Dress(pod, owners[0], options), backend: owners[0]}
	case len(leaving) > 0:
		l := skip(v1alpha1.SkipBackendDeleting, "CacheBackend %s, which owns cache domain %q, is being deleted", leaving[0].Name, domain)
		l.backend = leaving[0]
		return l
	}
	return skip(v1alpha1.SkipNoBackend, "no CacheBackend of this namespace owns cache domain %q. Create one, then create this pod again", domain)
}

// ownersOf are the backends that own a pod, by name; those on their way out
// apart.
func ownersOf(pod *corev1.Pod, backends []v1alpha1.CacheBackend) (owners, leaving []*v1alpha1.CacheBackend) {
	for i := range backends {
		switch b := &backends[i]; {
		case !b.Owns(pod.Labels):
		case b.DeletionTimestamp != nil:
			leaving = append(leaving, b)
		default:
			owners = append(owners, b)
		}
	}
	byName := func(a, b *v1alpha1.CacheBackend) int { return strings.Compare(a.Name, b.Name) }
	slices.SortFunc(owners, byName)
	slices.SortFunc(leaving, byName)
	return owners, leaving
}

func names(backends []*v1alpha1.CacheBackend) []string {
	all := make([]string, len(backends))
	for i, b := range backends {
		all[i] = b.Name
	}
	return all
}
