// Package v1alpha1 is the vocabulary of the operator: the kinds of the group
// inferencecache.io, and every label, annotation, condition and reason name
// that someone else may match. Rules of one field, or between fields of one
// object, are markers here and end as OpenAPI and CEL in the CRDs under
// deploy/crds; only what needs a namespace or a second object is left to the
// webhook package. Derived values that several rooms must agree on (names of
// children, effective settings) are methods here. It talks to no cluster.
//
// +kubebuilder:object:generate=true
// +groupName=inferencecache.io
package v1alpha1
