package webhook

import (
	"slices"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/util/validation/field"
	"sigs.k8s.io/yaml"

	"inferencecache.io/inferencecache/api/v1alpha1"
	"inferencecache.io/inferencecache/webhook/inject"
)

// backend reads a CacheBackend ns/b from the inside of its spec.
func backend(t *testing.T, text string) *v1alpha1.CacheBackend {
	t.Helper()
	b := &v1alpha1.CacheBackend{}
	b.Namespace, b.Name = "ns", "b"
	b.Spec.Runtime = v1alpha1.RuntimeVLLM
	if err := yaml.UnmarshalStrict([]byte("{"+text+"}"), &b.Spec); err != nil {
		t.Fatalf("%s: %v", text, err)
	}
	return b
}

const (
	domain    = `cacheDomain: d`
	server    = `lmCache: {podLocal: {server: {l1Capacity: 8Gi, resources: {%s}}}}`
	nodes     = `lmCache: {nodeLocal: {server: {l1Capacity: 8Gi, resources: {%s}}}}`
	managed   = `remoteStorage: {provider: Redis, ownership: Managed, redis: {resources: {%s}}}`
	redis     = `remoteStorage: {provider: Redis, ownership: External, endpoint: "%s"}`
	overriden = `integration: {engineOverrides: {%s}}`
)

func in(shape, inner string) string { return strings.Replace(shape, "%s", inner, 1) }

