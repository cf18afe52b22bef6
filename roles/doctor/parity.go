package doctor

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strings"
)

// parity is what two tokenizers made of the same prompts.
type parity struct {
	trouble   string // why they could not be compared; "": they were
	compared  int
	different []string // what differs first, for each prompt that does
}

// specimens are where tokenizers part: special tokens in front, white space,
// other scripts, numbers, and a chat template.
var specimens = []string{
	`{"prompt":"The quick brown fox jumps over the lazy dog."}`,
	`{"prompt":"  two spaces,\n\na blank line and\ta tab  "}`,
	`{"prompt":"naïve café — 東京 🙂 12345.678"}`,
	`{"messages":[{"role":"user","content":"Where is it warm in November?"}]}`,
	`{"messages":[{"role":"system","content":"Answer briefly."},{"role":"user","content":"Hi"}]}`,
}

// compare asks both sides to tokenize, as vLLM's POST /tokenize does.
func (l *Local) compare(ctx context.Context) *parity {
	p := &parity{}
	for _, body := range specimens {
		ours, err := l.tokens(ctx, l.Gateway, body)
		if err != nil {
			return &parity{trouble: fmt.Sprintf("gateway %s: %v", l.Gateway, err)}
		}
		theirs, err := l.tokens(ctx, l.Engine, body)
		if err != nil {
			return &parity{trouble: fmt.Sprintf("engine %s: %v", l.Engine, err)}
		}
		p.compared++
		if !slices.Equal(ours, theirs) {
			p.different = append(p.different, fmt.Sprintf("%s: %d tokens at the gateway, %d at the engine, equal up to token %d",
				body, len(ours), len(theirs), common(ours, theirs)))
		}
	}
	return p
}

func (l *Local) tokens(ctx context.Context, base, body string) ([]uint32, error) {
	a := l.call(ctx, http.MethodPost, strings.TrimSuffix(base, "/")+"/tokenize", body)
	if a.err != nil {
		return nil, a.err
	}
	var answer struct {
		Tokens []uint32 `json:"tokens"`
	}
	if a.status != http.StatusOK {
		return nil, fmt.Errorf("POST /tokenize answers status %d", a.status)
	}
	if err := json.Unmarshal(a.body, &answer); err != nil || answer.Tokens == nil {
		return nil, fmt.Errorf("POST /tokenize answers no tokens")
	}
	return answer.Tokens, nil
}

// common is the length of the common prefix.
func common(a, b []uint32) (n int) {
	for n < min(len(a), len(b)) && a[n] == b[n] {
		n++
	}
	return n
}
