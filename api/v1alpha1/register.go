package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// GroupVersion is the group and the only version of these kinds.
var GroupVersion = schema.GroupVersion{Group: "inferencecache.io", Version: "v1alpha1"}

// SchemeBuilder collects the kinds; AddToScheme registers them all.
var (
	SchemeBuilder = runtime.NewSchemeBuilder(addKnownTypes)
	AddToScheme   = SchemeBuilder.AddToScheme
)

func addKnownTypes(scheme *runtime.Scheme) error {
	scheme.AddKnownTypes(GroupVersion,
		&CacheBackend{}, &CacheBackendList{},
		&CachePolicy{}, &CachePolicyList{},
		&CacheTenant{}, &CacheTenantList{},
		&CacheIndex{}, &CacheIndexList{},
		&PromptTemplate{}, &PromptTemplateList{},
		&PDTopology{}, &PDTopologyList{},
	)
	metav1.AddToGroupVersion(scheme, GroupVersion)
	return nil
}
