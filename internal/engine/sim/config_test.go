package sim

import (
	"math"
	"regexp"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/spf13/pflag"
)

func TestFlagsDefaultToDefault(t *testing.T) {
	var c Config
	fs := pflag.NewFlagSet("sim", pflag.ContinueOnError)
	c.Flags(fs)
	if err := fs.Parse([]string{"--blocks=7", "--topic=kv", "--lora=a,b", "--lora=c"}); err != nil {
		t.Fatal(err)
	}
	want := Default()
	want.Blocks, want.Topic, want.LoRA = 7, "kv", []string{"a", "b", "c"}
	if diff := cmp.Diff(want, c); diff != "" {
		t.Error(diff)
	}
	if err := c.Validate(); err != nil {
		t.Error(err)
	}
	if err := new(Config).Validate(); err != nil {
		t.Errorf("zero: %v", err)
	}
}

func TestValidateJoinsAllProblems(t *testing.T) {
	c := Config{
		Listen: "8101", Events: "ipc://x", Replay: "tcp://x", BlockSize: -1, Blocks: -1, PrefillRate: math.NaN(),
		DecodeRate: -1, MaxTokens: -1, MaxConcurrency: -1, BufferSteps: -1, HWM: -1, Encoding: "json", ReplayLayout: "odd",
		Ranks: -1, LoRA: []string{"a", "a"}, ReplayHWM: -1, Snapshot: "tcp://x",
	}
	err := c.Validate()
	if err == nil {
		t.Fatal("no error")
	}
	for _, flag := range []string{
		"listen", "events", "replay", "block-size", "blocks", "prefill-rate", "decode-rate", "max-tokens",
		"max-concurrency", "buffer-steps", "hwm", "encoding", "replay-layout",
		"ranks", "lora", "replay-hwm", "snapshot",
	} {
		if !regexp.MustCompile(`(?m)^--` + flag + `[ :]`).MatchString(err.Error()) {
			t.Errorf("--%s is not named in\n%v", flag, err)
		}
	}
}

func TestEveryRankNeedsAPort(t *testing.T) {
	c := Config{Ranks: 3, Events: "tcp://*:65534", LoRA: []string{"sim"}}
	for _, problem := range []string{`--events: endpoint "tcp://*:65534" leaves rank 2 no port`, `--lora: "sim" is empty, the model's name or there twice`} {
		if err := c.Validate(); err == nil || !strings.Contains(err.Error(), problem) {
			t.Errorf("no %s in\n%v", problem, err)
		}
	}
}

func TestWildcardHostIsEveryInterface(t *testing.T) {
	if got, err := tcpAddress("tcp://*:5557"); got != ":5557" || err != nil {
		t.Errorf("%q, %v", got, err)
	}
	cfg := quick()
	cfg.Events = "tcp://*:0"
	e := start(t, cfg)
	if !strings.HasPrefix(e.EventsEndpoint(), "tcp://127.0.0.1:") {
		t.Errorf("endpoint %s cannot be dialled", e.EventsEndpoint())
	}
	subscribe(t, e, "")
}
