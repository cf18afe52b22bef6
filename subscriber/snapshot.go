package subscriber

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/go-zeromq/zmq4"

	"inferencecache.io/inferencecache/internal/engine"
)

const (
	// snapshotIdle is how long the engine may take between two messages: its
	// own limit for the capture is 5 s.
	snapshotIdle = 6 * time.Second
	// snapshotWait is how long the barrier may be behind the answer.
	snapshotWait = 30 * time.Second
	// maxSnapshotBlocks bounds what is kept of an answer, at 8 bytes and the
	// overhead of a map each.
	maxSnapshotBlocks = 2_000_000
)

// snapshot is which blocks an engine held when it sent its barrier. It carries
// no tokens: it confirms or refutes what is known, and adds nothing.
type snapshot struct {
	engine.SnapshotHeader
	blocks map[uint64]struct{} // engine hashes
	err    error
	at     time.Time
}

// takeSnapshot asks the engine's snapshot ROUTER, over a socket of its own.
func takeSnapshot(ctx context.Context, guarded string, frameLimit int64) (s *snapshot) {
	s = &snapshot{blocks: map[uint64]struct{}{}}
	defer func() { s.at = time.Now() }()
	ctx, end := context.WithTimeout(ctx, snapshotWait)
	defer end()
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	idle := time.AfterFunc(snapshotIdle, func() { cancel(errSilent) })
	defer idle.Stop()
	socket, err := openDealer(ctx, guarded, frameLimit)
	if err != nil {
		s.err = fmt.Errorf("connect: %w", orCause(ctx, err))
		return s
	}
	defer socket.close()
	if err := socket.Send(zmq4.NewMsgFrom([]byte{}, []byte(engine.SnapshotRequest))); err != nil {
		s.err = fmt.Errorf("ask: %w", orCause(ctx, err))
		return s
	}
	records := 0
	for {
		message, err := socket.Recv()
		if err != nil {
			s.err = orCause(ctx, err)
			return s
		}
		idle.Reset(snapshotIdle)
		done, err := s.take(message.Frames, &records)
		if done || err != nil {
			s.err = err
			return s
		}
	}
}

// take reads one message of the answer.
func (s *snapshot) take(frames [][]byte, records *int) (done bool, err error) {
	if len(frames) > 0 && len(frames[0]) == 0 {
		frames = frames[1:]
	}
	if len(frames) != 2 {
		return false, errMalformedReply
	}
	switch string(frames[0]) {
	case engine.SnapshotHead:
		s.SnapshotHeader, err = engine.DecodeSnapshotHeader(frames[1])
		return false, err
	case engine.SnapshotChunk:
		n, err := engine.DecodeSnapshotChunk(frames[1], func(id uint64) { s.blocks[id] = struct{}{} })
		*records += n
		if len(s.blocks) > maxSnapshotBlocks {
			return false, fmt.Errorf("more than %d blocks", maxSnapshotBlocks)
		}
		return false, err
	case engine.SnapshotEnd:
		if uint64(*records) != s.Records {
			return false, fmt.Errorf("%d of %d records", *records, s.Records)
		}
		return true, nil
	case engine.SnapshotError:
		return false, errors.New("engine takes no snapshot") // its words may be anything
	}
	return false, errMalformedReply
}

// auditor compares a stream with snapshots of its engine, one at a time. It is
// owned by the stream's goroutine.
type auditor struct {
	take    func(ctx context.Context) *snapshot
	every   time.Duration  // it makes up for copies that were counted wrongly
	last    time.Time      // when the last one was asked for
	taken   chan *snapshot // holds the answer
	asked   bool           // an answer is on its way, or waits for its barrier
	waiting *snapshot
}

// audit asks for a snapshot when it is time, and applies one whose barrier the
// stream has passed.
func (s *stream) audit(ctx context.Context, now time.Time) {
	a := s.auditor
	if a == nil {
		return
	}
	if a.asked {
		s.conclude(a, now)
		return
	}
	if s.state.now() != Exact && s.state.now() != Degraded || now.Sub(a.last) < a.every {
		return
	}
	a.last, a.asked = now, true
	s.replica.watch(s.source, true)
	s.background.Go(func() { a.taken <- a.take(ctx) })
}

// conclude takes the answer in, if it is there and its barrier has been passed.
// What changed since the question is left alone: it may be newer.
func (s *stream) conclude(a *auditor, now time.Time) {
	if a.waiting == nil {
		select {
		case a.waiting = <-a.taken:
		default:
			return
		}
	}
	shot := a.waiting
	outcome := "applied"
	switch {
	case shot.err != nil:
		outcome = "failed"
		s.log.Debug("no snapshot of the engine", "err", shot.err)
	case s.epoch != "" && shot.Epoch != s.epoch:
		outcome = "foreign"
	case !s.at.known || s.at.next <= shot.Barrier:
		if now.Sub(shot.at) < snapshotWait {
			return
		}
		outcome = "late"
	default:
		refuted, unknown := s.replica.confirm(s.source, shot.blocks, now)
		s.meters.refuted.Add(refuted)
		s.meters.unheard.Set(float64(unknown))
	}
	s.meters.snapshots[outcome].Inc()
	s.replica.watch(s.source, false)
	a.waiting, a.asked = nil, false
}
