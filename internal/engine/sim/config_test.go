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
	if err := fs.Parse([]string{"--blocks=7", "--topic=kv"}); err != nil {
		t.Fatal(err)
	}
	want := Default()
	want.Blocks, want.Topic = 7, "kv"
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
	}
	err := c.Validate()
	if err == nil {
		t.Fatal("no error")
	}
	for _, flag := range []string{
		"listen", "events", "replay", "block-size", "blocks", "prefill-rate", "decode-rate", "max-tokens",
		"max-concurrency", "buffer-steps", "hwm", "encoding", "replay-layout",
	} {
		if !regexp.MustCompile(`(?m)^--` + flag + `[ :]`).MatchString(err.Error()) {
			t.Errorf("--%s is not named in\n%v", flag, err)
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
