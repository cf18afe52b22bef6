package inject

import (
	"strings"

	corev1 "k8s.io/api/core/v1"
)

// environment is what is known of a container's variables: those with a
// literal value. Others, and those of the image, are unknown.
type environment struct {
	values  map[string]string
	present map[string]bool // named in the container's env, with or without a known value
}

func environmentOf(c *corev1.Container) environment {
	e := environment{make(map[string]string), make(map[string]bool)}
	for _, v := range c.Env {
		e.present[v.Name] = true
		if value, known := e.expand(v.Value); known && v.ValueFrom == nil {
			e.values[v.Name] = value
		} else {
			delete(e.values, v.Name)
		}
	}
	return e
}

// expand replaces $(NAME) as the kubelet does: $$ is a dollar sign, and a name
// that the container does not have stays as it is. known is false where a
// value cannot be known, whose reference then stays too.
func (e environment) expand(s string) (text string, known bool) {
	var b strings.Builder
	known = true
	for len(s) > 0 {
		i := strings.IndexByte(s, '$')
		if i < 0 || i == len(s)-1 {
			b.WriteString(s)
			break
		}
		b.WriteString(s[:i])
		s = s[i:]
		if s[1] == '$' {
			b.WriteByte('$')
			s = s[2:]
			continue
		}
		name, rest, ok := reference(s)
		if !ok {
			b.WriteByte('$')
			s = s[1:]
			continue
		}
		value, have := e.values[name]
		switch {
		case have:
			b.WriteString(value)
		default:
			b.WriteString("$(" + name + ")")
			known = known && !e.present[name]
		}
		s = rest
	}
	return b.String(), known
}

// reference reads $(NAME) at the start of s.
func reference(s string) (name, rest string, ok bool) {
	if !strings.HasPrefix(s, "$(") {
		return "", s, false
	}
	end := strings.IndexByte(s, ')')
	if end < 0 || !isName(s[2:end]) {
		return "", s, false
	}
	return s[2:end], s[end+1:], true
}

// isName reports whether s can name a variable.
func isName(s string) bool {
	for i := range len(s) {
		c := s[i]
		letter := c == '_' || 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z'
		if !letter && (i == 0 || c < '0' || c > '9') {
			return false
		}
	}
	return s != ""
}
