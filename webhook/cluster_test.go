//go:build cluster

package webhook

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"log/slog"
	"net"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/VictoriaMetrics/metrics"
	admissionv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	clientscheme "k8s.io/client-go/kubernetes/scheme"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/healthz"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"
	"sigs.k8s.io/yaml"

	"inferencecache.io/inferencecache/api/v1alpha1"
	"inferencecache.io/inferencecache/deploy"
	"inferencecache.io/inferencecache/internal/cluster"
	"inferencecache.io/inferencecache/webhook/certs"
)

var it = cluster.New(cluster.Options{Scheme: kinds()})

func kinds() *runtime.Scheme {
	s := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{clientscheme.AddToScheme, v1alpha1.AddToScheme} {
		if err := add(s); err != nil {
			panic(err)
		}
	}
	return s
}

func TestMain(m *testing.M) { os.Exit(it.Main(context.Background(), m)) }

// home is not the namespace that the manifest has by itself.
const home = "caches-live-here"

// TestWebhooksOfTheManifest installs the manifest, serves its webhooks from
// here, with the rights of its service account and by its Service, and removes
// it again.
func TestWebhooksOfTheManifest(t *testing.T) {
	manifest, err := deploy.Manifest(home, "inferencecache:test")
	if err != nil {
		t.Fatal(err)
	}
	it.Node(t, "node", 16)
	if _, err := it.Kubectl(t, manifest, "apply", "--validate=strict", "-f", "-"); err != nil {
		t.Fatal(err)
	}
	var replicas []*replica
	for _, ip := range controllers(t) {
		replicas = append(replicas, serve(t, ip))
	}
	t.Run("replicas serve one certificate that the API server trusts", func(t *testing.T) { oneCertificate(t, replicas) })
	t.Run("applying again keeps the certificate", func(t *testing.T) { applyKeeps(t, manifest) })
	t.Run("backend rules", backendRulesHold)
	t.Run("a domain has one owner", domainHasOneOwner)
	t.Run("a namespace has one policy", namespaceHasOnePolicy)
	t.Run("a tenant is the namespace or granted", tenantIsGranted)
	t.Run("deleted objects let go of finalizers", deletedLetsGo)
	t.Run("pods are wired", podsAreWired)
	t.Run("pods that cannot be wired say why", podsSayWhy)
	for _, r := range replicas {
		r.stop()
	}
	t.Run("without anybody to ask pods are admitted and objects are not", nobodyAnswers)
	t.Run("delete leaves nothing", func(t *testing.T) { deleteLeavesNothing(t, manifest) })
}

// controllers are the addresses of the controller's simulated pods, once the
// webhook Service leads to them.
func controllers(t *testing.T) (ips []string) {
	t.Helper()
	it.Eventually(t, "the webhook Service's endpoints", func(ctx context.Context) error {
		var all discoveryv1.EndpointSliceList
		if err := it.Client.List(ctx, &all, client.InNamespace(home), client.MatchingLabels{discoveryv1.LabelServiceName: "webhook-service"}); err != nil {
			return err
		}
		ips = nil
		for _, slice := range all.Items {
			for _, e := range slice.Endpoints {
				if *e.Conditions.Ready {
					ips = append(ips, e.Addresses...)
				}
			}
		}
		if len(ips) != 2 {
			return fmt.Errorf("slices %+v", all.Items)
		}
		return nil
	})
	return ips
}

// replica is one process of the controller, as far as webhooks go.
type replica struct {
	host string
	set  *metrics.Set
	stop func()
}

// serve runs the webhooks until the test ends or stop is called.
func serve(t *testing.T, host string) *replica {
	t.Helper()
	mgr, err := ctrl.NewManager(it.As(t, home, "inference-cache-controller-manager"), ctrl.Options{
		Scheme: kinds(), Metrics: metricsserver.Options{BindAddress: "0"}, HealthProbeBindAddress: "0",
	})
	if err != nil {
		t.Fatal(err)
	}
	checks := map[string]healthz.Checker{}
	r := &replica{host: host, set: metrics.NewSet()}
	err = Setup(mgr, Options{
		Inject: linkOptions, Host: host, Certs: certs.InNamespace(home), Metrics: r.set, Log: slog.New(slog.NewTextHandler(t.Output(), nil)),
		AddCheck: func(name string, check healthz.Checker) error { checks[name] = check; return nil },
	})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	var wait sync.WaitGroup
	wait.Go(func() {
		if err := mgr.Start(ctx); err != nil {
			t.Errorf("manager: %v", err)
		}
	})
	r.stop = func() { cancel(); wait.Wait() }
	t.Cleanup(r.stop)
	it.Eventually(t, "readiness", func(context.Context) error {
		for name, check := range checks {
			if err := check(nil); err != nil {
				return fmt.Errorf("%s: %w", name, err)
			}
		}
		return nil
	})
	return r
}

