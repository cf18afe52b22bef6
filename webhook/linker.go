package webhook

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"net/http"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/tools/events"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/webhook/admission"

	"inferencecache.io/inferencecache/api/v1alpha1"
	"inferencecache.io/inferencecache/webhook/inject"
)

// listTimeout bounds the one request that admitting a pod takes. It is below
// the API server's own patience, so that a pod admitted without cache can say
// that this is why.
const listTimeout = 2 * time.Second

// cacheTimeout is for a cache that is not filled yet: one that is answers at
// once.
const cacheTimeout = 100 * time.Millisecond

// linker wires engine pods when they are created. What it cannot wire it
// admits as it is, with the reason on it: a missing cache must not keep an
// engine from starting. Only a pod that two caches claim is denied.
type linker struct {
	live    client.Reader // asks the API server
	cached  client.Reader // knows what it told before
	decoder admission.Decoder
	options inject.Options
	events  events.EventRecorder
	meters  *meters
	log     *slog.Logger
}

// +kubebuilder:rbac:groups=inferencecache.io,resources=cachebackends,verbs=list;watch
// +kubebuilder:rbac:groups=events.k8s.io,resources=events,verbs=create;patch

// Handle answers for one pod.
func (h *linker) Handle(ctx context.Context, request admission.Request) admission.Response {
	pod := &corev1.Pod{}
	if err := h.decoder.Decode(request, pod); err != nil {
		h.log.Warn("pod cannot be decoded and is admitted as it is", "namespace", request.Namespace, "err", err)
		h.meters.pod(resultSkipped, "undecodable")
		return admission.Allowed("").WithWarnings("runs without cache: the cache's operator does not understand this pod: " + err.Error())
	}
	l := h.decide(ctx, pod, request.Namespace)
	if l.denial != "" {
		h.count(request, resultDenied, "ambiguous-domain")
		return admission.Denied(l.denial)
	}
	patch, err := patchTo(pod, l.Pod)
	if err != nil {
		return admission.Errored(http.StatusInternalServerError, err)
	}
	if l.Refusal != nil {
		h.count(request, resultSkipped, l.Refusal.Reason)
		h.tell(request, pod, l)
	} else if l.backend != nil {
		h.count(request, resultWired, "")
	}
	return patch.WithWarnings(l.Warnings...)
}

// decide gathers and decides.
func (h *linker) decide(ctx context.Context, pod *corev1.Pod, namespace string) link {
	backends, err := h.list(ctx, namespace)
	if err != nil && pod.Labels[v1alpha1.LabelCacheDomain] != "" {
		h.log.Warn("pod is admitted without cache", "namespace", namespace, "pod", nameOf(pod), "err", err)
		return link{Outcome: inject.Refuse(pod, inject.Refusal{
			Reason: v1alpha1.SkipLookupFailed, Message: fmt.Sprintf("the CacheBackends of namespace %s could not be listed: %v", namespace, err),
		})}
	}
	return linkPod(pod, backends.Items, h.options)
}

// list the backends of a namespace: by asking, or as they were when the API
// server last told, if it is too busy to answer. That is when a thousand pods
// start at once, and nobody writes backends.
func (h *linker) list(ctx context.Context, namespace string) (backends v1alpha1.CacheBackendList, err error) {
	soon, cancel := context.WithTimeout(ctx, listTimeout)
	defer cancel()
	if err = h.live.List(soon, &backends, client.InNamespace(namespace)); err == nil {
		return backends, nil
	}
	soon, cancel = context.WithTimeout(ctx, cacheTimeout)
	defer cancel()
	if h.cached.List(soon, &backends, client.InNamespace(namespace)) == nil {
		return backends, nil
	}
	return backends, err
}

// patchTo changes one pod into the other. The patch is made between two pods
// as this program knows them, not from what was sent: fields that are newer
// than this program stay as they are.
func patchTo(from, to *corev1.Pod) (admission.Response, error) {
	before, err := json.Marshal(from)
	if err != nil {
		return admission.Response{}, fmt.Errorf("encode the pod: %w", err)
	}
	after, err := json.Marshal(to)
	if err != nil {
		return admission.Response{}, fmt.Errorf("encode the changed pod: %w", err)
	}
	return admission.PatchResponseFromRaw(before, after), nil
}

// count leaves out requests that store nothing.
func (h *linker) count(request admission.Request, result, reason string) {
	if !dryRun(request) {
		h.meters.pod(result, reason)
	}
}

// tell emits an Event where somebody looks for it: on the backend, else on
// what makes the pod. The pod itself has no UID yet.
func (h *linker) tell(request admission.Request, pod *corev1.Pod, l link) {
	about, controller := runtime.Object(nil), metav1.GetControllerOf(pod)
	switch {
	case dryRun(request) || l.Refusal.Reason == v1alpha1.SkipAnnotation:
		return // nothing happens, or what was asked for
	case l.backend != nil:
		about = l.backend
	case controller != nil:
		about = &metav1.PartialObjectMetadata{
			TypeMeta:   metav1.TypeMeta{APIVersion: controller.APIVersion, Kind: controller.Kind},
			ObjectMeta: metav1.ObjectMeta{Namespace: request.Namespace, Name: controller.Name, UID: controller.UID},
		}
	default:
		return
	}
	h.events.Eventf(about, nil, corev1.EventTypeWarning, v1alpha1.EventNotInjected, "Inject", "pod %s runs without cache (%s): %s", nameOf(pod), l.Refusal.Reason, l.Refusal.Message)
}

func dryRun(request admission.Request) bool { return request.DryRun != nil && *request.DryRun }

// nameOf is a pod's name, or how it will begin.
func nameOf(pod *corev1.Pod) string {
	if pod.Name == "" {
		return pod.GenerateName + "*"
	}
	return pod.Name
}
