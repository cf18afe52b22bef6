package webhook

import (
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"inferencecache.io/inferencecache/api/v1alpha1"
)

const hugePages = "hugepages-"

// resources checks requests and limits as the API server does for a pod's
// container, so that no pod of ours is refused later.
func resources(r *v1alpha1.Resources, path *field.Path) (errs field.ErrorList) {
	if r == nil {
		return nil
	}
	for _, list := range []struct {
		name   string
		values corev1.ResourceList
	}{{"requests", r.Requests}, {"limits", r.Limits}} {
		for _, name := range sorted(list.values) {
			errs = append(errs, quantity(name, list.values[name], path.Child(list.name).Key(string(name)))...)
		}
	}
	for _, name := range sorted(r.Requests) {
		request := r.Requests[name]
		limit, limited := r.Limits[name]
		at := path.Child("requests").Key(string(name))
		switch native := isNative(name); {
		case native && limited && limit.Cmp(request) < 0:
			errs = append(errs, field.Invalid(at, request.String(), "is above its limit "+limit.String()))
		case !native && !limited:
			errs = append(errs, field.Required(path.Child("limits").Key(string(name)), "must equal the request, "+request.String()))
		case !native && limit.Cmp(request) != 0:
			errs = append(errs, field.Invalid(at, request.String(), "must equal its limit "+limit.String()))
		}
	}
	return errs
}

func sorted(list corev1.ResourceList) []corev1.ResourceName {
	names := make([]corev1.ResourceName, 0, len(list))
	for name := range list {
		names = append(names, name)
	}
	slices.Sort(names)
	return names
}

func isNative(name corev1.ResourceName) bool {
	return name == corev1.ResourceCPU || name == corev1.ResourceMemory || name == corev1.ResourceEphemeralStorage
}

// quantity checks one name and its value.
func quantity(name corev1.ResourceName, q resource.Quantity, path *field.Path) (errs field.ErrorList) {
	if q.Sign() < 0 {
		errs = append(errs, field.Invalid(path, q.String(), "must not be negative"))
	}
	if isNative(name) {
		return errs
	}
	if size, ok := strings.CutPrefix(string(name), hugePages); ok {
		page, err := resource.ParseQuantity(size)
		switch {
		case err != nil || page.Sign() <= 0:
			errs = append(errs, field.Invalid(path, string(name), "must end in the size of a page, as "+hugePages+"2Mi"))
		case q.Value()%page.Value() != 0:
			errs = append(errs, field.Invalid(path, q.String(), "must be a multiple of "+size))
		}
		return errs
	}
	domain, _, vendor := strings.Cut(string(name), "/")
	reserved := domain == "kubernetes.io" || strings.HasSuffix(domain, ".kubernetes.io") || strings.HasPrefix(domain, "requests.")
	if !vendor || reserved || len(validation.IsQualifiedName(string(name))) > 0 {
		return append(errs, field.Invalid(path, string(name), "must be cpu, memory, ephemeral-storage, hugepages-<size> or a name with a vendor's domain"))
	}
	if q.MilliValue()%1000 != 0 {
		errs = append(errs, field.Invalid(path, q.String(), "must be a whole number"))
	}
	return errs
}
