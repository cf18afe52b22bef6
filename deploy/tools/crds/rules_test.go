package crds

import (
	"bytes"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/validation"
	"k8s.io/apimachinery/pkg/util/json"
	"sigs.k8s.io/yaml"
)

const dir = "../../crds"

func TestServerAcceptsTheDefinitions(t *testing.T) {
	t.Parallel()
	all, err := read(dir)
	if err != nil {
		t.Fatal(err)
	}
	if len(all) != 6 {
		t.Errorf("%d definitions in %s, want 6", len(all), dir)
	}
	for _, crd := range all {
		for _, err := range validation.ValidateCustomResourceDefinition(t.Context(), crd) {
			t.Errorf("%s: %v", crd.Spec.Names.Kind, err)
		}
	}
}

func TestSamplesAreAdmitted(t *testing.T) {
	t.Parallel()
	kinds, err := load(dir)
	if err != nil {
		t.Fatal(err)
	}
	files, err := filepath.Glob("../../samples/*.yaml")
	if err != nil || len(files) == 0 {
		t.Fatalf("%d samples, %v", len(files), err)
	}
	for _, name := range files {
		text, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		for _, document := range bytes.Split(text, []byte("\n---\n")) {
			o := parse(t, string(document))
			kind, ok := kinds[o["kind"].(string)]
			if !ok {
				continue // an engine of the quickstart
			}
			for _, err := range kind.admit(t.Context(), o, nil) {
				t.Errorf("%s: %v", name, err)
			}
		}
	}
}

func TestDefaultsAreWrittenIn(t *testing.T) {
	t.Parallel()
	kinds, err := load(dir)
	if err != nil {
		t.Fatal(err)
	}
	o := merge(parse(t, bases["CacheBackend"]), parse(t, `{spec: {type: null, lmCache: {topology: null}}}`))
	if errs := kinds["CacheBackend"].admit(t.Context(), o, nil); len(errs) > 0 {
		t.Fatal(errs)
	}
	want := parse(t, `
runtime: VLLM
type: LMCache
cacheDomain: d
integration: {mode: Offload, failOpen: true, kvEvents: Inject}
observation: {firstEventTimeout: 5m}
unwiredPods: Report
deletionPolicy: Wait
drainTimeout: 10m
lmCache:
  topology: PodLocal
  podLocal: {server: {l1Capacity: 8Gi, port: 5555, httpPort: 8080, maxWorkers: 4}}
`)
	got, _ := yaml.Marshal(o["spec"])
	text, _ := yaml.Marshal(want)
	if string(got) != string(text) {
		t.Errorf("got\n%s\nwant\n%s", got, text)
	}
}

// bases are accepted objects that the rules below are tried on.
var bases = map[string]string{
	"CacheBackend": `{apiVersion: inferencecache.io/v1alpha1, kind: CacheBackend, metadata: {name: b, namespace: ns},
		spec: {runtime: VLLM, cacheDomain: d, lmCache: {podLocal: {server: {l1Capacity: 8Gi}}}}}`,
	"CachePolicy":    `{apiVersion: inferencecache.io/v1alpha1, kind: CachePolicy, metadata: {name: p, namespace: ns}, spec: {}}`,
	"CacheTenant":    `{apiVersion: inferencecache.io/v1alpha1, kind: CacheTenant, metadata: {name: t, namespace: ns}}`,
	"CacheIndex":     `{apiVersion: inferencecache.io/v1alpha1, kind: CacheIndex, metadata: {name: cluster-default}}`,
	"PromptTemplate": `{apiVersion: inferencecache.io/v1alpha1, kind: PromptTemplate, metadata: {name: t, namespace: ns}, spec: {body: x}}`,
	"PDTopology":     `{apiVersion: inferencecache.io/v1alpha1, kind: PDTopology, metadata: {name: t, namespace: ns}}`,
}

