package v1alpha1

import metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

// CacheIndex is what the servers hold, seen from the cluster. There is one,
// named cluster-default; the operator makes it.
//
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:resource:path=cacheindices,singular=cacheindex,scope=Cluster,shortName=ci
// +kubebuilder:printcolumn:name="Prefixes",type=integer,JSONPath=`.status.prefixes.summary.total`
// +kubebuilder:printcolumn:name="Changed",type=date,JSONPath=`.status.lastUpdated`
// +kubebuilder:printcolumn:name="Read",type=string,JSONPath=`.status.conditions[?(@.type=="SnapshotsRead")].status`
// +kubebuilder:printcolumn:name="Pushed",type=string,JSONPath=`.status.conditions[?(@.type=="PolicyPushed")].status`
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
type CacheIndex struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// +optional
	Spec CacheIndexSpec `json:"spec,omitzero"`
	// +optional
	Status CacheIndexStatus `json:"status,omitzero"`
}

// CacheIndexList is a list of CacheIndices.
//
// +kubebuilder:object:root=true
type CacheIndexList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []CacheIndex `json:"items"`
}

// CacheIndexSpec is empty.
type CacheIndexSpec struct{}

// CacheIndexStatus sums up the servers' snapshots. Metrics and the command
// line hold more: this object is bounded.
type CacheIndexStatus struct {
	// Conditions are SnapshotsRead, PolicyPushed and SelfTest.
	// +listType=map
	// +listMapKey=type
	// +optional
	Conditions []metav1.Condition `json:"conditions,omitempty"`

	// Servers are those whose snapshots are in here.
	// +kubebuilder:validation:MaxItems=64
	// +listType=map
	// +listMapKey=name
	// +optional
	Servers []IndexServer `json:"servers,omitempty"`

	// Replicas are the first 500 by id.
	// +kubebuilder:validation:MaxItems=500
	// +listType=map
	// +listMapKey=tenant
	// +listMapKey=id
	// +optional
	Replicas []IndexReplica `json:"replicas,omitempty"`

	// ReplicasTotal counts those that were left out of replicas too.
	// +optional
	ReplicasTotal *int64 `json:"replicasTotal,omitempty"`

	// Tenants are the 500 with most entries.
	// +kubebuilder:validation:MaxItems=500
	// +listType=map
	// +listMapKey=id
	// +optional
	Tenants []IndexTenant `json:"tenants,omitempty"`

	// +optional
	Prefixes *IndexPrefixes `json:"prefixes,omitempty"`

	// ObservedServer is where the snapshot of prefixes came from.
	// +optional
	ObservedServer string `json:"observedServer,omitempty"`

	// LastUpdated is when anything of this status but times last changed.
	// +optional
	LastUpdated *metav1.Time `json:"lastUpdated,omitempty"`
}

// IndexServer is one server.
type IndexServer struct {
	// Name of the server's pod, or its address where it has none.
	Name string `json:"name"`
	// Reachable in the last round.
	Reachable bool `json:"reachable"`
	// Prefixes it holds.
	// +optional
	Prefixes *int64 `json:"prefixes,omitempty"`
}

// IndexReplica is one engine as servers see it.
type IndexReplica struct {
	// Tenant is the engine's namespace; "" is none.
	// +kubebuilder:default=""
	Tenant string `json:"tenant"`
	// ID is the engine's pod.
	ID string `json:"id"`
	// +optional
	CacheMemoryBytes int64 `json:"cacheMemoryBytes,omitempty"`
	// HitRate is a decimal in [0,1]; absent: never reported.
	// +optional
	HitRate *string `json:"hitRate,omitempty"`
	// Pressure is a decimal in [0,1].
	// +optional
	Pressure string `json:"pressure,omitempty"`
	// +optional
	LastUpdate *metav1.Time `json:"lastUpdate,omitempty"`
}

// IndexTenant is one tenant as servers see it.
type IndexTenant struct {
	// ID "" is without tenant.
	ID string `json:"id"`
	// +optional
	IndexEntries *int64 `json:"indexEntries,omitempty"`
	// HitRate is a decimal in [0,1]; absent: never reported.
	// +optional
	HitRate *string `json:"hitRate,omitempty"`
}

// IndexPrefixes counts prefixes.
type IndexPrefixes struct {
	Summary IndexPrefixSummary `json:"summary"`
}

// IndexPrefixSummary counts prefixes over all tenants.
type IndexPrefixSummary struct {
	Total int64 `json:"total"`
}