// TestBackendRules tries every rule with a spec it accepts and one it refuses:
// on create, on update that brings the violation, and on one that keeps it.
func TestBackendRules(t *testing.T) {
	t.Parallel()
	for _, r := range []struct{ name, accepted, refused, path string }{
		{"cross namespace", in(redis, "r.ns.svc:6379"), in(redis, "r.other.svc:6379"), "spec.remoteStorage.endpoint"},
		{"cluster.local", in(redis, "r.ns.svc.cluster.local:6379"), in(redis, "r.other.svc.cluster.local:6379"), "spec.remoteStorage.endpoint"},
		{"trailing dot, upper case", in(redis, "R.NS.SVC.CLUSTER.LOCAL.:6379"), in(redis, "R.OTHER.SVC.CLUSTER.LOCAL.:6379"), "spec.remoteStorage.endpoint"},
		{"pod behind a Service", in(redis, "r-0.r.ns.svc:6379"), in(redis, "r-0.ns.other.svc:6379"), "spec.remoteStorage.endpoint"},
		{"pod", in(redis, "10-0-0-1.ns.pod:6379"), in(redis, "10-0-0-1.other.pod.cluster.local:6379"), "spec.remoteStorage.endpoint"},
		{"outside and IPv6", in(redis, "[fd00::1]:6379"), in(redis, "a.svc:1"), "spec.remoteStorage.endpoint"},
		{"allowed", in(redis, "r.other.svc:6379") + ", allowCrossNamespace: true", in(redis, "r.other.svc:6379"), "spec.remoteStorage.endpoint"},
		{"negative", in(server, "requests: {ephemeral-storage: 0}"), in(server, "requests: {ephemeral-storage: -1}"), "spec.lmCache.podLocal.server.resources.requests[ephemeral-storage]"},
		{"limit below request", in(server, "requests: {cpu: 1}, limits: {cpu: 1}"), in(server, "requests: {cpu: 2}, limits: {cpu: 1}"), "spec.lmCache.podLocal.server.resources.requests[cpu]"},
		{"huge page size", in(server, "requests: {hugepages-2Mi: 4Mi}, limits: {hugepages-2Mi: 4Mi}"), in(server, "requests: {hugepages-0: 4Mi}, limits: {hugepages-0: 4Mi}"), "spec.lmCache.podLocal.server.resources.requests[hugepages-0]"},
		{"huge page multiple", in(server, "limits: {hugepages-2Mi: 4Mi}"), in(server, "limits: {hugepages-2Mi: 3Mi}"), "spec.lmCache.podLocal.server.resources.limits[hugepages-2Mi]"},
		{"whole numbers", in(server, "requests: {example.com/x: 2}, limits: {example.com/x: 2}"), in(server, "requests: {example.com/x: 1500m}, limits: {example.com/x: 1500m}"), "spec.lmCache.podLocal.server.resources.requests[example.com/x]"},
		{"extended limit", in(server, "limits: {example.com/x: 2}"), in(server, "requests: {example.com/x: 2}"), "spec.lmCache.podLocal.server.resources.limits[example.com/x]"},
		{"extended equal", in(server, "requests: {example.com/x: 2}, limits: {example.com/x: 2}"), in(server, "requests: {example.com/x: 1}, limits: {example.com/x: 2}"), "spec.lmCache.podLocal.server.resources.requests[example.com/x]"},
		{"resource domain", in(server, "limits: {example.com/x: 1}"), in(server, "limits: {requests.kubernetes.io/x: 1}"), "spec.lmCache.podLocal.server.resources.limits[requests.kubernetes.io/x]"},
		{"resource name", in(server, "limits: {example.com/x: 1}"), in(server, "limits: {disk: 1}"), "spec.lmCache.podLocal.server.resources.limits[disk]"},
		{"0 and equal", in(server, "requests: {cpu: 0, example.com/x: 0, hugepages-2Mi: 0}, limits: {cpu: 0, example.com/x: 0, hugepages-2Mi: 0}"), in(server, "requests: {memory: -1Gi}"), "spec.lmCache.podLocal.server.resources.requests[memory]"},
		{"negative limit", in(server, "limits: {cpu: 0}"), in(server, "limits: {cpu: -1}"), "spec.lmCache.podLocal.server.resources.limits[cpu]"},
		{"negative extended", in(server, "limits: {example.com/x: 0}"), in(server, "limits: {example.com/x: -1}"), "spec.lmCache.podLocal.server.resources.limits[example.com/x]"},
		{"negative huge pages", in(server, "limits: {hugepages-1Gi: 2Gi}"), in(server, "limits: {hugepages-1Gi: -1Gi}"), "spec.lmCache.podLocal.server.resources.limits[hugepages-1Gi]"},
		{"page of no size", in(server, "limits: {hugepages-1Gi: 1Gi}"), in(server, "limits: {hugepages-big: 1Gi}"), "spec.lmCache.podLocal.server.resources.limits[hugepages-big]"},
		{"negative page", in(server, "limits: {hugepages-1Gi: 1Gi}"), in(server, "limits: {hugepages--2Mi: 1Gi}"), "spec.lmCache.podLocal.server.resources.limits[hugepages--2Mi]"},
		{"huge pages without limit", in(server, "requests: {hugepages-2Mi: 2Mi}, limits: {hugepages-2Mi: 2Mi}"), in(server, "requests: {hugepages-2Mi: 2Mi}"), "spec.lmCache.podLocal.server.resources.limits[hugepages-2Mi]"},
		{"kubernetes.io", in(server, "limits: {x.example.com/x: 1}"), in(server, "limits: {kubernetes.io/x: 1}"), "spec.lmCache.podLocal.server.resources.limits[kubernetes.io/x]"},
		{"server of nodes", in(nodes, "limits: {cpu: 1}"), in(nodes, "limits: {cpu: -1}"), "spec.lmCache.nodeLocal.server.resources.limits[cpu]"},
		{"Redis", in(managed, "limits: {cpu: 1}"), in(managed, "limits: {cpu: -1}"), "spec.remoteStorage.redis.resources.limits[cpu]"},
		{"reserved arg", in(overriden, "args: [--seed, '7']"), in(overriden, "args: ['--kv-transfer-config={}']"), "spec.integration.engineOverrides.args[0]"},
		{"reserved arg spelled otherwise", in(overriden, "args: [--seed]"), in(overriden, "args: [--kv_transfer_config]"), "spec.integration.engineOverrides.args[0]"},
		{"reserved suppressed arg", in(overriden, "suppressArgs: [--kv-events-config]"), in(overriden, "suppressArgs: [--x, --disable-hybrid-kv-cache-manager]"), "spec.integration.engineOverrides.suppressArgs[1]"},
		{"reserved env", in(overriden, "env: [{name: A, value: b}]"), in(overriden, "env: [{name: PYTHONHASHSEED, value: '1'}]"), "spec.integration.engineOverrides.env[0].name"},
		{"reserved suppressed env", in(overriden, "suppressEnv: [A]"), in(overriden, "suppressEnv: [PYTHONHASHSEED]"), "spec.integration.engineOverrides.suppressEnv[0]"},
		{"env name", in(overriden, "env: [{name: A}]"), in(overriden, "env: [{name: ''}]"), "spec.integration.engineOverrides.env[0].name"},
		{"env one of", in(overriden, "env: [{name: A, valueFrom: {fieldRef: {fieldPath: metadata.name}}}]"), in(overriden, "env: [{name: A, value: b, valueFrom: {fieldRef: {fieldPath: metadata.name}}}]"), "spec.integration.engineOverrides.env[0].valueFrom"},
		{"env source", in(overriden, "env: [{name: A, valueFrom: {configMapKeyRef: {name: c, key: k}}}]"), in(overriden, "env: [{name: A, valueFrom: {}}]"), "spec.integration.engineOverrides.env[0].valueFrom"},
	} {
		t.Run(r.name, func(t *testing.T) {
			t.Parallel()
			good, bad := backend(t, r.accepted), backend(t, r.refused)
			if errs := Backend(good, nil, nil); len(errs) > 0 {
				t.Errorf("create of what is right: %v", errs)
			}
			if errs := Backend(good, bad, nil); len(errs) > 0 {
				t.Errorf("update to what is right: %v", errs)
			}
			checkOne(t, "create of what is wrong", Backend(bad, nil, nil), r.path)
			checkOne(t, "update to what is wrong", Backend(bad, good, nil), r.path)
			if errs := Backend(bad, bad, nil); len(errs) > 0 {
				t.Errorf("update that keeps what is wrong: %v", errs)
			}
		})
	}
}

