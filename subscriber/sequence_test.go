package subscriber

import (
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestTrackerJudgesSequence(t *testing.T) {
	t.Parallel()
	type seen struct{ connection, sequence, lost uint64 }
	for _, tc := range []struct {
		name    string
		seen    []seen
		want    []string
		missing uint64 // by the last
	}{
		{"contiguous", []seen{{1, 0, 0}, {1, 1, 0}, {1, 2, 0}}, []string{"first", "next", "next"}, 0},
		{"joined late", []seen{{1, 40, 0}, {1, 41, 0}}, []string{"first", "next"}, 0},
		{"gap", []seen{{1, 0, 0}, {1, 5, 0}}, []string{"first", "gap"}, 4},
		{"duplicate", []seen{{1, 3, 0}, {1, 3, 0}, {1, 4, 0}}, []string{"first", "duplicate", "next"}, 0},
		{"restart on one connection", []seen{{1, 7, 0}, {1, 0, 0}}, []string{"first", "restart"}, 0},
		{"restart", []seen{{1, 7, 0}, {2, 0, 0}, {2, 1, 0}}, []string{"first", "restart", "next"}, 0},
		{"restart at the number last seen", []seen{{1, 0, 0}, {2, 0, 0}}, []string{"first", "restart"}, 0},
		{"connection lost, publisher not", []seen{{1, 7, 0}, {2, 8, 0}}, []string{"first", "next"}, 0},
		{"connection lost, batches too", []seen{{1, 7, 0}, {2, 10, 0}}, []string{"first", "gap"}, 2},
		{"dropped by the queue", []seen{{1, 0, 0}, {1, 5, 4}}, []string{"first", "gap"}, 4},
		{"a restart among what was dropped", []seen{{1, 4, 0}, {2, 5, 7}}, []string{"first", "gap"}, 7},
		{"the first ones dropped", []seen{{1, 5, 5}, {1, 6, 0}}, []string{"gap", "next"}, 0},
		{"dropped before a restart", []seen{{1, 5, 0}, {2, 0, 2}}, []string{"first", "restart"}, 0},
	} {
		var tr tracker
		var got []string
		var missing uint64
		for _, s := range tc.seen {
			var v verdict
			v, missing = tr.observe(s.connection, s.sequence, s.lost)
			got = append(got, v.String())
		}
		if diff := cmp.Diff(tc.want, got); diff != "" || missing != tc.missing {
			t.Errorf("%s: missing %d, want %d (-want +got):\n%s", tc.name, missing, tc.missing, diff)
		}
	}
}
