package roles

import (
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestBenchPrintsRows(t *testing.T) {
	file := filepath.Join(t.TempDir(), "trace.jsonl")
	line := `{"timestamp": 0, "input_length": 600, "output_length": 7, "hash_ids": [0, 1]}` + "\n"
	if err := os.WriteFile(file, []byte(line+line), 0o600); err != nil {
		t.Fatal(err)
	}
	text, err := command(t.Context(), "bench", "--blocks=4096", "--each=1ms", "--trace", file, "-o", "json")
	if err != nil {
		t.Fatal(err)
	}
	var out struct {
		Cores int
		Rows  []struct {
			Load, What string
			Value      float64
			Met        *bool
		}
	}
	if err := json.Unmarshal([]byte(text), &out); err != nil {
		t.Fatalf("%v\n%s", err, text)
	}
	if out.Cores == 0 || len(out.Rows) < 20 {
		t.Fatalf("%s", text)
	}
	for _, r := range out.Rows {
		if r.Load == "" || r.What == "" || r.Met == nil {
			t.Errorf("%+v", r)
		}
	}
}

func TestBenchSizesMemory(t *testing.T) {
	text, err := command(t.Context(), "bench", "--blocks=4096", "--engines=4", "--blocks-per-engine=1000", "--holders=2")
	if err != nil || !strings.Contains(text, "--index-memory=") || !strings.Contains(text, "Mi,") {
		t.Errorf("%v\n%s", err, text)
	}
}

func TestBenchStrictFailsOnAMissedGoal(t *testing.T) {
	// A soak of an instant ends before it has looked anything up, or misses.
	if _, err := command(t.Context(), "bench", "--soak=1ns", "--strict"); err == nil || errors.As(err, new(usageError)) {
		t.Errorf("got %v", err)
	}
}

func TestBenchNamesMistakes(t *testing.T) {
	file := filepath.Join(t.TempDir(), "trace.jsonl")
	if err := os.WriteFile(file, []byte("\n{}\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct{ want, args string }{
		{"--output", "-o yaml"},
		{"--blocks -1", "--blocks=-1"},
		{"--blocks-per-engine", "--engines=3"},
		{"--holders 4: must be 1 to 3", "--engines=3 --blocks-per-engine=5 --holders=4"},
		{"do not go together", "--engines=3 --blocks-per-engine=5 --soak=1s"},
		{"--soak-memory 0", "--soak=1s --soak-memory=0"},
		{"line 2: no timestamp", "--trace=" + file},
	} {
		_, err := command(t.Context(), append([]string{"bench"}, strings.Fields(c.args)...)...)
		if err == nil || !strings.Contains(err.Error(), c.want) || !errors.As(err, new(usageError)) {
			t.Errorf("%s: %v, want %s", c.args, err, c.want)
		}
	}
}
