package v1alpha1

import metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

// PDTopology is accepted so that manifests apply. Nothing acts on it.
//
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:resource:path=pdtopologies,shortName=pdt
// +kubebuilder:printcolumn:name="Prefill",type=string,JSONPath=`.spec.prefillPools[*].name`
// +kubebuilder:printcolumn:name="Decode",type=string,JSONPath=`.spec.decodePools[*].name`
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
type PDTopology struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// +optional
	Spec PDTopologySpec `json:"spec,omitzero"`
	// +optional
	Status PDTopologyStatus `json:"status,omitzero"`
}

// PDTopologyList is a list of PDTopologies.
//
// +kubebuilder:object:root=true
type PDTopologyList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []PDTopology `json:"items"`
}

// PDTopologySpec names pools that prefill and pools that decode.
type PDTopologySpec struct {
	// +listType=map
	// +listMapKey=name
	// +optional
	PrefillPools []EnginePool `json:"prefillPools,omitempty"`
	// +listType=map
	// +listMapKey=name
	// +optional
	DecodePools []EnginePool `json:"decodePools,omitempty"`
	// +listType=map
	// +listMapKey=name
	// +optional
	AcceleratorTypes []AcceleratorType `json:"acceleratorTypes,omitempty"`
}

// EnginePool is a set of engine pods.
type EnginePool struct {
	// +kubebuilder:validation:MinLength=1
	// +required
	Name string `json:"name"`
	// +optional
	MatchLabels map[string]string `json:"matchLabels,omitempty"`
	// +kubebuilder:validation:Minimum=0
	// +optional
	Replicas *int32 `json:"replicas,omitempty"`
	// +optional
	AcceleratorType string `json:"acceleratorType,omitempty"`
}

// AcceleratorType is a kind of device.
type AcceleratorType struct {
	// +kubebuilder:validation:MinLength=1
	// +required
	Name string `json:"name"`
	// +optional
	Vendor string `json:"vendor,omitempty"`
	// +optional
	Model string `json:"model,omitempty"`
	// +optional
	MatchLabels map[string]string `json:"matchLabels,omitempty"`
}

// PDTopologyStatus is never written.
type PDTopologyStatus struct {
	// +optional
	ObservedGeneration int64 `json:"observedGeneration,omitempty"`
	// +listType=map
	// +listMapKey=type
	// +optional
	Conditions []metav1.Condition `json:"conditions,omitempty"`
}
