package webhook

import (
	"fmt"

	"k8s.io/apimachinery/pkg/util/validation/field"

	"inferencecache.io/inferencecache/api/v1alpha1"
)

// Policy checks a CachePolicy: on create it must be the only one of its
// namespace. Which one is in force where several exist all the same, the
// condition Accepted tells.
func Policy(p, old *v1alpha1.CachePolicy, others []v1alpha1.CachePolicy) field.ErrorList {
	if old != nil {
		return nil
	}
	first := ""
	for i := range others {
		if o := &others[i]; o.Namespace == p.Namespace && o.Name != p.Name && (first == "" || o.Name < first) {
			first = o.Name
		}
	}
	if first == "" {
		return nil
	}
	return field.ErrorList{field.Forbidden(field.NewPath("metadata", "name"),
		fmt.Sprintf("namespace %s has CachePolicy %s, and one is in force: edit that one", p.Namespace, first))}
}

// Tenant checks a CacheTenant. grants is the annotation AnnotationTenantGrants
// of its Namespace. An update that keeps the id keeps its right to it.
func Tenant(t, old *v1alpha1.CacheTenant, others []v1alpha1.CacheTenant, grants string) (errs field.ErrorList) {
	id, path := t.Tenant(), spec.Child("tenantID")
	if old != nil && old.Tenant() == id {
		return nil
	}
	if id == v1alpha1.ReservedTenant {
		errs = append(errs, field.Invalid(path, id, "is reserved for the self-test"))
	} else if !v1alpha1.Granted(t.Namespace, id, grants) {
		errs = append(errs, field.Forbidden(path, fmt.Sprintf("namespace %s may bound tenant %s only: remove the field, or let a cluster administrator list %q in the Namespace's annotation %s",
			t.Namespace, t.Namespace, id, v1alpha1.AnnotationTenantGrants)))
	}
	first := ""
	for i := range others {
		if o := &others[i]; o.Namespace == t.Namespace && o.Name != t.Name && o.Tenant() == id && (first == "" || o.Name < first) {
			first = o.Name
		}
	}
	if first != "" {
		errs = append(errs, field.Invalid(path, id, fmt.Sprintf("is bounded by CacheTenant %s of the same namespace", first)))
	}
	return errs
}
