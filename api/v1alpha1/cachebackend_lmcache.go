package v1alpha1

import (
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
)

// Topology is where LMCache servers run.
//
// +kubebuilder:validation:Enum=PodLocal;NodeLocal
type Topology string

const (
	PodLocal  Topology = "PodLocal"  // one server inside each engine pod
	NodeLocal Topology = "NodeLocal" // one server per node, shared by its engines
)

// HybridKV is what an engine does with models of several attention kinds.
//
// +kubebuilder:validation:Enum=Disabled;Engine
type HybridKV string

const (
	HybridKVDisabled HybridKV = "Disabled" // --disable-hybrid-kv-cache-manager is injected
	HybridKVEngine   HybridKV = "Engine"   // left to the engine's own arguments
)

// LMCacheSpec describes the LMCache server of the engines.
//
// +kubebuilder:validation:XValidation:rule="self.topology == 'PodLocal' ? has(self.podLocal) && !has(self.nodeLocal) : has(self.nodeLocal) && !has(self.podLocal)",message="give podLocal for topology PodLocal, nodeLocal for NodeLocal, and not both"
// +kubebuilder:validation:XValidation:rule="!has(self.pageSizeTokens) || (has(self.chunkSizeTokens) ? self.chunkSizeTokens : 256) % self.pageSizeTokens == 0",message="pageSizeTokens must divide chunkSizeTokens (256 if unset)",fieldPath=".pageSizeTokens"
type LMCacheSpec struct {
	// Topology is where servers run.
	// +kubebuilder:default=PodLocal
	// +optional
	Topology Topology `json:"topology,omitempty"`

	// ChunkSizeTokens is the unit in which blocks are stored. Unset: 256.
	// +kubebuilder:validation:Minimum=1
	// +optional
	ChunkSizeTokens *int32 `json:"chunkSizeTokens,omitempty"`

	// PageSizeTokens is SGLang's page size where the engine's own arguments
	// give none. Unset: 16.
	// +kubebuilder:validation:Minimum=1
	// +optional
	PageSizeTokens *int32 `json:"pageSizeTokens,omitempty"`

	// HybridKVCacheManager Disabled injects vLLM's flag of that name, which
	// the connector needs for models of one attention kind and which costs
	// memory for others. Unset: Disabled.
	// +optional
	HybridKVCacheManager HybridKV `json:"hybridKVCacheManager,omitempty"`

	// PodLocal is required for topology PodLocal.
	// +optional
	PodLocal *PodLocalSpec `json:"podLocal,omitempty"`

	// NodeLocal is required for topology NodeLocal.
	// +optional
	NodeLocal *NodeLocalSpec `json:"nodeLocal,omitempty"`
}

// PodLocalSpec is a server inside each engine pod.
type PodLocalSpec struct {
	// +required
	Server PodLocalServer `json:"server"`
}

// PodLocalServer is an LMCache server as a sidecar.
//
// +kubebuilder:validation:XValidation:rule="self.port != self.httpPort",message="port and httpPort must differ",fieldPath=".httpPort"
// +kubebuilder:validation:XValidation:rule="!has(self.resources) || !has(self.resources.requests) || !('memory' in self.resources.requests) || quantity(string(self.resources.requests['memory'])).compareTo(quantity(string(self.l1Capacity)).add(quantity('1Gi'))) >= 0",message="the memory request must be at least l1Capacity + 1Gi: raise or remove it",fieldPath=".resources"
// +kubebuilder:validation:XValidation:rule="!has(self.resources) || !has(self.resources.limits) || !('memory' in self.resources.limits) || quantity(string(self.resources.limits['memory'])).compareTo(quantity(string(self.l1Capacity)).add(quantity('1Gi'))) >= 0",message="the memory limit must be at least l1Capacity + 1Gi: raise or remove it",fieldPath=".resources"
// +kubebuilder:validation:XValidation:rule="!has(self.resources) || !has(self.resources.requests) || !('cpu' in self.resources.requests) || quantity(string(self.resources.requests['cpu'])).isGreaterThan(quantity('0'))",message="the cpu request must be positive",fieldPath=".resources"
type PodLocalServer struct {
	// Image of the server, best pinned by digest. Unset: the operator's,
	// or else the engine's own.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=1024
	// +kubebuilder:validation:Pattern=`^\S+$`
	// +optional
	Image string `json:"image,omitempty"`

	// Port that engines connect to on loopback.
	// +kubebuilder:default=5555
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=65535
	// +kubebuilder:validation:XValidation:rule="self != 5557",message="5557 is where engines publish KV events"
	// +optional
	Port int32 `json:"port,omitempty"`

	// HTTPPort serves health and metrics on the pod's address. Set another
	// where the engine listens on 8080.
	// +kubebuilder:default=8080
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=65535
	// +kubebuilder:validation:XValidation:rule="self != 5557",message="5557 is where engines publish KV events"
	// +optional
	HTTPPort int32 `json:"httpPort,omitempty"`

	// L1Capacity is the host memory for KV blocks.
	// +kubebuilder:validation:XValidation:rule="quantity(string(self)).isGreaterThan(quantity('0'))",message="must be positive"
	// +required
	L1Capacity resource.Quantity `json:"l1Capacity"`

	// MaxWorkers bounds the requests served at a time.
	// +kubebuilder:default=4
	// +kubebuilder:validation:Minimum=1
	// +optional
	MaxWorkers int32 `json:"maxWorkers,omitempty"`

	// Resources of the container. What is not given is derived: cpu request 1,
	// memory request and limit l1Capacity + 1Gi.
	// +optional
	Resources *Resources `json:"resources,omitempty"`
}

