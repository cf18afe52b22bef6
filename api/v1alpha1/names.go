package v1alpha1

// Labels that users or monitors match.
const (
	// LabelCacheDomain says which CacheBackend of the namespace a pod belongs
	// to: its value equals that backend's domain. It is the only key that may
	// define ownership, and what the pod webhook's objectSelector looks for.
	LabelCacheDomain = "inferencecache.io/cache-domain"
	// LabelMPMetrics "true" marks pods with a container that serves LMCache's
	// metrics on the port named PortLMCacheHTTP.
	LabelMPMetrics = "inferencecache.io/lmcache-mp-metrics"
	// LabelNodeServer "true" marks the pods of NodeLocal LMCache servers.
	LabelNodeServer = "inferencecache.io/lmcache-node-server"
	// LabelBackendUID is the UID of the CacheBackend that an object was made for.
	LabelBackendUID = "inferencecache.io/cache-backend-uid"
	// LabelBackendType is spec.type of the CacheBackend an object was made for.
	LabelBackendType = "inferencecache.io/backend-type"
	// LabelManagedBy is the common label that names the maker of an object.
	LabelManagedBy = "app.kubernetes.io/managed-by"
	// LabelName is the common label that names what an object is.
	LabelName = "app.kubernetes.io/name"
	// LabelInstance is the common label that names whose an object is.
	LabelInstance = "app.kubernetes.io/instance"

	// ManagedBy is the value of LabelManagedBy on everything we make.
	ManagedBy = "inference-cache-controller"
)

// Annotations on engine pods.
const (
	// AnnotationSkipInject on a pod opts it out. Empty, a false boolean, no,
	// off, disable and disabled do not; any other text does.
	AnnotationSkipInject = "inferencecache.io/skip-inject"
	// AnnotationInjectSkipped is the reason, one of the Skip constants, why a
	// pod of a cache domain runs without cache.
	AnnotationInjectSkipped = "inferencecache.io/inject-skipped"
	// AnnotationInjectedBy is "<namespace>/<name>" of the backend that wired a pod.
	AnnotationInjectedBy = "inferencecache.io/injected-by"
	// AnnotationInjectedByUID is the UID of that backend.
	AnnotationInjectedByUID = "inferencecache.io/injected-by-uid"
	// AnnotationInjectedGeneration is that backend's generation at the time.
	// It tells when a pod was wired, not whether its wiring is up to date.
	AnnotationInjectedGeneration = "inferencecache.io/injected-generation"
	// AnnotationWiringHash is the hash of what the wiring of a pod was made
	// from. A pod is outdated when it differs from the backend's status.wiringHash.
	AnnotationWiringHash = "inferencecache.io/wiring-hash"
)

// Annotations on a CacheBackend. Each has a field that wins over it.
const (
	// AnnotationRequireKVEvents "false" takes events out of Ready:
	// spec.observation.requireEvents.
	AnnotationRequireKVEvents = "inferencecache.io/require-kv-events"
	// AnnotationKernelCheck is auto, report-only, strict or off: spec.kernelCheck.
	AnnotationKernelCheck = "inferencecache.io/lmcache-kernel-check"
	// AnnotationSkipProbe is accepted and does nothing: the self-test is one
	// for the control plane, reported on the CacheIndex.
	AnnotationSkipProbe = "inferencecache.io/skip-functional-probe"
)

// Annotations on the pods of NodeLocal servers.
const (
	AnnotationNodeOwner      = "inferencecache.io/node-local-owner"       // "<namespace>/<name>" of the backend
	AnnotationNodeOwnerUID   = "inferencecache.io/node-local-owner-uid"   // its UID
	AnnotationNodeGeneration = "inferencecache.io/node-local-generation"  // its generation when the pod was made
	AnnotationNodeTarget     = "inferencecache.io/node-local-target-node" // the node the pod serves
	AnnotationNodeSHMName    = "inferencecache.io/node-local-shm-name"    // the shared memory it owns
	AnnotationNodeIdleSince  = "inferencecache.io/node-local-idle-since"  // RFC 3339: when the last engine left
)

// AnnotationTenantGrants on a Namespace lists, separated by commas, the tenant
// ids besides its own name that CacheTenants in it may claim; "*" is any.
// Namespaces are cluster-scoped, so whoever may only edit objects inside one
// cannot grant himself another's id.
const AnnotationTenantGrants = "inferencecache.io/tenant-grants"

// FinalizerDrain holds a deleted CacheBackend until its servers are drained.
const FinalizerDrain = "inferencecache.io/drain"

// Names inside an injected pod.
const (
	ContainerMPServer    = "lmcache-mp-server"       // LMCache server, native sidecar or NodeLocal pod
	ContainerSubscriber  = "kvevent-subscriber"      // engine events -> server
	ContainerKernelCheck = "lmcache-kernel-check"    // init container
	ContainerNodeGate    = "lmcache-node-local-gate" // init container

	PortLMCacheMP   = "lmcache-mp"
	PortLMCacheHTTP = "lmcache-http"
)

// ReservedTenant is the tenant of the self-test; no CacheTenant may claim it.
const ReservedTenant = "inferencecache.io/probe"

// CacheIndexName is the name of the only CacheIndex.
const CacheIndexName = "cluster-default"
