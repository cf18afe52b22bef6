package inject

import (
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"sigs.k8s.io/yaml"

	"inferencecache.io/inferencecache/api/v1alpha1"
)

// kinds are cases that are wired, one for each runtime and where its cache is.
var kinds = []string{"vllm-podlocal", "vllm-nodelocal", "vllm-shell", "sglang-podlocal", "sglang-nodelocal", "hicache-ratio", "eventsonly-vllm", "eventsonly-sglang"}

func base(t *testing.T, kind string) (*v1alpha1.CacheBackend, *corev1.Pod) {
	t.Helper()
	return readCase(t, "testdata/"+kind+".in.yaml")
}

// given reads the inside of a JSON or YAML object into an object.
func given(t *testing.T, text string, into any) {
	t.Helper()
	if err := yaml.UnmarshalStrict([]byte("{"+text+"}"), into); err != nil {
		t.Fatalf("%s: %v", text, err)
	}
}

// TestAdmittedAgainNothingChanges: whatever is cached where and overridden,
// with a subscriber or without.
func TestAdmittedAgainNothingChanges(t *testing.T) {
	t.Parallel()
	bare := options
	bare.SubscriberImage = ""
	for _, kind := range kinds {
		for _, overrides := range []string{
			``,
			`args: [--kv-events-config, '{"enable_kv_cache_events":true,"publisher":"zmq"}']`,
			`args: ["--kv_events_config={\"publisher\":\"zmq\"}"]`,
			`args: [--seed, "7", --max=8, --max=9, --flag]`,
			`args: [one, --flag, --, two]`,
			`suppressArgs: [--kv-events-config, --page-size]`,
			`suppressArgs: [--kv-events-config=x, --page-size], args: [--page-size, "32"]`,
			`env: [{name: A, value: b}, {name: HF_HOME, value: x}, {name: N, valueFrom: {fieldRef: {fieldPath: metadata.name}}}]`,
			`suppressEnv: [A], env: [{name: A, value: c}]`,
		} {
			for _, o := range []Options{options, bare} {
				for _, events := range []v1alpha1.KVEvents{v1alpha1.KVEventsInject, v1alpha1.KVEventsExternal} {
					backend, pod := base(t, kind)
					backend.Spec.Integration.KVEvents = events
					backend.Spec.Integration.EngineOverrides = &v1alpha1.EngineOverrides{}
					given(t, overrides, backend.Spec.Integration.EngineOverrides)
					first := Dress(pod, backend, o)
					again := Dress(first.Pod, backend, o)
					if diff := cmp.Diff(asJSON(t, first.Pod), asJSON(t, again.Pod)); diff != "" {
						t.Errorf("%s, {%s}, events %s, subscriber %q:\n%s", kind, overrides, events, o.SubscriberImage, diff)
					}
				}
			}
		}
	}
}

