package inject

import (
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"inferencecache.io/inferencecache/api/v1alpha1"
)

// TestWiringHashFollowsWiringAlone: engines become outdated by what they are
// wired from, not by timeouts, placement, or a default written out.
func TestWiringHashFollowsWiringAlone(t *testing.T) {
	t.Parallel()
	base := func() *v1alpha1.CacheBackend {
		b := &v1alpha1.CacheBackend{}
		b.Namespace, b.Name, b.UID, b.Generation = "ns", "b", "u", 1
		b.Spec.Runtime = v1alpha1.RuntimeVLLM
		b.Spec.LMCache = &v1alpha1.LMCacheSpec{PodLocal: &v1alpha1.PodLocalSpec{Server: v1alpha1.PodLocalServer{L1Capacity: resource.MustParse("8Gi")}}}
		b.Spec.RemoteStorage = &v1alpha1.RemoteStorageSpec{Provider: v1alpha1.ProviderRedis, Ownership: v1alpha1.External, Endpoint: "r:6379"}
		return b
	}
	was := WiringHash(base(), options)
	for name, change := range map[string]func(*v1alpha1.CacheBackend){
		"generation": func(b *v1alpha1.CacheBackend) { b.Generation = 9 },
		"timeouts": func(b *v1alpha1.CacheBackend) {
			b.Spec.Observation.StaleAfter = &metav1.Duration{Duration: time.Hour}
			b.Spec.Observation.FirstEventTimeout = &metav1.Duration{Duration: time.Hour}
		},
		"defaults written out": func(b *v1alpha1.CacheBackend) {
			chunk := int32(256)
			b.Spec.Type, b.Spec.Integration.Mode, b.Spec.Integration.KVEvents = v1alpha1.TypeLMCache, v1alpha1.ModeOffload, v1alpha1.KVEventsInject
			b.Spec.LMCache.Topology, b.Spec.LMCache.ChunkSizeTokens = v1alpha1.PodLocal, &chunk
			s := &b.Spec.LMCache.PodLocal.Server
			s.Port, s.HTTPPort, s.MaxWorkers, s.Image = 5555, 8080, 4, options.LMCacheImage
		},
		"deletion": func(b *v1alpha1.CacheBackend) { b.Spec.DeletionPolicy = v1alpha1.DeletionEvict },
		"failOpen": func(b *v1alpha1.CacheBackend) { no := false; b.Spec.Integration.FailOpen = &no },
	} {
		b := base()
		change(b)
		if WiringHash(b, options) != was {
			t.Errorf("%s changed the hash", name)
		}
	}
	for name, change := range map[string]func(*v1alpha1.CacheBackend){
		"mode":     func(b *v1alpha1.CacheBackend) { b.Spec.Integration.Mode = v1alpha1.ModeEventsOnly },
		"port":     func(b *v1alpha1.CacheBackend) { b.Spec.LMCache.PodLocal.Server.Port = 5600 },
		"capacity": func(b *v1alpha1.CacheBackend) { b.Spec.LMCache.PodLocal.Server.L1Capacity = resource.MustParse("9Gi") },
		"endpoint": func(b *v1alpha1.CacheBackend) { b.Spec.RemoteStorage.Endpoint = "r:6380" },
		"password": func(b *v1alpha1.CacheBackend) { b.Spec.RemoteStorage.Ownership = v1alpha1.Managed },
		"model":    func(b *v1alpha1.CacheBackend) { b.Spec.Observation.ModelID = "m" },
		"kernels":  func(b *v1alpha1.CacheBackend) { b.Spec.KernelCheck = v1alpha1.KernelCheckStrict },
		"overrides": func(b *v1alpha1.CacheBackend) {
			b.Spec.Integration.EngineOverrides = &v1alpha1.EngineOverrides{Args: []string{"--x"}}
		},
	} {
		b := base()
		change(b)
		if WiringHash(b, options) == was {
			t.Errorf("%s did not change the hash", name)
		}
	}
}
