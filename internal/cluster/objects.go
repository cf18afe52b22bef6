package cluster

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

const (
	// GPU is the resource that engines ask for.
	GPU = "nvidia.com/gpu"

	nodeAnnotation = "kwok.x-k8s.io/node"
	// podCIDR is where pods get their addresses: this machine answers for all
	// of them (see routePods), so that a test process can be any pod. It is a
	// network that RFC 2544 sets apart for tests; EndpointSlices refuse those
	// of loopback.
	podCIDR = "198.18.0.0/16"
)

// Namespace makes a namespace for one test, in which pods can be created, and
// deletes it at its end.
func (c *Cluster) Namespace(t testing.TB) string {
	t.Helper()
	ns := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{GenerateName: "test-"}}
	c.create(t, ns)
	c.Eventually(t, "the service account of "+ns.Name, func(ctx context.Context) error {
		return c.Client.Get(ctx, types.NamespacedName{Namespace: ns.Name, Name: "default"}, &corev1.ServiceAccount{})
	})
	return ns.Name
}

// Node makes a simulated node with GPUs, ready when this returns.
func (c *Cluster) Node(t testing.TB, name string, gpus int64) {
	t.Helper()
	capacity := corev1.ResourceList{
		corev1.ResourceCPU: resource.MustParse("64"), corev1.ResourceMemory: resource.MustParse("1Ti"),
		corev1.ResourcePods: resource.MustParse("1000"), GPU: *resource.NewQuantity(gpus, resource.DecimalSI),
	}
	node := &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{
			Name:        name,
			Annotations: map[string]string{nodeAnnotation: "fake"},
			Labels:      map[string]string{corev1.LabelHostname: name},
		},
		Status: corev1.NodeStatus{Capacity: capacity, Allocatable: capacity},
	}
	c.create(t, node)
	c.Eventually(t, "node "+name, func(ctx context.Context) error {
		if err := c.Client.Get(ctx, client.ObjectKeyFromObject(node), node); err != nil {
			return err
		}
		ready := slices.ContainsFunc(node.Status.Conditions, func(c corev1.NodeCondition) bool {
			return c.Type == corev1.NodeReady && c.Status == corev1.ConditionTrue
		})
		if !ready || len(node.Spec.Taints) > 0 {
			return fmt.Errorf("conditions %v, taints %v", node.Status.Conditions, node.Spec.Taints)
		}
		return nil
	})
}

// create makes an object that goes with the test.
func (c *Cluster) create(t testing.TB, object client.Object) {
	t.Helper()
	if err := c.Client.Create(t.Context(), object); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx := context.WithoutCancel(t.Context())
		if err := c.Client.Delete(ctx, object); client.IgnoreNotFound(err) != nil {
			t.Errorf("clean up: %v", err)
		}
	})
}

// Token asks for a token of a service account, good for one audience; "" is
// the API server itself.
func (c *Cluster) Token(t testing.TB, namespace, account, audience string) string {
	t.Helper()
	request := &authenticationv1.TokenRequest{}
	if audience != "" {
		request.Spec.Audiences = []string{audience}
	}
	subject := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: account}}
	if err := c.Client.SubResource("token").Create(t.Context(), subject, request); err != nil {
		t.Fatal(err)
	}
	return request.Status.Token
}

// As is the configuration of a service account, with a token of its own.
func (c *Cluster) As(t testing.TB, namespace, account string) *rest.Config {
	t.Helper()
	config := rest.AnonymousClientConfig(c.Config)
	config.QPS, config.Burst = c.Config.QPS, c.Config.Burst
	config.BearerToken = c.Token(t, namespace, account, "")
	return config
}

// Environ is the environment in which a shell finds kubectl and this cluster.
func (c *Cluster) Environ() []string {
	path := filepath.Join(c.dir, "bin") + string(os.PathListSeparator) + os.Getenv("PATH")
	return append(os.Environ(), "KUBECONFIG="+c.Kubeconfig, "PATH="+path)
}

