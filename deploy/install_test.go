//go:build cluster

package deploy

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	clientscheme "k8s.io/client-go/kubernetes/scheme"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"inferencecache.io/inferencecache/api/v1alpha1"
	"inferencecache.io/inferencecache/internal/cluster"
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

func TestMain(m *testing.M) {
	dir, err := os.MkdirTemp("", "inferencecache-")
	if err == nil {
		defer os.RemoveAll(dir)
		err = buildProgram(dir)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "FAIL:", err)
		os.Exit(1)
	}
	code := it.Main(context.Background(), m)
	_ = os.RemoveAll(dir)
	os.Exit(code)
}

// home is the namespace that docs/install.md installs into.
const home = DefaultNamespace

const (
	controllerAccount = "inference-cache-controller-manager"
	serverAccount     = "inference-cache-server"
)

// installed is the program's own manifest in the cluster, and its pods as
// processes on this machine.
type installed struct {
	t           *testing.T // that it ends with
	servers     []string   // addresses of their pods
	running     []*process // in them
	controllers []*process
}

// apply installs as docs/install.md says, and does what kubelets would.
func apply(t *testing.T) *installed {
	t.Helper()
	in := &installed{t: t}
	t.Cleanup(func() { // what the test did not get to
		manifest, err := Manifest(home, DefaultImage)
		if err != nil {
			t.Error(err)
		}
		_, _ = it.Kubectl(t, manifest, "delete", "--ignore-not-found", "--timeout=60s", "-f", "-")
	})
	do(t, "install")
	kubeconfig := it.KubeconfigOf(t, home, serverAccount)
	for _, pod := range podsOf(t, home, "server", 2) {
		p := start(t, pod.Name, contain(t, &pod, "server", "--kubeconfig="+kubeconfig)...)
		p.becomesReady(t, "http://"+pod.Status.PodIP+":9090/readyz")
		in.servers, in.running = append(in.servers, pod.Status.PodIP), append(in.running, p)
	}
	kubeconfig = it.KubeconfigOf(t, home, controllerAccount)
	for _, pod := range podsOf(t, home, "controller", 2) {
		p := start(t, pod.Name, contain(t, &pod, "controller", "--kubeconfig="+kubeconfig)...)
		p.becomesReady(t, "http://"+pod.Status.PodIP+":9090/readyz")
		in.controllers = append(in.controllers, p)
	}
	do(t, "wait")
	return in
}

// podsOf waits for so many running pods of a component.
func podsOf(t *testing.T, namespace, component string, want int) []corev1.Pod {
	t.Helper()
	return pods(t, namespace, client.MatchingLabels{"app.kubernetes.io/component": component}, want)
}

func pods(t *testing.T, namespace string, labels client.MatchingLabels, want int) (running []corev1.Pod) {
	t.Helper()
	it.Eventually(t, fmt.Sprintf("%d pods %v", want, labels), func(ctx context.Context) error {
		var list corev1.PodList
		if err := it.Client.List(ctx, &list, client.InNamespace(namespace), labels); err != nil {
			return err
		}
		running = slices.DeleteFunc(list.Items, func(p corev1.Pod) bool { return p.Status.PodIP == "" || !p.DeletionTimestamp.IsZero() })
		if len(running) != want {
			return fmt.Errorf("%d of %d run", len(running), len(list.Items))
		}
		return nil
	})
	return running
}

// TestInstallServesAndGoes lives through an installation by docs/install.md: it
// is applied, a quickstart becomes ready by engines that say what they hold,
// policies reach every server, others are kept out, the leader dies, and
// everything is removed.
func TestInstallServesAndGoes(t *testing.T) {
	it.Node(t, "node", 16)
	in := apply(t)
	const ns = "team-a"
	t.Run("every sample is accepted", samplesAreAccepted)
	do(t, "first")
	engines := in.runEngines(t, ns, 2)
	t.Run("a wrong token is refused", in.tokensAreChecked)
	t.Run("the quickstart becomes ready", func(t *testing.T) { do(t, "ready") })
	t.Run("every server hints the engine that holds a prompt", func(t *testing.T) { in.hints(t, ns, engines) })
	t.Run("status shows what servers hold", func(t *testing.T) { statusShows(t, ns, "llama") })
	t.Run("a policy reaches every server", func(t *testing.T) {
		do(t, "policy")
		in.policyArrives(t, ns, nil)
	})
	t.Run("doctor finds nothing", func(t *testing.T) {
		do(t, "doctor")
		doctorFinds(t)
	})
	t.Run("doctor names what is wrong", func(t *testing.T) { in.doctorNames(t, ns) })
	t.Run("another takes over from a leader that dies", func(t *testing.T) { in.leaderDies(t, ns) })
	t.Run("removing it leaves nothing", func(t *testing.T) { leavesNothing(t, ns) })
}

