//go:build cluster

package deploy

import (
	"cmp"
	"context"
	"fmt"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	gocmp "github.com/google/go-cmp/cmp"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	"inferencecache.io/inferencecache/api/v1alpha1"
)

// TestControllerKilledAtEachWriteConverges kills a controller at its first
// write, then at its second, and so on, in turns before the write arrives and
// after (INFERENCECACHE_DEATHS=all: both at each), while it builds what
// CacheBackends ask for and while it takes it down. Its successor must end where
// one that lives ends.
func TestControllerKilledAtEachWriteConverges(t *testing.T) {
	if testing.Short() {
		t.Skip("dozens of controllers live and die: minutes")
	}
	it.Node(t, "node", 16)
	w := webhooksOnly(t)
	want, writes := w.round(t, 0, false, nil)
	if writes < 10 || len(want) < 8 {
		t.Fatalf("only %d writes to %q", writes, want)
	}
	t.Logf("%d writes, to %q", writes, want)
	deaths := 0
	rounds := 0
	for at := 1; at <= writes; at++ {
		for _, before := range []bool{true, false} {
			if both := os.Getenv("INFERENCECACHE_DEATHS") == "all"; !both && before != (at%2 == 0) {
				continue
			}
			rounds++
			if _, n := w.round(t, at, before, want); n > 0 {
				deaths++
			}
		}
	}
	// Events are put together, so that a round may have a write less.
	if t.Logf("%d deaths", deaths); deaths < rounds/2 {
		t.Errorf("%d deaths in %d rounds", deaths, rounds)
	}
}

// workshop is an installation of which only the webhooks work.
type workshop struct {
	pod corev1.Pod // the controller's, whose arguments those have that come and go
}

// webhooksOnly installs everything and runs one controller that cannot lead.
func webhooksOnly(t *testing.T) *workshop {
	t.Helper()
	manifest, err := Manifest(home, DefaultImage)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_, _ = it.Kubectl(t, manifest, "delete", "--ignore-not-found", "--timeout=60s", "-f", "-")
	})
	if _, err := it.Kubectl(t, strings.ReplaceAll(manifest, "replicas: 2", "replicas: 1"), "apply", "-f", "-"); err != nil {
		t.Fatal(err)
	}
	now := metav1.NowMicro()
	lease := &coordinationv1.Lease{
		ObjectMeta: metav1.ObjectMeta{Namespace: home, Name: "inference-cache-controller-leader-lock"},
		Spec:       coordinationv1.LeaseSpec{HolderIdentity: new("nobody"), LeaseDurationSeconds: new(int32(3600)), AcquireTime: &now, RenewTime: &now},
	}
	if err := it.Client.Create(t.Context(), lease); err != nil {
		t.Fatal(err)
	}
	pod := podsOf(t, home, "controller", 1)[0]
	p := start(t, "webhooks", contain(t, &pod, "controller", "--kubeconfig="+it.KubeconfigOf(t, home, controllerAccount))...)
	p.becomesReady(t, "http://"+pod.Status.PodIP+":9090/readyz")
	pod.Status.PodIP = "198.18.255.1" // for those that no Service leads to
	return &workshop{pod}
}

// round lets a controller build and take down what a namespace asks for. It is
// killed at a write, and another goes on. Returns what there was in between,
// and how many writes there were, or 0 if none was lethal.
func (w *workshop) round(t *testing.T, at int, before bool, want []string) ([]string, int) {
	t.Helper()
	ns := it.Namespace(t)
	wit := newWitness(t, controllerAccount)
	run := func(name, kubeconfig string) *process {
		return start(t, name, contain(t, &w.pod, "controller", "--leader-elect=false", "--kubeconfig="+kubeconfig)...)
	}
	alive := run(fmt.Sprintf("controller killed at write %d", at), wit.kubeconfig)
	victim := alive
	wit.arm(at, before, victim.kill)
	next := func() { // another takes over from a dead one
		select {
		case <-victim.done:
			if alive == victim {
				alive = run("its successor", it.KubeconfigOf(t, home, controllerAccount))
			}
		default:
		}
	}
	when := fmt.Sprintf("killed at write %d, arrived %t", at, !before)
	all := w.create(t, ns)
	var got []string
	if want == nil {
		got = settle(t, ns)
	} else {
		until(t, when+": the same end", next, func() error {
			gate(t, ns)
			if got = state(t, ns); !slices.Equal(got, want) {
				return fmt.Errorf("%s", gocmp.Diff(want, got))
			}
			return nil
		})
	}
	w.takeDown(t, all)
	until(t, when+": an empty namespace", next, func() error {
		if left := it.Objects(t, ns); len(left) > 0 {
			return fmt.Errorf("left: %q", left)
		}
		return nil
	})
	writes := len(wit.wrote())
	if want != nil && alive == victim {
		writes = 0
	}
	alive.kill()
	return got, writes
}