// TestCollisionsLeaveThePodAlone: what is the pod's own, or says that it is
// ours and is not, is never half wired.
func TestCollisionsLeaveThePodAlone(t *testing.T) {
	t.Parallel()
	container := func(name string) func(*corev1.Pod) {
		return func(p *corev1.Pod) { p.Spec.Containers = append(p.Spec.Containers, corev1.Container{Name: name}) }
	}
	init := func(name string) func(*corev1.Pod) {
		return func(p *corev1.Pod) {
			p.Spec.InitContainers = append(p.Spec.InitContainers, corev1.Container{Name: name})
		}
	}
	volume := func(name string) func(*corev1.Pod) {
		return func(p *corev1.Pod) {
			p.Spec.Volumes = append(p.Spec.Volumes, corev1.Volume{Name: name, VolumeSource: corev1.VolumeSource{Secret: &corev1.SecretVolumeSource{SecretName: "s"}}})
		}
	}
	mount := func(path string) func(*corev1.Pod) {
		return func(p *corev1.Pod) {
			volume("own")(p)
			p.Spec.Containers[0].VolumeMounts = append(p.Spec.Containers[0].VolumeMounts, corev1.VolumeMount{Name: "own", MountPath: path})
		}
	}
	arg := func(args ...string) func(*corev1.Pod) {
		return func(p *corev1.Pod) { p.Spec.Containers[0].Args = append(p.Spec.Containers[0].Args, args...) }
	}
	port := func(n int32) func(*corev1.Pod) {
		return func(p *corev1.Pod) {
			p.Spec.Containers = append(p.Spec.Containers, corev1.Container{Name: "side", Ports: []corev1.ContainerPort{{ContainerPort: n}}})
		}
	}
	forged := map[string]string{v1alpha1.AnnotationInjectedBy: "x/y", v1alpha1.AnnotationInjectedByUID: "x", v1alpha1.AnnotationInjectedGeneration: "9",
		v1alpha1.AnnotationWiringHash: "x", v1alpha1.AnnotationInjectSkipped: "x", "mine": "kept"}
	for _, c := range []struct {
		kind   string
		edit   func(*corev1.Pod)
		reason string
	}{
		{"vllm-podlocal", container("lmcache-mp-server"), v1alpha1.SkipNameCollision},
		{"vllm-podlocal", init("lmcache-mp-server"), v1alpha1.SkipNameCollision},
		{"vllm-podlocal", volume("lmcache-mp-shm"), v1alpha1.SkipNameCollision},
		{"vllm-podlocal", mount("/dev/shm"), v1alpha1.SkipSharedMemory},
		{"vllm-podlocal", arg("--kv-transfer-config", `{"kv_connector":"X","kv_role":"kv_both"}`), v1alpha1.SkipForeignConnector},
		{"vllm-podlocal", arg("--kv-transfer-config", "{"), v1alpha1.SkipIncompatibleArgs},
		{"vllm-podlocal", arg("--disable-hybrid-kv-cache-manager=true"), v1alpha1.SkipIncompatibleArgs},
		{"vllm-podlocal", port(5555), v1alpha1.SkipPortCollision},
		{"vllm-podlocal", port(8080), v1alpha1.SkipPortCollision},
		{"sglang-podlocal", volume("lmcache-mp-config"), v1alpha1.SkipNameCollision},
		{"sglang-podlocal", mount("/var/run/inference-cache/lmcache/"), v1alpha1.SkipNameCollision},
		{"sglang-podlocal", arg("--lmcache-config-file", "/own.yaml"), v1alpha1.SkipIncompatibleArgs},
		{"sglang-podlocal", arg("--enable-hierarchical-cache"), v1alpha1.SkipForeignConnector},
		{"vllm-nodelocal", container("lmcache-node-local-gate"), v1alpha1.SkipNameCollision},
		{"vllm-nodelocal", init("lmcache-node-local-gate"), v1alpha1.SkipNameCollision},
		{"vllm-nodelocal", volume("lmcache-node-shm"), v1alpha1.SkipNameCollision},
		{"vllm-nodelocal", mount("/dev/shm"), v1alpha1.SkipSharedMemory},
		{"sglang-nodelocal", volume("lmcache-node-config"), v1alpha1.SkipNameCollision},
		{"sglang-nodelocal", mount("/var/run/inference-cache/lmcache-node"), v1alpha1.SkipNameCollision},
		{"hicache-ratio", arg("--enable-lmcache"), v1alpha1.SkipForeignConnector},
		{"eventsonly-vllm", container("kvevent-subscriber"), v1alpha1.SkipNothingToWire},
		{"eventsonly-vllm", init("kvevent-subscriber"), v1alpha1.SkipNothingToWire},
	} {
		backend, pod := base(t, c.kind)
		c.edit(pod)
		want := pod.DeepCopy()
		want.Annotations = map[string]string{"mine": "kept", v1alpha1.AnnotationInjectSkipped: c.reason}
		pod.Annotations = forged
		o := Dress(pod, backend, options)
		if o.Refusal == nil || o.Refusal.Reason != c.reason {
			t.Errorf("%s: %+v, want %s", c.kind, o.Refusal, c.reason)
		}
		if diff := cmp.Diff(asJSON(t, want), asJSON(t, o.Pod)); diff != "" {
			t.Errorf("%s, %s: the pod was changed:\n%s", c.kind, c.reason, diff)
		}
	}
}

