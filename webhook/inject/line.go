package inject

import (
	"path"
	"regexp"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"inferencecache.io/inferencecache/api/v1alpha1"
)

// token is one argument of the engine.
type token struct {
	text   string // what the engine gets; as written where that is not known
	raw    string // as written in command, args or script
	known  bool   // text is what the engine gets
	shared bool   // comes out of a variable with others: cannot be edited alone
	place  place
	gap    string // script: what stands before it
}

type place int

const (
	inCommand place = iota
	inArgs
	inScript
)

// line is the command line of a container: command and args together, or the
// one command of a shell script that starts the engine.
type line struct {
	tokens []token
	unsure bool // the program may not be the engine

	shell         bool   // tokens are those of a script
	scriptAt      int    // its index among command and args together
	before, after string // script around the engine's command
}

func (l *line) clone() *line {
	c := *l
	c.tokens = slices.Clone(l.tokens)
	return &c
}

// program is what the line runs, for messages.
func (l *line) program() string {
	if len(l.tokens) == 0 {
		return "the image"
	}
	return l.tokens[0].text
}

// parseLine reads how a container starts its engine.
func parseLine(c *corev1.Container, runtime v1alpha1.Runtime) (*line, error) {
	env := environmentOf(c)
	var tokens []token
	for _, s := range c.Command {
		text, known := env.expand(s)
		tokens = append(tokens, token{text: text, raw: s, known: known, place: inCommand})
	}
	for _, s := range c.Args {
		text, known := env.expand(s)
		tokens = append(tokens, token{text: text, raw: s, known: known, place: inArgs})
	}
	if len(c.Command) == 0 {
		if len(tokens) > 0 && isScriptOption(tokens[0].text) {
			return nil, refuse(v1alpha1.SkipCommandUnreadable, "args start with %q but no command names the shell: give command too", tokens[0].text)
		}
		return &line{tokens: tokens, unsure: len(tokens) == 0}, nil
	}
	at, err := scriptAt(tokens)
	if err != nil {
		return nil, err
	}
	if at < 0 {
		return &line{tokens: tokens, unsure: !starts(texts(tokens), runtime)}, nil
	}
	return parseShell(tokens, at, env, runtime)
}

var shells = []string{"sh", "bash", "dash", "ash", "ksh", "zsh"}

// wrappers run the program that their arguments name.
var wrappers = []string{"env", "exec", "tini", "dumb-init", "catatonit", "nohup", "nice", "ionice", "time", "numactl", "taskset", "nsys", "stdbuf", "opentelemetry-instrument", "ddtrace-run"}

func isScriptOption(s string) bool {
	return len(s) > 1 && s[0] == '-' && s[1] != '-' && strings.HasSuffix(s, "c") && len(s) <= 6
}

// scriptAt finds the script of a shell: its index, or -1 if no shell is run.
func scriptAt(tokens []token) (int, error) {
	i := 0
	for i < len(tokens) && (slices.Contains(wrappers, path.Base(tokens[i].text)) || strings.HasPrefix(tokens[i].text, "-")) {
		i++
	}
	if i == len(tokens) || !slices.Contains(shells, path.Base(tokens[i].text)) {
		return -1, nil
	}
	shell := tokens[i].text
	for i++; i < len(tokens) && (strings.HasPrefix(tokens[i].text, "-") || strings.HasPrefix(tokens[i].text, "+")); i++ {
		option := tokens[i].text
		switch {
		case strings.HasPrefix(option, "--"):
		case strings.Contains(option, "c"):
			for i++; i < len(tokens) && strings.HasPrefix(tokens[i].text, "-"); i++ {
			}
			if i == len(tokens) {
				return -1, refuse(v1alpha1.SkipCommandUnreadable, "%s -c has no script", shell)
			}
			return i, nil
		case strings.HasSuffix(option, "o"): // -o pipefail
			i++
		}
	}
	return -1, refuse(v1alpha1.SkipCommandUnreadable,
		"the engine is started by a script that %s reads, so its arguments cannot be seen: start the engine by command and args", shell)
}

var python = regexp.MustCompile(`^python[0-9.]*$`)

