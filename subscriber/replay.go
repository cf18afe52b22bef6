package subscriber

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"time"

	"github.com/go-zeromq/zmq4"
)

// replayer is where a stream asks for batches that it has missed.
type replayer interface {
	// replay asks for all batches from start on and yields them as they come,
	// until yield returns false. ended reports that the engine said that there
	// are no more. Without it and without an error, yield had enough.
	replay(ctx context.Context, start uint64, yield func(sequence uint64, payload []byte) bool) (ended bool, err error)
}

// replayIdle is how long the engine's event thread may be silent: it answers
// between batches, after a tenth of a second at the latest, and all at once.
const replayIdle = 2 * time.Second

var (
	errSilent         = errors.New("no answer in time")
	errMalformedReply = errors.New("malformed reply")
)

// dealer asks an engine's ROUTER, each time over a socket of its own: a queue
// of replies that was cut short stays so for as long as its connection does.
type dealer struct {
	guarded    string // endpoint, under the guarded transport's name
	frameLimit int64  // bytes
}

func (d *dealer) replay(ctx context.Context, start uint64, yield func(uint64, []byte) bool) (ended bool, err error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	idle := time.AfterFunc(replayIdle, func() { cancel(errSilent) })
	defer idle.Stop()
	s, err := openDealer(ctx, d.guarded, d.frameLimit)
	if err != nil {
		return false, fmt.Errorf("connect: %w", orCause(ctx, err))
	}
	defer s.close()
	if err := s.Send(replayRequest(start)); err != nil {
		return false, fmt.Errorf("ask: %w", orCause(ctx, err))
	}
	for {
		message, err := s.Recv()
		if err != nil {
			return false, orCause(ctx, err)
		}
		idle.Reset(replayIdle)
		sequence, payload, ok := parseReply(message.Frames)
		switch {
		case !ok:
			return false, errMalformedReply
		case sequence == reservedSequence:
			return true, nil
		case !yield(sequence, payload):
			return false, nil
		}
	}
}

// replayRequest asks for all from start on. The engine wants the empty frame
// that a REQ socket would add.
func replayRequest(start uint64) zmq4.Msg {
	return zmq4.NewMsgFrom([]byte{}, binary.BigEndian.AppendUint64(nil, start))
}

func orCause(ctx context.Context, err error) error {
	if cause := context.Cause(ctx); cause != nil {
		return cause
	}
	return err
}

// parseReply reads [ , sequence, payload] or [ , topic, sequence, payload]: the
// old and the new layout differ in the middle, so it is read from the end. The
// end marker has the reserved number and no payload.
func parseReply(frames [][]byte) (sequence uint64, payload []byte, ok bool) {
	if len(frames) > 0 && len(frames[0]) == 0 {
		frames = frames[1:]
	}
	n := len(frames)
	if n < 2 || n > 3 || len(frames[n-2]) != sequenceSize {
		return 0, nil, false
	}
	sequence, payload = binary.BigEndian.Uint64(frames[n-2]), frames[n-1]
	return sequence, payload, (sequence == reservedSequence) == (len(payload) == 0)
}
