package subscriber

import (
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestQueueDropsOldestWithGapMark(t *testing.T) {
	t.Parallel()
	type popped struct{ Sequence, Lost uint64 }
	drain := func(q *queue) (all []popped) {
		for {
			b, ok, _ := q.pop()
			if !ok {
				return all
			}
			all = append(all, popped{b.sequence, b.lost})
		}
	}
	for _, tc := range []struct {
		name                 string
		maxBatches, maxBytes int
		sizes                []int
		want                 []popped
		dropped              int
	}{
		{"fits", 3, 100, []int{1, 1, 1}, []popped{{0, 0}, {1, 0}, {2, 0}}, 0},
		{"too many", 2, 100, []int{1, 1, 1, 1}, []popped{{2, 2}, {3, 0}}, 2},
		{"too many bytes", 9, 10, []int{4, 4, 4, 4}, []popped{{2, 2}, {3, 0}}, 2},
		{"one large pushes out several", 9, 10, []int{3, 3, 3, 10}, []popped{{3, 3}}, 3},
		{"larger than the queue goes in alone", 9, 10, []int{3, 50}, []popped{{1, 1}}, 1},
		{"and goes out for the next", 9, 10, []int{50, 3}, []popped{{1, 1}}, 1},
	} {
		q := newQueue(tc.maxBatches, tc.maxBytes)
		dropped := 0
		for i, size := range tc.sizes {
			dropped += q.push(batch{sequence: uint64(i), payload: make([]byte, size)})
		}
		if diff := cmp.Diff(tc.want, drain(q)); diff != "" || dropped != tc.dropped {
			t.Errorf("%s: dropped %d, want %d; popped (-want +got):\n%s", tc.name, dropped, tc.dropped, diff)
		}
		if n, bytes := q.size(); n != 0 || bytes != 0 {
			t.Errorf("%s: drained queue still has %d batches, %d bytes", tc.name, n, bytes)
		}
	}
}

func TestQueueKeepsOrderOverManyRounds(t *testing.T) {
	t.Parallel()
	q := newQueue(10_000, 1<<20)
	pushed, next := uint64(0), uint64(0)
	for round := range 200 {
		for range 50 + round%7 {
			q.push(batch{sequence: pushed})
			pushed++
		}
		for range 49 {
			b, ok, _ := q.pop()
			if !ok || b.sequence != next || b.lost != 0 {
				t.Fatalf("popped %d (ok %v, lost %d), want %d", b.sequence, ok, b.lost, next)
			}
			next++
		}
	}
	q.close()
	for next < pushed {
		if b, ok, _ := q.pop(); !ok || b.sequence != next {
			t.Fatalf("after close: popped %d (ok %v), want %d", b.sequence, ok, next)
		}
		next++
	}
	if _, ok, done := q.pop(); ok || !done {
		t.Errorf("empty closed queue: ok %v, done %v", ok, done)
	}
}
