package webhook

import (
	"fmt"
	"strings"

	"inferencecache.io/inferencecache/api/v1alpha1"
	"inferencecache.io/inferencecache/webhook/inject"
)

// BackendWarnings are what is allowed and yet likely not what was meant. old
// is nil on create.
func BackendWarnings(b, old *v1alpha1.CacheBackend, options inject.Options) (warnings []string) {
	warn := func(format string, args ...any) { warnings = append(warnings, fmt.Sprintf(format, args...)) }
	if b.Domain() == "" {
		warn("spec.cacheDomain is not set: no engine pod will use this CacheBackend")
	}
	if b.Spec.Integration.KVEvents == v1alpha1.KVEventsExternal {
		warn("spec.integration.kvEvents is External: no subscriber is added, and routing knows only what you report yourself")
	} else if options.SubscriberImage == "" {
		warn("the operator runs without an image for subscribers: no events will be read")
	}
	if image := serverImage(b); image != "" && !strings.Contains(image, "@sha256:") {
		warn("the server's image %s is not pinned by digest: pods may run different code", image)
	}
	if lm := b.Spec.LMCache; lm != nil && lm.NodeLocal != nil && serverImage(b) == "" && options.LMCacheImage == "" {
		warn("spec.lmCache.nodeLocal.server.image is not set, and the operator has no default: engine pods will run without cache")
	}
	if r := b.Spec.RemoteStorage; r != nil && r.Ownership == v1alpha1.External {
		warn("spec.remoteStorage: KV blocks, which are user data, travel to %s unencrypted", r.Endpoint)
		if b.RemotePassword() == nil {
			warn("spec.remoteStorage.redis.authentication is not set: whoever reaches %s can read KV blocks", r.Endpoint)
		}
	}
	if _, set := b.Annotations[v1alpha1.AnnotationSkipProbe]; set {
		warn("the annotation %s has no effect any more", v1alpha1.AnnotationSkipProbe)
	}
	if old != nil && inject.WiringHash(b, options) != inject.WiringHash(old, options) {
		warn("running engine pods keep their wiring until they are created anew")
	}
	return warnings
}

// serverImage is the image of the LMCache server that a backend names.
func serverImage(b *v1alpha1.CacheBackend) string {
	switch lm := b.Spec.LMCache; {
	case lm != nil && lm.PodLocal != nil:
		return lm.PodLocal.Server.Image
	case lm != nil && lm.NodeLocal != nil:
		return lm.NodeLocal.Server.Image
	}
	return ""
}
