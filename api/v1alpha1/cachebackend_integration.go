package v1alpha1

import (
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Mode is how far engines are integrated.
//
// +kubebuilder:validation:Enum=Offload;EventsOnly
type Mode string

const (
	ModeOffload    Mode = "Offload"    // the engine keeps blocks in the backend's tiers
	ModeEventsOnly Mode = "EventsOnly" // the engine only tells what it holds
)

// Role is accepted for old manifests, which may say ReadWrite.
//
// +kubebuilder:validation:Enum=ReadWrite
type Role string

// RoleReadWrite is the only Role.
const RoleReadWrite Role = "ReadWrite"

// KVEvents says who makes engines publish their events.
//
// +kubebuilder:validation:Enum=Inject;External
type KVEvents string

const (
	// KVEventsInject: the webhook adds the engine's flag where it is absent,
	// and the subscriber sidecar that reads what the engine publishes.
	KVEventsInject KVEvents = "Inject"
	// KVEventsExternal: pods bring their publisher and their subscriber.
	KVEventsExternal KVEvents = "External"
)

// IntegrationSpec is what the webhook does to engine pods.
type IntegrationSpec struct {
	// +kubebuilder:default=Offload
	// +optional
	Mode Mode `json:"mode,omitempty"`

	// Role has one value and no effect.
	// +optional
	Role Role `json:"role,omitempty"`

	// FailOpen false lowers Ready while the remote tier is away. What an
	// engine does about a lost tier is the engine's and LMCache's own.
	// +kubebuilder:default=true
	// +optional
	FailOpen *bool `json:"failOpen,omitempty"`

	// KVEvents says who makes engines publish.
	// +kubebuilder:default=Inject
	// +optional
	KVEvents KVEvents `json:"kvEvents,omitempty"`

	// EngineOverrides changes what is injected into the engine container.
	// +optional
	EngineOverrides *EngineOverrides `json:"engineOverrides,omitempty"`
}

// EngineOverrides edits injected arguments and environment. It cannot touch
// what the connector cannot do without; those names are refused.
type EngineOverrides struct {
	// Args replace injected arguments of the same flag, or are appended. They
	// never replace an argument of the pod's own.
	// +kubebuilder:validation:MaxItems=256
	// +listType=atomic
	// +optional
	Args []string `json:"args,omitempty"`
	// SuppressArgs removes injected flags, with their values.
	// +kubebuilder:validation:MaxItems=256
	// +listType=atomic
	// +optional
	SuppressArgs []string `json:"suppressArgs,omitempty"`
	// Env is as Args, by name.
	// +kubebuilder:validation:MaxItems=256
	// +listType=atomic
	// +optional
	Env []corev1.EnvVar `json:"env,omitempty"`
	// SuppressEnv removes injected variables by name.
	// +kubebuilder:validation:MaxItems=256
	// +listType=atomic
	// +optional
	SuppressEnv []string `json:"suppressEnv,omitempty"`
}

// ObservationSpec is how engines are watched.
type ObservationSpec struct {
	// ModelID is the model as gateways ask for it. Unset: the served name, or
	// the model, in the engine's command line.
	// +kubebuilder:validation:MaxLength=1024
	// +optional
	ModelID string `json:"modelID,omitempty"`

	// FirstEventTimeout is how long a new backend may take to its first event
	// before it is Degraded. 5m if not positive.
	// +kubebuilder:default="5m"
	// +kubebuilder:validation:XValidation:rule="duration(self) == duration(self)",message="must be a duration such as 5m"
	// +optional
	FirstEventTimeout *metav1.Duration `json:"firstEventTimeout,omitempty"`

	// StaleAfter is the silence, without event or heartbeat, after which
	// events are stale. Unset: 2m.
	// +kubebuilder:validation:XValidation:rule="duration(self) >= duration('30s')",message="must be at least 30s: heartbeats are 10s apart"
	// +optional
	StaleAfter *metav1.Duration `json:"staleAfter,omitempty"`

	// RequireEvents false keeps events out of Ready. Unset: true, unless the
	// annotation inferencecache.io/require-kv-events is "false".
	// +optional
	RequireEvents *bool `json:"requireEvents,omitempty"`

	// LoRAAdapters names adapters for engines that send numbers only.
	// +kubebuilder:validation:MaxItems=1024
	// +listType=map
	// +listMapKey=id
	// +optional
	LoRAAdapters []LoRAAdapter `json:"loraAdapters,omitempty"`

	// EngineCacheSize is the KV memory of an engine, reported to rankers.
	// +kubebuilder:validation:XValidation:rule="quantity(string(self)).isGreaterThan(quantity('0'))",message="must be positive"
	// +optional
	EngineCacheSize *resource.Quantity `json:"engineCacheSize,omitempty"`
}

// LoRAAdapter names one adapter.
type LoRAAdapter struct {
	// +required
	ID int64 `json:"id"`
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=1024
	// +kubebuilder:validation:Pattern=`^[^,\s]([^,]*[^,\s])?$`
	// +required
	Name string `json:"name"`
}
