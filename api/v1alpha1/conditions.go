package v1alpha1

// Conditions of a CacheBackend. Each has one writer.
const (
	// ConditionReady: the backend does what its spec asks, now.
	ConditionReady = "Ready"
	// ConditionProgressing: something is on its way to Ready.
	ConditionProgressing = "Progressing"
	// ConditionDegraded: something that worked, or should by now, does not.
	ConditionDegraded = "Degraded"
	// ConditionConnectorReady: every engine pod is wired and its server runs.
	ConditionConnectorReady = "ConnectorReady"
	// ConditionRemoteStorageReady: the remote tier answers.
	ConditionRemoteStorageReady = "RemoteStorageReady"
	// ConditionEventsFresh: engines were heard of within staleAfter.
	ConditionEventsFresh = "EventsFresh"
	// ConditionEngineUnwired: pods of the domain run without cache.
	ConditionEngineUnwired = "EngineUnwired"
	// ConditionKernelsHealthy: the engines' LMCache kernels load.
	ConditionKernelsHealthy = "EngineKernelsHealthy"
	// ConditionEngineCompatibility is False while a wired engine crash-loops.
	ConditionEngineCompatibility = "EngineCompatibility"
	// ConditionT2Degraded: the host tier is asked but serves nothing.
	ConditionT2Degraded = "T2Degraded"
)

// Conditions of a CachePolicy.
const (
	// ConditionAccepted: this is the policy of its namespace.
	ConditionAccepted = "Accepted"
	// ConditionProgrammed: every server serves by this generation of it.
	ConditionProgrammed = "Programmed"
)

// ConditionQuotaExceeded of a CacheTenant: it holds more entries than its quota.
const ConditionQuotaExceeded = "QuotaExceeded"

// Conditions of the CacheIndex: the loops between controller and servers.
const (
	// ConditionSnapshotsRead: the last round read every server's snapshot.
	ConditionSnapshotsRead = "SnapshotsRead"
	// ConditionPolicyPushed: every server has the newest policy set.
	ConditionPolicyPushed = "PolicyPushed"
	// ConditionSelfTest: an event reported through the real RPC port came back
	// as a hint.
	ConditionSelfTest = "SelfTest"
)

// Reasons of ConnectorReady, of the coverage of single pods, and of Ready when
// it repeats ConnectorReady.
const (
	ReasonConnectorReady        = "ConnectorReady"
	ReasonNoEnginePods          = "NoEnginePods"                 // no pod has the domain label
	ReasonInjectionUnverified   = "ConnectorInjectionUnverified" // some pod was not wired by this backend
	ReasonMPServersNotReady     = "MPServersNotReady"
	ReasonEngineNotRegistered   = "EngineNotRegistered" // the server restarted under a running engine
	ReasonNodeServersPending    = "NodeLocalServerPoolPending"
	ReasonNodePortConflict      = "NodeLocalHostPortConflict"
	ReasonNodeWorkersExceeded   = "NodeLocalWorkerCapacityExceeded"
	ReasonNodeServersAmbiguous  = "AmbiguousNodeLocalServers"
	ReasonNodeLocalNotAllowed   = "NodeLocalNotAllowed"
	ReasonEngineSchedulePending = "EngineSchedulingPending"
	ReasonOutdated              = "Outdated"        // of a pod: works, wired from an older spec
	ReasonOptedOut              = "OptedOut"        // of a pod: it asked not to be wired
	ReasonEnginesNotReady       = "EnginesNotReady" // wired, and there is no server to wait for
	ReasonHiCacheReady          = "HiCacheReady"
	ReasonEventsOnlyActive      = "EventsOnlyActive"
)

// Reasons of RemoteStorageReady.
const (
	ReasonRemoteReady         = "RemoteStorageReady"
	ReasonRemotePending       = "RemoteStoragePending"
	ReasonRemoteUnavailable   = "RemoteStorageUnavailable"
	ReasonRemoteUnreachable   = "RemoteStorageUnreachable" // dialled without an answer
	ReasonExternalMissing     = "ExternalEndpointMissing"
	ReasonExternalInvalid     = "ExternalEndpointInvalid"
	ReasonNameConflict        = "NameConflict" // an object of that name is not ours
	ReasonRemoteSecretMissing = "RemoteSecretMissing"
)

