package certs

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"slices"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// owner is the field manager of the bundles.
const owner = "inference-cache-webhook-certificate"

// Options say where a process finds its certificate and who must trust it.
type Options struct {
	// Dir is a folder with tls.crt and tls.key that somebody else keeps, as
	// cert-manager does; empty: the certificate is our own, and what follows
	// says where.
	Dir string

	Namespace  string // of Secret and Service
	Secret     string // holds the certificates; it exists, empty at first
	Service    string // by which the API server reaches the webhooks
	Mutating   string // MutatingWebhookConfiguration that gets the bundle
	Validating string // ValidatingWebhookConfiguration that gets the bundle
}

// InNamespace are the options of an installation with the names that the
// manifest has.
func InNamespace(namespace string) Options {
	return Options{
		Namespace: namespace, Secret: "webhook-server-cert", Service: "webhook-service",
		Mutating: "inference-cache-mutating-webhook-configuration", Validating: "inference-cache-validating-webhook-configuration",
	}
}

// Names are the DNS names of the Service; the first is what API servers use.
func (o Options) Names() []string {
	name := o.Service + "." + o.Namespace + ".svc"
	return []string{name, name + ".cluster.local"}
}

// cluster is the Store on an API server.
type cluster struct {
	client  client.Client
	options Options
}

// Cluster keeps certificates in a cluster. The client must not cache: it is
// asked for one Secret, and a cache would hold all of them.
func Cluster(c client.Client, o Options) Store { return &cluster{c, o} }

// +kubebuilder:rbac:groups="",namespace=inference-cache-system,resources=secrets,resourceNames=webhook-server-cert,verbs=get;patch

// Load reads the Secret.
func (c *cluster) Load(ctx context.Context) (map[string][]byte, string, error) {
	secret := c.secret()
	if err := c.client.Get(ctx, client.ObjectKeyFromObject(secret), secret); apierrors.IsNotFound(err) {
		return nil, "", fmt.Errorf("secret %s/%s does not exist: apply the manifest, which has it, again", secret.Namespace, secret.Name)
	} else if err != nil {
		return nil, "", fmt.Errorf("read secret %s/%s: %w", secret.Namespace, secret.Name, err)
	}
	return secret.Data, secret.ResourceVersion, nil
}

// Save patches, so that what others wrote on the Secret stays.
func (c *cluster) Save(ctx context.Context, data map[string][]byte, version string) error {
	secret := c.secret()
	patch, err := json.Marshal(map[string]any{"metadata": map[string]string{"resourceVersion": version}, "data": data})
	if err != nil {
		return fmt.Errorf("encode secret %s/%s: %w", secret.Namespace, secret.Name, err)
	}
	if err := c.client.Patch(ctx, secret, client.RawPatch(types.MergePatchType, patch), client.FieldOwner(owner)); apierrors.IsConflict(err) {
		return errTaken
	} else if err != nil {
		return fmt.Errorf("write secret %s/%s: %w", secret.Namespace, secret.Name, err)
	}
	return nil
}

func (c *cluster) secret() *corev1.Secret {
	return &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: c.options.Namespace, Name: c.options.Secret}}
}

// +kubebuilder:rbac:groups=admissionregistration.k8s.io,resources=mutatingwebhookconfigurations,resourceNames=inference-cache-mutating-webhook-configuration,verbs=get;patch
// +kubebuilder:rbac:groups=admissionregistration.k8s.io,resources=validatingwebhookconfigurations,resourceNames=inference-cache-validating-webhook-configuration,verbs=get;patch

// Publish writes the bundle into both configurations where it is missing.
func (c *cluster) Publish(ctx context.Context, bundle []byte) (changed bool, err error) {
	configurations, err := c.configurations(ctx)
	if err != nil {
		return false, err
	}
	for _, w := range configurations {
		if w.trusts(bundle) {
			continue
		}
		apply := client.ApplyConfigurationFromUnstructured(w.apply(bundle))
		if err := c.client.Apply(ctx, apply, client.FieldOwner(owner), client.ForceOwnership); err != nil {
			return false, fmt.Errorf("write the certificate authority into %s %s: %w", w.kind, w.name, err)
		}
		changed = true
	}
	return changed, nil
}

// configurations reads both.
func (c *cluster) configurations(ctx context.Context) ([]configuration, error) {
	var mutating admissionv1.MutatingWebhookConfiguration
	var validating admissionv1.ValidatingWebhookConfiguration
	m := configuration{kind: "MutatingWebhookConfiguration", name: c.options.Mutating}
	v := configuration{kind: "ValidatingWebhookConfiguration", name: c.options.Validating}
	if err := c.client.Get(ctx, types.NamespacedName{Name: m.name}, &mutating); err != nil {
		return nil, fmt.Errorf("read %s %s: %w", m.kind, m.name, err)
	}
	if err := c.client.Get(ctx, types.NamespacedName{Name: v.name}, &validating); err != nil {
		return nil, fmt.Errorf("read %s %s: %w", v.kind, v.name, err)
	}
	for _, w := range mutating.Webhooks {
		m.hooks = append(m.hooks, hook{w.Name, w.ClientConfig.CABundle})
	}
	for _, w := range validating.Webhooks {
		v.hooks = append(v.hooks, hook{w.Name, w.ClientConfig.CABundle})
	}
	return []configuration{m, v}, nil
}

// configuration is a webhook configuration, as far as trust goes.
type configuration struct {
	kind, name string
	hooks      []hook
}

// hook is one entry of a configuration.
type hook struct {
	name   string
	bundle []byte
}

func (w configuration) trusts(bundle []byte) bool {
	return !slices.ContainsFunc(w.hooks, func(h hook) bool { return !bytes.Equal(h.bundle, bundle) })
}

// apply is a configuration with nothing but what we own of it: entries are
// merged by name.
func (w configuration) apply(bundle []byte) *unstructured.Unstructured {
	entries := make([]any, len(w.hooks))
	for i, h := range w.hooks {
		entries[i] = map[string]any{"name": h.name, "clientConfig": map[string]any{"caBundle": base64.StdEncoding.EncodeToString(bundle)}}
	}
	u := &unstructured.Unstructured{Object: map[string]any{"webhooks": entries}}
	u.SetGroupVersionKind(admissionv1.SchemeGroupVersion.WithKind(w.kind))
	u.SetName(w.name)
	return u
}
