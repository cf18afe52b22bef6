package v1alpha1

import metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

// Runtime is an inference engine.
//
// +kubebuilder:validation:Enum=VLLM;SGLang
type Runtime string

const (
	RuntimeVLLM   Runtime = "VLLM"
	RuntimeSGLang Runtime = "SGLang"
)

// BackendType is how engines of a backend keep KV blocks beyond their own memory.
//
// +kubebuilder:validation:Enum=LMCache;SGLangHiCache
type BackendType string

const (
	TypeLMCache BackendType = "LMCache"
	TypeHiCache BackendType = "SGLangHiCache"
)

// CacheBackend gives the engine pods of one cache domain a shared KV cache,
// and the server the events to route by.
//
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:resource:path=cachebackends,shortName=cb
// +kubebuilder:printcolumn:name="Type",type=string,JSONPath=`.spec.type`
// +kubebuilder:printcolumn:name="Ready",type=string,JSONPath=`.status.conditions[?(@.type=="Ready")].status`
// +kubebuilder:printcolumn:name="Matched",type=integer,JSONPath=`.status.matchedEnginePods`
// +kubebuilder:printcolumn:name="Remote",type=string,JSONPath=`.status.remoteStorage.endpoint`
// +kubebuilder:printcolumn:name="Prefixes",type=integer,JSONPath=`.status.indexParticipation.prefixCount`
// +kubebuilder:printcolumn:name="LastEvent",type=date,JSONPath=`.status.indexParticipation.lastEventAt`
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
type CacheBackend struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// +required
	Spec CacheBackendSpec `json:"spec"`
	// +optional
	Status CacheBackendStatus `json:"status,omitzero"`
}

// CacheBackendList is a list of CacheBackends.
//
// +kubebuilder:object:root=true
type CacheBackendList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []CacheBackend `json:"items"`
}

// CacheBackendSpec is what the user asks for. Edits reach engine pods when
// they are created anew; status tells which pods are outdated.
//
// +kubebuilder:validation:XValidation:rule="self.type == 'LMCache' || !has(self.lmCache)",message="lmCache is only for type LMCache: remove it",fieldPath=".lmCache"
// +kubebuilder:validation:XValidation:rule="self.type != 'LMCache' || self.integration.mode != 'Offload' || has(self.lmCache)",message="type LMCache in mode Offload needs lmCache: give it, or set integration.mode to EventsOnly"
// +kubebuilder:validation:XValidation:rule="self.integration.mode != 'EventsOnly' || !has(self.lmCache)",message="mode EventsOnly runs no LMCache server: remove lmCache",fieldPath=".lmCache"
// +kubebuilder:validation:XValidation:rule="self.integration.mode != 'EventsOnly' || !has(self.remoteStorage)",message="mode EventsOnly stores nothing: remove remoteStorage",fieldPath=".remoteStorage"
// +kubebuilder:validation:XValidation:rule="self.integration.mode != 'EventsOnly' || self.type == 'LMCache'",message="mode EventsOnly goes with type LMCache, or none",fieldPath=".type"
// +kubebuilder:validation:XValidation:rule="!has(self.lmCache) || self.lmCache.topology != 'NodeLocal' || (has(self.cacheDomain) || (has(self.engineSelector) && has(self.engineSelector.matchLabels) && size(self.engineSelector.matchLabels) == 1))",message="topology NodeLocal needs cacheDomain: servers run where engines of the domain are"
// +kubebuilder:validation:XValidation:rule="(self.type == 'SGLangHiCache') == has(self.hiCache)",message="hiCache is required for type SGLangHiCache and only for it"
// +kubebuilder:validation:XValidation:rule="self.type != 'SGLangHiCache' || self.runtime == 'SGLang'",message="type SGLangHiCache needs runtime SGLang",fieldPath=".runtime"
// +kubebuilder:validation:XValidation:rule="self.type != 'SGLangHiCache' || !has(self.remoteStorage)",message="type SGLangHiCache has no remote tier: remove remoteStorage",fieldPath=".remoteStorage"
// +kubebuilder:validation:XValidation:rule="self.type != 'SGLangHiCache' || self.integration.failOpen",message="type SGLangHiCache cannot fail closed: set integration.failOpen to true"
// +kubebuilder:validation:XValidation:rule="self.type != 'SGLangHiCache' || (has(self.cacheDomain) || (has(self.engineSelector) && has(self.engineSelector.matchLabels) && size(self.engineSelector.matchLabels) == 1))",message="type SGLangHiCache needs cacheDomain"
// +kubebuilder:validation:XValidation:rule="!has(self.cacheDomain) || !has(self.engineSelector) || !has(self.engineSelector.matchLabels) || self.engineSelector.matchLabels.all(k, self.engineSelector.matchLabels[k] == self.cacheDomain)",message="cacheDomain and engineSelector name different domains: give one of them"
type CacheBackendSpec struct {
	// Runtime is the engine that the pods run.
	// +required
	Runtime Runtime `json:"runtime"`

	// Type is how KV blocks are kept beyond the engine's own memory.
	// +kubebuilder:default=LMCache
	// +optional
	Type BackendType `json:"type,omitempty"`

	// CacheDomain is the value of the label inferencecache.io/cache-domain on
	// the engine pods of this backend. One backend of a namespace owns a domain.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=63
	// +kubebuilder:validation:Pattern=`^[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?$`
	// +optional
	CacheDomain string `json:"cacheDomain,omitempty"`

	// EngineSelector is the long form of cacheDomain.
	// +optional
	EngineSelector *EngineSelector `json:"engineSelector,omitempty"`

	// LMCache is the LMCache server beside, or on the node of, the engines.
	// +optional
	LMCache *LMCacheSpec `json:"lmCache,omitempty"`

	// HiCache is the host tier inside SGLang.
	// +optional
	HiCache *HiCacheSpec `json:"hiCache,omitempty"`

	// RemoteStorage is the tier that survives engines. Absent: none.
	// +optional
	RemoteStorage *RemoteStorageSpec `json:"remoteStorage,omitempty"`

	// Integration is what is done to engine pods.
	// +kubebuilder:default={}
	// +optional
	Integration IntegrationSpec `json:"integration,omitzero"`

	// Observation is how engines are watched.
	// +kubebuilder:default={}
	// +optional
	Observation ObservationSpec `json:"observation,omitzero"`

	// KernelCheck tests, in an init container of vLLM pods, that LMCache's
	// native kernels load. Unset: the annotation
	// inferencecache.io/lmcache-kernel-check, else Auto.
	// +optional
	KernelCheck KernelCheck `json:"kernelCheck,omitempty"`

	// AllowCrossNamespace permits an External endpoint whose DNS name is that
	// of a Service or pod in another namespace.
	// +optional
	AllowCrossNamespace bool `json:"allowCrossNamespace,omitempty"`

	// UnwiredPods is what happens to pods of the domain that run without cache
	// because they were created while the webhook was away.
	// +kubebuilder:default=Report
	// +optional
	UnwiredPods UnwiredPods `json:"unwiredPods,omitempty"`

	// DeletionPolicy is what a deleted backend does while engines use it.
	// +kubebuilder:default=Wait
	// +optional
	DeletionPolicy DeletionPolicy `json:"deletionPolicy,omitempty"`

	// DrainTimeout bounds that: then servers go even from under engines.
	// +kubebuilder:default="10m"
	// +kubebuilder:validation:XValidation:rule="duration(self) >= duration('0s')",message="must not be negative"
	// +optional
	DrainTimeout *metav1.Duration `json:"drainTimeout,omitempty"`
}

