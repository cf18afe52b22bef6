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

// line is what lines of all formats have.
type line struct {
	Timestamp *float64 `json:"timestamp"`
	Input     *int     `json:"input_length"`
	Output    int      `json:"output_length"`
	Blocks    []uint64 `json:"hash_ids"`
}

// Mooncake is the Format of github.com/kvcache-ai/Mooncake's FAST25 traces: a
// JSON object a line, milliseconds, ids of 512-token blocks. An empty hash_ids
// is a prompt that nothing is known about and is allowed; none at all is an
// error, because then the file is of another kind.
func Mooncake(text []byte, r *Request) error {
	var l line
	if err := unmarshal(text, &l); err != nil {
		return err
	}
	return l.request(time.Millisecond, r)
}

func unmarshal(text []byte, l any) error {
	err := json.Unmarshal(text, l)
	var wrong *json.UnmarshalTypeError
	switch {
	case errors.As(err, &wrong) && wrong.Field != "":
		return fmt.Errorf("%s: unexpected %s", wrong.Field, wrong.Value)
	case err != nil:
		return fmt.Errorf("bad json: %w", err)
	}
	return nil
}

// request reads the line into r; unit is that of its timestamp.
func (l *line) request(unit time.Duration, r *Request) error {
	switch {
	case l.Timestamp == nil:
		return errors.New("no timestamp")
	case l.Input == nil:
		return errors.New("no input_length")
	case l.Blocks == nil:
		return errors.New("no hash_ids")
	}
	if most := float64(century / unit); *l.Timestamp < -most || *l.Timestamp > most {
		return fmt.Errorf("timestamp %g is out of range", *l.Timestamp)
	}
	*r = Request{At: time.Duration(*l.Timestamp * float64(unit)), Input: *l.Input, Output: l.Output, Blocks: l.Blocks}
	return nil
}