// runEngines runs simulated engines, and the subscribers that were injected
// beside them, in pods of a namespace.
func (in *installed) runEngines(t *testing.T, ns string, want int) []corev1.Pod {
	t.Helper()
	engines := pods(t, ns, client.MatchingLabels{v1alpha1.LabelCacheDomain: "llama"}, want)
	for _, pod := range engines {
		ip := pod.Status.PodIP
		sim := start(t, "sim "+pod.Name, "sim", "--name="+pod.Name, "--model=meta-llama/Llama-3.1-8B-Instruct",
			"--listen="+ip+":8000", "--topic="+topicOf(t, &pod), "--events=tcp://"+ip+":5557", "--replay=tcp://"+ip+":5558", "--prefill-rate=100000", "--decode-rate=10000")
		sim.becomesReady(t, "http://"+ip+":8000/health")
		args := contain(t, &pod, v1alpha1.ContainerSubscriber, "--listen=:9090")
		// There is no DNS here, so the name of all servers is their addresses.
		at := slices.IndexFunc(args, func(a string) bool { return strings.HasPrefix(a, "--server=dns://") })
		if at < 0 {
			t.Fatalf("the subscriber does not report to all servers: %q", args)
		}
		args = slices.Delete(args, at, at+1)
		for _, server := range in.servers {
			args = append(args, "--server=http://"+server+":9090")
		}
		start(t, "subscriber of "+pod.Name, args...)
	}
	return engines
}

// samplesAreAccepted sends everything in deploy/samples through the API
// server's schemas, where unknown and duplicate fields are errors, and through
// the webhooks.
func samplesAreAccepted(t *testing.T) {
	out, err := it.Kubectl(t, "", "apply", "--dry-run=server", "--validate=strict", "-n", it.Namespace(t), "-f", "samples")
	if err != nil {
		t.Fatal(err)
	}
	files, _ := filepath.Glob("samples/*.yaml")
	if done := strings.Count(out, "(server dry run)"); len(files) == 0 || done < len(files) {
		t.Errorf("%d objects of %d samples: %s", done, len(files), out)
	}
}

// tokensAreChecked asks a server's control port with each token that is not
// made for it.
func (in *installed) tokensAreChecked(t *testing.T) {
	const snapshot, policy = "inferencecache.io/controller", "inferencecache.io/policy"
	for _, server := range in.servers {
		for name, c := range map[string]struct {
			token string
			want  int
		}{
			"none":                 {"", http.StatusUnauthorized},
			"another audience":     {it.Token(t, home, controllerAccount, policy), http.StatusUnauthorized},
			"the API server's":     {it.Token(t, home, controllerAccount, ""), http.StatusUnauthorized},
			"another account's":    {it.Token(t, home, serverAccount, snapshot), http.StatusForbidden},
			"another namespace's":  {it.Token(t, "default", "default", snapshot), http.StatusForbidden},
			"the controller's own": {it.Token(t, home, controllerAccount, snapshot), http.StatusOK},
		} {
			if status, body, err := fetch(t, "http://"+server+":8081/snapshot", c.token); err != nil || status != c.want {
				t.Errorf("token: %s: status %d, error %v, want %d: %.200s", name, status, err, c.want, body)
			}
		}
	}
}

// waitLong waits for what takes rounds of the loops over servers.
func waitLong(t *testing.T, what string, check func(context.Context) error) {
	t.Helper()
	waitFor(t, 2*time.Minute, what, check)
}

func waitFor(t *testing.T, limit time.Duration, what string, check func(context.Context) error) {
	t.Helper()
	deadline := time.Now().Add(limit)
	for {
		err := check(t.Context())
		if err == nil {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("wait for %s: %v", what, err)
		}
		time.Sleep(100 * time.Millisecond)
	}
}

func show(v any) string {
	text, err := json.Marshal(v)
	if err != nil {
		return err.Error()
	}
	return string(text)
}

