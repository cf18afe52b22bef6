package subscriber

import (
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/spf13/pflag"

	"inferencecache.io/inferencecache/internal/kv"
)

func parse(t *testing.T, args ...string) Config {
	t.Helper()
	var c Config
	fs := pflag.NewFlagSet("test", pflag.ContinueOnError)
	c.Flags(fs)
	if err := fs.Parse(args); err != nil {
		t.Fatal(err)
	}
	return c
}

func TestFlagsDefaultToDefaultConfig(t *testing.T) {
	t.Parallel()
	if diff := cmp.Diff(DefaultConfig(), parse(t)); diff != "" {
		t.Errorf("(-default +flags):\n%s", diff)
	}
}

func TestConfigOfSidecar(t *testing.T) {
	t.Parallel()
	c := parse(t, "--replica-id=pod-1", "--model-id=m", "--tenant-id=ns", "--hash-scheme=sglang",
		"--engine-metrics-url=http://127.0.0.1:30000/metrics", "--ignore-block-removed=true", "--window=50ms",
		"--server=a:9090", "--server=https://b:9090/", "--lora-adapter-names= 1=sql-lora, ,2=chat-lora")
	if err := c.Validate(); err != nil {
		t.Fatal(err)
	}
	dialect, err := c.dialect()
	if err != nil || dialect.Name != "sglang" {
		t.Errorf("dialect %q, err %v", dialect.Name, err)
	}
	if c.engineURL() != "http://127.0.0.1:30000" || c.Window != 50*time.Millisecond || !c.HasLowerTier {
		t.Errorf("engine URL %q, window %s, lower tier %v", c.engineURL(), c.Window, c.HasLowerTier)
	}
	adapters, err := parseAdapters(c.Adapters)
	if diff := cmp.Diff(map[int64]string{1: "sql-lora", 2: "chat-lora"}, adapters); diff != "" || err != nil {
		t.Errorf("adapters: err %v (-want +got):\n%s", err, diff)
	}
	var bases []string
	for _, s := range c.Servers {
		base, err := serverURL(s)
		if err != nil {
			t.Fatal(err)
		}
		bases = append(bases, base)
	}
	if diff := cmp.Diff([]string{"http://a:9090", "https://b:9090"}, bases); diff != "" {
		t.Errorf("servers (-want +got):\n%s", diff)
	}
}

func TestDialectIsNamedOrThatOfTheHashScheme(t *testing.T) {
	t.Parallel()
	f := func(name, scheme, want string) {
		t.Helper()
		c := Config{EngineDialect: name, HashScheme: scheme}
		d, err := c.dialect()
		if d.Name != want || (err != nil) != (want == "") {
			t.Errorf("dialect %q, scheme %q: %q, %v, want %q", name, scheme, d.Name, err, want)
		}
	}
	f("", "vllm", "vllm")
	f("", "sglang", "sglang")
	f("", "trtllm", "trtllm")
	f("trtllm", "shared", "trtllm")
	f("", "shared", "")
	f("lmdeploy", "vllm", "")
}

func TestValidateNamesEveryProblem(t *testing.T) {
	t.Parallel()
	c := Config{CacheTier: "disk", EngineEndpoint: "tcp://*:5557", Servers: []string{"http://a:1", "a:1", "nonsense"},
		EngineMetricsURL: "ftp://x", EngineURL: "x", Adapters: "1=a,1=b"}
	err := c.Validate()
	if err == nil {
		t.Fatal("valid")
	}
	for _, flag := range []string{
		"replica-id", "model-id", "tenant-id", "hash-scheme", "engine-endpoint", "server a:1 is given twice",
		"server: \"nonsense\"", "cache-tier", "engine-metrics-url", "engine-url", "lora-adapter-names", "window",
		"stats-interval", "max-frame-bytes", "queue-bytes", "outbox-bytes", "max-blocks", "max-orphans",
	} {
		if !strings.Contains(err.Error(), "--"+flag) {
			t.Errorf("no word about --%s in:\n%v", flag, err)
		}
	}
	probe := parse(t, "--replica-id=r", "--model-id=m", "--tenant-id="+kv.ProbeTenant)
	if err := probe.Validate(); err == nil {
		t.Error("the reserved tenant is valid")
	}
}

func TestParseAdaptersRefusesDoubt(t *testing.T) {
	t.Parallel()
	for _, list := range []string{"1", "x=a", "1=", "=a", "1=a,1=a", "1.5=a"} {
		if got, err := parseAdapters(list); err == nil {
			t.Errorf("%q gives %v", list, got)
		}
	}
}

func TestGuardedEndpoint(t *testing.T) {
	t.Parallel()
	f := func(endpoint, want string) {
		t.Helper()
		got, err := guardedEndpoint(endpoint)
		if got != want || (err != nil) != (want == "") {
			t.Errorf("%q: %q, %v, want %q", endpoint, got, err, want)
		}
	}
	f("tcp://127.0.0.1:5557", "guarded-tcp://127.0.0.1:5557")
	f("tcp://[::1]:5557", "guarded-tcp://[::1]:5557")
	f("ipc:///tmp/events", "guarded-ipc:///tmp/events")
	f("tcp://*:5557", "")
	f("tcp://host", "")
	f("tcp://host:0", "")
	f("ipc://", "")
	f("inproc://x", "")
	f("127.0.0.1:5557", "")
}