func checkOne(t *testing.T, when string, errs field.ErrorList, path string) {
	t.Helper()
	if len(errs) == 0 || errs[0].Field != path {
		t.Errorf("%s: %v, want an error of %s", when, errs, path)
	}
}

// TestNamespacesOfEndpoints: only names that a cluster's DNS serves have one.
func TestNamespacesOfEndpoints(t *testing.T) {
	t.Parallel()
	for endpoint, want := range map[string]string{
		"r.other.svc:6379":                       "other",
		"r.other.svc":                            "other",
		"r.other.svc.:6379":                      "other",
		"r.other.svc.cluster.local:6379":         "other",
		"r.other.svc.cluster.local.:6379":        "other",
		" R.Other.SVC.Cluster.Local.:6379 ":      "other",
		"redis://r.other.svc:6379/0":             "other",
		"r-0.r.other.svc.cluster.local:6379":     "other",
		"10-0-0-1.r.other.svc:6379":              "other",
		"10-0-0-1.other.pod:6379":                "other",
		"10-0-0-1.other.pod.cluster.local.:6379": "other",
		"other.svc:6379":                         "other",
		"svc.cluster.local:6379":                 "",
		"redis:6379":                             "",
		"redis.example.com:6379":                 "",
		"r.other.svc.example.com:6379":           "",
		"10.0.0.1:6379":                          "",
		"[fd00::1]:6379":                         "",
		"redis://[fd00::1]:6379/0":               "",
		"fd00::1":                                "",
		"":                                       "",
	} {
		if got := namespaceOf(endpoint); got != want {
			t.Errorf("%q is in namespace %q, want %q", endpoint, got, want)
		}
	}
}

