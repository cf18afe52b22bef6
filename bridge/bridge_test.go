package bridge

import (
	"context"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"inferencecache.io/inferencecache/internal/policy"
	"inferencecache.io/inferencecache/internal/status"
)

// published is a policy that says nothing, as version 7 reads it.
func published() policy.Policy {
	p := policy.Defaults()
	p.MinMatchedTokens = 0
	return p
}

func TestDecodePolicyByVersion(t *testing.T) {
	t.Parallel()
	with := func(change func(*policy.Policy)) policy.Policy { p := published(); change(&p); return p }
	for name, v := range map[string]struct {
		body string
		want policy.Policy
	}{
		"7: absent is off or default": {`{"version":7,"policies":[{"namespace":"ns"}]}`, published()},
		"7: explicit zero floor":      {`{"version":7,"policies":[{"namespace":"ns","routingFloorScore":0}]}`, with(func(p *policy.Policy) { p.FloorScore = 0 })},
		"7: everything": {`{"version":7,"policies":[{"namespace":"ns","evictionTTL":900000000000,"minimumPrefixTokens":32,"minimumMatchedTokens":16,
			"routingFloorScore":2.5,"lookupTimeoutMs":20,"affinityRouting":false,"eviction":"LFU",
			"strategy":{"enableChainMatching":false,"requireChain":true,"enableTenantHot":false}}],"tenants":[]}`,
			policy.Policy{TTL: 15 * time.Minute, LFU: true, MinPrefixTokens: 32, MinMatchedTokens: 16, FloorScore: 2.5, Timeout: 20 * time.Millisecond, RequireChain: true, TopK: 8}},
		"8: ranking": {`{"version":8,"policies":[{"namespace":"ns","ranking":{"profile":"Compat","topK":3},"shadow":true}]}`,
			with(func(p *policy.Policy) { p.Profile, p.TopK, p.Shadow = policy.Compat, 3, true })},
		"8: all replicas":      {`{"version":8,"policies":[{"namespace":"ns","ranking":{"profile":"Cost","topK":0}}]}`, with(func(p *policy.Policy) { p.TopK = 0 })},
		"8: absent is default": {`{"version":8,"policies":[{"namespace":"ns","ranking":{}}]}`, published()},
		"7: negatives are off": {`{"version":7,"policies":[{"namespace":"ns","evictionTTL":-1,"minimumPrefixTokens":-1,"minimumMatchedTokens":-5,"routingFloorScore":-1,"lookupTimeoutMs":-1}]}`,
			with(func(p *policy.Policy) { p.FloorScore = 0 })},
		"7: unknown eviction is LRU": {`{"version":7,"policies":[{"namespace":"ns","eviction":"arc"}]}`, published()},
		"3: no matched floor yet":    {`{"version":3,"policies":[{"namespace":"ns","eviction":"lfu"}]}`, with(func(p *policy.Policy) { p.LFU = true; p.MinMatchedTokens = 64 })},
		"3: a field it could not have is kept": {`{"version":3,"policies":[{"namespace":"ns","minimumMatchedTokens":8,"affinityRouting":false}]}`,
			with(func(p *policy.Policy) { p.MinMatchedTokens = 8; p.Affinity = false })},
		"4: zero is off":           {`{"version":4,"policies":[{"namespace":"ns"}]}`, published()},
		"last duplicate wins":      {`{"version":7,"policies":[{"namespace":"ns","lookupTimeoutMs":5},{"namespace":"ns","lookupTimeoutMs":7}]}`, with(func(p *policy.Policy) { p.Timeout = 7 * time.Millisecond })},
		"an empty name is dropped": {`{"version":7,"policies":[{"namespace":"ns"},{"namespace":""}]}`, published()},
	} {
		set, err := DecodePolicy([]byte(v.body), policy.Defaults())
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		if diff := cmp.Diff(map[string]policy.Policy{"ns": v.want}, set.Policies); diff != "" {
			t.Errorf("%s: %s", name, diff)
		}
	}
}

func TestDecodePolicyQuotas(t *testing.T) {
	t.Parallel()
	set, err := DecodePolicy([]byte(`{"version":7,"policies":[],"tenants":[{"tenantID":"a","maxIndexEntries":5,"isolationMode":"Fairness"},{"tenantID":"b","maxIndexEntries":-3},{"tenantID":"","maxIndexEntries":1}]}`), policy.Defaults())
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(map[string]int64{"a": 5, "b": 0}, set.Quotas); diff != "" {
		t.Error(diff)
	}
}

