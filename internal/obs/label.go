package obs

import (
	"strings"
	"sync"
)

// Other stands for every label value beyond a Labels' limit.
const Other = "_other"

// maxLabel is the longest label value shown, in bytes.
const maxLabel = 128

// Labels bounds the values that a label takes when callers choose them: the
// first limit distinct values keep their name, all later ones are Other. Safe
// for concurrent use.
type Labels struct {
	limit int
	mu    sync.RWMutex // guards seen
	seen  map[string]string
}

// NewLabels returns a bound of limit distinct values.
func NewLabels(limit int) *Labels { return &Labels{limit: limit, seen: make(map[string]string)} }

// Value returns the value to show for v, made safe for a metrics page.
func (l *Labels) Value(v string) string {
	l.mu.RLock()
	shown, ok := l.seen[v]
	full := len(l.seen) >= l.limit
	l.mu.RUnlock()
	if ok {
		return shown
	}
	if full || len(v) > maxLabel {
		return Other
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.seen) >= l.limit {
		return Other
	}
	v = strings.Clone(v)
	l.seen[v] = safe(v)
	return l.seen[v]
}

// safe replaces what simple parsers of the text format trip over.
func safe(v string) string {
	return strings.Map(func(r rune) rune {
		if r < ' ' || r == '"' || r == '\\' || r == '{' || r == '}' || r == 0x7f {
			return '_'
		}
		return r
	}, strings.ToValidUTF8(v, "_"))
}
