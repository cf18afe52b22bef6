package v1alpha1

import metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

// CacheBackendStatus is what was observed. In counts, absent is not yet
// observed and 0 is observed. It has two writers: the reconciler, and the
// bridge, which owns indexParticipation and nothing else.
type CacheBackendStatus struct {
	// ObservedGeneration is the generation whose objects were last applied
	// without error.
	// +optional
	ObservedGeneration int64 `json:"observedGeneration,omitempty"`

	// WiringHash is the hash of what engine pods are wired from now.
	// +optional
	WiringHash string `json:"wiringHash,omitempty"`

	// +listType=map
	// +listMapKey=type
	// +optional
	Conditions []metav1.Condition `json:"conditions,omitempty"`

	// Connector tells of the LMCache servers and their engines.
	// +optional
	Connector *ConnectorStatus `json:"connector,omitempty"`

	// RemoteStorage tells of the remote tier, where there is one.
	// +optional
	RemoteStorage *RemoteStorageStatus `json:"remoteStorage,omitempty"`

	// MatchedEnginePods counts the pods of the domain, terminating ones too.
	// +optional
	MatchedEnginePods *int32 `json:"matchedEnginePods,omitempty"`

	// UnwiredEnginePods counts those that should be wired and are not.
	// +optional
	UnwiredEnginePods *int32 `json:"unwiredEnginePods,omitempty"`

	// OutdatedEnginePods counts those that were wired from an older spec and
	// still work.
	// +optional
	OutdatedEnginePods *int32 `json:"outdatedEnginePods,omitempty"`

	// EngineSelectorMessage explains a count of 0 where engines are expected.
	// +optional
	EngineSelectorMessage string `json:"engineSelectorMessage,omitempty"`

	// FailOpen echoes integration.failOpen as in force.
	// +optional
	FailOpen *bool `json:"failOpen,omitempty"`

	// FirstKVEventObservedAt is when the first event was seen; never cleared.
	// +optional
	FirstKVEventObservedAt *metav1.Time `json:"firstKVEventObservedAt,omitempty"`

	// FirstAvailableAt is when the wait for the first event began.
	// +optional
	FirstAvailableAt *metav1.Time `json:"firstAvailableAt,omitempty"`

	// IndexParticipation is what the servers hold of this backend's engines.
	// +optional
	IndexParticipation *IndexParticipation `json:"indexParticipation,omitempty"`
}

// ConnectorStatus counts servers and the engines they serve.
type ConnectorStatus struct {
	// +optional
	Topology Topology `json:"topology,omitempty"`
	// +kubebuilder:validation:Minimum=0
	MatchedEnginePods int32 `json:"matchedEnginePods"`
	// +kubebuilder:validation:Minimum=0
	ReadyEnginePods int32 `json:"readyEnginePods"`
	// +kubebuilder:validation:Minimum=0
	DesiredServers int32 `json:"desiredServers"`
	// +kubebuilder:validation:Minimum=0
	ReadyServers int32 `json:"readyServers"`
	// +kubebuilder:validation:Minimum=0
	CoveredEnginePods int32 `json:"coveredEnginePods"`
	// +kubebuilder:validation:Minimum=0
	UncoveredEnginePods int32 `json:"uncoveredEnginePods"`

	// EnginePodCoverage is sorted by name; uncovered pods come first when more
	// than 200 exist, and the rest is left out.
	// +kubebuilder:validation:MaxItems=200
	// +listType=map
	// +listMapKey=name
	// +optional
	EnginePodCoverage []EnginePodCoverage `json:"enginePodCoverage,omitempty"`
}

// EnginePodCoverage is one pod's verdict.
type EnginePodCoverage struct {
	Name string `json:"name"`
	// +optional
	NodeName string `json:"nodeName,omitempty"`
	Ready    bool   `json:"ready"`
	Covered  bool   `json:"covered"`
	// Reason is one of ConnectorReady's, or the reason why it was not wired.
	Reason string `json:"reason"`
}

// RemoteStorageStatus tells of the remote tier.
type RemoteStorageStatus struct {
	Provider Provider `json:"provider"`
	// Endpoint is host:port once it is known.
	// +optional
	Endpoint string `json:"endpoint,omitempty"`
	// Ready repeats the status of RemoteStorageReady.
	// +optional
	Ready metav1.ConditionStatus `json:"ready,omitempty"`
	// CredentialsHash changes when the credentials do; it reveals nothing.
	// +optional
	CredentialsHash string `json:"credentialsHash,omitempty"`
}

// IndexParticipation sums what the servers hold of a backend's engines.
type IndexParticipation struct {
	// PrefixCount is the number of prefixes, 0 included.
	PrefixCount int64 `json:"prefixCount"`
	// LastEventAt is the newest event, or heartbeat, of any engine.
	// +optional
	LastEventAt *metav1.Time `json:"lastEventAt,omitempty"`
	// T2HitRate is tokens served over tokens asked of the host tier, a decimal
	// in [0,1] over the last minutes; absent: never asked.
	// +kubebuilder:validation:Pattern=`^(0(\.[0-9]+)?|1(\.0+)?)$`
	// +optional
	T2HitRate *string `json:"t2HitRate,omitempty"`
}