func oneCertificate(t *testing.T, replicas []*replica) {
	var mutating admissionv1.MutatingWebhookConfiguration
	var validating admissionv1.ValidatingWebhookConfiguration
	options := certs.InNamespace(home)
	get(t, "", options.Mutating, &mutating)
	get(t, "", options.Validating, &validating)
	bundle := mutating.Webhooks[0].ClientConfig.CABundle
	if len(mutating.Webhooks) != 4 || len(validating.Webhooks) != 3 {
		t.Errorf("%d mutating and %d validating entries, want 4 and 3", len(mutating.Webhooks), len(validating.Webhooks))
	}
	for _, w := range mutating.Webhooks {
		if !bytes.Equal(bundle, w.ClientConfig.CABundle) || w.ClientConfig.Service == nil {
			t.Errorf("%s: Service %v, bundle %s", w.Name, w.ClientConfig.Service, w.ClientConfig.CABundle)
		}
	}
	for _, w := range validating.Webhooks {
		if !bytes.Equal(bundle, w.ClientConfig.CABundle) || w.ClientConfig.Service == nil {
			t.Errorf("%s: Service %v, bundle %s", w.Name, w.ClientConfig.Service, w.ClientConfig.CABundle)
		}
	}
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(bundle)
	serials := map[string]bool{}
	for _, r := range replicas {
		c, err := tls.Dial("tcp", net.JoinHostPort(r.host, "9443"), &tls.Config{RootCAs: roots, ServerName: options.Names()[0]})
		if err != nil {
			t.Error(err)
			continue
		}
		serials[c.ConnectionState().PeerCertificates[0].SerialNumber.String()] = true
		_ = c.Close()
	}
	if len(serials) != 1 {
		t.Errorf("%d certificates, want 1", len(serials))
	}
}

func applyKeeps(t *testing.T, manifest string) {
	var before, after corev1.Secret
	get(t, home, "webhook-server-cert", &before)
	if _, err := it.Kubectl(t, manifest, "apply", "-f", "-"); err != nil {
		t.Fatal(err)
	}
	get(t, home, "webhook-server-cert", &after)
	if len(after.Data["tls.crt"]) == 0 || !bytes.Equal(before.Data["tls.crt"], after.Data["tls.crt"]) {
		t.Error("the certificate was thrown away")
	}
	var mutating admissionv1.MutatingWebhookConfiguration
	get(t, "", certs.InNamespace(home).Mutating, &mutating)
	if len(mutating.Webhooks[0].ClientConfig.CABundle) == 0 {
		t.Error("the bundle was thrown away")
	}
}

func get(t *testing.T, namespace, name string, into client.Object) {
	t.Helper()
	if err := it.Client.Get(t.Context(), types.NamespacedName{Namespace: namespace, Name: name}, into); err != nil {
		t.Fatal(err)
	}
}

// made is a CacheBackend that every rule of the CRD accepts, changed by more
// of its spec.
func made(t *testing.T, namespace, name, more string) *v1alpha1.CacheBackend {
	t.Helper()
	b := backend(t, `type: LMCache, cacheDomain: `+name+`, lmCache: {topology: PodLocal, podLocal: {server: {l1Capacity: 8Gi}}}`)
	if err := yaml.Unmarshal([]byte("{"+more+"}"), &b.Spec); err != nil {
		t.Fatal(err)
	}
	b.Namespace, b.Name = namespace, name
	return b
}

// refused wants an answer that names the field and the problem.
func refused(t *testing.T, when string, err error, words ...string) {
	t.Helper()
	if !apierrors.IsInvalid(err) && !apierrors.IsForbidden(err) {
		t.Errorf("%s: %v", when, err)
		return
	}
	for _, word := range words {
		if !strings.Contains(err.Error(), word) {
			t.Errorf("%s: %v, want word of %q", when, err, word)
		}
	}
}