// TestReservedNamesAreRefusedInEveryList tries each name of each adapter.
func TestReservedNamesAreRefusedInEveryList(t *testing.T) {
	t.Parallel()
	for _, pair := range []struct {
		runtime v1alpha1.Runtime
		cache   v1alpha1.BackendType
		want    string
	}{
		{v1alpha1.RuntimeVLLM, v1alpha1.TypeLMCache, "--kv-transfer-config --disable-hybrid-kv-cache-manager PYTHONHASHSEED INFERENCECACHE_NODE_IP INFERENCECACHE_FAIL_OPEN"},
		{v1alpha1.RuntimeSGLang, v1alpha1.TypeLMCache, "--enable-lmcache --lmcache-config-file --enable-metrics LMCACHE_USE_EXPERIMENTAL INFERENCECACHE_NODE_IP INFERENCECACHE_FAIL_OPEN"},
		{v1alpha1.RuntimeSGLang, v1alpha1.TypeHiCache, "--enable-hierarchical-cache --hicache-size --hicache-ratio --hicache-write-policy --hicache-io-backend --hicache-mem-layout --enable-metrics"},
	} {
		args, env, ok := inject.Reserved(pair.runtime, pair.cache)
		if got := strings.Join(slices.Concat(args, env), " "); !ok || got != pair.want {
			t.Errorf("%s with %s reserves %s, want %s", pair.runtime, pair.cache, got, pair.want)
		}
		refused := func(list, path string) {
			t.Helper()
			b := backend(t, in(overriden, list))
			b.Spec.Runtime, b.Spec.Type = pair.runtime, pair.cache
			checkOne(t, string(pair.runtime)+" "+list, Backend(b, nil, nil), "spec.integration.engineOverrides."+path)
		}
		for _, name := range args {
			for _, form := range []string{name, name + "=1", "--" + strings.ReplaceAll(name[2:], "-", "_")} {
				refused(`args: [--x, "`+form+`"]`, "args[1]")
				refused(`suppressArgs: [--x, "`+form+`"]`, "suppressArgs[1]")
			}
		}
		for _, name := range env {
			refused(`env: [{name: A}, {name: `+name+`}]`, "env[1].name")
			refused(`suppressEnv: [A, `+name+`]`, "suppressEnv[1]")
		}
	}
}

func TestKernelCheckAnnotationIsOneOfFour(t *testing.T) {
	t.Parallel()
	b := backend(t, domain)
	for _, value := range []string{"", "auto", "report-only", "strict", "off"} {
		b.Annotations = map[string]string{v1alpha1.AnnotationKernelCheck: value}
		if errs := Backend(b, nil, nil); len(errs) > 0 {
			t.Errorf("%q: %v", value, errs)
		}
	}
	b.Annotations[v1alpha1.AnnotationKernelCheck] = "Strict"
	checkOne(t, "Strict", Backend(b, nil, nil), "metadata.annotations[inferencecache.io/lmcache-kernel-check]")
}

// TestOwnershipIsNeverTolerated: an update that keeps a bad selector, or a
// domain that is another's, is refused all the same.
func TestOwnershipIsNeverTolerated(t *testing.T) {
	t.Parallel()
	selector := func(labels string) *v1alpha1.CacheBackend {
		return backend(t, `engineSelector: {matchLabels: {`+labels+`}}`)
	}
	for labels, path := range map[string]string{
		`app: x`:                                `spec.engineSelector.matchLabels[app]`,
		`inferencecache.io/cache-domain: ""`:    `spec.engineSelector.matchLabels[inferencecache.io/cache-domain]`,
		`inferencecache.io/cache-domain: "a b"`: `spec.engineSelector.matchLabels[inferencecache.io/cache-domain]`,
	} {
		b := selector(labels)
		checkOne(t, labels, Backend(b, b, nil), path)
	}
	b := backend(t, domain)
	other := func(namespace, name, of string) v1alpha1.CacheBackend {
		o := backend(t, "cacheDomain: "+of)
		o.Namespace, o.Name = namespace, name
		return *o
	}
	others := []v1alpha1.CacheBackend{*b, other("ns", "z", "d"), other("ns", "c", "d"), other("ns", "a", "e"), other("elsewhere", "a", "d")}
	errs := Backend(b, b, others)
	checkOne(t, "a taken domain", errs, "spec.cacheDomain")
	if !strings.Contains(errs.ToAggregate().Error(), "CacheBackend c ") {
		t.Errorf("the first owner by name is not named: %v", errs)
	}
	if errs := Backend(b, nil, []v1alpha1.CacheBackend{*b, other("ns", "a", "e"), other("elsewhere", "a", "d")}); len(errs) > 0 {
		t.Errorf("a free domain: %v", errs)
	}
}

