// Package inject decides what becomes of an engine pod: given the pod and the
// CacheBackend that owns its domain, Dress returns the pod wired to its cache,
// or the pod as it was and the reason why. It is pure: no client, no clock, no
// network, no map order. The pod linker of package webhook calls it on
// admission; reconcile renders NodeLocal servers and compares wiring hashes
// with the same functions, so that both sides of a connection agree.
//
// One file wires one kind of engine: vllm.go, sglang.go, hicache.go,
// eventsonly.go. Where servers run is podlocal.go and nodelocal.go. Everything
// added is added by name and carries a mark, so admitting a wired pod again
// changes nothing; what is not ours is never overwritten.
package inject
