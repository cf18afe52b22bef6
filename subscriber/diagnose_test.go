package subscriber

import (
	"bytes"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"inferencecache.io/inferencecache/internal/engine"
)

// healthy is a replica with one stream that has brought events until just now.
func healthy(now time.Time) *symptoms {
	return &symptoms{
		now: now, started: now.Add(-time.Hour), blockSize: 16,
		engine: engineSymptoms{caching: "True", engines: 1, prompts: 100},
		sources: []sourceSymptoms{{
			ledger: ledger{Live: 100, Batches: 100, Last: now.Add(-time.Second), Known: true, Next: 100, Stores: 90, Applied: 90, HasRank: true,
				Refused: map[engine.Reason]uint64{}},
			replay: true, connected: now.Add(-time.Hour),
		}},
	}
}

func TestDiagnoseNamesWhatIsWrong(t *testing.T) {
	t.Parallel()
	now := time.Unix(1_800_000_000, 0)
	for _, tc := range []struct {
		name   string
		ail    func(*symptoms, *sourceSymptoms)
		want   []Condition
		detail string // part of the first
	}{
		{"healthy", func(*symptoms, *sourceSymptoms) {}, nil, ""},
		{"still loading", func(s *symptoms, one *sourceSymptoms) {
			s.started, one.connected, one.Batches = now.Add(-30*time.Second), time.Time{}, 0
		}, nil, ""},
		{"no publisher", func(s *symptoms, one *sourceSymptoms) {
			one.connected, one.Last, s.engine.prompts = time.Time{}, time.Time{}, 1e6
		}, []Condition{NotConnected}, "rank 0"},
		{"the engine went away", func(_ *symptoms, one *sourceSymptoms) { one.away = time.Hour }, []Condition{NotConnected}, "1h0m0s"},
		{"unknown tags long ago", func(_ *symptoms, one *sourceSymptoms) { one.Unknown, one.UnknownAt = 4, now.Add(-time.Hour) }, nil, ""},
		{"idle engine", func(s *symptoms, one *sourceSymptoms) {
			one.Last, s.engine.prompts = now.Add(-time.Hour), 0
		}, nil, ""},
		{"traffic without events", func(s *symptoms, one *sourceSymptoms) {
			one.Last, one.Batches, s.engine.prompts = time.Time{}, 0, 50_000
		}, []Condition{NoEvents}, "50000 prompt tokens"},
		{"caching off", func(s *symptoms, one *sourceSymptoms) {
			one.Last, s.engine.prompts, s.engine.caching = now.Add(-time.Hour), 50_000, "False"
		}, []Condition{NoEvents, PrefixCachingOff}, ""},
		{"other topic", func(_ *symptoms, one *sourceSymptoms) {
			one.Live, one.otherTopic, one.topic = 0, 12, "kv-events"
		}, []Condition{TopicMismatch}, `12 messages under other topics than "kv-events"`},
		{"a proxy's other topics", func(_ *symptoms, one *sourceSymptoms) { one.otherTopic = 12 }, nil, ""},
		{"other block size", func(_ *symptoms, one *sourceSymptoms) {
			one.Applied, one.Refused = 0, map[engine.Reason]uint64{BlockSizeMismatch: 90}
		}, []Condition{WrongBlockSize, NothingIndexed}, "--block-size is 16"},
		{"ranks not followed", func(s *symptoms, _ *sourceSymptoms) { s.engine.engines = 8 }, []Condition{RanksMissing}, "8 ranks, 1 are"},
		{"another rank's stream", func(_ *symptoms, one *sourceSymptoms) { one.Rank = 3 }, []Condition{RankMismatch}, "says that it is rank 3"},
		{"unnamed adapter", func(_ *symptoms, one *sourceSymptoms) {
			one.Refused, one.UnmappedAt = map[engine.Reason]uint64{UnmappedAdapter: 2}, now
		}, []Condition{AdapterUnmapped}, ""},
		{"only salted prompts", func(_ *symptoms, one *sourceSymptoms) {
			one.Applied, one.Refused = 0, map[engine.Reason]uint64{SeparateSpace: 80, NoHashes: 10}
		}, []Condition{NothingIndexed}, "separate_space 80, no_hashes 10"},
		{"no replay", func(_ *symptoms, one *sourceSymptoms) { one.NoReplay = true }, []Condition{NoReplay}, ""},
		{"no replay configured", func(_ *symptoms, one *sourceSymptoms) { one.NoReplay, one.replay = true, false }, nil, ""},
		{"random seeds", func(_ *symptoms, one *sourceSymptoms) { one.SeedAt = now }, []Condition{RandomHashSeed}, ""},
		{"unknown tags", func(_ *symptoms, one *sourceSymptoms) { one.Unknown, one.UnknownAt = 4, now }, []Condition{UnknownEvents}, ""},
		{"cap", func(s *symptoms, _ *sourceSymptoms) { s.capped = 7 }, []Condition{CapReached}, "7 blocks"},
		{"drift", func(_ *symptoms, one *sourceSymptoms) { one.DriftAt = now }, []Condition{HeldDrifted}, "rank 0"},
		{"drift long ago", func(_ *symptoms, one *sourceSymptoms) { one.DriftAt = now.Add(-time.Hour) }, nil, ""},
		{"hits of what is not known", func(s *symptoms, _ *sourceSymptoms) { s.engine.cached = 5000 }, []Condition{CacheUnseen}, "5000 prompt tokens"},
		{"hits without replay", func(s *symptoms, one *sourceSymptoms) { s.engine.cached, one.NoReplay = 5000, true }, []Condition{NoReplay}, ""},
		{"not found", func(s *symptoms, _ *sourceSymptoms) {
			s.lookups = []string{"http://a finds 0 of 64 tokens"}
		}, []Condition{LookupMismatch}, "http://a"},
	} {
		s := healthy(now)
		tc.ail(s, &s.sources[0])
		found := diagnose(s)
		var got []Condition
		for _, f := range found {
			got = append(got, f.Condition)
		}
		slices.Sort(got)
		slices.Sort(tc.want)
		if diff := cmp.Diff(tc.want, got); diff != "" {
			t.Errorf("%s (-want +got):\n%s", tc.name, diff)
		} else if len(found) > 0 && !strings.Contains(found[0].Detail, tc.detail) {
			t.Errorf("%s: detail %q lacks %q", tc.name, found[0].Detail, tc.detail)
		}
	}
}