// ask runs `inferencecache lookup` against one server. The tokens of a simulated
// engine are a prompt's bytes.
func ask(t *testing.T, server, tenant, prompt string) (answer struct {
	ReasonCode    string
	ReplicaScores []struct{ ReplicaID string }
}) {
	t.Helper()
	tokens := make([]string, len(prompt))
	for i := range len(prompt) {
		tokens[i] = strconv.Itoa(int(prompt[i]))
	}
	out, err := exec.CommandContext(t.Context(), program, "lookup", "--server=http://"+server+":9090", "--tenant="+tenant,
		"--model=meta-llama/Llama-3.1-8B-Instruct", "--tokens="+strings.Join(tokens, ","), "-o", "json").CombinedOutput()
	if err != nil {
		t.Fatalf("lookup: %v: %s", err, out)
	}
	if err := json.Unmarshal(out, &answer); err != nil {
		t.Fatalf("lookup printed %s: %v", out, err)
	}
	return answer
}

func (in *installed) hints(t *testing.T, ns string, engines []corev1.Pod) {
	for i, engine := range engines {
		prompt := strings.Repeat(fmt.Sprintf("Prompt %d is long enough to be worth a hint. ", i), 8)
		body := fmt.Sprintf(`{"model": "meta-llama/Llama-3.1-8B-Instruct", "prompt": %q, "max_tokens": 1}`, prompt)
		response, err := http.Post("http://"+engine.Status.PodIP+":8000/v1/completions", "application/json", strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		_ = response.Body.Close()
		for _, server := range in.servers {
			it.Eventually(t, "a hint of "+engine.Name, func(context.Context) error {
				if a := ask(t, server, ns, prompt); a.ReasonCode != "PREFIX_MATCH" || a.ReplicaScores[0].ReplicaID != engine.Name {
					return fmt.Errorf("answer %+v", a)
				}
				return nil
			})
		}
	}
}

func statusShows(t *testing.T, ns, name string) {
	waitLong(t, "what servers hold in status", func(ctx context.Context) error {
		var b v1alpha1.CacheBackend
		if err := it.Client.Get(ctx, client.ObjectKey{Namespace: ns, Name: name}, &b); err != nil {
			return err
		}
		if p := b.Status.IndexParticipation; p == nil || p.PrefixCount == 0 || p.LastEventAt == nil {
			return fmt.Errorf("indexParticipation %s", show(p))
		}
		if n := b.Status.MatchedEnginePods; n == nil || *n != 2 {
			return fmt.Errorf("matchedEnginePods %s", show(n))
		}
		var index v1alpha1.CacheIndex
		if err := it.Client.Get(ctx, client.ObjectKey{Name: v1alpha1.CacheIndexName}, &index); err != nil {
			return err
		}
		if index.Status.Prefixes == nil || index.Status.Prefixes.Summary.Total == 0 {
			return fmt.Errorf("CacheIndex %s", show(index.Status))
		}
		return nil
	})
}

// policyArrives waits until both servers said that they serve by every policy of
// a namespace, after one more was made if not nil.
func (in *installed) policyArrives(t *testing.T, ns string, more *v1alpha1.CachePolicy) {
	t.Helper()
	if more != nil {
		// No kubelet takes a dead controller out of the webhooks' Service.
		it.Eventually(t, "a controller to admit the policy", func(ctx context.Context) error { return it.Client.Create(ctx, more) })
	}
	waitLong(t, "the policy to be programmed", func(ctx context.Context) error {
		var list v1alpha1.CachePolicyList
		if err := it.Client.List(ctx, &list, client.InNamespace(ns)); err != nil {
			return err
		}
		for _, p := range list.Items {
			programmed := meta.FindStatusCondition(p.Status.Conditions, v1alpha1.ConditionProgrammed)
			if programmed == nil || programmed.Status != metav1.ConditionTrue || programmed.ObservedGeneration != p.Generation || len(p.Status.Servers) != 2 {
				return fmt.Errorf("status %s", show(p.Status))
			}
		}
		if len(list.Items) != 1 {
			return fmt.Errorf("%d policies", len(list.Items))
		}
		return nil
	})
	for _, server := range in.servers {
		_, page, err := fetch(t, "http://"+server+":9090/metrics", "")
		if err != nil || !strings.Contains(page, "\ninferencecache_policy_version 8\n") {
			t.Errorf("server %s has no policies (%v)", server, err)
		}
	}
}

// doctorFinds wants these findings, and no other, from a look at everything.
func doctorFinds(t *testing.T, want ...string) {
	t.Helper()
	if err := compareFindings(t.Context(), want); err != nil {
		t.Error(err)
	}
}

// doctorComesToFind waits for them: loops come round, and servers that started
// anew hear everything again.
func doctorComesToFind(t *testing.T, want ...string) {
	t.Helper()
	waitLong(t, "doctor's findings", func(ctx context.Context) error { return compareFindings(ctx, want) })
}

func compareFindings(ctx context.Context, want []string) error {
	cmd := exec.CommandContext(ctx, program, "doctor", "--direct", "-o", "json")
	cmd.Env = it.Environ()
	out, err := cmd.Output()
	var report struct {
		Findings []struct{ ID, Status, Resource, Message, Evidence string }
	}
	if decodeErr := json.Unmarshal(out, &report); decodeErr != nil {
		return fmt.Errorf("doctor: %w: %s", err, out)
	}
	var got []string
	for _, f := range report.Findings {
		if f.Status == "WARN" || f.Status == "FAIL" {
			got = append(got, f.ID)
		}
	}
	slices.Sort(got)
	if got = slices.Compact(got); !slices.Equal(got, want) || (err != nil) != (len(want) > 0) {
		return fmt.Errorf("doctor found %q, want %q: %v: %s", got, want, err, show(report.Findings))
	}
	return nil
}

// doctorNames makes faults of an installation one after the other, and mends
// each.
func (in *installed) doctorNames(t *testing.T, ns string) {
	apply := func(text string) {
		t.Helper()
		if _, err := it.Kubectl(t, text, "apply", "-n", ns, "-f", "-"); err != nil {
			t.Fatal(err)
		}
	}
	remove := func(args ...string) {
		t.Helper()
		if _, err := it.Kubectl(t, "", append([]string{"delete", "-n", ns}, args...)...); err != nil {
			t.Fatal(err)
		}
	}
	const engine = `{apiVersion: v1, kind: Pod, metadata: {name: odd, labels: {inferencecache.io/cache-domain: %s}}, spec: {containers: [{name: vllm, image: vllm, args: [%s]}]}}`

	apply(fmt.Sprintf(engine, "nobodys", ""))
	doctorFinds(t, "no-backend")
	remove("pod", "odd")

	apply(fmt.Sprintf(engine, "llama", `--kv-transfer-config, '{"kv_connector":"NixlConnector","kv_role":"kv_both"}'`))
	doctorFinds(t, "pods-unwired")
	remove("pod", "odd")

	apply(`{apiVersion: inferencecache.io/v1alpha1, kind: CacheBackend, metadata: {name: empty}, spec: {runtime: VLLM, cacheDomain: empty, integration: {mode: EventsOnly}}}`)
	doctorComesToFind(t, "no-engine-pods")
	remove("cachebackend", "empty")

	follower := &in.controllers[0]
	if (*follower).leads() {
		follower = &in.controllers[1]
	}
	// Controllers mend this within a minute, so look more than once.
	waitLong(t, "doctor to see an authority of somebody else", func(ctx context.Context) error {
		hooks := &admissionv1.MutatingWebhookConfiguration{}
		if err := it.Client.Get(ctx, client.ObjectKey{Name: "inference-cache-mutating-webhook-configuration"}, hooks); err != nil {
			return err
		}
		for i := range hooks.Webhooks {
			hooks.Webhooks[i].ClientConfig.CABundle = it.Config.CAData // a good one
		}
		if err := it.Client.Update(ctx, hooks); err != nil {
			return err
		}
		return compareFindings(ctx, []string{"webhook-untrusted"})
	})
	// What doctor says is to be done.
	(*follower).stop()
	*follower = (*follower).again(in.t)
	doctorComesToFind(t)

	(*follower).signal(t, syscall.SIGSTOP)
	doctorFinds(t, "webhook-unreachable")
	(*follower).signal(t, syscall.SIGCONT)

	t.Run("a controller whose certificate nobody renewed", func(t *testing.T) {
		dir := endsSoon(t)
		in.otherwise(t, follower, func(args []string) []string { return append(args, "--webhook-cert-dir="+dir) },
			func() { doctorComesToFind(t, "webhook-certificate-expires") })
	})

	t.Run("a server that takes every token", func(t *testing.T) {
		in.otherwise(t, &in.running[0], func(args []string) []string {
			return append(without(args, "--allowed-controller-sa"), "--insecure-disable-auth")
		},
			func() { doctorComesToFind(t, "audience-ignored") })
	})
	t.Run("a server that lets another account in", func(t *testing.T) {
		in.otherwise(t, &in.running[0], func(args []string) []string {
			return append(args, "--allowed-controller-sa=system:serviceaccount:elsewhere:controller")
		},
			func() { doctorComesToFind(t, "snapshot-refused") })
	})
	t.Run("a server that gets no policies", func(t *testing.T) {
		aside := in.servers[0] + ":18081"
		in.otherwise(t, &in.running[0], func(args []string) []string { return append(args, "--control-listen="+aside) },
			func() {
				defer refusePolicies(t, in.servers[0]+":8081", aside)()
				doctorComesToFind(t, "policies-unpushed")
			})
	})
	t.Run("an address of servers where nobody is", func(t *testing.T) {
		deserted := desertedEndpoint(t)
		doctorComesToFind(t, "snapshots-unread")
		if err := it.Client.Delete(t.Context(), deserted); err != nil {
			t.Fatal(err)
		}
		doctorComesToFind(t)
	})
	t.Run("controllers of which none leads", in.nobodyLeads)
	t.Run("a replica that one server knows", func(t *testing.T) {
		half := &installed{servers: in.servers[:1]}
		half.report(t, []corev1.Pod{{ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: "half"}}})
		doctorComesToFind(t, "servers-disagree")
	})
	doctorComesToFind(t)
}

