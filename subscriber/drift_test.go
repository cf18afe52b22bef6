package subscriber

import (
	"testing"
	"time"
)

func TestDriftNeedsTwoPagesAndPauses(t *testing.T) {
	t.Parallel()
	now := time.Unix(1_800_000_000, 0)
	var d drift
	for i, step := range []struct {
		held, room int64
		after      time.Duration
		want       bool
	}{
		{2000, 1000, 0, false},
		{1000, 1000, 15 * time.Second, false}, // it was a page of before
		{1100, 1000, 15 * time.Second, false},
		{2000, 1000, 15 * time.Second, false},
		{2000, 0, 15 * time.Second, false}, // room unknown
		{2000, 1000, 15 * time.Second, false},
		{2000, 1000, 15 * time.Second, true},
		{2000, 1000, 15 * time.Second, false},
		{2000, 1000, 15 * time.Second, false},
		{2000, 1000, driftPause, true},
	} {
		now = now.Add(step.after)
		if got := d.judge(step.held, step.room, now); got != step.want {
			t.Errorf("step %d: %v, want %v", i, got, step.want)
		}
	}
}

func TestUnseenCountsOnlyWhileNothingIsHeld(t *testing.T) {
	t.Parallel()
	var u unseen
	for i, step := range []struct {
		cached float64
		holds  bool
		want   float64
	}{
		{5000, false, 0}, {9000, false, 4000}, {9500, true, 0}, {9900, false, 400}, {12_000, false, 2500},
		{100, false, 0}, {600, false, 500}, {-1, false, 0}, {700, false, 0}, {900, false, 200},
	} {
		if got := u.tokens(step.cached, step.holds); got != step.want {
			t.Errorf("step %d: %v, want %v", i, got, step.want)
		}
	}
}

// What the engine has removed unnoticed is gone after its history was read anew.
func TestDriftedStreamStartsOverFromHistory(t *testing.T) {
	t.Parallel()
	end := [][]byte{{}, sequenceFrame(reservedSequence), {}}
	history := &recorded{t: t, replies: [][][]byte{end}}
	s := bareStream(t, history)
	ctx := t.Context()
	c := s.state.connect()
	s.take(ctx, batch{mark: markConnected, connection: c, arrived: time.Now()})
	hashes, tokens := chainOf(1, 3)
	stored := storedBatch(0, hashes, tokens)
	s.take(ctx, batch{connection: c, sequence: 0, payload: stored, arrived: time.Now()})
	s.begun = time.Now()
	s.take(ctx, batch{mark: markDrifted, arrived: s.begun.Add(-time.Second)})
	if got := s.replica.warmTokens(0); got != 3*16 || s.meters.drifts.Get() != 0 {
		t.Fatalf("a page of before the process began: %d tokens are held, %d drifts", got, s.meters.drifts.Get())
	}
	history.replies = [][][]byte{{{}, sequenceFrame(0), stored}, {{}, sequenceFrame(1), removedBatch(hashes[1:]...)}, end}
	s.take(ctx, batch{mark: markDrifted, arrived: time.Now().Add(time.Second)})
	if got := s.replica.warmTokens(0); got != 16 || s.state.now() != Exact {
		t.Errorf("%d tokens are held in state %v, want 16, exact", got, s.state.now())
	}
	if s.meters.drifts.Get() != 1 || s.account.read().DriftAt.IsZero() {
		t.Error("not counted")
	}
}
