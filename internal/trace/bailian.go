package trace

import (
	"encoding/json"
	"errors"
	"time"
)

// BailianBlock is how many tokens a block of a Bailian trace has.
const BailianBlock = 16

type bailianLine struct {
	Chat *int64 `json:"chat_id"`
	line        // timestamp in seconds
}

// Bailian is the Format of github.com/alibaba-edu/qwen-bailian-usagetraces-anon:
// a JSON object a line with the number of its chat, seconds, and ids of 16-token
// blocks.
func Bailian(text []byte, r *Request) error {
	var l bailianLine
	if err := unmarshal(text, &l); err != nil {
		return err
	}
	if l.Chat == nil {
		return errors.New("no chat_id")
	}
	return l.request(time.Second, r)
}

// Guess tells the format of a trace by its first line, and how many tokens its
// blocks have.
func Guess(text []byte) (format Format, blockTokens int) {
	var l bailianLine
	if json.Unmarshal(text, &l) == nil && l.Chat != nil {
		return Bailian, BailianBlock
	}
	return Mooncake, MooncakeBlock
}