// KubeconfigOf is a file with the configuration of a service account, for
// programs.
func (c *Cluster) KubeconfigOf(t testing.TB, namespace, account string) string {
	t.Helper()
	config := c.As(t, namespace, account)
	text, err := clientcmd.Write(clientcmdapi.Config{
		Clusters:       map[string]*clientcmdapi.Cluster{"c": {Server: config.Host, CertificateAuthorityData: config.CAData}},
		AuthInfos:      map[string]*clientcmdapi.AuthInfo{"u": {Token: config.BearerToken}},
		Contexts:       map[string]*clientcmdapi.Context{"x": {Cluster: "c", AuthInfo: "u"}},
		CurrentContext: "x",
	})
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "kubeconfig")
	if err := os.WriteFile(file, text, 0o600); err != nil {
		t.Fatal(err)
	}
	return file
}

// Kubectl runs kubectl as the administrator, with stdin, and returns what it
// printed.
func (c *Cluster) Kubectl(t testing.TB, stdin string, args ...string) (string, error) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), filepath.Join(c.dir, "bin", "kubectl"), append([]string{"--kubeconfig=" + c.Kubeconfig}, args...)...)
	cmd.Stdin = strings.NewReader(stdin)
	output, err := cmd.CombinedOutput()
	if err != nil {
		return string(output), fmt.Errorf("kubectl %s: %w: %s", strings.Join(args, " "), err, output)
	}
	return string(output), nil
}

// Objects lists everything in a namespace as kind/name, sorted, without what
// Kubernetes puts into each by itself and without Events.
func (c *Cluster) Objects(t testing.TB, namespace string) []string {
	t.Helper()
	disco, err := discovery.NewDiscoveryClientForConfig(c.Config)
	if err != nil {
		t.Fatal(err)
	}
	groups, err := disco.ServerPreferredNamespacedResources()
	if err != nil {
		t.Fatal(err)
	}
	var all []string
	for _, group := range groups {
		gv, err := schema.ParseGroupVersion(group.GroupVersion)
		if err != nil {
			t.Fatal(err)
		}
		for _, r := range group.APIResources {
			if r.Kind == "Event" || !slices.Contains(r.Verbs, "list") {
				continue
			}
			list := &metav1.PartialObjectMetadataList{}
			list.SetGroupVersionKind(gv.WithKind(r.Kind + "List"))
			if err := c.Client.List(t.Context(), list, client.InNamespace(namespace)); err != nil {
				t.Fatalf("list %s: %v", r.Name, err)
			}
			for _, item := range list.Items {
				name := r.Kind + "/" + item.Name
				if name != "ServiceAccount/default" && name != "ConfigMap/kube-root-ca.crt" {
					all = append(all, name)
				}
			}
		}
	}
	slices.Sort(all)
	return all
}

// eventually is how long a busy cluster may take to get somewhere.
const eventually = 30 * time.Second

// Eventually calls check until it returns nil; the test fails with the last
// error if that takes too long.
func (c *Cluster) Eventually(t testing.TB, what string, check func(context.Context) error) {
	t.Helper()
	if err := poll(t.Context(), eventually, check); err != nil {
		t.Fatalf("wait for %s: %v", what, err)
	}
}

// stopPolling is an error that no further try can mend.
type stopPolling struct{ error }

// poll calls check until it returns nil or limit has passed.
func poll(ctx context.Context, limit time.Duration, check func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	tick := time.NewTicker(25 * time.Millisecond)
	defer tick.Stop()
	var last error
	for {
		err := check(ctx)
		if err == nil {
			return nil
		}
		if stop, ok := err.(stopPolling); ok {
			return stop.error
		}
		if ctx.Err() == nil || last == nil {
			last = err
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("not within %s: %w", limit, last)
		case <-tick.C:
		}
	}
}
