package reconcile

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/apiutil"

	"inferencecache.io/inferencecache/api/v1alpha1"
	"inferencecache.io/inferencecache/reconcile/judge"
	"inferencecache.io/inferencecache/reconcile/render"
)

const (
	// annotationApplied is a hash of what an object was written as. With it, a
	// field that is not wanted any more is seen as a difference.
	annotationApplied = "inferencecache.io/applied-hash"
	// secretEvery is how often a Secret is looked at; nothing watches Secrets.
	secretEvery = time.Minute
)

// secretState is what is known of the Secret of Managed storage.
type secretState struct {
	ref               string // its name and key
	conflict, missing string
	credentials       string
}

// +kubebuilder:rbac:groups=apps,resources=deployments,verbs=get;list;watch;create;update;delete
// +kubebuilder:rbac:groups="",resources=services,verbs=get;list;watch;create;update;delete
// +kubebuilder:rbac:groups=networking.k8s.io,resources=networkpolicies,verbs=get;list;watch;create;update;delete

// storage brings about Managed storage, or removes it where it is not wanted,
// and sees how External storage does.
func (r *backends) storage(ctx context.Context, b *v1alpha1.CacheBackend, o *judge.Observed, m *memory) error {
	name := client.ObjectKeyFromObject(b)
	if !managed(b) {
		if remote := b.Spec.RemoteStorage; remote != nil && judge.ValidEndpoint(b.RemoteEndpoint()) && !b.EventsOnly() {
			o.Remote.Dial = r.dials.Ask(name, b.RemoteEndpoint())
		} else {
			r.dials.Forget(name)
		}
		return r.shed(ctx, b)
	}
	r.dials.Forget(name)
	if err := r.lookAtSecret(ctx, b, m); err != nil {
		return err
	}
	o.Remote.Conflict, o.Remote.MissingSecret, o.Remote.Credentials = m.secret.conflict, m.secret.missing, m.secret.credentials
	if m.secret.credentials == "" {
		return nil
	}
	want := render.Redis(b, m.secret.credentials, r.config.render())
	_, policyErr := ensure(ctx, r, b, o, want.NetworkPolicy, &networkingv1.NetworkPolicy{})
	service, serviceErr := ensure(ctx, r, b, o, want.Service, &corev1.Service{})
	deployment, deploymentErr := ensure(ctx, r, b, o, want.Deployment, &appsv1.Deployment{})
	o.Remote.Service, o.Remote.Deployment = service, deployment
	return errors.Join(policyErr, serviceErr, deploymentErr)
}

// ensure makes one object what is wanted and returns it as it is; nil: it is
// not there, or not ours. Objects are created and then updated by version, so
// that nothing of the same name is ever taken over.
func ensure[T client.Object](ctx context.Context, r *backends, b *v1alpha1.CacheBackend, o *judge.Observed, want, have T) (none T, _ error) {
	mark(want)
	err := r.client.Get(ctx, client.ObjectKeyFromObject(want), have)
	switch {
	case apierrors.IsNotFound(err):
		if err = r.client.Create(ctx, want); err == nil {
			return want, nil
		} else if !apierrors.IsAlreadyExists(err) {
			return none, fmt.Errorf("create %s: %w", called(want, r), err)
		}
		ours, err := r.isOurs(ctx, b, want)
		if err == nil && !ours {
			o.Remote.Conflict = called(want, r)
		}
		return none, err // ours: the cache has yet to see it
	case err != nil:
		return none, fmt.Errorf("read %s: %w", called(want, r), err)
	case !metav1.IsControlledBy(have, b):
		o.Remote.Conflict = called(want, r)
		return none, nil
	case !have.GetDeletionTimestamp().IsZero() || matches(want, have):
		return have, nil
	}
	next := have.DeepCopyObject().(T)
	replace(next, want)
	if err := r.client.Update(ctx, next); err != nil {
		return have, fmt.Errorf("update %s: %w", called(want, r), err)
	}
	return next, nil
}

// isOurs asks the API server itself whose an object is.
func (r *backends) isOurs(ctx context.Context, b *v1alpha1.CacheBackend, o client.Object) (bool, error) {
	gvk, err := apiutil.GVKForObject(o, r.client.Scheme())
	if err != nil {
		return false, err
	}
	found := &metav1.PartialObjectMetadata{}
	found.SetGroupVersionKind(gvk)
	if err := r.live.Get(ctx, client.ObjectKeyFromObject(o), found); err != nil {
		return false, fmt.Errorf("read %s: %w", called(o, r), err)
	}
	return metav1.IsControlledBy(found, b), nil
}

// called is an object's kind and name.
func called(o client.Object, r *backends) string {
	kind := "object"
	if gvk, err := apiutil.GVKForObject(o, r.client.Scheme()); err == nil {
		kind = gvk.Kind
	}
	return kind + " " + o.GetName()
}

// mark writes the hash of a rendered object into it.
func mark(o client.Object) {
	text, err := json.Marshal(o)
	if err != nil {
		panic("bug: a rendered object that is no JSON: " + err.Error())
	}
	sum := sha256.Sum256(text)
	annotations := o.GetAnnotations()
	if annotations == nil {
		annotations = map[string]string{}
	}
	annotations[annotationApplied] = hex.EncodeToString(sum[:8])
	o.SetAnnotations(annotations)
}