// TestPodIsWiredOnceItsEndpointIsThere: the same pod, before and after.
func TestPodIsWiredOnceItsEndpointIsThere(t *testing.T) {
	t.Parallel()
	for _, kind := range []string{"vllm-podlocal", "vllm-nodelocal", "sglang-podlocal", "sglang-nodelocal"} {
		backend, pod := base(t, kind)
		backend.Spec.RemoteStorage = &v1alpha1.RemoteStorageSpec{Provider: v1alpha1.ProviderRedis, Ownership: v1alpha1.Managed}
		o := Dress(pod, backend, options)
		if o.Refusal == nil || o.Refusal.Reason != v1alpha1.SkipEndpointMissing {
			t.Errorf("%s: no endpoint yet: %+v", kind, o.Refusal)
		}
		backend.Status.RemoteStorage = &v1alpha1.RemoteStorageStatus{Endpoint: "llama-l3.team-a.svc.cluster.local:6379"}
		if o := Dress(o.Pod, backend, options); o.Refusal != nil || o.Pod.Annotations[v1alpha1.AnnotationInjectSkipped] != "" {
			t.Errorf("%s: with an endpoint: %+v, annotations %v", kind, o.Refusal, o.Pod.Annotations)
		}
	}
}

// TestOverrides: events are of the wiring, and the port and A are the pod's own.
func TestOverrides(t *testing.T) {
	t.Parallel()
	const events = `--kv-events-config {"publisher":"zmq","endpoint":"tcp://*:5557","replay_endpoint":"tcp://*:5558","topic":"kv-events"}`
	f := func(overrides, args, env string) {
		t.Helper()
		backend, pod := base(t, "hicache-ratio")
		pod.Spec.Containers[0].Command = []string{"sglang", "serve"}
		pod.Spec.Containers[0].Args = []string{"--port", "1"}
		pod.Spec.Containers[0].Env = []envVar{{Name: "A", Value: "own"}}
		plain := Dress(pod, backend, options).Pod.Spec.Containers[0].Args
		at := slices.Index(plain, "--kv-events-config")
		if strings.Join(plain[at:], " ") != events {
			t.Fatalf("without overrides: %q", plain)
		}
		backend.Spec.Integration.EngineOverrides = &v1alpha1.EngineOverrides{}
		given(t, overrides, backend.Spec.Integration.EngineOverrides)
		o := Dress(pod, backend, options)
		c := o.Pod.Spec.Containers[0]
		if o.Refusal != nil || !slices.Equal(c.Args[:min(at, len(c.Args))], plain[:at]) {
			t.Errorf("{%s}: refusal %v, args %q", overrides, o.Refusal, c.Args)
			return
		}
		if got := strings.Join(c.Args[at:], " "); got != args {
			t.Errorf("{%s}: args %s, want %s", overrides, got, args)
		}
		var vars []string
		for _, v := range c.Env {
			vars = append(vars, v.Name+"="+v.Value)
		}
		if got := strings.Join(vars, " "); got != env {
			t.Errorf("{%s}: env %s, want %s", overrides, got, env)
		}
	}
	f(``, events, "A=own")
	// What is ours is replaced where it is, however either is spelled.
	f(`args: [--kv-events-config, x]`, "--kv-events-config x", "A=own")
	f(`args: [--kv-events-config=x, --more]`, "--kv-events-config=x --more", "A=own")
	f(`args: [--kv_events_config, x]`, "--kv_events_config x", "A=own")
	f(`args: [--kv-events-config=x, --kv-events-config=y]`, "--kv-events-config=x --kv-events-config=y", "A=own")
	// A flag takes the next token along unless that is a flag.
	f(`args: [--a, --b, "1", --c=2, "3"]`, events+" --a --b 1 --c=2 3", "A=own")
	f(`args: [--kv-events-config, --b]`, "--kv-events-config --b", "A=own")
	// The pod's own stays.
	f(`args: [--port, "2"]`, events, "A=own")
	f(`args: [--port=2]`, events, "A=own")
	f(`suppressArgs: [--port, --none], suppressEnv: [A, NONE]`, events, "A=own")
	f(`env: [{name: A, value: x}, {name: B, value: c}]`, events, "A=own B=c")
	// Arguments that are no flags are always added.
	f(`args: [one, one]`, events+" one one", "A=own")
	// A suppressed two-slot flag goes with its value, and may come back.
	f(`suppressArgs: [--kv-events-config]`, "", "A=own")
	f(`suppressArgs: [--kv_events_config=y]`, "", "A=own")
	f(`suppressArgs: [--kv-events-config], args: [--a, "1", --kv-events-config=x]`, "--a 1 --kv-events-config=x", "A=own")
	f(`suppressEnv: [B], env: [{name: B, value: c}]`, events, "A=own B=c")
}