func TestDecodePolicyRefuses(t *testing.T) {
	t.Parallel()
	for name, body := range map[string]string{
		"version 2":         `{"version":2}`,
		"version 99":        `{"version":99}`,
		"no version":        `{"policies":[]}`,
		"an unknown field":  `{"version":7,"polices":[]}`,
		"an unknown knob":   `{"version":7,"policies":[{"namespace":"a","ttl":3}]}`,
		"no such profile":   `{"version":8,"policies":[{"namespace":"a","ranking":{"profile":"cost"}}]}`,
		"trailing content":  `{"version":7} {}`,
		"trailing garbage":  `{"version":7} x`,
		"no JSON":           `version: 7`,
		"nothing":           ``,
		"a number as a map": `7`,
	} {
		if _, err := DecodePolicy([]byte(body), policy.Defaults()); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
}

func FuzzDecodePolicy(f *testing.F) {
	f.Add([]byte(`{"version":7,"policies":[{"namespace":"a","evictionTTL":1}],"tenants":[{"tenantID":"a","maxIndexEntries":1}]}`))
	f.Fuzz(func(t *testing.T, body []byte) {
		set, err := DecodePolicy(body, policy.Defaults())
		if err != nil {
			return
		}
		for name, p := range set.Policies {
			if name == "" || p.TTL <= 0 || p.MinMatchedTokens < 0 || p.MinPrefixTokens < 0 || p.FloorScore < 0 || p.Timeout < 0 {
				t.Errorf("%q resolved to %+v", name, p)
			}
		}
	})
}

type fakeServer struct{ adopted *policy.Set }

func (f *fakeServer) Snapshot() status.Snapshot     { return status.Snapshot{TotalPrefixes: 3} }
func (f *fakeServer) PolicyDefaults() policy.Policy { return policy.Defaults() }
func (f *fakeServer) AdoptPolicy(s *policy.Set)     { f.adopted = s }
func (f *fakeServer) Probe(_ context.Context, r status.ProbeRequest) status.ProbeResult {
	return status.ProbeResult{Backend: r.Backend, Ingest: status.OK, Routing: status.OK, T2: status.Skipped}
}

func TestControlPaths(t *testing.T) {
	t.Parallel()
	f := &fakeServer{}
	mux := http.NewServeMux()
	Mount(mux, f, f, f, Guards{})
	call := func(method, path, body string) *httptest.ResponseRecorder {
		w := httptest.NewRecorder()
		mux.ServeHTTP(w, httptest.NewRequest(method, path, strings.NewReader(body)))
		return w
	}
	probe := `{"backend":"ns/a","model":"m","hashScheme":"vllm"}`
	for _, v := range []struct {
		method, path, body string
		code               int
		allow              string
	}{
		{"GET", "/snapshot", "", 200, ""},
		{"HEAD", "/snapshot", "", 405, "GET"},
		{"POST", "/snapshot", "", 405, "GET"},
		{"POST", "/policy", `{"version":7}`, 204, ""},
		{"PUT", "/policy", `{"version":7}`, 204, ""},
		{"GET", "/policy", "", 405, "POST, PUT"},
		{"HEAD", "/policy", "", 405, "POST, PUT"},
		{"POST", "/policy", `{"version":2}`, 400, ""},
		{"POST", "/policy", strings.Repeat(" ", maxPolicyBody+1) + `{"version":7}`, 400, ""},
		{"POST", "/probe", probe, 200, ""},
		{"GET", "/probe", "", 405, "POST"},
		{"POST", "/probe", `{"backend":"ns/a","model":"m"}`, 400, ""},
		{"POST", "/probe", probe + `{}`, 400, ""},
		{"POST", "/probe", `{"backend":"ns/a","model":"m","hashScheme":"vllm","x":1}`, 400, ""},
		{"POST", "/probe", `{"backend":"` + strings.Repeat("a", maxProbeBody) + `"}`, 400, ""},
		{"GET", "/other", "", 404, ""},
	} {
		w := call(v.method, v.path, v.body)
		if w.Code != v.code || w.Header().Get("Allow") != v.allow {
			t.Errorf("%s %s %.40q: %d allow %q, want %d %q", v.method, v.path, v.body, w.Code, w.Header().Get("Allow"), v.code, v.allow)
		}
	}
	if f.adopted == nil || f.adopted.Version != 7 {
		t.Errorf("adopted %+v", f.adopted)
	}
	w := call("GET", "/snapshot", "")
	if got, want := w.Body.String(), `{"replicas":null,"tenants":null,"totalPrefixes":3,"hotPrefixes":0}`+"\n"; got != want {
		t.Errorf("snapshot %q, want %q", got, want)
	}
	if got := w.Header().Get("Content-Type"); got != "application/json" {
		t.Errorf("content type %q", got)
	}
}

// TestSnapshotKeySetsAreFrozen pins names and presence rules.
func TestSnapshotKeySetsAreFrozen(t *testing.T) {
	t.Parallel()
	encode := func(v any) string { b, _ := json.Marshal(v); return string(b) }
	for want, v := range map[string]any{
		`{"replicaId":"r","cacheMemoryBytes":0,"hitRate":0,"pressure":0,"lastUpdate":"0001-01-01T00:00:00Z","prefixCount":0,"lastEventAt":"0001-01-01T00:00:00Z"}`: status.Replica{ReplicaID: "r"},
		`{"tenantId":"","indexEntries":0,"hitRate":0,"memoryUsed":0}`: status.Tenant{},
	} {
		if got := encode(v); got != want {
			t.Errorf("got  %s\nwant %s", got, want)
		}
	}
}