func TestConditionsAreLoggedWhenTheyChange(t *testing.T) {
	t.Parallel()
	var logged bytes.Buffer
	m := testMeters()
	c := newConditions(m, slog.New(slog.NewTextHandler(&logged, nil)))
	for range 3 {
		c.set([]finding{{TopicMismatch, "rank 0"}, {TopicMismatch, "rank 1"}})
	}
	if n := strings.Count(logged.String(), "\n"); n != 1 || !strings.Contains(logged.String(), "--topic") {
		t.Errorf("logged %q, want one line with the flag", logged.String())
	}
	var page bytes.Buffer
	m.set.WritePrometheus(&page)
	for _, line := range []string{
		`inferencecache_subscriber_condition{replica="replica",condition="topic_mismatch"} 1`,
		`inferencecache_subscriber_condition{replica="replica",condition="no_events"} 0`,
	} {
		if !strings.Contains(page.String(), line) {
			t.Errorf("no %s", line)
		}
	}
	logged.Reset()
	c.set(nil)
	if !strings.Contains(logged.String(), "condition is over") || c.holds(TopicMismatch) {
		t.Errorf("after the end: %q", logged.String())
	}
}

func TestAccountRemembersHashSeeds(t *testing.T) {
	t.Parallel()
	a := newAccount()
	at := newPosition()
	now := time.Now()
	told := func(hash uint64, shift time.Duration) bool {
		e := engine.Event{Kind: engine.Stored, BlockSize: 4, Tokens: []uint32{1, 2, 3, 4}, Hashes: []engine.BlockHash{{ID: hash}}, FirstString: -1}
		a.note(&engine.Batch{Events: []engine.Event{e}}, Tally{Verdicts: []engine.Verdict{{Status: engine.Applied}}}, &at, now.Add(shift))
		return !a.read().SeedAt.IsZero()
	}
	if told(7, 0) || told(7, promptEvery) {
		t.Error("one name for one block is taken for a random seed")
	}
	if !told(8, 2*promptEvery) {
		t.Error("another name for the same block is not noticed")
	}
	if p := a.read().prompt; len(p.tokens) != 4 || p.blockSize != 4 {
		t.Errorf("prompt of %d tokens in blocks of %d, want one of 4", len(p.tokens), p.blockSize)
	}
}
