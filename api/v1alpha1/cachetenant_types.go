package v1alpha1

import metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

// IsolationMode is accepted for old manifests.
//
// +kubebuilder:validation:Enum=Fairness
type IsolationMode string

// IsolationFairness is the only IsolationMode.
const IsolationFairness IsolationMode = "Fairness"

// CacheTenant bounds what a tenant may hold in the index.
//
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:resource:path=cachetenants,shortName=ct
// +kubebuilder:printcolumn:name="Tenant",type=string,JSONPath=`.spec.tenantID`
// +kubebuilder:printcolumn:name="Entries",type=integer,JSONPath=`.status.indexEntries`
// +kubebuilder:printcolumn:name="Quota",type=integer,JSONPath=`.spec.quota.maxIndexEntries`
// +kubebuilder:printcolumn:name="Ready",type=string,JSONPath=`.status.conditions[?(@.type=="Ready")].status`
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
type CacheTenant struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// +kubebuilder:default={}
	// +optional
	Spec CacheTenantSpec `json:"spec,omitzero"`
	// +optional
	Status CacheTenantStatus `json:"status,omitzero"`
}

// CacheTenantList is a list of CacheTenants.
//
// +kubebuilder:object:root=true
type CacheTenantList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []CacheTenant `json:"items"`
}

// CacheTenantSpec names a tenant and its bounds.
type CacheTenantSpec struct {
	// TenantID is the tenant as engines report and gateways ask. Unset: the
	// namespace. It may differ only where the Namespace's annotation
	// inferencecache.io/tenant-grants lists it.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	// +kubebuilder:validation:XValidation:rule="self != 'inferencecache.io/probe'",message="is reserved for the self-test"
	// +optional
	TenantID string `json:"tenantID,omitempty"`

	// +optional
	Quota *TenantQuota `json:"quota,omitempty"`

	// IsolationMode has one value and no effect.
	// +optional
	IsolationMode IsolationMode `json:"isolationMode,omitempty"`

	// Crypto is accepted empty and has no effect.
	// +optional
	Crypto *TenantCrypto `json:"crypto,omitempty"`
}

// TenantQuota bounds index entries, the only thing of tenants that servers own.
type TenantQuota struct {
	// MaxIndexEntries is the number of distinct keys (model, hash scheme,
	// adapter, prefix) of the tenant; 0 keeps none, unset: no bound.
	// +kubebuilder:validation:Minimum=0
	// +optional
	MaxIndexEntries *int64 `json:"maxIndexEntries,omitempty"`
}

// TenantCrypto is empty.
//
// +kubebuilder:validation:MaxProperties=0
// +kubebuilder:pruning:PreserveUnknownFields
type TenantCrypto struct{}

// CacheTenantStatus is what servers hold of the tenant.
type CacheTenantStatus struct {
	// +optional
	ObservedGeneration int64 `json:"observedGeneration,omitempty"`
	// IndexEntries is the number of distinct keys, 0 included.
	// +optional
	IndexEntries *int64 `json:"indexEntries,omitempty"`
	// Conditions are Ready and QuotaExceeded.
	// +listType=map
	// +listMapKey=type
	// +optional
	Conditions []metav1.Condition `json:"conditions,omitempty"`
}
