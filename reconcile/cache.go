package reconcile

import (
	"fmt"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	clientscheme "k8s.io/client-go/kubernetes/scheme"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"inferencecache.io/inferencecache/api/v1alpha1"
)

// NewScheme knows Kubernetes' kinds and ours.
func NewScheme() *runtime.Scheme {
	scheme := runtime.NewScheme()
	utilruntime.Must(clientscheme.AddToScheme(scheme))
	utilruntime.Must(v1alpha1.AddToScheme(scheme))
	return scheme
}

// CacheOptions are what a manager for these controllers caches: engine pods by
// their label, what the operator made by its own, and the servers' endpoints.
func CacheOptions(c Config) cache.Options {
	made := labels.SelectorFromSet(labels.Set{v1alpha1.LabelManagedBy: v1alpha1.ManagedBy})
	return cache.Options{
		DefaultTransform: cache.TransformStripManagedFields(),
		ByObject: map[client.Object]cache.ByObject{
			&corev1.Pod{}:                 {Label: has(v1alpha1.LabelCacheDomain), Transform: trimPod},
			&appsv1.Deployment{}:          {Label: made},
			&corev1.Service{}:             {Label: made},
			&networkingv1.NetworkPolicy{}: {Label: made},
			&discoveryv1.EndpointSlice{}: {
				Namespaces: map[string]cache.Config{c.Namespace: {}},
				Label:      labels.SelectorFromSet(labels.Set{discoveryv1.LabelServiceName: c.ServerService}),
			},
		},
	}
}

// nodeCacheOptions are for a cache of its own: pods that serve nodes have
// labels that engines do not, and a cache selects by one selector.
func nodeCacheOptions() cache.Options {
	return cache.Options{
		DefaultTransform: cache.TransformStripManagedFields(),
		ByObject:         map[client.Object]cache.ByObject{&corev1.Pod{}: {Label: has(v1alpha1.LabelBackendUID)}},
	}
}

// ClientOptions keeps Secrets out of memory.
func ClientOptions() client.Options {
	return client.Options{Cache: &client.CacheOptions{DisableFor: []client.Object{&corev1.Secret{}}}}
}

func has(key string) labels.Selector {
	selector, err := labels.Parse(key)
	if err != nil {
		panic("bug: a label that is none: " + err.Error())
	}
	return selector
}

// trimPod keeps what is looked at of an engine pod: a thousand of them take a
// few megabytes. Pods from this cache are never written back.
func trimPod(object any) (any, error) {
	p, ok := object.(*corev1.Pod)
	if !ok {
		return object, fmt.Errorf("bug: %T in the cache of pods", object)
	}
	spec := corev1.PodSpec{
		NodeName: p.Spec.NodeName, Tolerations: p.Spec.Tolerations, ImagePullSecrets: p.Spec.ImagePullSecrets,
		PriorityClassName: p.Spec.PriorityClassName, SchedulerName: p.Spec.SchedulerName, RuntimeClassName: p.Spec.RuntimeClassName,
	}
	for _, c := range p.Spec.InitContainers {
		if c.Name == v1alpha1.ContainerKernelCheck {
			spec.InitContainers = append(spec.InitContainers, corev1.Container{Name: c.Name, Env: c.Env})
		}
	}
	p.Spec, p.ManagedFields = spec, nil
	delete(p.Annotations, corev1.LastAppliedConfigAnnotation)
	status := corev1.PodStatus{Phase: p.Status.Phase}
	for _, c := range p.Status.Conditions {
		if c.Type == corev1.PodReady {
			status.Conditions = append(status.Conditions, corev1.PodCondition{Type: c.Type, Status: c.Status})
		}
	}
	status.ContainerStatuses = trimStatuses(p.Status.ContainerStatuses)
	status.InitContainerStatuses = trimStatuses(p.Status.InitContainerStatuses)
	p.Status = status
	return p, nil
}

func trimStatuses(all []corev1.ContainerStatus) (kept []corev1.ContainerStatus) {
	for _, c := range all {
		kept = append(kept, corev1.ContainerStatus{Name: c.Name, State: c.State, LastTerminationState: c.LastTerminationState, Ready: c.Ready, RestartCount: c.RestartCount})
	}
	return kept
}