// NodeLocalSpec is one server per node.
type NodeLocalSpec struct {
	// +required
	Server NodeLocalServer `json:"server"`

	// IdleRetentionSeconds is how long a server outlives the last engine on
	// its node; 0 removes it at once.
	// +kubebuilder:default=300
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=86400
	// +optional
	IdleRetentionSeconds *int32 `json:"idleRetentionSeconds,omitempty"`

	// Scheduling of the server pods, over what they inherit from the engines.
	// +optional
	Scheduling *NodeLocalScheduling `json:"scheduling,omitempty"`
}

// NodeLocalServer is an LMCache server with the network of its node.
//
// +kubebuilder:validation:XValidation:rule="self.port != self.httpPort",message="port and httpPort are both ports of the node and must differ",fieldPath=".httpPort"
// +kubebuilder:validation:XValidation:rule="!has(self.resources) || !has(self.resources.requests) || !('memory' in self.resources.requests) || quantity(string(self.resources.requests['memory'])).compareTo(quantity(string(self.l1Capacity)).add(quantity('1Gi'))) >= 0",message="the memory request must be at least l1Capacity + 1Gi: raise or remove it",fieldPath=".resources"
// +kubebuilder:validation:XValidation:rule="!has(self.resources) || !has(self.resources.limits) || !('memory' in self.resources.limits) || quantity(string(self.resources.limits['memory'])).compareTo(quantity(string(self.l1Capacity)).add(quantity('1Gi'))) >= 0",message="the memory limit must be at least l1Capacity + 1Gi: raise or remove it",fieldPath=".resources"
// +kubebuilder:validation:XValidation:rule="!has(self.resources) || !has(self.resources.requests) || !('cpu' in self.resources.requests) || quantity(string(self.resources.requests['cpu'])).isGreaterThan(quantity('0'))",message="the cpu request must be positive",fieldPath=".resources"
// +kubebuilder:validation:XValidation:rule="!has(self.resources) || ((!has(self.resources.requests) || !('nvidia.com/gpu' in self.resources.requests)) && (!has(self.resources.limits) || !('nvidia.com/gpu' in self.resources.limits)))",message="a server of the node shares the engines' GPUs: remove nvidia.com/gpu",fieldPath=".resources"
type NodeLocalServer struct {
	// Image of the server, best pinned by digest. Unset: the operator's.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=1024
	// +kubebuilder:validation:Pattern=`^\S+$`
	// +optional
	Image string `json:"image,omitempty"`

	// Port of the node that engines connect to.
	// +kubebuilder:default=5555
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=65535
	// +optional
	Port int32 `json:"port,omitempty"`

	// HTTPPort of the node serves health, configuration and metrics.
	// +kubebuilder:default=5556
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=65535
	// +optional
	HTTPPort int32 `json:"httpPort,omitempty"`

	// L1Capacity is the node's memory for KV blocks.
	// +kubebuilder:validation:XValidation:rule="quantity(string(self)).isGreaterThan(quantity('0'))",message="must be positive"
	// +required
	L1Capacity resource.Quantity `json:"l1Capacity"`

	// MaxGPUWorkers bounds the engines of a node.
	// +kubebuilder:default=8
	// +kubebuilder:validation:Minimum=1
	// +optional
	MaxGPUWorkers int32 `json:"maxGPUWorkers,omitempty"`

	// MaxCPUWorkers bounds the requests served at a time.
	// +kubebuilder:default=4
	// +kubebuilder:validation:Minimum=1
	// +optional
	MaxCPUWorkers int32 `json:"maxCPUWorkers,omitempty"`

	// Resources of the container. What is not given is derived: cpu request 1,
	// memory request and limit l1Capacity + 1Gi.
	// +optional
	Resources *Resources `json:"resources,omitempty"`
}