func TestEventsOnlyOverridesNothing(t *testing.T) {
	t.Parallel()
	for _, kind := range []string{"eventsonly-vllm", "eventsonly-sglang"} {
		backend, pod := base(t, kind)
		want := Dress(pod, backend, options).Pod.Spec
		backend.Spec.Integration.EngineOverrides = &v1alpha1.EngineOverrides{}
		given(t, `args: [--seed, "7"], suppressArgs: [--kv-events-config], env: [{name: B, value: c}]`, backend.Spec.Integration.EngineOverrides)
		if diff := cmp.Diff(want, Dress(pod, backend, options).Pod.Spec); diff != "" {
			t.Errorf("%s: %s", kind, diff)
		}
	}
}

// TestKernelCheckModes tries every mode with and without GPUs, and what is
// copied of the engine.
func TestKernelCheckModes(t *testing.T) {
	t.Parallel()
	gpus := map[string]corev1.ResourceRequirements{
		"no GPU":  {},
		"0 GPUs":  {Limits: corev1.ResourceList{gpu: resource.MustParse("0")}},
		"limit":   {Limits: corev1.ResourceList{gpu: resource.MustParse("1")}},
		"request": {Requests: corev1.ResourceList{gpu: resource.MustParse("1")}},
	}
	f := func(kind string, mode v1alpha1.KernelCheck, resources, want string) {
		t.Helper()
		for _, had := range []bool{false, true} {
			backend, pod := base(t, kind)
			backend.Spec.KernelCheck = mode
			engine := &pod.Spec.Containers[0]
			engine.Resources, engine.WorkingDir = gpus[resources], "/w"
			engine.Env = []envVar{{Name: envStrict, Value: "own"}, {Name: "A", Value: "b"}, fromField("N", "metadata.name")}
			engine.EnvFrom = []corev1.EnvFromSource{{Prefix: "P"}}
			if had { // by another mode
				pod.Spec.InitContainers = []corev1.Container{{Name: v1alpha1.ContainerKernelCheck}}
			}
			o := Dress(pod, backend, options)
			got := "none"
			for _, c := range o.Pod.Spec.InitContainers {
				if c.Name != v1alpha1.ContainerKernelCheck {
					continue
				}
				env := slices.DeleteFunc(slices.Clone(o.Pod.Spec.Containers[0].Env), func(v envVar) bool { return v.Name == envStrict })
				n := len(c.Env) - 1
				got = c.Env[n].Value
				if c.Env[n].Name != envStrict || !cmp.Equal(c.Env[:n], env) || c.WorkingDir != "/w" || len(c.EnvFrom) != 1 || c.Image != engine.Image || len(c.Resources.Limits) > 0 {
					t.Errorf("%s, %s, %s: %+v", kind, mode, resources, c)
				}
			}
			if o.Refusal != nil || got != want {
				t.Errorf("%s, mode %q, %s, one there: %v: %s, want %s", kind, mode, resources, had, got, want)
			}
		}
	}
	for resources, want := range map[string]string{"no GPU": "none", "0 GPUs": "none", "limit": "0", "request": "0"} {
		f("vllm-podlocal", "", resources, want)
		f("vllm-podlocal", v1alpha1.KernelCheckAuto, resources, want)
		f("vllm-podlocal", v1alpha1.KernelCheckReportOnly, resources, "0")
		f("vllm-podlocal", v1alpha1.KernelCheckStrict, resources, "1")
		f("vllm-podlocal", v1alpha1.KernelCheckOff, resources, "none")
		f("vllm-nodelocal", v1alpha1.KernelCheckStrict, resources, "1")
		f("eventsonly-vllm", v1alpha1.KernelCheckStrict, resources, "none")
	}
}