// leaderDies kills the leader, which then cannot give up its lease.
func (in *installed) leaderDies(t *testing.T, ns string) {
	if err := it.Client.DeleteAllOf(t.Context(), &v1alpha1.CachePolicy{}, client.InNamespace(ns)); err != nil {
		t.Fatal(err)
	}
	at := slices.IndexFunc(in.controllers, (*process).leads)
	if at < 0 {
		t.Fatal("nobody leads")
	}
	in.controllers[at].kill()
	in.controllers = slices.Delete(in.controllers, at, at+1)
	in.policyArrives(t, ns, &v1alpha1.CachePolicy{
		ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: "second"}, Spec: v1alpha1.CachePolicySpec{MinimumMatchedTokens: new(int32(32))},
	})
	if !in.controllers[0].leads() {
		t.Error("nobody took over")
	}
}

// leavesNothing removes the installation as docs/install.md says, and then the
// engines.
func leavesNothing(t *testing.T, ns string) {
	do(t, "remove")
	if left := leftBehind(t); len(left) > 0 {
		t.Errorf("left: %v", left)
	}
	if _, err := it.Kubectl(t, "", "delete", "-n", ns, "deployments", "--all", "--timeout=60s"); err != nil {
		t.Fatal(err)
	}
	it.Eventually(t, "an empty namespace", func(context.Context) error {
		if left := it.Objects(t, ns); len(left) > 0 {
			return fmt.Errorf("left: %v", left)
		}
		return nil
	})
	if _, err := it.Kubectl(t, "", "delete", "namespace", ns, "--timeout=60s"); err != nil {
		t.Error(err)
	}
}

// leftBehind is what an installation leaves outside namespaces.
func leftBehind(t *testing.T) (left []string) {
	t.Helper()
	for _, list := range []client.ObjectList{
		&admissionv1.MutatingWebhookConfigurationList{}, &admissionv1.ValidatingWebhookConfigurationList{},
		&rbacv1.ClusterRoleList{}, &rbacv1.ClusterRoleBindingList{}, &corev1.NamespaceList{},
	} {
		if err := it.Client.List(t.Context(), list); err != nil {
			t.Fatal(err)
		}
		objects, err := meta.ExtractList(list)
		if err != nil {
			t.Fatal(err)
		}
		for _, o := range objects {
			if name := o.(client.Object).GetName(); strings.Contains(name, "inference-cache") || strings.Contains(name, "inferencecache") || name == home {
				left = append(left, fmt.Sprintf("%T %s", o, name))
			}
		}
	}
	crds, err := it.Kubectl(t, "", "get", "customresourcedefinitions", "-o", "name")
	if err != nil {
		t.Fatal(err)
	}
	if strings.Contains(crds, "inferencecache.io") {
		left = append(left, crds)
	}
	return left
}
