package webhook

import (
	"encoding/json"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"inferencecache.io/inferencecache/api/v1alpha1"
	"inferencecache.io/inferencecache/webhook/inject"
)

var linkOptions = inject.Options{LMCacheImage: "lmcache:1", SubscriberImage: "inferencecache:1", Servers: []string{"dns://server:9090"}}

func enginePod(domain string, annotations map[string]string) *corev1.Pod {
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "ns", GenerateName: "engine-", Labels: map[string]string{v1alpha1.LabelCacheDomain: domain}, Annotations: annotations},
		Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: "vllm", Image: "vllm", Args: []string{"--model", "m"}}}},
	}
}

func named(t *testing.T, name, domain string, deleted bool) v1alpha1.CacheBackend {
	b := backend(t, "cacheDomain: "+domain+", lmCache: {topology: PodLocal, podLocal: {server: {l1Capacity: 8Gi}}}")
	b.Name, b.UID, b.Generation = name, "uid-"+"1", 3
	if deleted {
		b.DeletionTimestamp = &metav1.Time{Time: time.Unix(1, 0)}
	}
	return *b
}

func TestPodGetsTheCacheOfItsDomain(t *testing.T) {
	t.Parallel()
	pod := enginePod("d", nil)
	l := linkPod(pod, []v1alpha1.CacheBackend{named(t, "z", "e", false), named(t, "b", "d", false), named(t, "a", "d", true)}, linkOptions)
	if l.denial != "" || l.Refusal != nil || l.backend == nil || l.backend.Name != "b" {
		t.Fatalf("denial %q, refusal %v, backend %v", l.denial, l.Refusal, l.backend)
	}
	if l.Pod.Annotations[v1alpha1.AnnotationInjectedBy] != "ns/b" {
		t.Errorf("annotations %v", l.Pod.Annotations)
	}
	again := linkPod(l.Pod, []v1alpha1.CacheBackend{named(t, "b", "d", false)}, linkOptions)
	if diff := cmp.Diff(l.Pod, again.Pod); diff != "" {
		t.Errorf("admitted again, it changes: %s", diff)
	}
}

func TestPodWithTwoCachesIsDenied(t *testing.T) {
	t.Parallel()
	l := linkPod(enginePod("d", nil), []v1alpha1.CacheBackend{named(t, "z", "d", false), named(t, "a", "d", false), named(t, "o", "d", true)}, linkOptions)
	if !strings.Contains(l.denial, "CacheBackends a and z:") {
		t.Errorf("denial %q does not name both", l.denial)
	}
}

func TestSkippedPodSaysWhyAndStaysAsItIs(t *testing.T) {
	t.Parallel()
	forged := map[string]string{
		v1alpha1.AnnotationInjectedBy: "ns/x", v1alpha1.AnnotationInjectedByUID: "x", v1alpha1.AnnotationInjectedGeneration: "1",
		v1alpha1.AnnotationWiringHash: "x", v1alpha1.AnnotationInjectSkipped: "x", "mine": "kept",
	}
	optedOut := maps.Clone(forged)
	optedOut[v1alpha1.AnnotationSkipInject] = "true"
	bad := named(t, "b", "d", false)
	bad.Spec.RemoteStorage = &v1alpha1.RemoteStorageSpec{Provider: "Redis", Ownership: v1alpha1.Managed}
	for name, v := range map[string]struct {
		pod      *corev1.Pod
		backends []v1alpha1.CacheBackend
		reason   string
	}{
		"nobody owns the domain": {enginePod("d", forged), []v1alpha1.CacheBackend{named(t, "b", "e", false)}, v1alpha1.SkipNoBackend},
		"its owner goes":         {enginePod("d", forged), []v1alpha1.CacheBackend{named(t, "b", "d", true)}, v1alpha1.SkipBackendDeleting},
		"it wants none":          {enginePod("d", optedOut), []v1alpha1.CacheBackend{named(t, "b", "d", false)}, v1alpha1.SkipAnnotation},
		"it cannot be wired":     {enginePod("d", forged), []v1alpha1.CacheBackend{bad}, v1alpha1.SkipEndpointMissing},
	} {
		l := linkPod(v.pod, v.backends, linkOptions)
		if l.denial != "" || l.Refusal == nil || l.Refusal.Reason != v.reason {
			t.Errorf("%s: denial %q, refusal %v", name, l.denial, l.Refusal)
			continue
		}
		if len(l.Warnings) != 1 || !strings.Contains(l.Warnings[0], v.reason) {
			t.Errorf("%s: warnings %q", name, l.Warnings)
		}
		if diff := cmp.Diff(v.pod.Spec, l.Pod.Spec); diff != "" {
			t.Errorf("%s: changed: %s", name, diff)
		}
		want := map[string]string{v1alpha1.AnnotationInjectSkipped: v.reason}
		for _, key := range []string{"mine", v1alpha1.AnnotationSkipInject} {
			if value, ok := v.pod.Annotations[key]; ok {
				want[key] = value
			}
		}
		if diff := cmp.Diff(want, l.Pod.Annotations); diff != "" {
			t.Errorf("%s: annotations: %s", name, diff)
		}
	}
}

// TestPatchLeavesNewerFieldsAlone: what this program does not know of a pod is
// not in the patch.
func TestPatchLeavesNewerFieldsAlone(t *testing.T) {
	t.Parallel()
	raw := []byte(`{"metadata": {"name": "p"}, "spec": {"containers": [{"name": "vllm", "fromTheFuture": {"a": 1}}], "newer": true}}`)
	pod := &corev1.Pod{}
	if err := json.Unmarshal(raw, pod); err != nil {
		t.Fatal(err)
	}
	same, err := patchTo(pod, pod.DeepCopy())
	if err != nil || len(same.Patches) > 0 {
		t.Errorf("no change: patch %v, error %v", same.Patches, err)
	}
	changed := pod.DeepCopy()
	changed.Spec.Containers[0].Args = []string{"--x"}
	changed.Spec.Volumes = []corev1.Volume{{Name: "v"}}
	got, err := patchTo(pod, changed)
	if err != nil {
		t.Fatal(err)
	}
	var paths []string
	for _, p := range got.Patches {
		paths = append(paths, p.Operation+" "+p.Path)
	}
	slices.Sort(paths)
	if diff := cmp.Diff([]string{"add /spec/containers/0/args", "add /spec/volumes"}, paths); diff != "" {
		t.Error(diff)
	}
}
