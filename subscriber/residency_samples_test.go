package subscriber

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"inferencecache.io/inferencecache/internal/engine"
	"inferencecache.io/inferencecache/internal/engine/sglang"
	"inferencecache.io/inferencecache/internal/engine/vllm"
)

const residencySamples = "../testdata/kvevents"

// residencySample is a payload of the manifest, as far as residency goes.
type residencySample struct {
	File     string
	Kind     string
	Engine   string
	MustFail *string             `json:"must_fail"`
	Prefixes map[string][]string `json:"prefix_hashes_be_hex"`
	Decoded  struct {
		Unknown  []string
		Rejected []int `json:"rejected_events"`
	}
	payload []byte
}

func (s residencySample) dialect() engine.Dialect {
	if s.Engine == "sglang" {
		return sglang.Dialect
	}
	return vllm.Dialect
}

func loadResidencySamples(t testing.TB) []residencySample {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(residencySamples, "manifest.json"))
	if err != nil {
		t.Fatal(err)
	}
	var manifest struct{ Samples []residencySample }
	if err := json.Unmarshal(text, &manifest); err != nil {
		t.Fatal(err)
	}
	var payloads []residencySample
	for _, s := range manifest.Samples {
		if s.Kind != "payload" {
			continue
		}
		if s.payload, err = os.ReadFile(filepath.Join(residencySamples, s.File)); err != nil {
			t.Fatal(err)
		}
		payloads = append(payloads, s)
	}
	if len(payloads) < 30 {
		t.Fatalf("only %d payload samples", len(payloads))
	}
	return payloads
}

// The first prefixes of the samples' prompt, and what a second root in sample
// 15 gives.
const (
	p0    = "1ac9d45fb5b734f5"
	p1    = "33fe5d4b05b3ccd5"
	other = "e774eed9d95ffb58"
)

// sampleEffects are the manifest's index_effect in terms of Inspect: "prefix
// tier adapter tokens" of what is resident, and the verdicts of the events.
var sampleEffects = map[string]struct {
	resident []string
	verdicts string
}{
	"01": {[]string{p0 + " T1  16"}, "applied"},
	"02": {[]string{p0 + " T1  16", p1 + " T1  32"}, "applied applied applied"},
	"03": {[]string{p0 + " T1  16"}, "applied applied"},
	"04": {nil, "orphan:unknown_parent"},
	"06": {[]string{p0 + " T1 sql-lora 16"}, "applied"},
	"07": {nil, "skipped:separate_space"},
	"08": {nil, "applied applied"},
	"09": {[]string{p0 + " T1  16", p1 + " T1  32"}, "applied skipped:secondary_group skipped:secondary_group"},
	"10": {nil, "applied applied applied"},
	"11": {[]string{p0 + " T3  16"}, "applied"},
	"13": {[]string{p0 + " T1  16"}, "applied applied applied"},
	"14": {[]string{p0 + " T2  16"}, "applied applied applied"},
	"15": {[]string{other + " T1  16"}, "applied applied applied"},
	"16": {[]string{p0 + " T1  16"}, "applied applied applied"},
	"19": {nil, "applied applied applied"},
	"20": {[]string{p0 + " T2  16", p1 + " T1  32"}, "applied applied applied"},
	"21": {nil, "skipped:separate_space skipped:separate_space"},
	"22": {[]string{p0 + " T1  16"}, "applied"},
	"23": {nil, "applied skipped:separate_space applied applied"},
	"24": {nil, ""},
	"26": {[]string{p0 + " T1  16"}, "skipped:unknown_tag skipped:unknown_tag applied"},
	"27": {[]string{p0 + " T1  16", p1 + " T1  32"}, "applied applied"},
	"29": {[]string{p0 + " T1  16"}, "applied"},
	"32": {[]string{p0 + " T1  16"}, "rejected:out_of_range rejected:out_of_range applied"},
	"39": {nil, "rejected:missing_field skipped:unknown_block"},
	"40": {nil, "rejected:wrong_type"},
}

// inspected is the JSON of a Document.
type inspected struct {
	Error  string
	Rank   *int `json:"dp_rank"`
	Events []struct {
		Index   int
		Verdict struct{ Status, Reason string }
	}
	Unknown  []string
	Rejected []int               `json:"rejected_events"`
	Prefixes map[string][]string `json:"prefix_hashes"`
	Resident []ResidentBlock
}

func inspectSample(t *testing.T, s residencySample) inspected {
	t.Helper()
	text, err := json.Marshal(Inspect(s.dialect(), s.payload))
	if err != nil {
		t.Fatal(err)
	}
	var doc inspected
	if err := json.Unmarshal(text, &doc); err != nil {
		t.Fatal(err)
	}
	return doc
}

func TestInspectShowsTheEffectOfEverySample(t *testing.T) {
	checked := 0
	for _, s := range loadResidencySamples(t) {
		t.Run(strings.TrimSuffix(s.File, ".bin"), func(t *testing.T) {
			doc := inspectSample(t, s)
			if s.MustFail != nil {
				if doc.Error == "" {
					t.Errorf("no error, want one for: %s", *s.MustFail)
				}
				return
			}
			if doc.Error != "" {
				t.Fatal(doc.Error)
			}
			if diff := cmp.Diff(append([]string{}, s.Decoded.Unknown...), doc.Unknown); diff != "" {
				t.Errorf("unknown tags (-want +got):\n%s", diff)
			}
			if diff := cmp.Diff(append([]int{}, s.Decoded.Rejected...), doc.Rejected); diff != "" {
				t.Errorf("rejected events (-want +got):\n%s", diff)
			}
			checkPrefixes(t, s, doc)
			want, ok := sampleEffects[s.File[:2]]
			if !ok {
				return
			}
			checked++
			var resident []string
			for _, b := range doc.Resident {
				resident = append(resident, strings.Join([]string{b.PrefixHash, b.Tier, b.Adapter, jsonText(b.Tokens)}, " "))
			}
			if diff := cmp.Diff(want.resident, resident); diff != "" {
				t.Errorf("resident (-want +got):\n%s", diff)
			}
			if got := verdictLine(doc); got != want.verdicts {
				t.Errorf("verdicts %q, want %q", got, want.verdicts)
			}
		})
	}
	if checked != len(sampleEffects) {
		t.Errorf("%d of %d effects were checked", checked, len(sampleEffects))
	}
}

func jsonText(v any) string {
	text, _ := json.Marshal(v)
	return string(text)
}

func verdictLine(doc inspected) string {
	var verdicts []string
	for i, e := range doc.Events {
		if e.Index != i {
			return "event out of order"
		}
		v := e.Verdict.Status
		if e.Verdict.Reason != "" {
			v += ":" + e.Verdict.Reason
		}
		verdicts = append(verdicts, v)
	}
	return strings.Join(verdicts, " ")
}

// checkPrefixes compares with the manifest, which gives only both ends of the
// large sample and explains its bigram entry in the name.
func checkPrefixes(t *testing.T, s residencySample, doc inspected) {
	t.Helper()
	want := map[string][]string{}
	for name, hashes := range s.Prefixes {
		want[strings.TrimSuffix(name, "_over_first_elements")] = hashes
	}
	got := doc.Prefixes
	if first := want["first"]; first != nil {
		all := got["event0"]
		if len(all) != 4375 {
			t.Fatalf("%d prefix hashes, want 4375", len(all))
		}
		got = map[string][]string{"first": all[:1], "last": all[len(all)-1:]}
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("prefix hashes (-want +got):\n%s", diff)
	}
}