// create makes what a round is about: Redis, a server on a node with an engine
// beside it, a policy and a tenant.
func (w *workshop) create(t *testing.T, ns string) (all []*unstructured.Unstructured) {
	t.Helper()
	for file, name := range map[string]string{"redis-managed": "remote", "nodelocal": "local"} {
		text, err := os.ReadFile("samples/" + file + ".yaml")
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, decode(t, strings.ReplaceAll(string(text), "llama", name)))
	}
	all = append(all,
		decode(t, `{apiVersion: inferencecache.io/v1alpha1, kind: CachePolicy, metadata: {name: p}, spec: {}}`),
		decode(t, `{apiVersion: inferencecache.io/v1alpha1, kind: CacheTenant, metadata: {name: t}, spec: {}}`),
		decode(t, `{apiVersion: v1, kind: Pod, metadata: {name: engine, labels: {inferencecache.io/cache-domain: local}},
spec: {containers: [{name: vllm, image: vllm, args: [--model, m], resources: {limits: {nvidia.com/gpu: "1"}}}]}}`))
	for _, o := range all {
		o.SetNamespace(ns)
		it.Eventually(t, "the API server to take "+o.GetName(), func(ctx context.Context) error { return it.Client.Create(ctx, o) })
	}
	return all
}

func decode(t *testing.T, text string) *unstructured.Unstructured {
	t.Helper()
	o := &unstructured.Unstructured{}
	if err := yaml.Unmarshal([]byte(text), &o.Object); err != nil {
		t.Fatal(err)
	}
	return o
}

func (w *workshop) takeDown(t *testing.T, all []*unstructured.Unstructured) {
	t.Helper()
	for _, o := range slices.Backward(all) {
		if err := it.Client.Delete(t.Context(), o); err != nil {
			t.Fatal(err)
		}
	}
}

// until polls check, and does next in between.
func until(t *testing.T, what string, next func(), check func() error) {
	t.Helper()
	deadline := time.Now().Add(time.Minute)
	for {
		next()
		err := check()
		if err == nil {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("%s: %v", what, err)
		}
		time.Sleep(300 * time.Millisecond) // each look lists every kind there is
	}
}

// gate does what a wired engine's init container does on a node that is not
// simulated: it has the engine start after its node's server.
func gate(t *testing.T, ns string) {
	t.Helper()
	var pods corev1.PodList
	if err := it.Client.List(t.Context(), &pods, client.InNamespace(ns)); err != nil {
		t.Fatal(err)
	}
	var engine, server *corev1.ContainerStateRunning
	var of *corev1.Pod
	for i := range pods.Items {
		for j := range pods.Items[i].Status.ContainerStatuses {
			switch s := &pods.Items[i].Status.ContainerStatuses[j]; s.Name {
			case "vllm":
				engine, of = s.State.Running, &pods.Items[i]
			case v1alpha1.ContainerMPServer:
				server = s.State.Running
			}
		}
	}
	if engine == nil || server == nil || !server.StartedAt.After(engine.StartedAt.Time) {
		return
	}
	engine.StartedAt = server.StartedAt
	_ = it.Client.Status().Update(t.Context(), of) // if another was first, the next look does it
}

// settle returns the state that stays.
func settle(t *testing.T, ns string) (same []string) {
	t.Helper()
	since := time.Now()
	until(t, "a state that stays", func() {}, func() error {
		gate(t, ns)
		now := state(t, ns)
		if len(now) < 8 || !slices.Equal(now, same) {
			same, since = now, time.Now()
		}
		if time.Since(since) < 5*time.Second {
			return fmt.Errorf("changed %s ago: %q", time.Since(since), same)
		}
		return nil
	})
	return same
}

var random = regexp.MustCompile(`-[a-z0-9]+(-[a-z0-9]{5})?$`)

// state is what there is in a namespace, with what conditions say.
func state(t *testing.T, ns string) (all []string) {
	t.Helper()
	for _, name := range it.Objects(t, ns) {
		if kind, _, _ := strings.Cut(name, "/"); slices.Contains([]string{"Pod", "ReplicaSet", "EndpointSlice", "PodMetrics"}, kind) {
			name = random.ReplaceAllString(name, "")
		}
		all = append(all, name)
	}
	note := func(name string, conditions []metav1.Condition) {
		for _, c := range conditions {
			all = append(all, fmt.Sprintf("%s %s=%s/%s", name, c.Type, c.Status, c.Reason))
		}
	}
	ctx := context.WithoutCancel(t.Context())
	var backends v1alpha1.CacheBackendList
	var policies v1alpha1.CachePolicyList
	var tenants v1alpha1.CacheTenantList
	for _, list := range []client.ObjectList{&backends, &policies, &tenants} {
		if err := it.Client.List(ctx, list, client.InNamespace(ns)); err != nil {
			t.Fatal(err)
		}
	}
	for i := range backends.Items {
		note(backends.Items[i].Name, backends.Items[i].Status.Conditions)
	}
	for i := range policies.Items {
		note(policies.Items[i].Name, policies.Items[i].Status.Conditions)
	}
	for i := range tenants.Items {
		note(tenants.Items[i].Name, tenants.Items[i].Status.Conditions)
	}
	slices.SortFunc(all, cmp.Compare)
	return all
}