// Reasons of EventsFresh, and of Ready when events lower it.
const (
	ReasonAwaitingFirstEvent = "AwaitingFirstKVEvent"
	ReasonNoEventsObserved   = "NoKVEventsObserved" // the first-event timeout ran out
	ReasonEventsObserved     = "KVEventsObserved"
	ReasonEventsStale        = "KVEventsStale" // engines fell silent
	ReasonEventsNotRequired  = "KVEventsNotRequired"
)

// Reasons of Progressing, Degraded, EngineUnwired and deletion.
const (
	ReasonSynced      = "Synced"
	ReasonNotDegraded = "NotDegraded"
	ReasonPodsUnwired = "PodsUnwired"
	ReasonAllWired    = "AllPodsWired"
	ReasonDraining    = "Draining" // deleted, engines still use it
	ReasonApplyFailed = "ApplyFailed"
	ReasonInvalidSpec = "InvalidSpec"
	ReasonDomainTaken = "DomainTaken" // an older backend owns the domain
)

// Reasons of the advisory conditions.
const (
	ReasonKernelsHealthy  = "KernelsHealthy"
	ReasonKernelLoadFail  = "KernelLoadFailed"
	ReasonKernelCheckErr  = "KernelCheckError"
	ReasonKernelPending   = "KernelCheckPending"
	ReasonKernelDegraded  = "EngineKernelDegraded" // of Ready: the strict check failed
	ReasonEngineCrashLoop = "InjectedEngineCrashLooping"
	ReasonT2ZeroHitRate   = "T2ZeroHitRate"
	ReasonT2Serving       = "T2Serving"
)

// Reasons of CachePolicy conditions.
const (
	ReasonPolicyChosen       = "Chosen"
	ReasonPolicyShadowed     = "Shadowed" // another policy of the namespace comes first by name
	ReasonServersProgrammed  = "ServersProgrammed"
	ReasonServersPending     = "ServersPending"
	ReasonServersRefused     = "ServersRefused"
	ReasonNoServers          = "NoServers"
	ReasonPolicyNotEffective = "NotEffective" // Programmed of a policy that is not accepted
)

// Reasons of CacheTenant conditions.
const (
	ReasonTenantObserved    = "Observed"
	ReasonDuplicateTenantID = "DuplicateTenantID"
	ReasonTenantNotGranted  = "TenantNotGranted" // the id is neither the namespace nor granted to it
	ReasonNoQuota           = "NoQuota"
	ReasonWithinBudget      = "WithinBudget"
	ReasonOverEntryBudget   = "OverEntryBudget"
	ReasonQuotaNotEffective = "NotEffective"
)

// Reasons of CacheIndex conditions.
const (
	ReasonAllServers  = "AllServers"
	ReasonSomeServers = "SomeServers" // some answered, some did not
	ReasonUnreachable = "Unreachable"
	ReasonRefused     = "Refused"
	ReasonPassed      = "Passed"
	ReasonFailed      = "Failed"
)

// Reasons of Events that are not reasons of a condition.
const (
	EventInjected             = "InjectedByCacheBackend" // on a pod: wired
	EventSkipped              = "SkippedByOperator"      // on a pod: opted out
	EventNotInjected          = "NotInjected"            // on pod and backend: wired nothing, and why
	EventSelectorUnmatched    = "EngineSelectorUnmatched"
	EventFailClosedEnabled    = "FailClosedEnabled"
	EventFailOpenRestored     = "FailOpenRestored"
	EventBackendDegraded      = "BackendDegraded"
	EventBackendRecovered     = "BackendRecovered"
	EventUnwiredPodEvicted    = "UnwiredPodEvicted"
	EventNodeServerReplaced   = "NodeLocalServerReplaced"
	EventSharedMemoryReleased = "SharedMemoryReleased"
)
