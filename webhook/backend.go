package webhook

import (
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"inferencecache.io/inferencecache/api/v1alpha1"
	"inferencecache.io/inferencecache/webhook/inject"
)

var spec = field.NewPath("spec")

// Backend checks a CacheBackend against the others of its namespace. old is
// what it replaces; nil on create. An update is refused for violations that it
// brings, and always for those about who owns a domain.
func Backend(b, old *v1alpha1.CacheBackend, others []v1alpha1.CacheBackend) field.ErrorList {
	errs := backendRules(b)
	if old != nil {
		errs = fresh(errs, backendRules(old))
	}
	errs = append(errs, selectorShape(b)...)
	return append(errs, domainIsFree(b, others)...)
}

// backendRules are those of the object alone.
func backendRules(b *v1alpha1.CacheBackend) (errs field.ErrorList) {
	errs = append(errs, kernelCheckAnnotation(b)...)
	errs = append(errs, sameNamespace(b)...)
	if lm := b.Spec.LMCache; lm != nil && lm.PodLocal != nil {
		errs = append(errs, resources(lm.PodLocal.Server.Resources, spec.Child("lmCache", "podLocal", "server", "resources"))...)
	}
	if lm := b.Spec.LMCache; lm != nil && lm.NodeLocal != nil {
		errs = append(errs, resources(lm.NodeLocal.Server.Resources, spec.Child("lmCache", "nodeLocal", "server", "resources"))...)
	}
	if r := b.Spec.RemoteStorage; r != nil && r.Redis != nil {
		errs = append(errs, resources(r.Redis.Resources, spec.Child("remoteStorage", "redis", "resources"))...)
	}
	return append(errs, overrides(b)...)
}

// fresh are the errors that before has not.
func fresh(now, before field.ErrorList) (errs field.ErrorList) {
	for _, err := range now {
		if !slices.ContainsFunc(before, func(was *field.Error) bool {
			return was.Type == err.Type && was.Field == err.Field && was.Detail == err.Detail && fmt.Sprint(was.BadValue) == fmt.Sprint(err.BadValue)
		}) {
			errs = append(errs, err)
		}
	}
	return errs
}

// selectorShape holds a selector to the one key that may define ownership.
func selectorShape(b *v1alpha1.CacheBackend) (errs field.ErrorList) {
	s := b.Spec.EngineSelector
	if s == nil || len(s.MatchLabels) == 0 {
		return nil
	}
	path := spec.Child("engineSelector", "matchLabels")
	for key, value := range s.MatchLabels {
		if key != v1alpha1.LabelCacheDomain {
			errs = append(errs, field.Forbidden(path.Key(key), "only "+v1alpha1.LabelCacheDomain+" may define ownership: label the engine pods with it"))
			continue
		}
		if value == "" {
			errs = append(errs, field.Required(path.Key(key), "name the domain"))
		}
		for _, problem := range validation.IsValidLabelValue(value) {
			errs = append(errs, field.Invalid(path.Key(key), value, problem))
		}
	}
	slices.SortFunc(errs, func(a, b *field.Error) int { return strings.Compare(a.Field, b.Field) })
	return errs
}

// domainIsFree refuses a domain that another backend of the namespace owns.
func domainIsFree(b *v1alpha1.CacheBackend, others []v1alpha1.CacheBackend) field.ErrorList {
	domain := b.Domain()
	if domain == "" {
		return nil
	}
	owner := ""
	for i := range others {
		o := &others[i]
		if o.Name != b.Name && o.Namespace == b.Namespace && o.Domain() == domain && (owner == "" || o.Name < owner) {
			owner = o.Name
		}
	}
	if owner == "" {
		return nil
	}
	path := spec.Child("cacheDomain")
	if b.Spec.CacheDomain == "" {
		path = spec.Child("engineSelector", "matchLabels").Key(v1alpha1.LabelCacheDomain)
	}
	return field.ErrorList{field.Forbidden(path, fmt.Sprintf("domain %q is owned by CacheBackend %s in namespace %s: choose another", domain, owner, b.Namespace))}
}

func kernelCheckAnnotation(b *v1alpha1.CacheBackend) field.ErrorList {
	value := b.Annotations[v1alpha1.AnnotationKernelCheck]
	if _, ok := v1alpha1.ParseKernelCheck(value); ok {
		return nil
	}
	return field.ErrorList{field.NotSupported(field.NewPath("metadata", "annotations").Key(v1alpha1.AnnotationKernelCheck), value, []string{"auto", "report-only", "strict", "off"})}
}