func TestPolicyIsTheOnlyOneWhenCreated(t *testing.T) {
	t.Parallel()
	policy := func(namespace, name string) v1alpha1.CachePolicy {
		p := v1alpha1.CachePolicy{}
		p.Namespace, p.Name = namespace, name
		return p
	}
	p := policy("ns", "p")
	if errs := Policy(&p, nil, []v1alpha1.CachePolicy{p, policy("other", "a")}); len(errs) > 0 {
		t.Error(errs)
	}
	two := []v1alpha1.CachePolicy{policy("ns", "z"), policy("ns", "b")}
	errs := Policy(&p, nil, two)
	checkOne(t, "a second policy", errs, "metadata.name")
	if !strings.Contains(errs.ToAggregate().Error(), "CachePolicy b,") {
		t.Errorf("the one in force is not named: %v", errs)
	}
	if errs := Policy(&p, &p, two); len(errs) > 0 {
		t.Errorf("an update: %v", errs)
	}
}

func TestTenantIsTheNamespaceOrGranted(t *testing.T) {
	t.Parallel()
	tenant := func(name, id string) *v1alpha1.CacheTenant {
		c := &v1alpha1.CacheTenant{}
		c.Namespace, c.Name, c.Spec.TenantID = "ns", name, id
		return c
	}
	f := func(id, grants string, want bool) {
		t.Helper()
		if errs := Tenant(tenant("t", id), nil, nil, grants); (len(errs) == 0) != want {
			t.Errorf("%q with grants %q: %v", id, grants, errs)
		}
	}
	f("", "", true)
	f("ns", "", true)
	f("other", "", false)
	f("other", "a, other", true)
	f("other", "*", true)
	f("other", "oth", false)
	f(v1alpha1.ReservedTenant, "*", false)

	foreign := tenant("t", "other")
	if errs := Tenant(foreign, foreign, nil, ""); len(errs) > 0 {
		t.Errorf("an update that keeps the id: %v", errs)
	}
	checkOne(t, "an update to another id", Tenant(foreign, tenant("t", "ns"), nil, ""), "spec.tenantID")
	others := []v1alpha1.CacheTenant{*tenant("z", "ns"), *tenant("b", "")}
	errs := Tenant(tenant("t", ""), nil, others, "")
	checkOne(t, "the same id twice", errs, "spec.tenantID")
	if !strings.Contains(errs.ToAggregate().Error(), "CacheTenant b ") {
		t.Errorf("the first by name is not named: %v", errs)
	}
}

func TestWarnings(t *testing.T) {
	t.Parallel()
	options := inject.Options{SubscriberImage: "i", Servers: []string{"s:1"}}
	f := func(text, want string) {
		t.Helper()
		got := strings.Join(BackendWarnings(backend(t, text), nil, options), "\n")
		if want == "" && got != "" || !strings.Contains(got, want) {
			t.Errorf("%s: %q, want word of %q", text, got, want)
		}
	}
	f(domain, "")
	f(`type: LMCache`, "no engine pod")
	f(domain+`, integration: {kvEvents: External}`, "no subscriber")
	f(domain+`, lmCache: {podLocal: {server: {l1Capacity: 8Gi, image: "a:b"}}}`, "not pinned")
	f(domain+`, lmCache: {nodeLocal: {server: {l1Capacity: 8Gi, image: "a:b"}}}`, "not pinned")
	f(domain+`, lmCache: {podLocal: {server: {l1Capacity: 8Gi, image: "a@sha256:0"}}}`, "")
	f(domain+`, lmCache: {podLocal: {server: {l1Capacity: 8Gi}}}`, "") // runs the engine's image
	f(domain+`, lmCache: {nodeLocal: {server: {l1Capacity: 8Gi}}}`, "image is not set")
	f(domain+`, `+in(redis, "r:6379"), "unencrypted")
	f(domain+`, `+in(redis, "r:6379"), "authentication is not set")
	if got := BackendWarnings(backend(t, domain), nil, inject.Options{}); len(got) != 1 {
		t.Errorf("without an image for subscribers: %q", got)
	}
	was, now := backend(t, domain), backend(t, domain+`, observation: {modelID: m}`)
	if got := BackendWarnings(now, was, options); len(got) != 1 || !strings.Contains(got[0], "created anew") {
		t.Errorf("a change of wiring: %q", got)
	}
	if got := BackendWarnings(was, was, options); len(got) != 0 {
		t.Errorf("no change: %q", got)
	}
}
