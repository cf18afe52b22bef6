package trace

import (
	"encoding/json"
	"errors"
	"fmt"
	"time"
)

// MooncakeBlock is how many tokens a block of a Mooncake trace has.
const MooncakeBlock = 512

// century is far from what overflows.
const century = 100 * 365 * 24 * time.Hour

type mooncakeLine struct {
	Timestamp *float64 `json:"timestamp"` // milliseconds
	Input     *int     `json:"input_length"`
	Output    int      `json:"output_length"`
	Blocks    []uint64 `json:"hash_ids"`
}

// Mooncake is the Format of github.com/kvcache-ai/Mooncake's FAST25 traces: a
// JSON object a line, ids of 512-token blocks. An empty hash_ids is a prompt
// that nothing is known about and is allowed; none at all is an error, because
// then the file is of another kind.
func Mooncake(line []byte, r *Request) error {
	var l mooncakeLine
	if err := json.Unmarshal(line, &l); err != nil {
		var wrong *json.UnmarshalTypeError
		if errors.As(err, &wrong) && wrong.Field != "" {
			return fmt.Errorf("%s: unexpected %s", wrong.Field, wrong.Value)
		}
		return fmt.Errorf("bad json: %w", err)
	}
	switch {
	case l.Timestamp == nil:
		return errors.New("no timestamp")
	case l.Input == nil:
		return errors.New("no input_length")
	case l.Blocks == nil:
		return errors.New("no hash_ids")
	}
	ms := *l.Timestamp
	if max := float64(century.Milliseconds()); ms < -max || ms > max {
		return fmt.Errorf("timestamp %g is out of range", ms)
	}
	*r = Request{
		At:     time.Duration(ms * float64(time.Millisecond)),
		Input:  *l.Input,
		Output: l.Output,
		Blocks: l.Blocks,
	}
	return nil
}