// sameNamespace refuses an External endpoint that names a Service or pod of
// another namespace, unless the backend asks for that.
func sameNamespace(b *v1alpha1.CacheBackend) field.ErrorList {
	r := b.Spec.RemoteStorage
	if r == nil || r.Ownership != v1alpha1.External || b.Spec.AllowCrossNamespace {
		return nil
	}
	namespace := namespaceOf(r.Endpoint)
	if namespace == "" || namespace == b.Namespace {
		return nil
	}
	return field.ErrorList{field.Forbidden(spec.Child("remoteStorage", "endpoint"),
		fmt.Sprintf("%s is in namespace %s: set allowCrossNamespace to use it", r.Endpoint, namespace))}
}

// namespaceOf is the namespace in the cluster DNS name of an endpoint; empty:
// it is no such name.
func namespaceOf(endpoint string) string {
	host := strings.ToLower(strings.TrimSpace(endpoint))
	if _, rest, ok := strings.Cut(host, "://"); ok {
		host = rest
	}
	host, _, _ = strings.Cut(host, "/")
	if at := strings.LastIndexByte(host, ':'); at >= 0 {
		host = host[:at]
	}
	host = strings.TrimSuffix(strings.TrimSuffix(host, "."), ".cluster.local")
	for _, suffix := range []string{".svc", ".pod"} {
		if name, ok := strings.CutSuffix(host, suffix); ok {
			return name[strings.LastIndexByte(name, '.')+1:]
		}
	}
	return ""
}

// overrides checks what overrides would do to the engine container.
func overrides(b *v1alpha1.CacheBackend) (errs field.ErrorList) {
	o := b.Spec.Integration.EngineOverrides
	if o == nil {
		return nil
	}
	path := spec.Child("integration", "engineOverrides")
	args, env, _ := inject.Reserved(b.Spec.Runtime, b.CacheType())
	reserved := func(at *field.Path, one *v1alpha1.EngineOverrides) {
		if name := inject.ReservedIn(args, env, one); name != "" {
			errs = append(errs, field.Forbidden(at, fmt.Sprintf("the cache of %s engines of type %s cannot do without %s", b.Spec.Runtime, b.CacheType(), name)))
		}
	}
	for i, s := range o.Args {
		reserved(path.Child("args").Index(i), &v1alpha1.EngineOverrides{Args: []string{s}})
	}
	for i, s := range o.SuppressArgs {
		reserved(path.Child("suppressArgs").Index(i), &v1alpha1.EngineOverrides{SuppressArgs: []string{s}})
	}
	for i, v := range o.Env {
		reserved(path.Child("env").Index(i).Child("name"), &v1alpha1.EngineOverrides{Env: []corev1.EnvVar{v}})
		errs = append(errs, envVar(v, path.Child("env").Index(i))...)
	}
	for i, s := range o.SuppressEnv {
		reserved(path.Child("suppressEnv").Index(i), &v1alpha1.EngineOverrides{SuppressEnv: []string{s}})
	}
	return errs
}

// envVar is the shape that the API server wants of a pod's variable, told
// before a pod is refused for it.
func envVar(v corev1.EnvVar, path *field.Path) (errs field.ErrorList) {
	if v.Name == "" {
		errs = append(errs, field.Required(path.Child("name"), "name the variable"))
	} else {
		for _, problem := range validation.IsEnvVarName(v.Name) {
			errs = append(errs, field.Invalid(path.Child("name"), v.Name, problem))
		}
	}
	if v.ValueFrom == nil {
		return errs
	}
	if v.Value != "" {
		errs = append(errs, field.Invalid(path.Child("valueFrom"), "", "give value or valueFrom, not both"))
	}
	sources := 0
	for _, given := range []bool{v.ValueFrom.FieldRef != nil, v.ValueFrom.ResourceFieldRef != nil, v.ValueFrom.ConfigMapKeyRef != nil,
		v.ValueFrom.SecretKeyRef != nil, v.ValueFrom.FileKeyRef != nil} {
		if given {
			sources++
		}
	}
	if sources != 1 {
		errs = append(errs, field.Invalid(path.Child("valueFrom"), "", fmt.Sprintf("give exactly one source, not %d", sources)))
	}
	return errs
}