// EngineSelector selects the engine pods of a backend.
type EngineSelector struct {
	// MatchLabels holds the key inferencecache.io/cache-domain and no other.
	// +kubebuilder:validation:MaxProperties=1
	// +kubebuilder:validation:XValidation:rule="self.all(k, k == 'inferencecache.io/cache-domain')",message="only the key inferencecache.io/cache-domain may define ownership"
	// +kubebuilder:validation:XValidation:rule="self.all(k, self[k].size() <= 63 && self[k].matches('^[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?$'))",message="must be a label value of 1 to 63 letters, digits, '-', '_' and '.'"
	// +optional
	MatchLabels map[string]string `json:"matchLabels,omitempty"`
}

// KernelCheck says when and how strictly the engine's kernels are tested.
//
// +kubebuilder:validation:Enum=Auto;ReportOnly;Strict;Off
type KernelCheck string

const (
	KernelCheckAuto       KernelCheck = "Auto"       // report, where the engine has a GPU
	KernelCheckReportOnly KernelCheck = "ReportOnly" // report, always
	KernelCheckStrict     KernelCheck = "Strict"     // keep the engine from starting
	KernelCheckOff        KernelCheck = "Off"
)

// UnwiredPods is the treatment of pods that should be wired and are not.
//
// +kubebuilder:validation:Enum=Report;Evict
type UnwiredPods string

const (
	UnwiredReport UnwiredPods = "Report" // condition, metric and Event
	UnwiredEvict  UnwiredPods = "Evict"  // one after the other, by the Eviction API
)

// DeletionPolicy is what a deleted backend does while engines use it.
//
// +kubebuilder:validation:Enum=Wait;Evict;Immediate
type DeletionPolicy string

const (
	DeletionWait      DeletionPolicy = "Wait"      // servers stay until no engine uses them
	DeletionEvict     DeletionPolicy = "Evict"     // engines are evicted, then servers go
	DeletionImmediate DeletionPolicy = "Immediate" // servers go at once
)