// starts reports whether words, a program and its arguments, run the engine.
func starts(words []string, runtime v1alpha1.Runtime) bool {
	name := strings.ToLower(string(runtime))
	wrapped := false
	for i, word := range words {
		base := path.Base(word)
		switch {
		case base == name:
			return i+1 < len(words) && words[i+1] == "serve"
		case python.MatchString(base):
			rest := words[i+1:]
			if m := slices.Index(rest, "-m"); m >= 0 && m+1 < len(rest) {
				return strings.HasPrefix(rest[m+1], name+".")
			}
			return slices.ContainsFunc(rest, func(s string) bool {
				return strings.HasSuffix(s, "/api_server.py") || strings.HasSuffix(s, "/launch_server.py")
			})
		case slices.Contains(wrappers, base):
			wrapped = true
		case !wrapped:
			return false
		}
	}
	return false
}

func texts(tokens []token) []string {
	all := make([]string, len(tokens))
	for i, t := range tokens {
		all[i] = t.text
	}
	return all
}

// argument is one flag of a line.
type argument struct {
	at, n int    // its tokens
	name  string // with dashes for underscores
	value string
	given bool // it has a value: --a=b, or a token behind it that is no flag
	known bool // value is what the engine gets
}

// flagName is the leading flag of a token, with dashes as engines read it; ok
// is false for anything else.
func flagName(s string) (name string, ok bool) {
	if len(s) < 2 || s[0] != '-' || s == "--" {
		return "", false
	}
	name, _, _ = strings.Cut(s, "=")
	if strings.HasPrefix(name, "--") {
		name = "--" + strings.ReplaceAll(name[2:], "_", "-")
	}
	return name, true
}

// arguments splits the line into flags. Tokens that belong to none have no name.
func (l *line) arguments() (all []argument) {
	for i := 0; i < len(l.tokens); i++ {
		t := l.tokens[i]
		name, ok := flagName(t.text)
		a := argument{at: i, n: 1, name: name, known: t.known}
		if !ok {
			a.value = t.text
			all = append(all, a)
			continue
		}
		if _, value, ok := strings.Cut(t.text, "="); ok {
			a.value, a.given = value, true
		} else if i+1 < len(l.tokens) && !strings.HasPrefix(l.tokens[i+1].text, "-") {
			i++
			a.n, a.value, a.given, a.known = 2, l.tokens[i].text, true, l.tokens[i].known
		}
		all = append(all, a)
	}
	return all
}

// find returns the occurrences of a flag under any of its names.
func (l *line) find(names ...string) (all []argument) {
	for _, a := range l.arguments() {
		if slices.Contains(names, a.name) {
			all = append(all, a)
		}
	}
	return all
}

func (l *line) has(names ...string) bool { return len(l.find(names...)) > 0 }

// last is the value of the last occurrence, which engines obey.
func (l *line) last(names ...string) (value string, known, ok bool) {
	all := l.find(names...)
	if len(all) == 0 {
		return "", false, false
	}
	a := all[len(all)-1]
	return a.value, a.known && a.given, true
}

// add appends arguments.
func (l *line) add(args ...string) {
	for _, s := range args {
		l.tokens = append(l.tokens, l.made(s))
	}
}

func (l *line) made(s string) token {
	if l.shell {
		return token{text: s, raw: shellQuote(s), known: true, place: inScript, gap: " "}
	}
	return token{text: s, raw: s, known: true, place: inArgs}
}

// replace puts args where a was; none removes it.
func (l *line) replace(a argument, args ...string) error {
	old := l.tokens[a.at : a.at+a.n]
	fresh := make([]token, len(args))
	for i, s := range args {
		fresh[i] = l.made(s)
		fresh[i].place = old[0].place
		if i == 0 {
			fresh[i].gap = old[0].gap
		}
	}
	for _, t := range old {
		if t.shared {
			return refuse(v1alpha1.SkipCommandUnreadable, "%s comes out of a variable with other arguments: write it in the command", a.name)
		}
	}
	l.tokens = slices.Replace(l.tokens, a.at, a.at+a.n, fresh...)
	return nil
}

// write puts the line back into the container it was read from.
func (l *line) write(c *corev1.Container) {
	if l.shell {
		var b strings.Builder
		b.WriteString(l.before)
		for _, t := range l.tokens {
			if t.place == inScript {
				b.WriteString(t.gap + t.raw)
			}
		}
		b.WriteString(l.after)
		if at := l.scriptAt - len(c.Command); at >= 0 {
			c.Args[at] = b.String()
		} else {
			c.Command[l.scriptAt] = b.String()
		}
		return
	}
	var command, args []string
	for _, t := range l.tokens {
		if t.place == inCommand {
			command = append(command, t.raw)
		} else {
			args = append(args, t.raw)
		}
	}
	c.Command, c.Args = command, args
}
