package inject

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"

	"inferencecache.io/inferencecache/api/v1alpha1"
)

// template is the version of what this package renders. Raise it when engines
// have to be created anew for a change of it to matter.
const template = 1

// WiringHash is a hash of what the wiring of a pod is made from. Edits of
// anything else, timeouts or placement of the remote tier for example, leave
// it as it is: they do not make running pods outdated.
func WiringHash(b *v1alpha1.CacheBackend, options Options) string {
	s := b.Spec.DeepCopy()
	mode := s.Integration.Mode
	if mode == "" {
		mode = v1alpha1.ModeOffload
	}
	events := s.Integration.KVEvents
	if events == "" {
		events = v1alpha1.KVEventsInject
	}
	return digest(template, s.Runtime, b.CacheType(), mode, events, b.KernelCheckMode(), s.Integration.EngineOverrides, s.HiCache,
		s.Observation.ModelID, s.Observation.LoRAAdapters, s.Observation.EngineCacheSize, serverWords(b, options))
}

// ServerHash is a hash of what a NodeLocal server is made from: a server whose
// InstanceID ends in another one is to be replaced.
func ServerHash(b *v1alpha1.CacheBackend, options Options) string {
	return digest(append([]any{template}, serverWords(b, options)...)...)
}

// serverWords is what servers and their clients are made from, with defaults
// filled in, so that writing a default out changes nothing.
func serverWords(b *v1alpha1.CacheBackend, options Options) []any {
	lm := b.Spec.LMCache
	if lm == nil {
		return nil
	}
	words := []any{lm.ChunkSize(), lm.PageSize(), lm.HybridKVCacheManager == v1alpha1.HybridKVEngine,
		b.RemoteEndpoint(), b.RemotePassword(), b.RemoteUsername()}
	switch {
	case lm.Topology == v1alpha1.NodeLocal && lm.NodeLocal != nil:
		s := &lm.NodeLocal.Server
		words = append(words, v1alpha1.NodeLocal, serverImage(s.Image, options), orDefault(s.Port, v1alpha1.DefaultMPPort),
			orDefault(s.HTTPPort, v1alpha1.DefaultNodeHTTPPort), orDefault(s.MaxGPUWorkers, v1alpha1.DefaultGPUWorkers),
			orDefault(s.MaxCPUWorkers, v1alpha1.DefaultWorkers), s.L1Capacity, serverResources(s.Resources, s.L1Capacity))
	case lm.PodLocal != nil:
		s := &lm.PodLocal.Server
		words = append(words, v1alpha1.PodLocal, serverImage(s.Image, options), orDefault(s.Port, v1alpha1.DefaultMPPort),
			orDefault(s.HTTPPort, v1alpha1.DefaultPodHTTPPort), orDefault(s.MaxWorkers, v1alpha1.DefaultWorkers),
			s.L1Capacity, serverResources(s.Resources, s.L1Capacity))
	}
	return words
}

func digest(words ...any) string {
	text, err := json.Marshal(words)
	if err != nil {
		panic("bug: a spec that is no JSON: " + err.Error())
	}
	sum := sha256.Sum256(text)
	return hex.EncodeToString(sum[:8])
}
