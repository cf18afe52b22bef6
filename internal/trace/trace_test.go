package trace

import (
	"bytes"
	"fmt"
	"io"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

func TestReaderReadsMooncakeLines(t *testing.T) {
	t.Parallel()
	text := `{"timestamp": 0, "input_length": 600, "output_length": 7, "hash_ids": [0, 1]}

{"timestamp": 27.5, "input_length": 3, "output_length": 1, "hash_ids": [], "more": {}}
` + `{"timestamp": 28, "input_length": 512, "output_length": 0, "hash_ids": [18446744073709551615]}`
	got, err := NewReader(strings.NewReader(text), Mooncake).ReadAll()
	if err != nil {
		t.Fatal(err)
	}
	want := []Request{
		{Input: 600, Output: 7, Blocks: []uint64{0, 1}},
		{At: 27500 * time.Microsecond, Input: 3, Output: 1, Blocks: []uint64{}},
		{At: 28 * time.Millisecond, Input: 512, Blocks: []uint64{1<<64 - 1}},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}

func TestReaderNamesLineAndMistake(t *testing.T) {
	t.Parallel()
	const good = `{"timestamp": 5, "input_length": 1, "output_length": 1, "hash_ids": [1]}` + "\n"
	for _, c := range []struct{ name, text, want string }{
		{"cut off", good + `{"timestamp": 6,`, "line 2: bad json: unexpected end of JSON input"},
		{"two objects", good + good[:len(good)-1] + good, "line 2: bad json"},
		{"not an object", "7\n", "line 1: bad json"},
		{"wrong type", good + "\n" + `{"timestamp": "6"}`, "line 3: timestamp: unexpected string"},
		{"negative id", `{"timestamp": 0, "input_length": 1, "hash_ids": [-1]}`, "line 1: hash_ids: unexpected number -1"},
		{"negative time", `{"timestamp": -1, "input_length": 1, "hash_ids": []}`, "line 1: timestamp -1ms is negative"},
		{"far time", `{"timestamp": 1e300, "input_length": 1, "hash_ids": []}`, "line 1: timestamp 1e+300 is out of range"},
		{"going back", good + strings.Replace(good, "5", "4", 1), "line 2: timestamp 4ms is before 5ms"},
		{"negative length", strings.Replace(good, `"input_length": 1`, `"input_length": -1`, 1), "line 1: a length in tokens is negative"},
		{"no time", `{"input_length": 1, "hash_ids": []}`, "line 1: no timestamp"},
		{"no length", `{"timestamp": 1, "hash_ids": []}`, "line 1: no input_length"},
		{"no blocks", good + `{"timestamp": 6, "input_length": 1, "prompt": ""}`, "line 2: no hash_ids"},
		{"many blocks", `{"timestamp": 1, "input_length": 1, "hash_ids": [1` + strings.Repeat(",1", MaxBlocks) + `]}`, "line 1: 1048577 blocks, more than 1048576"},
		{"long line", good + strings.Repeat(" ", MaxLine+1), "line 2: longer than 16777216 bytes"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			r := NewReader(strings.NewReader(c.text), Mooncake)
			_, err := r.ReadAll()
			if err == nil || !strings.HasPrefix(err.Error(), c.want) {
				t.Fatalf("got %v, want %s", err, c.want)
			}
			if _, again := r.Read(); again != err {
				t.Errorf("then %v", again)
			}
		})
	}
}

func TestLongestLineIsRead(t *testing.T) {
	t.Parallel()
	line := `{"timestamp": 1, "input_length": 1, "hash_ids": []}`
	line += strings.Repeat(" ", MaxLine-len(line)) + "\n"
	if all, err := NewReader(strings.NewReader(line), Mooncake).ReadAll(); err != nil || len(all) != 1 {
		t.Errorf("%d requests, %v", len(all), err)
	}
}

func TestReaderReturnsErrorsOfItsSource(t *testing.T) {
	t.Parallel()
	source, w := io.Pipe()
	w.CloseWithError(io.ErrNoProgress)
	if _, err := NewReader(source, Mooncake).Read(); err == nil || !strings.Contains(err.Error(), io.ErrNoProgress.Error()) {
		t.Error(err)
	}
}

func FuzzReader(f *testing.F) {
	f.Add([]byte(`{"timestamp": 0, "input_length": 600, "output_length": 7, "hash_ids": [0, 1]}` + "\n"))
	f.Add([]byte("\n\n{\"timestamp\": 1e3, \"input_length\": 0, \"hash_ids\": []}\r\n{\"timestamp\": 0}"))
	f.Add([]byte(`[{"timestamp": null}]`))
	f.Fuzz(func(t *testing.T, text []byte) {
		r := NewReader(bytes.NewReader(text), Mooncake)
		last := time.Duration(0)
		for {
			next, err := r.Read()
			if err != nil {
				if err != io.EOF && !strings.HasPrefix(err.Error(), "line ") {
					t.Fatalf("no line in %q", err)
				}
				return
			}
			if next.At < last || next.Input < 0 || next.Output < 0 || next.Blocks == nil {
				t.Fatalf("%+v after %v", next, last)
			}
			last = next.At
		}
	})
}

func TestGenerateHasTheShapeOfMooncake(t *testing.T) {
	t.Parallel()
	for seed := range uint64(3) {
		all := Generate(seed, perHour)
		seen := map[uint64]bool{}
		var lengths []int
		total, reused := 0, 0
		for i, r := range all {
			if r.Blocks[0] != 0 {
				t.Fatalf("request %d starts with block %d", i, r.Blocks[0])
			}
			leading := true
			for _, b := range r.Blocks {
				if leading = leading && seen[b]; leading {
					reused++
				} else if seen[b] {
					t.Fatalf("request %d shares block %d but not the one before", i, b)
				}
			}
			for _, b := range r.Blocks {
				seen[b] = true
			}
			if blocks := (r.Input + MooncakeBlock - 1) / MooncakeBlock; blocks != len(r.Blocks) {
				t.Fatalf("request %d has %d tokens in %d blocks", i, r.Input, len(r.Blocks))
			}
			total += len(r.Blocks)
			lengths = append(lengths, len(r.Blocks))
		}
		slices.Sort(lengths)
		near := func(what string, got, want, off float64) {
			if got < want-off || got > want+off {
				t.Errorf("seed %d: %s is %.3f, want %.3f", seed, what, got, want)
			}
		}
		near("mean", float64(total)/perHour, 24, 1.5)
		near("median", float64(lengths[perHour/2]), 14, 2)
		near("p99", float64(lengths[perHour*99/100]), 167, 20)
		near("longest", float64(lengths[perHour-1]), 250, 10)
		near("leading reuse", float64(reused)/float64(total), 0.37, 0.035)
		near("hours", all[perHour-1].At.Hours(), 1, 0.01)
	}
}

func TestGenerateDependsOnItsSeedOnly(t *testing.T) {
	t.Parallel()
	if diff := cmp.Diff(Generate(1, 300), Generate(1, 300)); diff != "" {
		t.Error(diff)
	}
	if fmt.Sprint(Generate(1, 300)) == fmt.Sprint(Generate(2, 300)) {
		t.Error("two seeds gave one trace")
	}
	if len(Generate(1, 0)) != 0 {
		t.Error("none asked, some given")
	}
}

func TestBailian(t *testing.T) {
	t.Parallel()
	const good = `{"chat_id": 3, "parent_chat_id": -1, "timestamp": 1.5, "input_length": 40, "output_length": 2, "type": "text", "turn": 1, "hash_ids": [7, 8, 9]}`
	format, tokens := Guess([]byte(good))
	if tokens != BailianBlock {
		t.Errorf("blocks of %d tokens, want %d", tokens, BailianBlock)
	}
	all, err := NewReader(strings.NewReader(good+"\n"), format).ReadAll()
	want := []Request{{At: 1500 * time.Millisecond, Input: 40, Output: 2, Blocks: []uint64{7, 8, 9}}}
	if diff := cmp.Diff(want, all); diff != "" || err != nil {
		t.Errorf("err %v (-want +got):\n%s", err, diff)
	}
	if _, tokens := Guess([]byte(`{"timestamp": 0, "input_length": 1, "hash_ids": []}`)); tokens != MooncakeBlock {
		t.Errorf("blocks of %d tokens, want %d", tokens, MooncakeBlock)
	}
	for line, reason := range map[string]string{
		`{"timestamp": 1, "input_length": 1, "hash_ids": []}`:                   "chat_id",
		`{"chat_id": 1, "input_length": 1, "hash_ids": []}`:                     "timestamp",
		`{"chat_id": 1, "timestamp": 1e300, "input_length": 1, "hash_ids": []}`: "out of range",
		`{"chat_id": "x"}`: "chat_id",
		`{`:                "bad json",
	} {
		if _, err := NewReader(strings.NewReader(line), Bailian).Read(); err == nil || !strings.Contains(err.Error(), reason) {
			t.Errorf("%s: %v, want something about %s", line, err, reason)
		}
	}
}