func backendRulesHold(t *testing.T) {
	ns := it.Namespace(t)
	const external = `remoteStorage: {provider: Redis, ownership: External, endpoint: "%s"}`
	const resources = `lmCache: {topology: PodLocal, podLocal: {server: {l1Capacity: 8Gi, resources: {%s}}}}`
	const overrides = `integration: {mode: Offload, role: ReadWrite, failOpen: true, engineOverrides: {%s}}`
	for i, r := range []struct{ good, bad, field string }{
		{in(external, "r."+ns+".svc:6379"), in(external, "r.elsewhere.svc:6379"), "spec.remoteStorage.endpoint"},
		{in(external, "r."+ns+".svc.cluster.local:6379"), in(external, "r.elsewhere.svc.cluster.local:6379"), "spec.remoteStorage.endpoint"},
		{in(external, "[fd00::1]:6379"), in(external, "10-0-0-1.elsewhere.pod:6379"), "spec.remoteStorage.endpoint"},
		{in(resources, "limits: {hugepages-2Mi: 4Mi}"), in(resources, "limits: {hugepages-2Mi: 3Mi}"), "hugepages-2Mi"},
		{in(resources, "limits: {example.com/x: 2}"), in(resources, "requests: {example.com/x: 1}, limits: {example.com/x: 2}"), "example.com/x"},
		{in(overrides, "args: [--seed, '7']"), in(overrides, "args: ['--kv-transfer-config={}']"), "engineOverrides.args[0]"},
		{in(overrides, "suppressArgs: [--seed]"), in(overrides, "suppressArgs: [--kv-transfer-config]"), "engineOverrides.suppressArgs[0]"},
		{in(overrides, "env: [{name: A, value: b}]"), in(overrides, "env: [{name: PYTHONHASHSEED, value: '1'}]"), "engineOverrides.env[0].name"},
		{in(overrides, "suppressEnv: [A]"), in(overrides, "suppressEnv: [PYTHONHASHSEED]"), "engineOverrides.suppressEnv[0]"},
		{in(overrides, "env: [{name: A, value: b}]"), in(overrides, "env: [{name: A, value: b, valueFrom: {fieldRef: {fieldPath: metadata.name}}}]"), "engineOverrides.env[0].valueFrom"},
	} {
		name := fmt.Sprintf("b%d", i)
		refused(t, "create "+r.bad, it.Client.Create(t.Context(), made(t, ns, name, r.bad)), r.field)
		good := made(t, ns, name, r.good)
		if err := it.Client.Create(t.Context(), good); err != nil {
			t.Errorf("create %s: %v", r.good, err)
			continue
		}
		bad := good.DeepCopy()
		bad.Spec = made(t, ns, name, r.bad).Spec
		refused(t, "update to "+r.bad, it.Client.Update(t.Context(), bad), r.field)
		good.Labels = map[string]string{"changed": "true"}
		if err := it.Client.Update(t.Context(), good); err != nil {
			t.Errorf("update of %s: %v", r.good, err)
		}
	}
	strange := made(t, ns, "strange", "")
	strange.Annotations = map[string]string{v1alpha1.AnnotationKernelCheck: "sometimes"}
	refused(t, "kernel check", it.Client.Create(t.Context(), strange), v1alpha1.AnnotationKernelCheck, "report-only")
}

func domainHasOneOwner(t *testing.T) {
	ns := it.Namespace(t)
	create(t, made(t, ns, "first", ""))
	second := made(t, ns, "second", "")
	second.Spec.CacheDomain = "first"
	refused(t, "create", it.Client.Create(t.Context(), second), "spec.cacheDomain", "CacheBackend first")
	second.Spec.CacheDomain, second.ResourceVersion = "second", ""
	create(t, second)
	second.Spec.CacheDomain = "first"
	refused(t, "update", it.Client.Update(t.Context(), second), "spec.cacheDomain", "CacheBackend first")
	elsewhere := made(t, it.Namespace(t), "first", "")
	create(t, elsewhere)
}