// Changes that turn the base into another kind of backend.
const (
	eventsOnly = `lmCache: null, integration: {mode: EventsOnly}`
	hiCache    = `runtime: SGLang, type: SGLangHiCache, lmCache: null, hiCache: {sizeGB: 8}`
	nodeLocal  = `lmCache: {topology: NodeLocal, podLocal: null, nodeLocal: {server: {l1Capacity: 8Gi}}}`
	external   = `remoteStorage: {provider: Redis, ownership: External, endpoint: "r.ns.svc:6379"}`
	managed    = `remoteStorage: {provider: Redis, ownership: Managed}`
	server     = `lmCache: {podLocal: {server: {%s}}}`
	nodeServer = `lmCache: {nodeLocal: {server: {%s}}}`
)

func in(shape, inner string) string { return strings.Replace(shape, "%s", inner, 1) }

// TestRules tries every rule with an object it accepts and one it refuses, on
// create, and on update of the accepted one. Specs are merged onto the base.
func TestRules(t *testing.T) {
	t.Parallel()
	kinds, err := load(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range []struct{ name, kind, accepted, refused, because string }{
		{"runtime", "CacheBackend", `runtime: SGLang`, `runtime: vllm`, "spec.runtime"},
		{"runtime required", "CacheBackend", ``, `runtime: null`, "spec.runtime"},
		{"type", "CacheBackend", `type: LMCache`, `type: Mooncake`, "spec.type"},
		{"unknown field", "CacheBackend", ``, `nonsense: 1`, "unknown field"},
		{"domain", "CacheBackend", `cacheDomain: A.b_c-9`, `cacheDomain: -a`, "spec.cacheDomain"},
		{"domain length", "CacheBackend", `cacheDomain: ` + strings.Repeat("a", 63), `cacheDomain: ` + strings.Repeat("a", 64), "spec.cacheDomain"},
		{"selector key", "CacheBackend", `cacheDomain: null, engineSelector: {matchLabels: {inferencecache.io/cache-domain: d}}`,
			`engineSelector: {matchLabels: {app: d, inferencecache.io/cache-domain: null}}`, "may define ownership"},
		{"selector value", "CacheBackend", `cacheDomain: null, engineSelector: {matchLabels: {inferencecache.io/cache-domain: d}}`,
			`engineSelector: {matchLabels: {inferencecache.io/cache-domain: "a b"}}`, "label value"},
		{"selector size", "CacheBackend", `cacheDomain: null, engineSelector: {matchLabels: {inferencecache.io/cache-domain: d}}`,
			`engineSelector: {matchLabels: {app: x}}`, "matchLabels"},
		{"two domains", "CacheBackend", `engineSelector: {matchLabels: {inferencecache.io/cache-domain: d}}`, `cacheDomain: e`, "different domains"},
		{"no domain", "CacheBackend", `cacheDomain: null`, `cacheDomain: null, ` + hiCache, "needs cacheDomain"},
		{"no domain, NodeLocal", "CacheBackend", nodeLocal, `cacheDomain: null`, "needs cacheDomain"},
		{"lmCache required", "CacheBackend", ``, `lmCache: null`, "needs lmCache"},
		{"lmCache with HiCache", "CacheBackend", hiCache, `lmCache: {podLocal: {server: {l1Capacity: 8Gi}}}`, "only for type LMCache"},
		{"lmCache with events only", "CacheBackend", eventsOnly, `lmCache: {podLocal: {server: {l1Capacity: 8Gi}}}`, "remove lmCache"},
		{"storage with events only", "CacheBackend", eventsOnly, managed, "remove remoteStorage"},
		{"HiCache with events only", "CacheBackend", eventsOnly, `runtime: SGLang, type: SGLangHiCache, hiCache: {sizeGB: 1}`, "EventsOnly"},
		{"hiCache required", "CacheBackend", hiCache, `hiCache: null`, "hiCache is required"},
		{"hiCache with LMCache", "CacheBackend", ``, `hiCache: {sizeGB: 8}`, "hiCache is required"},
		{"HiCache runtime", "CacheBackend", hiCache, `runtime: VLLM`, "needs runtime SGLang"},
		{"HiCache storage", "CacheBackend", hiCache, managed, "no remote tier"},
		{"HiCache fails open", "CacheBackend", hiCache, `integration: {failOpen: false}`, "cannot fail closed"},
		{"HiCache one of", "CacheBackend", hiCache, `hiCache: {ratio: "2"}`, "exactly one"},
		{"HiCache none of", "CacheBackend", hiCache, `hiCache: {sizeGB: null}`, "exactly one"},
		{"HiCache size", "CacheBackend", hiCache, `hiCache: {sizeGB: 0}`, "sizeGB"},
		{"HiCache ratio", "CacheBackend", hiCache + `, hiCache: {sizeGB: null, ratio: "1.5e1"}`, `hiCache: {ratio: "0.0"}`, "must be positive"},
		{"HiCache ratio form", "CacheBackend", hiCache + `, hiCache: {sizeGB: null, ratio: ".5"}`, `hiCache: {ratio: "Inf"}`, "ratio"},
		{"HiCache write policy", "CacheBackend", hiCache + `, hiCache: {sizeGB: 1, writePolicy: write_back}`, `hiCache: {writePolicy: back}`, "writePolicy"},
		{"HiCache io", "CacheBackend", hiCache + `, hiCache: {sizeGB: 1, ioBackend: kernel}`, `hiCache: {ioBackend: x}`, "ioBackend"},
		{"HiCache layout", "CacheBackend", hiCache + `, hiCache: {sizeGB: 1, memoryLayout: page_head}`, `hiCache: {memoryLayout: x}`, "memoryLayout"},
		{"topology", "CacheBackend", `lmCache: {topology: PodLocal}`, `lmCache: {topology: Cluster}`, "topology"},
		{"topology without its server", "CacheBackend", ``, `lmCache: {topology: NodeLocal}`, "not both"},
		{"both servers", "CacheBackend", ``, `lmCache: {nodeLocal: {server: {l1Capacity: 1Gi}}}`, "not both"},
		{"chunk size", "CacheBackend", `lmCache: {chunkSizeTokens: 1}`, `lmCache: {chunkSizeTokens: 0}`, "chunkSizeTokens"},
		{"page size", "CacheBackend", `lmCache: {pageSizeTokens: 64}`, `lmCache: {pageSizeTokens: 48}`, "must divide"},
		{"hybrid", "CacheBackend", `lmCache: {hybridKVCacheManager: Engine}`, `lmCache: {hybridKVCacheManager: On}`, "hybridKVCacheManager"},
		{"capacity", "CacheBackend", in(server, `l1Capacity: 1`), in(server, `l1Capacity: 0`), "must be positive"},
		{"capacity sign", "CacheBackend", in(server, `l1Capacity: 500Mi`), in(server, `l1Capacity: "-1Gi"`), "must be positive"},
		{"capacity form", "CacheBackend", ``, in(server, `l1Capacity: much`), "l1Capacity"},
		{"capacity required", "CacheBackend", ``, in(server, `l1Capacity: null`), "l1Capacity"},
		{"image", "CacheBackend", in(server, `image: "a:b"`), in(server, `image: "a b"`), "image"},
		{"port", "CacheBackend", in(server, `port: 65535`), in(server, `port: 65536`), "port"},
		{"port of events", "CacheBackend", in(server, `port: 5558`), in(server, `port: 5557`), "KV events"},
		{"http port of events", "CacheBackend", in(server, `httpPort: 9000`), in(server, `httpPort: 5557`), "KV events"},
		{"same ports", "CacheBackend", in(server, `port: 9000`), in(server, `httpPort: 9000`), "must differ"},
		{"workers", "CacheBackend", in(server, `maxWorkers: 1`), in(server, `maxWorkers: 0`), "maxWorkers"},
		{"memory request", "CacheBackend", in(server, `resources: {requests: {memory: 9Gi}}`), in(server, `resources: {requests: {memory: 8Gi}}`), "l1Capacity + 1Gi"},
		{"memory limit", "CacheBackend", in(server, `resources: {limits: {memory: 9Gi}}`), in(server, `resources: {limits: {memory: 9000Mi}}`), "l1Capacity + 1Gi"},
		{"cpu request", "CacheBackend", in(server, `resources: {requests: {cpu: 1m}}`), in(server, `resources: {requests: {cpu: 0}}`), "cpu request must be positive"},
		{"limit below request", "CacheBackend", in(server, `resources: {requests: {cpu: 2}, limits: {cpu: 2}}`), in(server, `resources: {limits: {cpu: 1}}`), "below its request"},
		{"negative", "CacheBackend", in(server, `resources: {requests: {ephemeral-storage: 0}}`), in(server, `resources: {requests: {ephemeral-storage: -1}}`), "negative"},
		{"resource name", "CacheBackend", in(server, `resources: {requests: {hugepages-2Mi: 4Mi, example.com/x: 1}}`), in(server, `resources: {requests: {disk: 1}}`), "must be cpu"},
		{"resource domain", "CacheBackend", in(server, `resources: {limits: {example.com/x: 1}}`), in(server, `resources: {limits: {kubernetes.io/x: 1}}`), "must be cpu"},
		{"claims", "CacheBackend", ``, in(server, `resources: {claims: [{name: x}]}`), "unknown field"},
		{"NodeLocal ports", "CacheBackend", nodeLocal, in(nodeServer, `port: 5556`), "must differ"},
		{"NodeLocal GPU workers", "CacheBackend", nodeLocal, in(nodeServer, `maxGPUWorkers: 0`), "maxGPUWorkers"},
		{"NodeLocal CPU workers", "CacheBackend", nodeLocal, in(nodeServer, `maxCPUWorkers: 0`), "maxCPUWorkers"},
		{"NodeLocal GPU request", "CacheBackend", nodeLocal, in(nodeServer, `resources: {requests: {nvidia.com/gpu: 1}}`), "remove nvidia.com/gpu"},
		{"NodeLocal GPU limit", "CacheBackend", nodeLocal, in(nodeServer, `resources: {limits: {nvidia.com/gpu: 1}}`), "remove nvidia.com/gpu"},
		{"NodeLocal memory", "CacheBackend", nodeLocal, in(nodeServer, `resources: {limits: {memory: 8Gi}}`), "l1Capacity + 1Gi"},
		{"retention", "CacheBackend", nodeLocal + `, lmCache: {nodeLocal: {idleRetentionSeconds: 0}}`, `lmCache: {nodeLocal: {idleRetentionSeconds: 86401}}`, "idleRetentionSeconds"},
		{"node grace", "CacheBackend", nodeLocal, `lmCache: {nodeLocal: {scheduling: {terminationGracePeriodSeconds: -1}}}`, "terminationGracePeriodSeconds"},
		{"provider", "CacheBackend", managed, `remoteStorage: {provider: S3}`, "provider"},
		{"ownership", "CacheBackend", managed, `remoteStorage: {ownership: null}`, "ownership"},
		{"Managed endpoint", "CacheBackend", managed, `remoteStorage: {endpoint: "r:1"}`, "remove it"},
		{"Managed username", "CacheBackend", managed + `, remoteStorage: {redis: {authentication: {password: {name: s, key: p}}}}`,
			`remoteStorage: {redis: {authentication: {username: {name: s, key: u}}}}`, "remove the username"},
		{"External endpoint", "CacheBackend", external, `remoteStorage: {endpoint: null}`, "needs an endpoint"},
		{"External workload", "CacheBackend", external, `remoteStorage: {workload: {}}`, "remove workload"},
		{"External image", "CacheBackend", external, `remoteStorage: {redis: {image: r}}`, "remove redis.image"},
		{"External resources", "CacheBackend", external, `remoteStorage: {redis: {resources: {}}}`, "remove redis.resources"},
		{"endpoint scheme", "CacheBackend", external, `remoteStorage: {endpoint: "redis://r:6379"}`, "endpoint"},
		{"endpoint port", "CacheBackend", external + `, remoteStorage: {endpoint: "r:65535"}`, `remoteStorage: {endpoint: "r:65536"}`, "65535"},
		{"endpoint port 0", "CacheBackend", external + `, remoteStorage: {endpoint: "r:1"}`, `remoteStorage: {endpoint: "r:0"}`, "65535"},
		{"endpoint IPv6", "CacheBackend", external + `, remoteStorage: {endpoint: "[fd00::1]:6379"}`, `remoteStorage: {endpoint: "fd00::1:6379"}`, "endpoint"},
		{"endpoint brackets", "CacheBackend", external + `, remoteStorage: {endpoint: "[::1]:6379"}`, `remoteStorage: {endpoint: "[:::1]:6379"}`, "IPv6"},
		{"password", "CacheBackend", external + `, remoteStorage: {redis: {authentication: {password: {name: s, key: p, optional: false}}}}`,
			`remoteStorage: {redis: {authentication: {password: {optional: true}}}}`, "cannot be optional"},
		{"password required", "CacheBackend", external, `remoteStorage: {redis: {authentication: {}}}`, "password"},
		{"secret name", "CacheBackend", external, `remoteStorage: {redis: {authentication: {password: {name: S_, key: p}}}}`, "name"},
		{"secret key", "CacheBackend", external, `remoteStorage: {redis: {authentication: {password: {name: s, key: "a/b"}}}}`, "key"},
		{"TLS", "CacheBackend", external, `remoteStorage: {redis: {tls: {}}}`, "unknown field"},
		{"mode", "CacheBackend", `integration: {mode: Offload}`, `integration: {mode: Off}`, "mode"},
		{"role", "CacheBackend", `integration: {role: ReadWrite}`, `integration: {role: ReadOnly}`, "role"},
		{"kvEvents", "CacheBackend", `integration: {kvEvents: External}`, `integration: {kvEvents: None}`, "kvEvents"},
		{"first event", "CacheBackend", `observation: {firstEventTimeout: 0s}`, `observation: {firstEventTimeout: soon}`, "firstEventTimeout"},
		{"stale after", "CacheBackend", `observation: {staleAfter: 30s}`, `observation: {staleAfter: 29s}`, "at least 30s"},
		{"adapters", "CacheBackend", `observation: {loraAdapters: [{id: 1, name: a}]}`, `observation: {loraAdapters: [{id: 1, name: "a,b"}]}`, "name"},
		{"adapters once", "CacheBackend", `observation: {loraAdapters: [{id: 1, name: a}]}`, `observation: {loraAdapters: [{id: 1, name: a}, {id: 1, name: b}]}`, "Duplicate"},
		{"cache size", "CacheBackend", `observation: {engineCacheSize: 1Gi}`, `observation: {engineCacheSize: 0}`, "must be positive"},
		{"kernel check", "CacheBackend", `kernelCheck: Strict`, `kernelCheck: strict`, "kernelCheck"},
		{"unwired pods", "CacheBackend", `unwiredPods: Evict`, `unwiredPods: Kill`, "unwiredPods"},
		{"deletion", "CacheBackend", `deletionPolicy: Immediate`, `deletionPolicy: Now`, "deletionPolicy"},
		{"drain", "CacheBackend", `drainTimeout: 0s`, `drainTimeout: -1s`, "negative"},

		{"eviction", "CachePolicy", `eviction: LFU`, `eviction: lfu`, "eviction"},
		{"ttl", "CachePolicy", `evictionTTL: 1ns`, `evictionTTL: 0s`, "must be positive"},
		{"ttl form", "CachePolicy", `evictionTTL: 1h30m`, `evictionTTL: 1 day`, "evictionTTL"},
		{"prefix floor", "CachePolicy", `minimumPrefixTokens: 0`, `minimumPrefixTokens: -1`, "minimumPrefixTokens"},
		{"match floor", "CachePolicy", `minimumMatchedTokens: 0`, `minimumMatchedTokens: -1`, "minimumMatchedTokens"},
		{"score floor", "CachePolicy", `routingFloorScore: "12345678.123456"`, `routingFloorScore: "123456789"`, "routingFloorScore"},
		{"score zero", "CachePolicy", `routingFloorScore: "0"`, `routingFloorScore: "00"`, "routingFloorScore"},
		{"score sign", "CachePolicy", `routingFloorScore: "0.5"`, `routingFloorScore: "-0.5"`, "routingFloorScore"},
		{"timeout", "CachePolicy", `lookupTimeoutMs: 0`, `lookupTimeoutMs: -1`, "lookupTimeoutMs"},
		{"affinity", "CachePolicy", `affinityRouting: Disabled`, `affinityRouting: "Off"`, "affinityRouting"},
		{"chain", "CachePolicy", `strategy: {requireChain: true}`, `strategy: {enableChainMatching: false}`, "needs enableChainMatching"},
		{"profile", "CachePolicy", `ranking: {profile: Compat}`, `ranking: {profile: cost}`, "profile"},
		{"topK", "CachePolicy", `ranking: {topK: 0}`, `ranking: {topK: -1}`, "topK"},
		{"shadow", "CachePolicy", `shadow: true`, `shadow: "yes"`, "shadow"},

		{"tenant", "CacheTenant", `tenantID: ns`, `tenantID: ""`, "tenantID"},
		{"tenant reserved", "CacheTenant", `tenantID: inferencecache.io/x`, `tenantID: inferencecache.io/probe`, "reserved"},
		{"quota", "CacheTenant", `quota: {maxIndexEntries: 0}`, `quota: {maxIndexEntries: -1}`, "maxIndexEntries"},
		{"isolation", "CacheTenant", `isolationMode: Fairness`, `isolationMode: Strict`, "isolationMode"},
		{"crypto", "CacheTenant", `crypto: {}`, `crypto: {key: x}`, "crypto"},

		{"index spec", "CacheIndex", ``, `x: 1`, "unknown field"},
		{"body", "PromptTemplate", ``, `body: ""`, "body"},
		{"slots", "PromptTemplate", `slots: [{name: a, type: Stable}]`, `slots: [{name: a, type: Fixed}]`, "type"},
		{"pools", "PDTopology", `prefillPools: [{name: a, replicas: 0}]`, `prefillPools: [{name: a, replicas: -1}]`, "replicas"},
	} {
		t.Run(r.kind+"/"+r.name, func(t *testing.T) {
			t.Parallel()
			accepted := func() object {
				return merge(parse(t, bases[r.kind]), parse(t, "{spec: {"+first(r.accepted)+"}}"), parse(t, "{spec: {"+second(r.accepted)+"}}"))
			}
			refused := func() object { return merge(accepted(), parse(t, "{spec: {"+r.refused+"}}")) }
			old := accepted()
			for _, err := range kinds[r.kind].admit(t.Context(), old, nil) {
				t.Errorf("create of what is right: %v", err)
			}
			for _, err := range kinds[r.kind].admit(t.Context(), accepted(), old) {
				t.Errorf("update to what is right: %v", err)
			}
			for when, errs := range map[string]error{
				"create": kinds[r.kind].admit(t.Context(), refused(), nil).ToAggregate(),
				"update": kinds[r.kind].admit(t.Context(), refused(), old).ToAggregate(),
			} {
				if errs == nil || !strings.Contains(errs.Error(), r.because) {
					t.Errorf("%s of what is wrong: %v, want word of %q", when, errs, r.because)
				}
			}
		})
	}
}

// first and second split a change that says the same key twice, as the shapes
// above with something added: the second is merged after the first.
func first(change string) string {
	for _, shape := range []string{hiCache, nodeLocal, external, managed, eventsOnly} {
		if strings.HasPrefix(change, shape) {
			return shape
		}
	}
	return change
}

func second(change string) string {
	return strings.TrimPrefix(strings.TrimPrefix(change, first(change)), ", ")
}

func parse(t *testing.T, text string) object {
	t.Helper()
	var o object
	encoded, err := yaml.YAMLToJSONStrict([]byte(strings.ReplaceAll(text, "\t", " ")))
	if err == nil {
		err = json.Unmarshal(encoded, &o) // whole numbers as the API server has them
	}
	if err != nil {
		t.Fatalf("%s: %v", text, err)
	}
	return o
}

// merge applies changes in order; null removes a key.
func merge(base object, changes ...object) object {
	base = maps.Clone(base)
	for _, change := range changes {
		for key, value := range change {
			inner, isObject := value.(object)
			have, hasObject := base[key].(object)
			switch {
			case value == nil:
				delete(base, key)
			case isObject && hasObject:
				base[key] = merge(have, inner)
			case isObject:
				base[key] = merge(object{}, inner)
			default:
				base[key] = value
			}
		}
	}
	return base
}
