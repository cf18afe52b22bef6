package inject

import "inferencecache.io/inferencecache/api/v1alpha1"

// wireEventsOnly makes an engine of either runtime tell what it holds, and
// changes nothing about how it caches.
func (w *wiring) wireEventsOnly() error {
	if w.backend.Spec.Integration.KVEvents == v1alpha1.KVEventsExternal {
		return refuse(v1alpha1.SkipNothingToWire, "integration.kvEvents is External, so events only leaves nothing to inject")
	}
	if w.adapter.scheme == "sglang" && w.options.SubscriberImage != "" {
		w.enableMetrics() // without it the engine serves no load to report
	}
	return w.publishEvents()
}