func namespaceHasOnePolicy(t *testing.T) {
	ns := it.Namespace(t)
	policy := func(name string) *v1alpha1.CachePolicy {
		p := &v1alpha1.CachePolicy{}
		p.Namespace, p.Name = ns, name
		return p
	}
	first := policy("first")
	create(t, first)
	if s, r := first.Spec.Strategy, first.Spec.Ranking; s == nil || !*s.EnableChainMatching || *s.RequireChain || r == nil || r.Profile != v1alpha1.RankingCost {
		t.Errorf("what is in force is not written out: %+v, %+v", s, r)
	}
	refused(t, "create", it.Client.Create(t.Context(), policy("second")), "metadata.name", "CachePolicy first")
	first.Spec.Strategy.EnableChainMatching, first.Spec.Strategy.RequireChain = new(false), new(true)
	refused(t, "update", it.Client.Update(t.Context(), first), "requireChain")
	first.Spec.Strategy.RequireChain = new(false)
	if err := it.Client.Update(t.Context(), first); err != nil {
		t.Error(err)
	}
}

func tenantIsGranted(t *testing.T) {
	ns := it.Namespace(t)
	tenant := func(name, id string) *v1alpha1.CacheTenant {
		c := &v1alpha1.CacheTenant{}
		c.Namespace, c.Name, c.Spec.TenantID = ns, name, id
		return c
	}
	own := tenant("own", "")
	create(t, own)
	if own.Spec.TenantID != ns {
		t.Errorf("tenant %q, want the namespace", own.Spec.TenantID)
	}
	refused(t, "the same twice", it.Client.Create(t.Context(), tenant("again", ns)), "spec.tenantID", "CacheTenant own")
	refused(t, "another's", it.Client.Create(t.Context(), tenant("theirs", "other")), "spec.tenantID", v1alpha1.AnnotationTenantGrants)
	refused(t, "the self-test's", it.Client.Create(t.Context(), tenant("probe", v1alpha1.ReservedTenant)), "spec.tenantID", "reserved")
	stolen := own.DeepCopy()
	stolen.Spec.TenantID = "other"
	refused(t, "update to another's", it.Client.Update(t.Context(), stolen), "spec.tenantID")
	grant := []byte(fmt.Sprintf(`{"metadata": {"annotations": {%q: "other"}}}`, v1alpha1.AnnotationTenantGrants))
	if err := it.Client.Patch(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: ns}}, client.RawPatch(types.MergePatchType, grant)); err != nil {
		t.Fatal(err)
	}
	create(t, tenant("theirs", "other"))
}

// deletedLetsGo: a finalizer is taken off by an update, and an object that is
// going may break any rule.
func deletedLetsGo(t *testing.T) {
	ns := it.Namespace(t)
	b := made(t, ns, "leaving", "")
	b.Finalizers = []string{v1alpha1.FinalizerDrain}
	create(t, b)
	if err := it.Client.Delete(t.Context(), b); err != nil {
		t.Fatal(err)
	}
	get(t, ns, "leaving", b)
	b.Annotations = map[string]string{v1alpha1.AnnotationKernelCheck: "sometimes"}
	b.Finalizers = nil
	if err := it.Client.Update(t.Context(), b); err != nil {
		t.Error(err)
	}
}

func podsAreWired(t *testing.T) {
	ns := it.Namespace(t)
	b := made(t, ns, "cache", "")
	create(t, b)
	pod := enginePod("cache", map[string]string{v1alpha1.AnnotationInjectedBy: "forged/by-me"})
	pod.Namespace = ns
	create(t, pod)
	if got := pod.Annotations; got[v1alpha1.AnnotationInjectedBy] != ns+"/cache" || got[v1alpha1.AnnotationInjectedByUID] != string(b.UID) {
		t.Errorf("annotations %v", got)
	}
	if !slices.ContainsFunc(pod.Spec.InitContainers, func(c corev1.Container) bool { return c.Name == v1alpha1.ContainerMPServer }) {
		t.Errorf("init containers %+v", pod.Spec.InitContainers)
	}
	if !slices.ContainsFunc(pod.Spec.Containers, func(c corev1.Container) bool {
		return c.Name == v1alpha1.ContainerSubscriber && c.Image == linkOptions.SubscriberImage
	}) {
		t.Errorf("containers %+v", pod.Spec.Containers)
	}
	// What was wired once is stored as it is.
	again := pod.DeepCopy()
	again.Name, again.ResourceVersion, again.UID = "again", "", ""
	create(t, again)
	if len(again.Spec.InitContainers) != len(pod.Spec.InitContainers) || len(again.Spec.Containers) != len(pod.Spec.Containers) {
		t.Errorf("wired twice: %d and %d containers", len(again.Spec.InitContainers), len(again.Spec.Containers))
	}
}

