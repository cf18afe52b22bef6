package trace

import (
	"encoding/json"
	"errors"
	"fmt"
	"time"
)

// BailianBlock is how many tokens a block of a Bailian trace has.
const BailianBlock = 16

type bailianLine struct {
	Chat      *int64   `json:"chat_id"`
	Timestamp *float64 `json:"timestamp"` // seconds
	Input     *int     `json:"input_length"`
	Output    int      `json:"output_length"`
	Blocks    []uint64 `json:"hash_ids"`
}

// Bailian is the Format of github.com/alibaba-edu/qwen-bailian-usagetraces-anon:
// a JSON object a line with the number of its chat, seconds, and ids of 16-token
// blocks.
func Bailian(line []byte, r *Request) error {
	var l bailianLine
	if err := json.Unmarshal(line, &l); err != nil {
		return fmt.Errorf("bad json: %w", err)
	}
	switch {
	case l.Chat == nil:
		return errors.New("no chat_id")
	case l.Timestamp == nil:
		return errors.New("no timestamp")
	case l.Input == nil:
		return errors.New("no input_length")
	case l.Blocks == nil:
		return errors.New("no hash_ids")
	}
	if s := *l.Timestamp; s < -century.Seconds() || s > century.Seconds() {
		return fmt.Errorf("timestamp %g is out of range", s)
	}
	*r = Request{
		At: time.Duration(*l.Timestamp * float64(time.Second)), Input: *l.Input, Output: l.Output, Blocks: l.Blocks,
	}
	return nil
}

// Guess tells the format of a trace by its first line, and how many tokens its
// blocks have.
func Guess(line []byte) (format Format, blockTokens int) {
	var l bailianLine
	if json.Unmarshal(line, &l) == nil && l.Chat != nil {
		return Bailian, BailianBlock
	}
	return Mooncake, MooncakeBlock
}