// Resources are requests and limits of a container.
//
// +kubebuilder:validation:XValidation:rule="!has(self.requests) || !has(self.limits) || ['cpu', 'memory', 'ephemeral-storage'].all(n, !(n in self.requests) || !(n in self.limits) || quantity(string(self.limits[n])).compareTo(quantity(string(self.requests[n]))) >= 0)",message="a limit must not be below its request"
type Resources struct {
	// +kubebuilder:validation:MaxProperties=8
	// +kubebuilder:validation:XValidation:rule="self.all(n, n in ['cpu', 'memory', 'ephemeral-storage'] || n.startsWith('hugepages-') || (n.contains('/') && !n.startsWith('kubernetes.io/') && !n.startsWith('requests.')))",message="must be cpu, memory, ephemeral-storage, hugepages-<size> or a name with a vendor's domain"
	// +kubebuilder:validation:XValidation:rule="self.all(n, !quantity(string(self[n])).isLessThan(quantity('0')))",message="must not be negative"
	// +optional
	Requests corev1.ResourceList `json:"requests,omitempty"`

	// +kubebuilder:validation:MaxProperties=8
	// +kubebuilder:validation:XValidation:rule="self.all(n, n in ['cpu', 'memory', 'ephemeral-storage'] || n.startsWith('hugepages-') || (n.contains('/') && !n.startsWith('kubernetes.io/') && !n.startsWith('requests.')))",message="must be cpu, memory, ephemeral-storage, hugepages-<size> or a name with a vendor's domain"
	// +kubebuilder:validation:XValidation:rule="self.all(n, !quantity(string(self[n])).isLessThan(quantity('0')))",message="must not be negative"
	// +optional
	Limits corev1.ResourceList `json:"limits,omitempty"`
}

// NodeLocalScheduling is how the pods of NodeLocal servers are placed.
type NodeLocalScheduling struct {
	// +optional
	// +listType=atomic
	Tolerations []corev1.Toleration `json:"tolerations,omitempty"`
	// +optional
	// +listType=atomic
	ImagePullSecrets []corev1.LocalObjectReference `json:"imagePullSecrets,omitempty"`
	// +optional
	ServiceAccountName string `json:"serviceAccountName,omitempty"`
	// +optional
	SecurityContext *corev1.PodSecurityContext `json:"securityContext,omitempty"`
	// +optional
	PriorityClassName string `json:"priorityClassName,omitempty"`
	// +optional
	SchedulerName string `json:"schedulerName,omitempty"`
	// +optional
	RuntimeClassName *string `json:"runtimeClassName,omitempty"`
	// +kubebuilder:validation:Minimum=0
	// +optional
	TerminationGracePeriodSeconds *int64 `json:"terminationGracePeriodSeconds,omitempty"`
}

// WritePolicy is when SGLang copies blocks to the host.
//
// +kubebuilder:validation:Enum=write_back;write_through;write_through_selective
type WritePolicy string

// IOBackend is how SGLang moves blocks between tiers.
//
// +kubebuilder:validation:Enum=direct;kernel;kernel_ascend
type IOBackend string

// MemoryLayout is how SGLang lays out blocks in host memory.
//
// +kubebuilder:validation:Enum=layer_first;page_first;page_first_direct;page_first_kv_split;page_head
type MemoryLayout string

// HiCacheSpec is SGLang's own host tier.
//
// +kubebuilder:validation:XValidation:rule="has(self.sizeGB) != has(self.ratio)",message="give exactly one of sizeGB and ratio"
type HiCacheSpec struct {
	// SizeGB is the host memory per rank in 10^9 bytes.
	// +kubebuilder:validation:Minimum=1
	// +optional
	SizeGB *int32 `json:"sizeGB,omitempty"`

	// Ratio is host memory over device memory, as a decimal number.
	// +kubebuilder:validation:MaxLength=32
	// +kubebuilder:validation:Pattern=`^\+?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][-+]?[0-9]{1,2})?$`
	// +kubebuilder:validation:XValidation:rule="double(self) > 0.0",message="must be positive"
	// +optional
	Ratio string `json:"ratio,omitempty"`

	// WritePolicy, unset: the engine's default.
	// +optional
	WritePolicy WritePolicy `json:"writePolicy,omitempty"`
	// IOBackend, unset: the engine's default.
	// +optional
	IOBackend IOBackend `json:"ioBackend,omitempty"`
	// MemoryLayout, unset: the engine's default.
	// +optional
	MemoryLayout MemoryLayout `json:"memoryLayout,omitempty"`
}