func TestEnginePortIsDiscovered(t *testing.T) {
	t.Parallel()
	f := func(kind, line, want string) {
		t.Helper()
		backend, pod := base(t, kind)
		engine := &pod.Spec.Containers[0]
		given(t, line, engine)
		engine.Env = append([]envVar{{Name: "P", Value: "7001"}, {Name: "BAD", Value: "x"}, fromField("SECRET", "metadata.name")}, engine.Env...)
		o := Dress(pod, backend, options)
		at := slices.IndexFunc(o.Pod.Spec.Containers, func(c corev1.Container) bool { return c.Name == v1alpha1.ContainerSubscriber })
		if at < 0 {
			t.Errorf("%s: no subscriber: %v %q", line, o.Refusal, o.Warnings)
			return
		}
		if url := "--engine-metrics-url=http://127.0.0.1:" + want + "/metrics"; !slices.Contains(o.Pod.Spec.Containers[at].Args, url) {
			t.Errorf("%s: %q, want port %s", line, o.Pod.Spec.Containers[at].Args, want)
		}
	}
	f("vllm-podlocal", `args: [--model, m]`, "8000")
	f("sglang-podlocal", `args: [--model-path, m]`, "30000")
	f("vllm-podlocal", `args: [--model, m, --port, "7000"]`, "7000")
	f("vllm-podlocal", `args: [--model, m, --port=7000]`, "7000")
	f("vllm-podlocal", `args: [--model, m, --port, $(P)]`, "7001")
	f("vllm-podlocal", `args: [--model, m, --port=$(P)]`, "7001")
	f("vllm-podlocal", `command: [vllm, serve, m, --port, "7002"], args: [--x]`, "7002")
	f("vllm-podlocal", `command: [vllm, serve, m, --port, "7002"], args: [--port, "7003"]`, "7003")
	f("vllm-podlocal", `command: [sh, -c, "exec vllm serve m --port $P"], args: []`, "7001")
	// The last that is a port counts.
	for _, bad := range []string{"$(BAD)", "$(SECRET)", "$(NONE)", "0", "65536", "-1", "x"} {
		f("vllm-podlocal", `args: [--model, m, --port, "7000", "--port=`+bad+`"]`, "7000")
		f("sglang-podlocal", `args: [--model-path, m, "--port=`+bad+`"]`, "30000")
	}
}

// TestSharedMemoryIsReusedOrRefused: l1Capacity is 8Gi, so 9Gi are needed.
func TestSharedMemoryIsReusedOrRefused(t *testing.T) {
	t.Parallel()
	f := func(mount, volume, reason string) {
		t.Helper()
		backend, pod := base(t, "vllm-podlocal")
		var m corev1.VolumeMount
		var v corev1.Volume
		given(t, `name: own, `+mount, &m)
		given(t, `name: own, `+volume, &v)
		pod.Spec.Volumes, pod.Spec.Containers[0].VolumeMounts = []corev1.Volume{v}, []corev1.VolumeMount{m}
		o := Dress(pod, backend, options)
		switch {
		case reason != "":
			if o.Refusal == nil || o.Refusal.Reason != reason {
				t.Errorf("%s of %s: %+v", mount, volume, o.Refusal)
			}
		case o.Refusal != nil:
			t.Errorf("%s of %s: %v", mount, volume, o.Refusal)
		default:
			server := o.Pod.Spec.InitContainers[0].VolumeMounts
			if !cmp.Equal(pod.Spec.Volumes, o.Pod.Spec.Volumes) || !cmp.Equal(pod.Spec.Containers[0].VolumeMounts, o.Pod.Spec.Containers[0].VolumeMounts) || len(server) != 1 || server[0].Name != "own" {
				t.Errorf("%s of %s: volumes %+v, the server's %+v", mount, volume, o.Pod.Spec.Volumes, server)
			}
		}
	}
	const at, memory = `mountPath: /dev/shm`, `emptyDir: {medium: Memory, sizeLimit: 9Gi}`
	f(at, memory, "")
	f(at+`/`, memory, "")
	f(at, `emptyDir: {medium: Memory, sizeLimit: 20Gi}`, "")
	f(at, `emptyDir: {medium: Memory}`, "")
	f(at, `emptyDir: {medium: Memory, sizeLimit: 9215Mi}`, v1alpha1.SkipSharedMemory)
	f(at, `emptyDir: {sizeLimit: 9Gi}`, v1alpha1.SkipSharedMemory)
	f(at, `hostPath: {path: /dev/shm}`, v1alpha1.SkipSharedMemory)
	f(at+`, readOnly: true`, memory, v1alpha1.SkipSharedMemory)
	f(at+`, subPath: a`, memory, v1alpha1.SkipSharedMemory)
	f(at+`, subPathExpr: $(A)`, memory, v1alpha1.SkipSharedMemory)
}

