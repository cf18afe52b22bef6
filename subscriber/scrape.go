package subscriber

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"math"
	"strconv"
	"strings"
)

const (
	maxPageBytes = 16 << 20 // of a metrics page
	maxLineBytes = 1 << 20  // of one sample
)

var errPageTooLarge = fmt.Errorf("metrics page above %d bytes", maxPageBytes)

// sample is one line of a metrics page. Its strings are views of the line.
type sample struct {
	name   []byte
	labels []byte // between the braces, as written
	value  float64
}

// readSamples reads a page in the Prometheus text format (version 0.0.4; the
// time stamps and exemplars of OpenMetrics are skipped) and yields its samples
// with finite values. A line that does not parse is passed over: it may be
// from an extension, and a family that is missing for it is found missing.
func readSamples(page io.Reader, yield func(sample)) error {
	limited := &io.LimitedReader{R: page, N: maxPageBytes + 1}
	lines := bufio.NewScanner(limited)
	lines.Buffer(make([]byte, 0, 4096), maxLineBytes)
	for lines.Scan() {
		if s, ok := parseSample(lines.Bytes()); ok {
			yield(s)
		}
	}
	if limited.N == 0 {
		return errPageTooLarge
	}
	if err := lines.Err(); err != nil {
		return fmt.Errorf("read metrics page: %w", err)
	}
	return nil
}

// parseSample reads `name{label="value",...} value ...`; ok is false for
// comments, NaN, infinities and anything else.
func parseSample(line []byte) (s sample, ok bool) {
	line = bytes.TrimLeft(line, " \t")
	if len(line) == 0 || line[0] == '#' {
		return sample{}, false
	}
	end := bytes.IndexAny(line, "{ \t")
	if end <= 0 {
		return sample{}, false
	}
	s.name = line[:end]
	rest := bytes.TrimLeft(line[end:], " \t")
	if len(rest) > 0 && rest[0] == '{' {
		close := endOfLabels(rest)
		if close < 0 {
			return sample{}, false
		}
		s.labels, rest = rest[1:close], bytes.TrimLeft(rest[close+1:], " \t")
	}
	number := rest
	if end := bytes.IndexAny(rest, " \t"); end >= 0 {
		number = rest[:end]
	}
	value, err := strconv.ParseFloat(string(number), 64)
	if err != nil || math.IsNaN(value) || math.IsInf(value, 0) {
		return sample{}, false
	}
	s.value = value
	return s, true
}

// endOfLabels is the index of the brace that closes the one b starts with, or
// -1. Braces inside quoted values do not count.
func endOfLabels(b []byte) int {
	quoted := false
	for i := 1; i < len(b); i++ {
		switch {
		case quoted && b[i] == '\\':
			i++
		case b[i] == '"':
			quoted = !quoted
		case !quoted && b[i] == '}':
			return i
		}
	}
	return -1
}

// label is the value of a label; ok is false if the sample has none of that
// name.
func (s sample) label(name string) (value string, ok bool) {
	for key, value := range s.eachLabel {
		if key == name {
			return value, true
		}
	}
	return "", false
}

// eachLabel yields the labels in the order written, up to one that is not well
// formed.
func (s sample) eachLabel(yield func(name, value string) bool) {
	rest := string(s.labels)
	for {
		rest = strings.TrimLeft(rest, ", \t")
		key, after, found := strings.Cut(rest, "=")
		if !found {
			return
		}
		quoted := strings.TrimLeft(after, " \t")
		raw, err := quotedPrefix(quoted)
		if err != nil || !yield(strings.TrimRight(key, " \t"), unescape(raw)) {
			return
		}
		rest = quoted[len(raw)+2:]
	}
}

var errNotQuoted = errors.New("label value is not quoted")

// quotedPrefix is what stands between the quotes that s starts with, escapes
// left as they are.
func quotedPrefix(s string) (string, error) {
	if s == "" || s[0] != '"' {
		return "", errNotQuoted
	}
	for i := 1; i < len(s); i++ {
		switch s[i] {
		case '\\':
			i++
		case '"':
			return s[1:i], nil
		}
	}
	return "", errNotQuoted
}

var labelEscapes = strings.NewReplacer(`\\`, `\`, `\"`, `"`, `\n`, "\n")

func unescape(raw string) string { return labelEscapes.Replace(raw) }
