package v1alpha1

import metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

// Eviction is which entries go first when the index is full.
//
// +kubebuilder:validation:Enum=LRU;LFU
type Eviction string

const (
	EvictionLRU Eviction = "LRU" // the oldest
	EvictionLFU Eviction = "LFU" // the least used
)

// Switch is on or off.
//
// +kubebuilder:validation:Enum=Enabled;Disabled
type Switch string

const (
	Enabled  Switch = "Enabled"
	Disabled Switch = "Disabled"
)

// RankingProfile is how replicas are compared.
//
// +kubebuilder:validation:Enum=Cost;Compat
type RankingProfile string

const (
	RankingCost   RankingProfile = "Cost"   // by estimated seconds to the first token
	RankingCompat RankingProfile = "Compat" // by the published formula and its floors
)

// CachePolicy sets how lookups of a namespace are answered. One of a namespace
// is in force: the first by name.
//
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:resource:path=cachepolicies,shortName=cpol
// +kubebuilder:printcolumn:name="Eviction",type=string,JSONPath=`.spec.eviction`
// +kubebuilder:printcolumn:name="Accepted",type=string,JSONPath=`.status.conditions[?(@.type=="Accepted")].status`
// +kubebuilder:printcolumn:name="Programmed",type=string,JSONPath=`.status.conditions[?(@.type=="Programmed")].status`
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
type CachePolicy struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// +required
	Spec CachePolicySpec `json:"spec"`
	// +optional
	Status CachePolicyStatus `json:"status,omitzero"`
}

// CachePolicyList is a list of CachePolicies.
//
// +kubebuilder:object:root=true
type CachePolicyList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []CachePolicy `json:"items"`
}

// CachePolicySpec are the knobs of one namespace.
type CachePolicySpec struct {
	// +kubebuilder:default=LRU
	// +optional
	Eviction Eviction `json:"eviction,omitempty"`

	// EvictionTTL is the age at which an entry is forgotten. Unset: the
	// server's, 30m.
	// +kubebuilder:validation:XValidation:rule="duration(self) > duration('0s')",message="must be positive"
	// +optional
	EvictionTTL *metav1.Duration `json:"evictionTTL,omitempty"`

	// MinimumPrefixTokens: shorter prompts get no hint. Unset: off.
	// +kubebuilder:validation:Minimum=0
	// +optional
	MinimumPrefixTokens *int32 `json:"minimumPrefixTokens,omitempty"`

	// MinimumMatchedTokens: replicas that match fewer are not named; 0 is off.
	// +kubebuilder:default=64
	// +kubebuilder:validation:Minimum=0
	// +optional
	MinimumMatchedTokens *int32 `json:"minimumMatchedTokens,omitempty"`

	// RoutingFloorScore: a best score below it is no match; "0" is off.
	// +kubebuilder:default="0.1"
	// +kubebuilder:validation:MaxLength=16
	// +kubebuilder:validation:Pattern=`^(0|[1-9][0-9]{0,7})(\.[0-9]{1,6})?$`
	// +optional
	RoutingFloorScore *string `json:"routingFloorScore,omitempty"`

	// LookupTimeoutMs is the deadline of a lookup; 0 or unset: none.
	// +kubebuilder:validation:Minimum=0
	// +optional
	LookupTimeoutMs *int32 `json:"lookupTimeoutMs,omitempty"`

	// AffinityRouting allows hints by consistent hash where nothing matches.
	// +kubebuilder:default=Enabled
	// +optional
	AffinityRouting *Switch `json:"affinityRouting,omitempty"`

	// +optional
	Strategy *StrategySpec `json:"strategy,omitempty"`

	// +optional
	Ranking *RankingSpec `json:"ranking,omitempty"`

	// Shadow records lookups and what hints would have saved, and answers none.
	// +optional
	Shadow *bool `json:"shadow,omitempty"`
}

// StrategySpec are the ways to find a replica.
//
// +kubebuilder:validation:XValidation:rule="!self.requireChain || self.enableChainMatching",message="requireChain needs enableChainMatching",fieldPath=".requireChain"
type StrategySpec struct {
	// EnableChainMatching matches leading runs of blocks.
	// +kubebuilder:default=true
	// +optional
	EnableChainMatching *bool `json:"enableChainMatching,omitempty"`
	// RequireChain answers only requests that carry a chain of blocks.
	// +kubebuilder:default=false
	// +optional
	RequireChain *bool `json:"requireChain,omitempty"`
	// EnableTenantHot allows hints to replicas warm with the tenant's prompts.
	// +kubebuilder:default=true
	// +optional
	EnableTenantHot *bool `json:"enableTenantHot,omitempty"`
}

// RankingSpec is how replicas are compared and how many are named.
type RankingSpec struct {
	// +kubebuilder:default=Cost
	// +optional
	Profile RankingProfile `json:"profile,omitempty"`
	// TopK bounds the replicas of an answer; 0 or unset: all.
	// +kubebuilder:validation:Minimum=0
	// +optional
	TopK *int32 `json:"topK,omitempty"`
}

// CachePolicyStatus tells whether and where the policy is in force.
type CachePolicyStatus struct {
	// +optional
	ObservedGeneration int64 `json:"observedGeneration,omitempty"`
	// Conditions are Accepted and Programmed.
	// +listType=map
	// +listMapKey=type
	// +optional
	Conditions []metav1.Condition `json:"conditions,omitempty"`
	// Servers are those that acknowledged a generation of this policy.
	// +kubebuilder:validation:MaxItems=64
	// +listType=map
	// +listMapKey=name
	// +optional
	Servers []PolicyServer `json:"servers,omitempty"`
}

// PolicyServer is what one server serves by.
type PolicyServer struct {
	// Name of the server's pod, or its address where it has none.
	Name string `json:"name"`
	// Generation of the policy that it acknowledged last; 0: none yet.
	Generation int64 `json:"generation"`
	// Message of its refusal, if it refused the newest.
	// +optional
	Message string `json:"message,omitempty"`
}
