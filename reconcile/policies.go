package reconcile

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"inferencecache.io/inferencecache/api/v1alpha1"
	"inferencecache.io/inferencecache/internal/loops"
	"inferencecache.io/inferencecache/internal/policy"
	"inferencecache.io/inferencecache/internal/status"
	"inferencecache.io/inferencecache/reconcile/compile"
	"inferencecache.io/inferencecache/reconcile/judge"
)

// Pusher brings a policy set to every server, and tells how that goes.
type Pusher interface {
	Push(policy.Document) error
	State() loops.PushState
}

// policies has one key: every policy and tenant decides about every other.
type policies struct {
	client client.Client
	pusher Pusher
	heard  *Heard
	log    *slog.Logger
}

// +kubebuilder:rbac:groups=inferencecache.io,resources=cachepolicies;cachetenants,verbs=get;list;watch
// +kubebuilder:rbac:groups=inferencecache.io,resources=cachepolicies/status;cachetenants/status,verbs=get;patch;update
// +kubebuilder:rbac:groups="",resources=namespaces,verbs=get;list;watch

// Reconcile hands the pusher what there is now and writes how that stands. It
// has one worker, so an older list cannot land after a newer one.
func (r *policies) Reconcile(ctx context.Context, _ ctrl.Request) (ctrl.Result, error) {
	in, err := r.gather(ctx)
	if err != nil {
		return ctrl.Result{}, err
	}
	out := compile.Compile(in)
	// Servers keep the set before; State tells, and the log here.
	pushErr := r.pusher.Push(out.Document)
	pushed := r.pusher.State()
	now := metav1.NewTime(time.Now().Truncate(time.Second))
	var tenants []status.Tenant
	if last := r.heard.Last(); last != nil {
		tenants = append([]status.Tenant{}, last.Snapshot.Tenants...)
	}
	errs := []error{pushErr}
	for i := range in.Policies {
		p := &in.Policies[i]
		next := judge.Policy(p, out.Policies[client.ObjectKeyFromObject(p)], pushed, now)
		if equality.Semantic.DeepEqual(next, p.Status) {
			continue
		}
		was := p.DeepCopy()
		p.Status = next
		errs = append(errs, patched(r.client.Status().Patch(ctx, p, client.MergeFrom(was)), "CachePolicy", p))
	}
	for i := range in.Tenants {
		t := &in.Tenants[i]
		next := judge.Tenant(t, out.Tenants[client.ObjectKeyFromObject(t)], tenants, now)
		if equality.Semantic.DeepEqual(next, t.Status) {
			continue
		}
		was := t.DeepCopy()
		t.Status = next
		errs = append(errs, patched(r.client.Status().Patch(ctx, t, client.MergeFrom(was)), "CacheTenant", t))
	}
	return ctrl.Result{}, errors.Join(errs...)
}

func (r *policies) gather(ctx context.Context) (in compile.Input, err error) {
	var p v1alpha1.CachePolicyList
	var t v1alpha1.CacheTenantList
	namespaces := metav1.PartialObjectMetadataList{}
	namespaces.SetGroupVersionKind(corev1.SchemeGroupVersion.WithKind("NamespaceList"))
	for _, list := range []client.ObjectList{&p, &t, &namespaces} {
		if err := r.client.List(ctx, list); err != nil {
			return in, fmt.Errorf("list %T: %w", list, err)
		}
	}
	in.Grants = map[string]string{}
	for _, n := range namespaces.Items {
		if grants := n.Annotations[v1alpha1.AnnotationTenantGrants]; grants != "" {
			in.Grants[n.Name] = grants
		}
	}
	in.Policies, in.Tenants = p.Items, t.Items
	return in, nil
}

// patched names what could not be written; what is gone needs no status.
func patched(err error, kind string, o client.Object) error {
	if client.IgnoreNotFound(err) == nil {
		return nil
	}
	return fmt.Errorf("write the status of %s %s: %w", kind, types.NamespacedName{Namespace: o.GetNamespace(), Name: o.GetName()}, err)
}
