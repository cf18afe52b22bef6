//go:build cluster

package cluster

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"inferencecache.io/inferencecache/internal/auth"
	"inferencecache.io/inferencecache/internal/auth/tokenreview"
)

var it = New(Options{})

func TestMain(m *testing.M) {
	if os.Getenv(victimEnv) != "" {
		os.Exit(beVictim(context.Background()))
	}
	os.Exit(it.Main(context.Background(), m))
}

// victimEnv makes the test binary a process that starts a cluster, says where,
// and waits to be killed.
const (
	victimEnv = "INFERENCECACHE_CLUSTER_VICTIM"
	runningIn = "running in "
)

func beVictim(ctx context.Context) int {
	own := New(Options{})
	if err := own.Start(ctx); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	fmt.Printf("%s%s\n", runningIn, own.dir)
	for {
		time.Sleep(time.Hour)
	}
}

// engines is a Deployment of pods that want two GPUs each.
func engines(namespace string, replicas int32) *appsv1.Deployment {
	labels := map[string]string{"app": "engine"}
	return &appsv1.Deployment{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "engine"},
		Spec: appsv1.DeploymentSpec{
			Replicas: &replicas,
			Selector: &metav1.LabelSelector{MatchLabels: labels},
			Template: corev1.PodTemplateSpec{
				ObjectMeta: metav1.ObjectMeta{Labels: labels},
				Spec: corev1.PodSpec{
					InitContainers: []corev1.Container{
						{Name: "check", Image: "check"},
						{Name: "sidecar", Image: "sidecar", RestartPolicy: new(corev1.ContainerRestartPolicyAlways)},
					},
					Containers: []corev1.Container{{
						Name: "vllm", Image: "vllm",
						Ports:     []corev1.ContainerPort{{Name: "http", ContainerPort: 8000}},
						Resources: corev1.ResourceRequirements{Limits: corev1.ResourceList{GPU: resource.MustParse("2")}},
					}},
				},
			},
		},
	}
}

// ready waits for so many ready pods of the Deployment and returns all.
func ready(t *testing.T, namespace string, want int32) []corev1.Pod {
	t.Helper()
	it.Eventually(t, "ready engines", func(ctx context.Context) error {
		d := engines(namespace, 0)
		if err := it.Client.Get(ctx, client.ObjectKeyFromObject(d), d); err != nil {
			return err
		}
		if d.Status.ReadyReplicas != want {
			return fmt.Errorf("%d of %d pods are ready", d.Status.ReadyReplicas, want)
		}
		return nil
	})
	var pods corev1.PodList
	if err := it.Client.List(t.Context(), &pods, client.InNamespace(namespace)); err != nil {
		t.Fatal(err)
	}
	return pods.Items
}

func create(t *testing.T, objects ...client.Object) {
	t.Helper()
	for _, object := range objects {
		if err := it.Client.Create(t.Context(), object); err != nil {
			t.Fatal(err)
		}
	}
}

func TestDeploymentWithGPUsBecomesReady(t *testing.T) {
	it.Node(t, "gpu-a", 4)
	it.Node(t, "gpu-b", 2)
	ns := it.Namespace(t)
	create(t, engines(ns, 4))
	var addresses []string
	unscheduled := 0
	for _, pod := range ready(t, ns, 3) { // six GPUs
		if pod.Spec.NodeName == "" {
			unscheduled++
			continue
		}
		addresses = append(addresses, pod.Status.PodIP)
		if pod.Status.Phase != corev1.PodRunning || len(pod.Status.InitContainerStatuses) != 2 {
			t.Fatalf("status %+v", pod.Status)
		}
		check, sidecar := pod.Status.InitContainerStatuses[0], pod.Status.InitContainerStatuses[1]
		if check.State.Terminated == nil || sidecar.State.Running == nil || !sidecar.Ready {
			t.Errorf("init containers %+v", pod.Status.InitContainerStatuses)
		}
	}
	if unscheduled != 1 {
		t.Errorf("%d pods have no place, want 1", unscheduled)
	}
	slices.Sort(addresses)
	if len(slices.Compact(addresses)) != 3 {
		t.Errorf("addresses %v", addresses)
	}
	for _, address := range addresses {
		l, err := net.Listen("tcp", net.JoinHostPort(address, "0"))
		if err != nil {
			t.Errorf("a test cannot be that pod: %v", err)
			continue
		}
		_ = l.Close()
	}
}

