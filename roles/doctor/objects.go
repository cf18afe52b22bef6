package doctor

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"slices"
	"time"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"inferencecache.io/inferencecache/api/v1alpha1"
)

// Names that the manifest gives.
const (
	serverService     = "inference-cache-server"
	controllerAccount = "inference-cache-controller-manager"
	webhookService    = "webhook-service"
	webhookPort       = 9443
	dataPort          = 9090
	controlPort       = 8081
	componentLabel    = "app.kubernetes.io/component"
	nameLabel         = "app.kubernetes.io/name"
	productName       = "inference-cache"
)

// objects are what the API server shows of an installation and of what it
// serves.
type objects struct {
	unread      []error // lists that could not be read
	home        string  // namespace of the installation; "": there is none
	servers     []corev1.Pod
	controllers []corev1.Pod
	backends    []v1alpha1.CacheBackend
	policies    []v1alpha1.CachePolicy
	tenants     []v1alpha1.CacheTenant
	indices     []v1alpha1.CacheIndex
	engines     []corev1.Pod // with the label of a cache domain
	hooks       []hook
	serving     []handshake
}

// hook is one webhook entry of ours.
type hook struct {
	name   string
	bundle []byte
}

// handshake is what one controller's webhook port answers to TLS.
type handshake struct {
	pod   string
	chain []*x509.Certificate
	err   error
}

// kinds are those that doctor reads.
func kinds() *runtime.Scheme {
	s := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{corev1.AddToScheme, admissionv1.AddToScheme, v1alpha1.AddToScheme} {
		utilruntime.Must(add(s))
	}
	return s
}

// read lists everything once. What cannot be read is noted and left out.
func (c *Cluster) read(ctx context.Context) *objects {
	o := &objects{home: c.Home}
	list := func(into client.ObjectList, options ...client.ListOption) {
		err := c.client.List(ctx, into, options...)
		if meta.IsNoMatchError(err) || apierrors.IsNotFound(err) {
			err = fmt.Errorf("%w: is the installation complete?", err)
		}
		if err != nil {
			o.unread = append(o.unread, err)
		}
	}
	if o.home == "" {
		var services corev1.ServiceList
		list(&services, client.MatchingLabels{nameLabel: productName})
		for i := range services.Items {
			if services.Items[i].Name == serverService {
				o.home = services.Items[i].Namespace
			}
		}
	}
	if o.home != "" {
		o.servers = c.component(ctx, o, "server")
		o.controllers = c.component(ctx, o, "controller")
	}
	in := client.InNamespace(c.Namespace)
	var (
		backends v1alpha1.CacheBackendList
		policies v1alpha1.CachePolicyList
		tenants  v1alpha1.CacheTenantList
		indices  v1alpha1.CacheIndexList
		engines  corev1.PodList
	)
	list(&backends, in)
	list(&policies, in)
	list(&tenants, in)
	list(&indices)
	list(&engines, in, client.HasLabels{v1alpha1.LabelCacheDomain})
	o.backends, o.policies, o.tenants, o.indices, o.engines = backends.Items, policies.Items, tenants.Items, indices.Items, engines.Items
	o.hooks = c.hooks(list)
	return o
}

// component are the running pods of one part of the installation, by name.
func (c *Cluster) component(ctx context.Context, o *objects, name string) []corev1.Pod {
	var list corev1.PodList
	err := c.client.List(ctx, &list, client.InNamespace(o.home), client.MatchingLabels{nameLabel: productName, componentLabel: name})
	if err != nil {
		o.unread = append(o.unread, err)
	}
	return slices.DeleteFunc(list.Items, func(p corev1.Pod) bool {
		return !p.DeletionTimestamp.IsZero() || p.Status.Phase != corev1.PodRunning
	})
}

// hooks are the entries that call the installation's webhooks.
func (c *Cluster) hooks(list func(client.ObjectList, ...client.ListOption)) (all []hook) {
	var mutating admissionv1.MutatingWebhookConfigurationList
	var validating admissionv1.ValidatingWebhookConfigurationList
	list(&mutating)
	list(&validating)
	add := func(name string, config admissionv1.WebhookClientConfig) {
		if s := config.Service; s != nil && s.Name == webhookService && (c.Home == "" || s.Namespace == c.Home) {
			all = append(all, hook{name, config.CABundle})
		}
	}
	for _, m := range mutating.Items {
		for _, w := range m.Webhooks {
			add(w.Name, w.ClientConfig)
		}
	}
	for _, v := range validating.Items {
		for _, w := range v.Webhooks {
			add(w.Name, w.ClientConfig)
		}
	}
	return all
}

// handshakes asks every controller for the certificate of its webhooks.
func (c *Cluster) handshakes(ctx context.Context, controllers []corev1.Pod) (all []handshake) {
	for i := range controllers {
		pod := &controllers[i]
		h := handshake{pod: pod.Name}
		h.chain, h.err = c.chain(ctx, pod)
		all = append(all, h)
	}
	return all
}

// chain is the certificate that a pod's webhook port shows, whoever signed it.
func (c *Cluster) chain(ctx context.Context, pod *corev1.Pod) ([]*x509.Certificate, error) {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	address, err := c.reach.address(ctx, pod, webhookPort)
	if err != nil {
		return nil, err
	}
	// Nothing is sent over the connection; judge looks at who signed.
	dialer := tls.Dialer{Config: &tls.Config{InsecureSkipVerify: true}}
	conn, err := dialer.DialContext(ctx, "tcp", address)
	if err != nil {
		return nil, err
	}
	defer conn.Close()
	chain := conn.(*tls.Conn).ConnectionState().PeerCertificates
	if len(chain) == 0 {
		return nil, errors.New("it shows no certificate")
	}
	return chain, nil
}

// trusted says whether an API server with this bundle accepts a chain for the
// Service.
func trusted(bundle []byte, chain []*x509.Certificate, home string, now time.Time) error {
	roots, between := x509.NewCertPool(), x509.NewCertPool()
	if !roots.AppendCertsFromPEM(bundle) {
		return errors.New("the bundle holds no certificate")
	}
	for _, c := range chain[1:] {
		between.AddCert(c)
	}
	_, err := chain[0].Verify(x509.VerifyOptions{Roots: roots, Intermediates: between, DNSName: webhookService + "." + home + ".svc", CurrentTime: now})
	return err
}
