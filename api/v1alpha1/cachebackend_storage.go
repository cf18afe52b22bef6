package v1alpha1

import corev1 "k8s.io/api/core/v1"

// Provider is a kind of remote tier.
//
// +kubebuilder:validation:Enum=Redis
type Provider string

// ProviderRedis speaks RESP.
const ProviderRedis Provider = "Redis"

// Ownership says who runs the remote tier.
//
// +kubebuilder:validation:Enum=Managed;External
type Ownership string

const (
	Managed  Ownership = "Managed"  // the operator: one memory-only instance
	External Ownership = "External" // someone else, at an endpoint
)

// RemoteStorageSpec is the tier beyond hosts.
//
// +kubebuilder:validation:XValidation:rule="self.ownership != 'Managed' || !has(self.endpoint)",message="the operator makes the endpoint of Managed storage: remove it",fieldPath=".endpoint"
// +kubebuilder:validation:XValidation:rule="self.ownership != 'External' || has(self.endpoint)",message="External storage needs an endpoint, as host:port"
// +kubebuilder:validation:XValidation:rule="self.ownership != 'External' || !has(self.workload)",message="the operator does not run External storage: remove workload",fieldPath=".workload"
// +kubebuilder:validation:XValidation:rule="self.ownership != 'External' || !has(self.redis) || !has(self.redis.image)",message="the operator does not run External storage: remove redis.image",fieldPath=".redis.image"
// +kubebuilder:validation:XValidation:rule="self.ownership != 'External' || !has(self.redis) || !has(self.redis.resources)",message="the operator does not run External storage: remove redis.resources",fieldPath=".redis.resources"
// +kubebuilder:validation:XValidation:rule="self.ownership != 'Managed' || !has(self.redis) || !has(self.redis.authentication) || !has(self.redis.authentication.username)",message="Managed storage has the default user only: remove the username",fieldPath=".redis.authentication.username"
type RemoteStorageSpec struct {
	// +required
	Provider Provider `json:"provider"`
	// +required
	Ownership Ownership `json:"ownership"`

	// Endpoint of External storage: host:port, an IPv6 address in brackets.
	// +kubebuilder:validation:MaxLength=512
	// +kubebuilder:validation:Pattern=`^(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9.])?):[0-9]{1,5}$`
	// +kubebuilder:validation:XValidation:rule="!self.matches(':[0-9]{1,5}$') || (int(self.substring(self.lastIndexOf(':') + 1)) >= 1 && int(self.substring(self.lastIndexOf(':') + 1)) <= 65535)",message="the port must be between 1 and 65535"
	// +kubebuilder:validation:XValidation:rule="!self.startsWith('[') || isIP(self.substring(1, self.lastIndexOf(']')))",message="brackets hold an IPv6 address"
	// +optional
	Endpoint string `json:"endpoint,omitempty"`

	// RequiredForReady lowers Ready while this tier is away. Unset: the
	// opposite of integration.failOpen.
	// +optional
	RequiredForReady *bool `json:"requiredForReady,omitempty"`

	// Workload is how the pods of Managed storage are placed.
	// +optional
	Workload *WorkloadSpec `json:"workload,omitempty"`

	// +optional
	Redis *RedisSpec `json:"redis,omitempty"`
}

// WorkloadSpec places pods of Managed storage. It is one instance by design.
type WorkloadSpec struct {
	// +optional
	NodeSelector map[string]string `json:"nodeSelector,omitempty"`
	// +optional
	Affinity *corev1.Affinity `json:"affinity,omitempty"`
	// +optional
	// +listType=atomic
	Tolerations []corev1.Toleration `json:"tolerations,omitempty"`
	// +optional
	// +listType=atomic
	TopologySpreadConstraints []corev1.TopologySpreadConstraint `json:"topologySpreadConstraints,omitempty"`
	// +optional
	// +listType=atomic
	ImagePullSecrets []corev1.LocalObjectReference `json:"imagePullSecrets,omitempty"`
	// +optional
	ServiceAccountName string `json:"serviceAccountName,omitempty"`
	// SecurityContext of the pod. Unset: non-root, as restricted Pod Security wants.
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

// RedisSpec is what only Redis has.
type RedisSpec struct {
	// Image of Managed storage. Unset: the operator's.
	// +kubebuilder:validation:MaxLength=1024
	// +kubebuilder:validation:Pattern=`^\S+$`
	// +optional
	Image string `json:"image,omitempty"`

	// Resources of Managed storage. Unset: 4Gi requested, 8Gi limit; {}: none.
	// +optional
	Resources *Resources `json:"resources,omitempty"`

	// Authentication. Unset: Managed storage gets a generated password in the
	// Secret <name>-l3, External storage is used without one.
	// +optional
	Authentication *RedisAuthentication `json:"authentication,omitempty"`
}

// RedisAuthentication names the Secrets that engines log in with.
type RedisAuthentication struct {
	// +required
	Password SecretKey `json:"password"`
	// Username, External storage only.
	// +optional
	Username *SecretKey `json:"username,omitempty"`
}

// SecretKey is one key of a Secret in the backend's namespace.
type SecretKey struct {
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	// +kubebuilder:validation:Pattern=`^[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*$`
	// +required
	Name string `json:"name"`
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	// +kubebuilder:validation:Pattern=`^[-._a-zA-Z0-9]+$`
	// +kubebuilder:validation:XValidation:rule="self != '.' && !self.startsWith('..')",message="is not a valid key"
	// +required
	Key string `json:"key"`
	// Optional false is accepted; a credential that may be absent is not.
	// +kubebuilder:validation:XValidation:rule="!self",message="a credential cannot be optional"
	// +optional
	Optional *bool `json:"optional,omitempty"`
}
