package v1alpha1

// Reasons why a pod of a cache domain is admitted without cache. They are the
// values of AnnotationInjectSkipped, the reason of the Warning Event, and the
// "reason" label of inferencecache_pod_injections_total.
const (
	// SkipAnnotation: the pod asked for it.
	SkipAnnotation = "skip-inject-annotation"
	// SkipNoBackend: no CacheBackend of the namespace has the pod's domain.
	SkipNoBackend = "no-backend"
	// SkipBackendDeleting: the backend is being deleted.
	SkipBackendDeleting = "backend-deleting"
	// SkipLookupFailed: the backends of the namespace could not be listed.
	SkipLookupFailed = "lookup-failed"
	// SkipUnsupported: there is no wiring for the backend's runtime and type.
	SkipUnsupported = "unsupported-backend"
	// SkipEndpointMissing: the remote tier has no endpoint yet.
	SkipEndpointMissing = "endpoint-missing"
	// SkipNoEngineContainer: it is not clear which container is the engine.
	SkipNoEngineContainer = "no-engine-container"
	// SkipCommandUnreadable: the engine is started by a shell script whose
	// arguments cannot be edited safely.
	SkipCommandUnreadable = "command-unreadable"
	// SkipForeignConnector: the engine has a KV connector that is not ours.
	SkipForeignConnector = "foreign-connector"
	// SkipIncompatibleArgs: an argument of the engine rules the cache out.
	SkipIncompatibleArgs = "incompatible-arguments"
	// SkipNameCollision: a container, volume, mount or environment variable of
	// the pod has a name or path that the wiring needs.
	SkipNameCollision = "name-collision"
	// SkipPortCollision: a port that the wiring needs is taken.
	SkipPortCollision = "port-collision"
	// SkipSharedMemory: the pod's /dev/shm cannot be shared with the server.
	SkipSharedMemory = "shared-memory"
	// SkipInvalidBackend: the backend says something that cannot be rendered.
	SkipInvalidBackend = "invalid-backend"
	// SkipNothingToWire: the backend only wants events, and nothing of the
	// pod's could be made to report them.
	SkipNothingToWire = "nothing-to-wire"
)