func podsSayWhy(t *testing.T) {
	ns := it.Namespace(t)
	lonely := enginePod("nobodys", nil)
	lonely.Namespace = ns
	create(t, lonely)
	if got := lonely.Annotations[v1alpha1.AnnotationInjectSkipped]; got != v1alpha1.SkipNoBackend {
		t.Errorf("skipped because of %q", got)
	}
	create(t, made(t, ns, "cache", ""))
	foreign := enginePod("cache", nil)
	foreign.Namespace = ns
	foreign.Spec.Containers[0].Args = []string{"--model", "m", "--kv-transfer-config", `{"kv_connector":"NixlConnector","kv_role":"kv_both"}`}
	create(t, foreign)
	if got := foreign.Annotations[v1alpha1.AnnotationInjectSkipped]; got != v1alpha1.SkipForeignConnector {
		t.Errorf("skipped because of %q", got)
	}
	it.Eventually(t, "the Event on the backend", func(ctx context.Context) error {
		var events corev1.EventList
		if err := it.Client.List(ctx, &events, client.InNamespace(ns)); err != nil {
			return err
		}
		for _, e := range events.Items {
			if e.InvolvedObject.Kind == "CacheBackend" && e.Reason == v1alpha1.EventNotInjected && e.Type == corev1.EventTypeWarning {
				return nil
			}
		}
		return fmt.Errorf("events %+v", events.Items)
	})
	// kubectl prints admission warnings.
	printed, err := it.Kubectl(t, `{apiVersion: v1, kind: Pod, metadata: {name: loud, labels: {inferencecache.io/cache-domain: nobodys}}, spec: {containers: [{name: vllm, image: vllm}]}}`,
		"create", "-n", ns, "-f", "-")
	if err != nil || !strings.Contains(printed, "Warning:") || !strings.Contains(printed, v1alpha1.SkipNoBackend) {
		t.Errorf("printed %q, error %v", printed, err)
	}
}

func nobodyAnswers(t *testing.T) {
	ns := it.Namespace(t)
	pod := enginePod("cache", nil)
	pod.Namespace = ns
	create(t, pod)
	if err := it.Client.Create(t.Context(), made(t, ns, "cache", "")); !apierrors.IsInternalError(err) {
		t.Errorf("a backend that nobody looked at: %v", err)
	}
}

func deleteLeavesNothing(t *testing.T, manifest string) {
	if _, err := it.Kubectl(t, manifest, "delete", "--wait", "--timeout=60s", "-f", "-"); err != nil {
		t.Fatal(err)
	}
	var left []string
	for _, list := range []client.ObjectList{
		&admissionv1.MutatingWebhookConfigurationList{}, &admissionv1.ValidatingWebhookConfigurationList{},
		&rbacv1.ClusterRoleList{}, &rbacv1.ClusterRoleBindingList{}, &corev1.NamespaceList{},
	} {
		if err := it.Client.List(t.Context(), list); err != nil {
			t.Fatal(err)
		}
		text, err := yaml.Marshal(list)
		if err != nil {
			t.Fatal(err)
		}
		for line := range strings.Lines(string(text)) {
			if name := strings.TrimSpace(line); strings.HasPrefix(name, "name: inference-cache") || name == "name: "+home {
				left = append(left, name)
			}
		}
	}
	crds, err := it.Kubectl(t, "", "get", "customresourcedefinitions", "-o", "name")
	if err != nil {
		t.Fatal(err)
	}
	if len(left) > 0 || strings.Contains(crds, "inferencecache.io") {
		t.Errorf("left: %v %s", left, crds)
	}
}

func create(t *testing.T, o client.Object) {
	t.Helper()
	if err := it.Client.Create(t.Context(), o); err != nil {
		t.Fatal(err)
	}
}