// TestHiCacheFlagsAgreeOrAreRefused: an equal flag stays as it is written.
func TestHiCacheFlagsAgreeOrAreRefused(t *testing.T) {
	t.Parallel()
	f := func(hiCache, own, added string) {
		t.Helper()
		backend, pod := base(t, "hicache-ratio")
		backend.Spec.HiCache = &v1alpha1.HiCacheSpec{}
		given(t, hiCache, backend.Spec.HiCache)
		engine := &pod.Spec.Containers[0]
		engine.Command, engine.Args = []string{"sglang", "serve"}, append([]string{"--model-path", "m"}, strings.Fields(own)...)
		o := Dress(pod, backend, options)
		if added == "" {
			if o.Refusal == nil || o.Refusal.Reason != v1alpha1.SkipIncompatibleArgs {
				t.Errorf("{%s} with %s: %v", hiCache, own, o.Refusal)
			}
			return
		}
		got := strings.Join(o.Pod.Spec.Containers[0].Args, " ")
		got, _, _ = strings.Cut(got, " --kv-events-config")
		if want := strings.TrimSpace("--model-path m "+own) + " " + added; o.Refusal != nil || got != want {
			t.Errorf("{%s} with %s: refusal %v, args %s, want %s", hiCache, own, o.Refusal, got, want)
		}
	}
	const enable, metrics = "--enable-hierarchical-cache", "--enable-metrics"
	f(`sizeGB: 30`, "", enable+" --hicache-size 30 "+metrics)
	f(`ratio: "2.0"`, "", enable+" --hicache-ratio 2.0 "+metrics)
	f(`sizeGB: 30`, enable+" "+metrics, "--hicache-size 30")
	for _, equal := range []string{"--hicache-size 30", "--hicache-size=30", "--hicache-size=30.0", "--hicache_size 3e1"} {
		f(`sizeGB: 30`, equal, enable+" "+metrics)
	}
	f(`ratio: "2.0"`, "--hicache-ratio 2", enable+" "+metrics)
	for _, wrong := range []string{"--hicache-size 31", "--hicache-size many", "--hicache-size", "--hicache-size=", "--hicache-size 30 --hicache-size 30", "--hicache-ratio 2",
		enable + " " + enable, enable + "=true"} {
		f(`sizeGB: 30`, wrong, "")
	}
	const all = `sizeGB: 1, writePolicy: write_back, ioBackend: kernel, memoryLayout: layer_first`
	f(all, "", enable+" --hicache-size 1 --hicache-write-policy write_back --hicache-io-backend kernel --hicache-mem-layout layer_first "+metrics)
	f(all, "--hicache-write-policy=write_back --hicache-io-backend kernel --hicache-mem-layout layer_first", enable+" --hicache-size 1 "+metrics)
	for _, other := range []string{"--hicache-write-policy write_through", "--hicache-io-backend=direct", "--hicache-mem-layout page_first"} {
		f(all, other, "")
		f(`sizeGB: 1`, other, enable+" --hicache-size 1 "+metrics)
	}
}

// TestEndpointsOfTheRemoteTier reach the server as host and port.
func TestEndpointsOfTheRemoteTier(t *testing.T) {
	t.Parallel()
	f := func(endpoint, host string, port int) {
		t.Helper()
		backend, _ := base(t, "vllm-podlocal")
		backend.Spec.RemoteStorage = &v1alpha1.RemoteStorageSpec{Provider: v1alpha1.ProviderRedis, Ownership: v1alpha1.External, Endpoint: endpoint}
		want := ""
		if host != "" {
			want = `{"type":"resp","host":"` + host + `","port":` + strconv.Itoa(port) + `}`
		}
		if got, err := remoteAdapter(backend); got != want || (err == nil) != (host != "") {
			t.Errorf("%q: %q, %v, want %q", endpoint, got, err, want)
		}
	}
	f("redis:6379", "redis", 6379)
	f(" redis.a.svc:1 ", "redis.a.svc", 1)
	f("[fd00::1]:6379", "fd00::1", 6379)
	f("[::1]:65535", "::1", 65535)
	for _, bad := range []string{"", "redis", ":6379", "redis:0", "redis:65536", "redis:http", "fd00::1:6379", "[fd00::1]"} {
		f(bad, "", 0)
	}
}