// matches reports whether an object is as wanted in everything that is wanted;
// what others, or defaults, added does not count.
func matches(want, have client.Object) bool {
	if !equality.Semantic.DeepDerivative(want.GetLabels(), have.GetLabels()) || !equality.Semantic.DeepDerivative(want.GetAnnotations(), have.GetAnnotations()) {
		return false
	}
	switch w := want.(type) {
	case *appsv1.Deployment:
		return equality.Semantic.DeepDerivative(w.Spec, have.(*appsv1.Deployment).Spec)
	case *corev1.Service:
		return equality.Semantic.DeepDerivative(w.Spec, have.(*corev1.Service).Spec)
	case *networkingv1.NetworkPolicy:
		return equality.Semantic.DeepEqual(w.Spec, have.(*networkingv1.NetworkPolicy).Spec)
	}
	panic(fmt.Sprintf("bug: %T is not rendered", want))
}

// replace makes next what is wanted, but for what the API server gave it.
func replace(next, want client.Object) {
	labels, annotations := next.GetLabels(), next.GetAnnotations()
	if annotations == nil {
		annotations = map[string]string{}
	}
	if labels == nil {
		labels = map[string]string{}
	}
	for key, value := range want.GetLabels() {
		labels[key] = value
	}
	for key, value := range want.GetAnnotations() {
		annotations[key] = value
	}
	next.SetLabels(labels)
	next.SetAnnotations(annotations)
	switch w := want.(type) {
	case *appsv1.Deployment:
		next.(*appsv1.Deployment).Spec = w.Spec
	case *corev1.Service:
		s := next.(*corev1.Service)
		s.Spec.Type, s.Spec.Selector, s.Spec.Ports = w.Spec.Type, w.Spec.Selector, w.Spec.Ports
	case *networkingv1.NetworkPolicy:
		next.(*networkingv1.NetworkPolicy).Spec = w.Spec
	}
}

// +kubebuilder:rbac:groups="",resources=secrets,verbs=get;create;delete

// lookAtSecret sees that there is a password, making one where none is named.
// Only its metadata is read: the word for it changes with every write to it.
func (r *backends) lookAtSecret(ctx context.Context, b *v1alpha1.CacheBackend, m *memory) error {
	ref := b.RemotePassword()
	reference := ref.Name + "/" + ref.Key
	if m.secret.credentials != "" && m.secret.ref == reference && time.Since(m.secretAt) < secretEvery {
		return nil
	}
	own := ref.Name == b.RemoteName() && (b.Spec.RemoteStorage.Redis == nil || b.Spec.RemoteStorage.Redis.Authentication == nil)
	secret := &metav1.PartialObjectMetadata{}
	secret.SetGroupVersionKind(corev1.SchemeGroupVersion.WithKind("Secret"))
	err := r.live.Get(ctx, types.NamespacedName{Namespace: b.Namespace, Name: ref.Name}, secret)
	if apierrors.IsNotFound(err) && own {
		made := render.RedisSecret(b, rand.Text())
		if err := r.client.Create(ctx, made); err != nil {
			return fmt.Errorf("create Secret %s: %w", made.Name, err)
		}
		secret.ObjectMeta = made.ObjectMeta
		err = nil
	}
	m.secretAt, m.secret = time.Now(), secretState{ref: reference}
	switch {
	case apierrors.IsNotFound(err):
		m.secret.missing = "Secret " + ref.Name
		return nil
	case err != nil:
		return fmt.Errorf("read Secret %s: %w", ref.Name, err)
	case own && !metav1.IsControlledBy(secret, b):
		m.secret.conflict = "Secret " + ref.Name
		return nil
	}
	sum := sha256.Sum256([]byte(string(secret.UID) + "/" + secret.ResourceVersion + "/" + ref.Key))
	m.secret.credentials = hex.EncodeToString(sum[:8])
	return nil
}

// shed removes what Managed storage left of an earlier spec.
func (r *backends) shed(ctx context.Context, b *v1alpha1.CacheBackend) error {
	name := types.NamespacedName{Namespace: b.Namespace, Name: b.RemoteName()}
	var errs []error
	shed := false
	for _, o := range []client.Object{&appsv1.Deployment{}, &corev1.Service{}, &networkingv1.NetworkPolicy{}} {
		err := r.client.Get(ctx, name, o)
		if apierrors.IsNotFound(err) || err == nil && (!metav1.IsControlledBy(o, b) || !o.GetDeletionTimestamp().IsZero()) {
			continue
		}
		if err == nil {
			shed = true
			err = r.client.Delete(ctx, o, client.Preconditions{UID: new(o.GetUID())})
		}
		errs = append(errs, client.IgnoreNotFound(err))
	}
	if shed {
		errs = append(errs, r.shedSecret(ctx, b))
	}
	return errors.Join(errs...)
}

func (r *backends) shedSecret(ctx context.Context, b *v1alpha1.CacheBackend) error {
	secret := &metav1.PartialObjectMetadata{}
	secret.SetGroupVersionKind(corev1.SchemeGroupVersion.WithKind("Secret"))
	if err := r.live.Get(ctx, types.NamespacedName{Namespace: b.Namespace, Name: b.RemoteName()}, secret); err != nil {
		return client.IgnoreNotFound(err)
	}
	if !metav1.IsControlledBy(secret, b) {
		return nil
	}
	return client.IgnoreNotFound(r.client.Delete(ctx, secret, client.Preconditions{UID: new(secret.GetUID())}))
}
