package obs

import (
	"strconv"
	"strings"
)

// Sample is one line of a metrics page.
type Sample struct {
	Name   string
	Labels map[string]string // empty without any
	Value  float64
}

// ParseSample reads one line of a page of our own, whose label values hold no
// quotes, braces or backslashes (see Labels). ok is false for comments and for
// anything else. Pages of others need a parser that knows escapes.
func ParseSample(line string) (s Sample, ok bool) {
	at := strings.LastIndexByte(line, ' ')
	if at < 0 || strings.HasPrefix(line, "#") {
		return s, false
	}
	value, err := strconv.ParseFloat(line[at+1:], 64)
	if err != nil {
		return s, false
	}
	name, labels, _ := strings.Cut(strings.TrimSuffix(line[:at], "}"), "{")
	s = Sample{Name: name, Labels: map[string]string{}, Value: value}
	for labels != "" {
		label, rest, found := strings.Cut(labels, `="`)
		if !found {
			return s, false
		}
		if s.Labels[label], labels, found = strings.Cut(rest, `"`); !found {
			return s, false
		}
		labels = strings.TrimPrefix(labels, ",")
	}
	return s, true
}
