package webhook

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/webhook/admission"

	"inferencecache.io/inferencecache/api/v1alpha1"
	"inferencecache.io/inferencecache/webhook/inject"
)

// backends admits CacheBackends.
type backends struct {
	reader  client.Reader
	options inject.Options
}

// Default sets the one default that a timer hangs on: CRDs are updated apart
// from this program, and those of the first release filled it only within an
// observation that was given.
func (h *backends) Default(_ context.Context, b *v1alpha1.CacheBackend) error {
	if b.Spec.Observation.FirstEventTimeout == nil {
		b.Spec.Observation.FirstEventTimeout = &metav1.Duration{Duration: v1alpha1.DefaultFirstEventTimeout}
	}
	return nil
}

func (h *backends) ValidateCreate(ctx context.Context, b *v1alpha1.CacheBackend) (admission.Warnings, error) {
	return h.validate(ctx, b, nil)
}

func (h *backends) ValidateUpdate(ctx context.Context, old, b *v1alpha1.CacheBackend) (admission.Warnings, error) {
	return h.validate(ctx, b, old)
}

func (h *backends) ValidateDelete(context.Context, *v1alpha1.CacheBackend) (admission.Warnings, error) {
	return nil, nil
}

// +kubebuilder:rbac:groups=inferencecache.io,resources=cachebackends,verbs=list
func (h *backends) validate(ctx context.Context, b, old *v1alpha1.CacheBackend) (admission.Warnings, error) {
	if leaving(b) {
		return nil, nil
	}
	var others v1alpha1.CacheBackendList
	if err := h.reader.List(ctx, &others, client.InNamespace(b.Namespace)); err != nil {
		return nil, fmt.Errorf("list CacheBackends of namespace %s, to see who owns the domain: %w", b.Namespace, err)
	}
	return BackendWarnings(b, old, h.options), invalid("CacheBackend", b.Name, Backend(b, old, others.Items))
}

// policies admits CachePolicies.
type policies struct{ reader client.Reader }

// Default shows the ways of matching and ranking in force, so that what a
// policy does can be read from it.
func (h *policies) Default(_ context.Context, p *v1alpha1.CachePolicy) error {
	if p.Spec.Strategy == nil {
		p.Spec.Strategy = &v1alpha1.StrategySpec{EnableChainMatching: new(true), RequireChain: new(false), EnableTenantHot: new(true)}
	}
	if p.Spec.Ranking == nil {
		p.Spec.Ranking = &v1alpha1.RankingSpec{Profile: v1alpha1.RankingCost}
	}
	return nil
}

// +kubebuilder:rbac:groups=inferencecache.io,resources=cachepolicies,verbs=list
func (h *policies) ValidateCreate(ctx context.Context, p *v1alpha1.CachePolicy) (admission.Warnings, error) {
	var others v1alpha1.CachePolicyList
	if err := h.reader.List(ctx, &others, client.InNamespace(p.Namespace)); err != nil {
		return nil, fmt.Errorf("list CachePolicies of namespace %s, to see whether it has one: %w", p.Namespace, err)
	}
	return nil, invalid("CachePolicy", p.Name, Policy(p, nil, others.Items))
}

func (h *policies) ValidateUpdate(_ context.Context, old, p *v1alpha1.CachePolicy) (admission.Warnings, error) {
	return nil, invalid("CachePolicy", p.Name, Policy(p, old, nil))
}

func (h *policies) ValidateDelete(context.Context, *v1alpha1.CachePolicy) (admission.Warnings, error) {
	return nil, nil
}

// tenants admits CacheTenants.
type tenants struct{ reader client.Reader }

// Default writes out the tenant that is meant.
func (h *tenants) Default(_ context.Context, t *v1alpha1.CacheTenant) error {
	t.Spec.TenantID = t.Tenant()
	return nil
}

func (h *tenants) ValidateCreate(ctx context.Context, t *v1alpha1.CacheTenant) (admission.Warnings, error) {
	return h.validate(ctx, t, nil)
}

func (h *tenants) ValidateUpdate(ctx context.Context, old, t *v1alpha1.CacheTenant) (admission.Warnings, error) {
	return h.validate(ctx, t, old)
}

func (h *tenants) ValidateDelete(context.Context, *v1alpha1.CacheTenant) (admission.Warnings, error) {
	return nil, nil
}

// +kubebuilder:rbac:groups=inferencecache.io,resources=cachetenants,verbs=list
// +kubebuilder:rbac:groups="",resources=namespaces,verbs=get
func (h *tenants) validate(ctx context.Context, t, old *v1alpha1.CacheTenant) (admission.Warnings, error) {
	if leaving(t) {
		return nil, nil
	}
	var namespace corev1.Namespace
	if err := h.reader.Get(ctx, types.NamespacedName{Name: t.Namespace}, &namespace); err != nil {
		return nil, fmt.Errorf("read the Namespace %s, which may grant tenants: %w", t.Namespace, err)
	}
	var others v1alpha1.CacheTenantList
	if err := h.reader.List(ctx, &others, client.InNamespace(t.Namespace)); err != nil {
		return nil, fmt.Errorf("list CacheTenants of namespace %s: %w", t.Namespace, err)
	}
	return nil, invalid("CacheTenant", t.Name, Tenant(t, old, others.Items, namespace.Annotations[v1alpha1.AnnotationTenantGrants]))
}

// leaving reports whether an object is being deleted. Nothing it says matters
// any more, and a rule that it breaks must not keep its finalizer on it.
func leaving(o client.Object) bool { return o.GetDeletionTimestamp() != nil }

// invalid makes violations the answer that kubectl prints field by field.
func invalid(kind, name string, errs field.ErrorList) error {
	if len(errs) == 0 {
		return nil
	}
	return apierrors.NewInvalid(v1alpha1.GroupVersion.WithKind(kind).GroupKind(), name, errs)
}
