package doctor

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	pb "inferencecache.io/inferencecache/proto/inferencecache/v1alpha1"
)

// fine is a healthy system with one engine.
func fine() *evidence {
	return &evidence{
		health: answer{status: 200, body: []byte(`{"status":"SERVING"}`)},
		fleet: &pb.GetFleetResponse{
			Server: &pb.FleetServer{IndexBytes: 5, IndexBytesLimit: 100},
			Replicas: []*pb.FleetReplica{{
				TenantId: "t", ReplicaId: "r", StreamState: pb.StreamState_STREAM_EXACT, IndexedBlocks: 1000,
				Held: &pb.HeldBlocks{T1: 900, T2: 100}, HeldAgeMs: 10, ChangedAgeMs: 20,
			}},
		},
		asked: map[string]float64{"m": 50}, indexed: map[string]float64{"m": 9},
		control: true, snapshot: answer{status: 200, body: []byte(`{"replicas":null}`)},
		policy: answer{status: 405}, probe: answer{status: 405},
		engines: []engine{{
			follower: follower{
				Replica: "r", Tenant: "t", Model: "m", Engine: "http://e", Uptime: 100,
				Sources: []followed{{Rank: 0, Endpoint: "tcp://e:1", State: "exact"}},
			},
			asked: true, models: []string{"m"},
		}},
	}
}

