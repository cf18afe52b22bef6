package v1alpha1

import metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

// SlotType says whether a slot's text is the same in most prompts.
//
// +kubebuilder:validation:Enum=Stable;Mutable
type SlotType string

const (
	SlotStable  SlotType = "Stable"
	SlotMutable SlotType = "Mutable"
)

// PromptTemplate is accepted so that manifests apply. Nothing acts on it.
//
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:resource:path=prompttemplates,shortName=pt
// +kubebuilder:printcolumn:name="Revision",type=string,JSONPath=`.status.templateRevision`
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
type PromptTemplate struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// +required
	Spec PromptTemplateSpec `json:"spec"`
	// +optional
	Status PromptTemplateStatus `json:"status,omitzero"`
}

// PromptTemplateList is a list of PromptTemplates.
//
// +kubebuilder:object:root=true
type PromptTemplateList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []PromptTemplate `json:"items"`
}

// PromptTemplateSpec is a text with named slots.
type PromptTemplateSpec struct {
	// +kubebuilder:validation:MinLength=1
	// +required
	Body string `json:"body"`
	// +listType=map
	// +listMapKey=name
	// +optional
	Slots []PromptSlot `json:"slots,omitempty"`
}

// PromptSlot is one slot.
type PromptSlot struct {
	// +kubebuilder:validation:MinLength=1
	// +required
	Name string `json:"name"`
	// +required
	Type SlotType `json:"type"`
	// +optional
	Required *bool `json:"required,omitempty"`
	// +optional
	Description string `json:"description,omitempty"`
}

// PromptTemplateStatus is never written.
type PromptTemplateStatus struct {
	// +optional
	ObservedGeneration int64 `json:"observedGeneration,omitempty"`
	// +optional
	TemplateRevision string `json:"templateRevision,omitempty"`
	// +listType=map
	// +listMapKey=type
	// +optional
	Conditions []metav1.Condition `json:"conditions,omitempty"`
}
