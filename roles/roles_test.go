package roles

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// buffer is a bytes.Buffer that can be read while a command writes to it.
type buffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (b *buffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.Write(p)
}

func (b *buffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.String()
}

// command runs a command line to its end.
func command(ctx context.Context, args ...string) (out string, err error) {
	root := newRoot()
	var text buffer
	root.SetOut(&text)
	root.SetErr(&text)
	root.SetArgs(args)
	err = root.ExecuteContext(ctx)
	return text.String(), err
}

func TestSettingsPrecedence(t *testing.T) {
	file := filepath.Join(t.TempDir(), "settings.yaml")
	if err := os.WriteFile(file, []byte("sim: 7\nengine-block-size: 32\neviction-ttl: 10m\nlisten: [\"127.0.0.1:1\", \"127.0.0.1:2\"]\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	t.Setenv("INFERENCECACHE_ENGINE_BLOCK_SIZE", "64")
	t.Setenv("INFERENCECACHE_EVICTION_TTL", "20m")
	out, err := command(t.Context(), "config", "--diff", "--config", file, "--eviction-ttl=40m")
	if err != nil {
		t.Fatal(err)
	}
	want := "engine-block-size: \"64\"\neviction-ttl: 40m0s\nlisten:\n- 127.0.0.1:1\n- 127.0.0.1:2\nsim: \"7\"\n"
	if out != want {
		t.Errorf("got:\n%s\nwant:\n%s", out, want)
	}
	if err := os.WriteFile(file, []byte(out), 0o600); err != nil {
		t.Fatal(err)
	}
	t.Setenv("INFERENCECACHE_ENGINE_BLOCK_SIZE", "")
	t.Setenv("INFERENCECACHE_EVICTION_TTL", "")
	again, err := command(t.Context(), "config", "--diff", "--config", file)
	if err != nil || again != want {
		t.Errorf("printed settings read back as:\n%s (%v)", again, err)
	}
}

func TestMistakesAreNamedAndExitWith2(t *testing.T) {
	file := filepath.Join(t.TempDir(), "settings.yaml")
	if err := os.WriteFile(file, []byte("simm: 7\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, v := range []struct {
		args []string
		want string
	}{
		{[]string{"run", "--nonsense"}, "--nonsense"},
		{[]string{"run", "--role=king"}, "king"},
		{[]string{"run", "--role=all", "--listen=0.0.0.0:0"}, "without authentication"},
		{[]string{"run", "--role=all", "--control-listen=:0"}, "without authentication"},
		{[]string{"run", "--role=server"}, "--allowed-controller-sa"},
		{[]string{"run", "--role=subscriber"}, "--replica-id"},
		{[]string{"run", "--role=controller", "--kubeconfig=" + file + ".none"}, "--kubeconfig"},
		{[]string{"run", "--role=controller", "--reconcile-workers=0"}, "--reconcile-workers"},
		{[]string{"run", "--role=controller", "--servers-control-tls"}, "--servers-ca-file"},
		{[]string{"run", "--role=server", "--insecure-disable-auth", "--manifests=x"}, "--role=all"},
		{[]string{"run", "--manifests=" + file + ".none", "--sim=0", "--listen=127.0.0.1:0", "--control-listen=127.0.0.1:0"}, "no such file"},
		{[]string{"run", "--config=" + file}, "simm"},
		{[]string{"run", "--config=" + file + ".none"}, "no such file"},
		{[]string{"run", "--profile-listen=:6060"}, "loopback"},
		{[]string{"run", "--log-format=xml", "--sim=0"}, "xml"},
		{[]string{"run", "--engine=x"}, "name=tcp://"},
		{[]string{"run", "--engine=a=tcp://127.0.0.1:1,color=red"}, "color"},
		{[]string{"run", "--engine=a=tcp://127.0.0.1:1", "--engine=a=tcp://127.0.0.1:2"}, "twice"},
		{[]string{"run", "--engine=a=http://127.0.0.1:1"}, "http://127.0.0.1:1"},
		{[]string{"lookup", "--tenant=t", "--model=m"}, "--text"},
		{[]string{"lookup", "--tenant=t", "--model=m", "--text=x", "--tokens=1"}, "once"},
		{[]string{"lookup", "--tenant=t", "--model=m", "--tokens=1,x"}, "x"},
		{[]string{"lookup", "--tenant=t", "--model=m", "--tokens=4294967296"}, "4294967296"},
		{[]string{"lookup", "--tenant=t", "--model=m", "--hashes=zz"}, "zz"},
		{[]string{"lookup", "--text=x"}, "--tenant"},
		{[]string{"lookup", "--tenant=t", "--model=m", "--text=x", "-o", "xml"}, "xml"},
		{[]string{"decode"}, "requires at least 1 arg"},
		{[]string{"decode", "--engine=gpt", "x"}, "gpt"},
		{[]string{"decode", file + ".none"}, "no such file"},
		{[]string{"decode", "--hex", file}, "not hex"},
		{[]string{"sim", "--encoding=xml"}, "xml"},
		{[]string{"top", "--interval=1ms"}, "--interval"},
		{[]string{"top", "-o", "xml"}, "xml"},
		{[]string{"top", "--once", "--server=127.0.0.1:1"}, "is a server running there"},
		{[]string{"events", "--type=born"}, "born"},
		{[]string{"events", "--server=127.0.0.1:1"}, "is a server running there"},
		{[]string{"bogus"}, "bogus"},
	} {
		_, err := command(t.Context(), v.args...)
		if err == nil || !strings.Contains(err.Error(), v.want) {
			t.Errorf("%v: %v, want a word of %q", v.args, err, v.want)
		}
	}
	if code := Main(t.Context(), []string{"run", "--role=king"}); code != exitUsage {
		t.Errorf("exit code %d, want %d", code, exitUsage)
	}
}

func TestDecodeEverySample(t *testing.T) {
	const folder = "../testdata/kvevents"
	text, err := os.ReadFile(filepath.Join(folder, "manifest.json"))
	if err != nil {
		t.Fatal(err)
	}
	var manifest struct {
		Samples []struct {
			File, Kind, Engine, Hex string
			MustFail                *string             `json:"must_fail"`
			Prefixes                map[string][]string `json:"prefix_hashes_be_hex"`
		}
	}
	if err := json.Unmarshal(text, &manifest); err != nil {
		t.Fatal(err)
	}
	for _, sample := range manifest.Samples {
		if sample.Kind != "payload" {
			continue
		}
		engine := "vllm"
		if sample.Engine == "sglang" {
			engine = "sglang"
		}
		out, err := command(t.Context(), "decode", "--engine", engine, filepath.Join(folder, sample.File))
		if (err != nil) != (sample.MustFail != nil) {
			t.Errorf("%s: error %v, must fail: %v", sample.File, err, sample.MustFail)
		}
		var got struct {
			Error    string
			Prefixes map[string][]string `json:"prefix_hashes"`
		}
		if err := json.Unmarshal([]byte(out), &got); err != nil {
			t.Errorf("%s: %v", sample.File, err)
			continue
		}
		if (got.Error != "") != (sample.MustFail != nil) {
			t.Errorf("%s: error %q", sample.File, got.Error)
		}
		for event, want := range sample.Prefixes {
			if strings.HasPrefix(event, "event0_") || event == "first" || event == "last" {
				event = "event0"
			}
			hashes := got.Prefixes[event]
			if len(hashes) > 1000 { // the manifest names only the first and the last
				hashes = []string{hashes[0], hashes[len(hashes)-1]}
				want = []string{sample.Prefixes["first"][0], sample.Prefixes["last"][0]}
			}
			if fmt.Sprint(hashes) != fmt.Sprint(want) {
				t.Errorf("%s %s: %v, want %v", sample.File, event, hashes, want)
			}
		}
	}
	hexFile := filepath.Join(t.TempDir(), "x.hex")
	if err := os.WriteFile(hexFile, []byte(" 92 cb41da85c93c600000\n90 "), 0o600); err != nil {
		t.Fatal(err)
	}
	if out, err := command(t.Context(), "decode", "--hex", hexFile); err != nil || !strings.Contains(out, "1779901681.5") {
		t.Errorf("hex text: %s %v", out, err)
	}
}

// started runs `run --role=all` on ports of the system's choice until stop.
func started(t *testing.T, args ...string) (server, control string, engines []string, stop func() string) {
	t.Helper()
	root := newRoot()
	var out buffer
	root.SetOut(&out)
	root.SetErr(&out)
	root.SetArgs(append([]string{"run", "--role=all", "--listen=127.0.0.1:0", "--control-listen=127.0.0.1:0", "--sim-listen=127.0.0.1:0"}, args...))
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	done := make(chan error, 1)
	go func() { done <- root.ExecuteContext(ctx) }()
	stop = func() string {
		cancel()
		select {
		case err := <-done:
			if err != nil {
				t.Errorf("stopped with %v\n%s", err, out.String())
			}
		case <-time.After(5 * time.Second):
			t.Errorf("did not stop within 5 s\n%s", out.String())
		}
		http.DefaultClient.CloseIdleConnections()
		return out.String()
	}
	eventually(t, "the banner", func() bool { return strings.Contains(out.String(), "Ctrl-C stops it") })
	server = regexp.MustCompile(`server +(http://\S+)`).FindStringSubmatch(out.String())[1]
	control = regexp.MustCompile(`control +(http://\S+)`).FindStringSubmatch(out.String())[1]
	for _, m := range regexp.MustCompile(`(?m)^sim-\d+ +(http://\S+)`).FindAllStringSubmatch(out.String(), -1) {
		engines = append(engines, m[1])
	}
	return server, control, engines, stop
}

func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	deadline := time.Now().Add(60 * time.Second)
	for !ok() {
		if time.Now().After(deadline) {
			t.Fatalf("waited in vain for %s", what)
		}
		<-time.After(10 * time.Millisecond)
	}
}

func post(t *testing.T, url, body string) string {
	t.Helper()
	response, err := http.Post(url, "application/json", strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// TestAPromptFindsItsReplica is the product in one test: real sockets, real
// events, real RPC.
func TestAPromptFindsItsReplica(t *testing.T) {
	server, control, engines, stop := started(t)
	defer func() {
		if out := stop(); strings.Contains(out, "ERROR") {
			t.Errorf("errors were logged:\n%s", out)
		}
	}()
	if len(engines) != 3 {
		t.Fatalf("%d engines", len(engines))
	}
	prompt := strings.Repeat("All happy families are alike; ", 10) // 300 tokens
	ask := func(args ...string) string {
		t.Helper()
		out, err := command(t.Context(), append([]string{"lookup", "--server", server, "--tenant", "demo", "--model", "sim"}, args...)...)
		if err != nil {
			t.Fatalf("%v: %s", err, out)
		}
		return out
	}
	post(t, engines[1]+"/v1/completions", fmt.Sprintf(`{"model":"sim","prompt":%q,"max_tokens":1}`, prompt))
	eventually(t, "the match", func() bool { return strings.Contains(ask("--text", prompt), "PREFIX_MATCH") })
	if out := ask("--text", prompt); !regexp.MustCompile(`sim-2 +288 +T1`).MatchString(out) {
		t.Errorf("got %s", out)
	}
	var tokens []string
	for _, b := range []byte(prompt) {
		tokens = append(tokens, fmt.Sprint(b))
	}
	file := filepath.Join(t.TempDir(), "tokens")
	if err := os.WriteFile(file, []byte("["+strings.Join(tokens, ", ")+"]\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, args := range [][]string{{"--tokens", strings.Join(tokens, ",")}, {"--tokens-file", file}} {
		if out := ask(append(args, "-o", "json")...); !strings.Contains(out, `"sim-2"`) || !strings.Contains(out, "288") {
			t.Errorf("%s: %s", args[0], out)
		}
	}
	if out := ask("--text", strings.Repeat("never seen ", 30)); !strings.Contains(out, "AFFINITY_HINT") {
		t.Errorf("an unseen prompt: %s", out)
	}
	// Each lookup counts as load of the replica that it names, so on a slow machine
	// another one may be first by now.
	for _, v := range []struct {
		args []string
		want string // a pattern; "!": also an error
	}{
		{[]string{"lookup", "--tenant", "demo", "--model", "sim", "--text", prompt, "--request", "mine", "--explain"}, `(?s)request mine .*\nsim-2 +288 +288\+0\+0 [^\n]*COMPLETE`},
		{[]string{"explain", "--request", "mine"}, `(?s)would be first if .* kept a prompt waiting.*\nsim-2 +288 +288\+0\+0 `},
		{[]string{"explain", "--request", "mine", "-o", "json"}, `"heldTokens": *288`},
		{[]string{"explain", "--request", "nobody's"}, `!the server remembers no request of this id`},
		{[]string{"explain", "--tenant", "demo", "--model", "sim", "--tokens", "1,2,3"}, `NO_HINT.*\n.*shorter than one block`},
		{[]string{"outcome", "--request", "mine", "--replica", "sim-2", "--cached", "280", "--prompt", "300"}, `expected 272 cached tokens, found 280`},
		{[]string{"outcome", "--request", "mine", "--replica", "sim-2"}, `!not taken: ALREADY_REPORTED`},
		{[]string{"outcome", "--replica", "sim-2"}, `!--request and --replica are required`},
		{[]string{"gain", "--tenant", "demo"}, `(?s)demo / sim: \d+ lookups, outcomes of 1 .*of 300 prompt tokens engines found 280.*one outcome says nothing`},
		{[]string{"gain", "--tenant", "nobody"}, `no lookup has named or ranked a replica`},
	} {
		out, err := command(t.Context(), append(v.args, "--server", server)...)
		want, fails := strings.CutPrefix(v.want, "!")
		if err != nil {
			out += err.Error()
		}
		if !regexp.MustCompile(want).MatchString(out) || (err != nil) != fails {
			t.Errorf("%q: %v\n%s", v.args, err, out)
		}
	}
	checkMetrics(t, get(t, server+"/metrics"))
	fleetIsShown(t, server)
	if body := post(t, control+"/snapshot", ""); !strings.Contains(body, "use GET") {
		t.Errorf("control: %s", body)
	}
	seen := make(chan string, 1)
	go func() { // one send
		out, err := command(t.Context(), "events", "--server", server, "--type", "cleared", "--count", "1")
		if err != nil {
			out += err.Error()
		}
		seen <- out
	}()
	eventually(t, "the reader of events", func() bool { return strings.Contains(get(t, server+"/metrics"), "inferencecache_event_streams 1\n") })
	post(t, engines[1]+"/sim/fault?kind=clear", "")
	if out := <-seen; !regexp.MustCompile(`^\d\d:\d\d:\d\d\.\d{3}  cleared  sim-2  demo/sim  vllm\n$`).MatchString(out) {
		t.Errorf("events: %q", out)
	}
	eventually(t, "the clear", func() bool { return !strings.Contains(ask("--text", prompt), "PREFIX_MATCH") })
}

// fleetIsShown looks at the fleet in the terminal and at the page of the same
// port, after the second engine has got a prompt.
func fleetIsShown(t *testing.T, server string) {
	t.Helper()
	top := func(args ...string) string {
		out, err := command(t.Context(), append([]string{"top", "--once", "--server", server}, args...)...)
		if err != nil {
			t.Fatalf("%v: %s", err, out)
		}
		return out
	}
	// Both counts of blocks meet: the subscriber's with its next word, at the latest its heartbeat.
	row := regexp.MustCompile(`(?m)^sim-2 +demo/sim +alive +0 +0 +[\d.]+ms +\d+ +(\d+) +(\d+) +exact `)
	eventually(t, "sim-2 to say what it holds", func() bool {
		m := row.FindStringSubmatch(top())
		return m != nil && m[1] == m[2] && m[1] != "0"
	})
	for _, v := range []struct {
		args []string
		want string
	}{
		{nil, `(?s)^inferencecache dev, up .*PREFIX_MATCH \d.*replicas 3 alive.*hottest prefixes of the latest \d+ lookups`},
		{[]string{"--rows", "1"}, `and 2 more: --rows`},
		{[]string{"--tenant", "nobody"}, `no replica has reported`},
		{[]string{"-o", "json"}, `(?s)"states": *\{\s*"REPLICA_ALIVE": *"3"`},
	} {
		if out := top(v.args...); !regexp.MustCompile(v.want).MatchString(out) {
			t.Errorf("top %q:\n%s", v.args, out)
		}
	}
	if !strings.Contains(get(t, server+"/"), "<title>inferencecache</title>") || !strings.Contains(get(t, server+"/ui/page.js"), "GetFleet") {
		t.Error("the status page is not served")
	}
}

func TestSubscriberRoleStandsWithoutEngineOrServer(t *testing.T) {
	port := freePort(t)
	root := newRoot()
	var out buffer
	root.SetOut(&out)
	root.SetErr(&out)
	root.SetArgs([]string{"run", "--role=subscriber", "--listen=127.0.0.1:" + port, "--server=127.0.0.1:1", "--engine-endpoint=tcp://127.0.0.1:1",
		"--replica-id=r", "--model-id=m", "--tenant-id=t", "--engine-metrics-url="})
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	done := make(chan error, 1)
	go func() { done <- root.ExecuteContext(ctx) }()
	eventually(t, "readiness", func() bool {
		response, err := http.Get("http://127.0.0.1:" + port + "/readyz")
		if err != nil {
			return false
		}
		response.Body.Close()
		return response.StatusCode == http.StatusOK
	})
	cancel()
	if err := <-done; err != nil {
		t.Errorf("%v\n%s", err, out.String())
	}
	http.DefaultClient.CloseIdleConnections()
}

func freePort(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	_, port, _ := net.SplitHostPort(l.Addr().String())
	return port
}

func TestAPortThatIsTakenIsAClearFailure(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	_, err = command(t.Context(), "run", "--role=all", "--sim=0", "--listen="+l.Addr().String(), "--control-listen=127.0.0.1:0")
	if err == nil || !strings.Contains(err.Error(), "address already in use") {
		t.Errorf("got %v", err)
	}
}

func TestVersion(t *testing.T) {
	out, err := command(t.Context(), "version")
	if err != nil || !strings.HasPrefix(out, "inferencecache dev (commit ") {
		t.Errorf("%q %v", out, err)
	}
}