func TestServiceGetsEndpointsThatATestCanServe(t *testing.T) {
	it.Node(t, "gpu-a", 4)
	ns := it.Namespace(t)
	create(t, engines(ns, 1), &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: "engine"},
		Spec: corev1.ServiceSpec{
			Selector: map[string]string{"app": "engine"},
			Ports:    []corev1.ServicePort{{Port: 80, TargetPort: intstr.FromString("http")}},
		},
	})
	ip := ready(t, ns, 1)[0].Status.PodIP
	it.Eventually(t, "endpoints", func(ctx context.Context) error {
		var slices discoveryv1.EndpointSliceList
		if err := it.Client.List(ctx, &slices, client.InNamespace(ns)); err != nil {
			return err
		}
		for _, slice := range slices.Items {
			for _, endpoint := range slice.Endpoints {
				if endpoint.Addresses[0] == ip && *endpoint.Conditions.Ready && *slice.Ports[0].Port == 8000 {
					return nil
				}
			}
		}
		return fmt.Errorf("slices %+v", slices.Items)
	})
}

func TestDeletedNamespaceLeavesNothing(t *testing.T) {
	it.Node(t, "gpu-a", 4)
	ns := it.Namespace(t)
	create(t, engines(ns, 2))
	pods := ready(t, ns, 2)
	kinds := map[string]int{}
	for _, name := range it.Objects(t, ns) {
		kind, _, _ := strings.Cut(name, "/")
		kinds[kind]++
	}
	if diff := cmp.Diff(map[string]int{"Deployment": 1, "ReplicaSet": 1, "Pod": len(pods)}, kinds); diff != "" {
		t.Errorf("before: %s", diff)
	}
	if err := it.Client.Delete(t.Context(), engines(ns, 0), client.PropagationPolicy(metav1.DeletePropagationForeground)); err != nil {
		t.Fatal(err)
	}
	it.Eventually(t, "an empty namespace", func(context.Context) error {
		if left := it.Objects(t, ns); len(left) > 0 {
			return fmt.Errorf("left: %v", left)
		}
		return nil
	})
	namespace := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: ns}}
	if err := it.Client.Delete(t.Context(), namespace); err != nil {
		t.Fatal(err)
	}
	it.Eventually(t, "no namespace", func(ctx context.Context) error {
		if err := it.Client.Get(ctx, client.ObjectKeyFromObject(namespace), namespace); !apierrors.IsNotFound(err) {
			return fmt.Errorf("phase %s, error %v", namespace.Status.Phase, err)
		}
		return nil
	})
}

func TestTokenIsGoodForItsAudienceOnly(t *testing.T) {
	ns := it.Namespace(t)
	reviewer, err := tokenreview.New(it.Config)
	if err != nil {
		t.Fatal(err)
	}
	const mine, other = "inferencecache.io/controller", "inferencecache.io/policy"
	token := it.Token(t, ns, "default", mine)
	got, err := reviewer.Review(t.Context(), token, mine)
	if err != nil {
		t.Fatal(err)
	}
	want := auth.Identity{Authenticated: true, Username: "system:serviceaccount:" + ns + ":default", Audiences: []string{mine}}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
	for name, v := range map[string]struct{ token, audience string }{
		"another audience":         {token, other},
		"the API server's token":   {it.Token(t, ns, "default", ""), mine},
		"a token that is not one":  {"x" + token, mine},
		"a token with its end cut": {token[:len(token)-5], mine},
	} {
		got, err := reviewer.Review(t.Context(), v.token, v.audience)
		if err != nil || got.Authenticated {
			t.Errorf("%s: %+v, %v", name, got, err)
		}
	}
}