func TestJudgeNamesTheCauseAndNothingElse(t *testing.T) {
	t.Parallel()
	now := time.Unix(1_800_000_000, 0)
	refused := errors.New("connection refused")
	ail := func(conditions ...string) func(*evidence) {
		return func(e *evidence) {
			e.engines[0].Conditions = map[string]advice{}
			for _, c := range conditions {
				e.engines[0].Conditions[c] = advice{"seen " + c, "do something"}
			}
		}
	}
	for name, tc := range map[string]struct {
		ail  func(*evidence)
		want []string
	}{
		"healthy":        {func(*evidence) {}, nil},
		"no server":      {func(e *evidence) { *e = evidence{health: answer{err: refused}} }, []string{"server-unreachable"}},
		"another server": {func(e *evidence) { e.health = answer{status: 404} }, []string{"server-unreachable"}},
		"draining":       {func(e *evidence) { e.health.body = []byte(`{"status":"NOT_SERVING"}`) }, []string{"server-not-serving"}},
		"wrong audience": {func(e *evidence) { e.snapshot.status = 401 }, []string{"snapshot-refused"}},
		"not a snapshot": {func(e *evidence) { e.snapshot.body = []byte("<html>") }, []string{"snapshot-unreadable"}},
		"no control port": {func(e *evidence) {
			e.snapshot, e.policy, e.probe = answer{err: refused}, answer{err: refused}, answer{err: refused}
		}, []string{"snapshot-unreachable", "policy-unreachable", "probe-unreachable"}},
		"old server":         {func(e *evidence) { e.probe.status = 404 }, []string{"probe-unreachable"}},
		"a proxy in between": {func(e *evidence) { e.policy.status = 502 }, []string{"policy-odd"}},
		"events off": {func(e *evidence) {
			ail("not_connected")(e)
			e.engines[0].refused = map[string]error{"tcp://e:1": refused}
		}, []string{"events-off"}},
		"engine away": {func(e *evidence) {
			ail("not_connected")(e)
			e.engines[0].refused, e.engines[0].serves = map[string]error{"tcp://e:1": refused}, refused
		}, []string{"engine-away"}},
		"events alone":         {func(e *evidence) { e.engines[0].serves = refused }, []string{"api-silent"}},
		"other topic":          {ail("topic_mismatch", "no_events"), []string{"topic-mismatch"}},
		"prefix caching off":   {ail("prefix_caching_off", "no_events"), []string{"prefix-caching-off"}},
		"block size":           {ail("block_size_mismatch", "nothing_indexed", "lookup_mismatch"), []string{"block-size-mismatch"}},
		"ranks":                {ail("ranks_missing"), []string{"ranks-missing"}},
		"a chain of effects":   {ail("prefix_caching_off", "topic_mismatch", "no_events", "cache_unseen"), []string{"prefix-caching-off", "topic-mismatch"}},
		"two causes":           {ail("ranks_missing", "random_hash_seed"), []string{"ranks-missing", "random-hash-seed"}},
		"a newer condition":    {ail("made_of_cheese"), nil},
		"stalled":              {func(e *evidence) { ail("no_replay")(e); e.engines[0].Sources[0].State = "stale" }, []string{"engine-stalled"}},
		"degraded":             {func(e *evidence) { e.engines[0].Sources[0].State = "degraded" }, []string{"stream-degraded"}},
		"degraded, no replay":  {func(e *evidence) { ail("no_replay")(e); e.engines[0].Sources[0].State = "degraded" }, []string{"no-replay"}},
		"another model":        {func(e *evidence) { e.engines[0].models = []string{"n"} }, []string{"model-mismatch"}},
		"no engine":            {func(e *evidence) { e.engines = nil }, nil},
		"at the budget":        {func(e *evidence) { e.fleet.Server.IndexBytes, e.fleet.Replicas[0].IndexedBlocks = 99, 1 }, []string{"index-near-budget"}},
		"server knows less":    {func(e *evidence) { e.fleet.Replicas[0].IndexedBlocks = 500 }, []string{"index-disagrees"}},
		"not told yet":         {func(e *evidence) { e.fleet.Replicas[0].IndexedBlocks, e.fleet.Replicas[0].Held = 500, nil }, nil},
		"reported more since":  {func(e *evidence) { e.fleet.Replicas[0].IndexedBlocks, e.fleet.Replicas[0].ChangedAgeMs = 1500, 5 }, nil},
		"an older server":      {func(e *evidence) { e.fleet = nil }, nil},
		"quarantine":           {func(e *evidence) { e.fleet.Replicas[0].Audit = &pb.TruthAudit{Quarantined: true} }, []string{"replica-quarantined"}},
		"model nobody has":     {func(e *evidence) { e.asked["n"] = 10 }, []string{"model-unknown"}},
		"one stray lookup":     {func(e *evidence) { e.asked["n"] = 1 }, nil},
		"certificate ends":     {func(e *evidence) { e.certificate = now.Add(time.Hour) }, []string{"certificate-expires"}},
		"certificate ended":    {func(e *evidence) { e.certificate = now.Add(-time.Hour) }, []string{"certificate-expired"}},
		"certificate valid":    {func(e *evidence) { e.certificate = now.Add(1000 * time.Hour) }, nil},
		"other tokens":         {func(e *evidence) { e.parity = &parity{compared: 5, different: []string{"x"}} }, []string{"token-parity"}},
		"tokens not to be had": {func(e *evidence) { e.parity = &parity{trouble: "gateway: status 404"} }, []string{"parity-unknown"}},
		"equal tokens":         {func(e *evidence) { e.parity = &parity{compared: 5} }, nil},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			e := fine()
			tc.ail(e)
			var got []string
			for _, f := range judge(e, now) {
				if f.Message == "" || strings.Contains(f.Message, "%!") {
					t.Errorf("%s says %q", f.ID, f.Message)
				}
				if f.Status < Warn {
					continue
				}
				got = append(got, f.ID)
				if f.Remedy == "" {
					t.Errorf("%s has no remedy", f.ID)
				}
			}
			slices.Sort(got)
			slices.Sort(tc.want)
			if diff := cmp.Diff(tc.want, got); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}

func TestEveryIDHasACodeOfItsOwnAndAPage(t *testing.T) {
	t.Parallel()
	codes := map[string]string{}
	for id, k := range catalog {
		if other, twice := codes[k.code]; twice {
			t.Errorf("%s and %s share code %s", id, other, k.code)
		}
		codes[k.code] = id
		if k.status < Warn {
			continue
		}
		page, err := os.ReadFile(filepath.Join("../../docs/doctor", id+".md"))
		if err != nil || !strings.HasPrefix(string(page), "# "+k.code+" "+id+"\n") {
			t.Errorf("%s: no page that begins with its code and id: %v", id, err)
		}
	}
	pages, err := filepath.Glob("../../docs/doctor/*.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, page := range pages {
		id := strings.TrimSuffix(filepath.Base(page), ".md")
		if _, known := catalog[id]; !known && id != "README" {
			t.Errorf("a page about %s, which is no finding", id)
		}
	}
	for cause, effects := range hides {
		for _, id := range append(slices.Clone(effects), cause) {
			if _, known := catalog[id]; !known {
				t.Errorf("hides: %s is no finding", id)
			}
		}
	}
}

func TestOutputs(t *testing.T) {
	t.Parallel()
	all := []Finding{
		found("events-off", "t/r", "tcp://e:1: connection refused"),
		found("snapshot-open", "", ""), // a note: it has no page
		found("server-serving", "", ""),
	}
	for _, tc := range []struct{ format, want string }{
		{"human", `FAIL
  EV001 t/r: nothing listens where the engine's events should come from
        seen: tcp://e:1: connection refused
        do:   ` + catalog["events-off"].remedy + `
        more: docs/doctor/events-off.md
INFO
  SN003 /snapshot answers without a token
        do:   ` + catalog["snapshot-open"].remedy + `
OK
  SV003 the server is serving

1 failed, 0 warnings, 1 notes, 1 fine
`},
		{"table", `STATUS  CODE   CHECK                 RESOURCE  MESSAGE
FAIL    EV001  EngineEvents          t/r       nothing listens where the engine's events should come from
INFO    SN003  SnapshotReachability  -         /snapshot answers without a token
OK      SV003  ServerReachability    -         the server is serving
`},
	} {
		var b bytes.Buffer
		if err := Write(&b, tc.format, all, false); err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(tc.want, b.String()); diff != "" {
			t.Errorf("%s (-want +got):\n%s", tc.format, diff)
		}
	}
	var b bytes.Buffer
	if err := Write(&b, "json", nil, false); err != nil || !strings.Contains(b.String(), `"findings": []`) {
		t.Errorf("json of nothing: %s, %v", b.String(), err)
	}
	b.Reset()
	if err := Write(&b, "json", all, false); err != nil {
		t.Fatal(err)
	}
	var back struct {
		Summary  map[string]int
		Findings []map[string]string
	}
	if err := json.Unmarshal(b.Bytes(), &back); err != nil {
		t.Fatal(err)
	}
	if back.Summary["exitCode"] != 2 || back.Findings[0]["id"] != "events-off" || back.Findings[0]["status"] != "FAIL" {
		t.Errorf("json: %v", back)
	}
	b.Reset()
	if err := Write(&b, "junit", all, false); err != nil || !strings.Contains(b.String(), `failures="1"`) || strings.Count(b.String(), "<testcase") != 3 {
		t.Errorf("junit: %s, %v", b.String(), err)
	}
	if err := Write(&b, "yaml", all, false); err == nil {
		t.Error("no error for an unknown format")
	}
}

func TestLoopbackMeansThePodOfWhoeverHasIt(t *testing.T) {
	t.Parallel()
	forwarded := func(_ context.Context, port int) (string, error) {
		if port == 1 {
			return "", errors.New("no such pod")
		}
		return fmt.Sprintf("127.0.0.1:4%d", port), nil
	}
	for address, want := range map[string]struct{ elsewhere, here, pod string }{
		"tcp://127.0.0.1:5557":  {"", "tcp://127.0.0.1:5557", "tcp://127.0.0.1:45557"},
		"http://localhost:8000": {"", "http://localhost:8000", "http://127.0.0.1:48000"},
		"tcp://[::1]:5557":      {"", "tcp://[::1]:5557", "tcp://127.0.0.1:45557"},
		"tcp://127.0.0.1:1":     {"", "tcp://127.0.0.1:1", ""},
		"tcp://10.0.0.7:5557":   {"tcp://10.0.0.7:5557", "tcp://10.0.0.7:5557", "tcp://10.0.0.7:5557"},
		"http://engine:8000":    {"http://engine:8000", "http://engine:8000", "http://engine:8000"},
		"tcp://%":               {"", "", ""},
		"":                      {"", "", ""},
	} {
		for name, c := range map[string]struct {
			l    *Local
			want string
		}{"elsewhere": {&Local{}, want.elsewhere}, "here": {&Local{Here: true}, want.here}, "in a pod": {&Local{port: forwarded}, want.pod}} {
			if got, ok := c.l.here(t.Context(), address); got != c.want || ok != (c.want != "") {
				t.Errorf("%q %s: %q, %v", address, name, got, ok)
			}
		}
	}
}

func TestByModelReadsAPage(t *testing.T) {
	t.Parallel()
	page := "# TYPE asked_total counter\nasked_total{hint_used=\"true\",model=\"a,b\"} 3\nasked_total{hint_used=\"false\",model=\"a,b\"} 4\nasked_total 1\nother 9\n\nbroken\n"
	if diff := cmp.Diff(map[string]float64{"a,b": 7, "": 1}, byModel([]byte(page), "asked_total")); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func TestWhatPassesIsNoFinding(t *testing.T) {
	t.Parallel()
	looks := 0
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/grpc.health.v1.Health/Check" {
			http.NotFound(w, r)
			return
		}
		if looks++; looks == 1 {
			_, _ = io.WriteString(w, `{"status":"NOT_SERVING"}`)
			return
		}
		_, _ = io.WriteString(w, `{"status":"SERVING"}`)
	}))
	defer server.Close()
	all, err := (&Local{Server: server.URL, HTTP: server.Client()}).Run(t.Context(), 0, nil)
	if err != nil {
		t.Fatal(err)
	}
	if got := troubles(all); len(got) > 0 || looks != 3 {
		t.Errorf("%q after %d looks, want nothing after 3", got, looks)
	}
}