func TestServiceAccountMayDoWhatItsRoleSays(t *testing.T) {
	ns := it.Namespace(t)
	theirs, err := client.New(it.As(t, ns, "default"), client.Options{})
	if err != nil {
		t.Fatal(err)
	}
	list := func() error { return theirs.List(t.Context(), &corev1.ConfigMapList{}, client.InNamespace(ns)) }
	if err := list(); !apierrors.IsForbidden(err) {
		t.Fatalf("without a role: %v", err)
	}
	create(t, &rbacv1.Role{
		ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: "reader"},
		Rules:      []rbacv1.PolicyRule{{APIGroups: []string{""}, Resources: []string{"configmaps"}, Verbs: []string{"list"}}},
	}, &rbacv1.RoleBinding{
		ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: "reader"},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "Role", Name: "reader"},
		Subjects:   []rbacv1.Subject{{Kind: rbacv1.ServiceAccountKind, Namespace: ns, Name: "default"}},
	})
	it.Eventually(t, "the right to list", func(context.Context) error { return list() })
	if err := theirs.List(t.Context(), &corev1.ConfigMapList{}, client.InNamespace("kube-system")); !apierrors.IsForbidden(err) {
		t.Errorf("in another namespace: %v", err)
	}
}

func TestKubectlSpeaksToTheCluster(t *testing.T) {
	ns := it.Namespace(t)
	if _, err := it.Kubectl(t, "kind: ConfigMap\napiVersion: v1\nmetadata: {name: a}\ndata: {k: v}\n", "apply", "-n", ns, "-f", "-"); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]string{"ConfigMap/a"}, it.Objects(t, ns)); diff != "" {
		t.Error(diff)
	}
	if _, err := it.Kubectl(t, "kind: ConfigMap\napiVersion: v1\nmetadata: {name: b}\nwrong: {}\n", "apply", "-n", ns, "-f", "-", "--dry-run=server", "--validate=strict"); err == nil || !strings.Contains(err.Error(), "wrong") {
		t.Errorf("an unknown field: %v", err)
	}
}

func TestClusterDiesWithItsProcess(t *testing.T) {
	victim := exec.CommandContext(t.Context(), os.Args[0])
	victim.Env = append(os.Environ(), victimEnv+"=1")
	victim.Stderr = os.Stderr
	stdout, err := victim.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := victim.Start(); err != nil {
		t.Fatal(err)
	}
	dir := ""
	for lines := bufio.NewScanner(stdout); dir == "" && lines.Scan(); {
		if said, ok := strings.CutPrefix(lines.Text(), runningIn); ok {
			dir = said
		}
	}
	if n := len(processes(t, dir)); dir == "" || n != 5 {
		_ = victim.Process.Kill()
		t.Fatalf("%d processes in %q, want 5", n, dir)
	}
	if err := victim.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = victim.Wait() // it was killed
	it.Eventually(t, "the end of its processes", func(context.Context) error {
		if left := processes(t, dir); len(left) > 0 {
			return fmt.Errorf("left: %v", left)
		}
		return nil
	})

	// The next cluster removes what it left on disk.
	next, err := newDir()
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(next)
	if _, err := os.Stat(dir); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("%s is still there: %v", dir, err)
	}
	if _, err := os.Stat(it.dir); err != nil {
		t.Errorf("that of a living process is not: %v", err)
	}
}

// processes are those that have dir in their command line.
func processes(t *testing.T, dir string) (found []string) {
	t.Helper()
	all, err := filepath.Glob("/proc/[0-9]*/cmdline")
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range all {
		if line, err := os.ReadFile(file); err == nil && dir != "" && strings.Contains(string(line), dir) {
			found = append(found, strings.ReplaceAll(string(line), "\x00", " "))
		}
	}
	return found
}

func TestPartThatEndsByItselfIsTold(t *testing.T) {
	dir := t.TempDir()
	d, err := startDaemon("/bin/sh", dir, nil, []string{"-c", "echo out of luck >&2; exit 3"})
	if err != nil {
		t.Fatal(err)
	}
	select {
	case <-d.done:
	case <-time.After(10 * time.Second):
		t.Fatal("it does not end")
	}
	c := &Cluster{daemons: []*daemon{d}}
	if err := c.died(); err == nil || !strings.Contains(err.Error(), "exit status 3") || !strings.Contains(err.Error(), "out of luck") {
		t.Errorf("told %v", err)
	}
	if err := syscall.Kill(d.cmd.Process.Pid, 0); !errors.Is(err, syscall.ESRCH) {
		t.Errorf("it was not waited for: %v", err)
	}
}
