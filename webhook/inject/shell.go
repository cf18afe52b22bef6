package inject

import (
	"errors"
	"slices"
	"strings"

	"inferencecache.io/inferencecache/api/v1alpha1"
)

// A shell script is read far enough to find the one simple command that starts
// the engine and to write arguments behind its last word. What is around it,
// pipes and redirections included, stays byte for byte. What the reader does
// not understand (here-documents, subshells, functions, backquotes) it refuses.

// word is one word of a script.
type word struct {
	start, end int    // in the script
	text       string // after quoting and expansion, as far as known
	known      bool
	quoted     bool // some of it: it is one argument whatever it expands to
	all        bool // it is "$@", or $@
}

// command is one simple command.
type command struct {
	words    []word
	redirect bool // words follow a redirection
}

// parseShell reads the script at tokens[at].
func parseShell(tokens []token, at int, env environment, runtime v1alpha1.Runtime) (*line, error) {
	script := tokens[at].raw
	commands, err := scan(script, env)
	if err != nil {
		return nil, refuse(v1alpha1.SkipCommandUnreadable, "the shell script that starts the engine has %v, around which arguments cannot be added safely: start the engine by command and args", err)
	}
	var engine *command
	for i := range commands {
		commands[i].words = commands[i].words[prefix(commands[i].words):]
		if !starts(wordTexts(commands[i].words), runtime) {
			continue
		}
		if engine != nil {
			return nil, refuse(v1alpha1.SkipCommandUnreadable, "the shell script starts the engine in two places: start it by command and args")
		}
		engine = &commands[i]
	}
	if engine == nil {
		return nil, refuse(v1alpha1.SkipCommandUnreadable, "no command of the shell script is seen to start %s: start the engine by command and args", runtime)
	}
	if engine.redirect {
		return nil, refuse(v1alpha1.SkipCommandUnreadable, "the shell script has arguments of the engine behind a redirection: put them before it")
	}
	l := &line{shell: true, scriptAt: at}
	if err := l.takeWords(script, engine.words, tokens[at+1:], runtime); err != nil {
		return nil, err
	}
	return l, nil
}

// takeWords makes tokens of the engine's words. A word that may stand for
// unknown flags is refused.
func (l *line) takeWords(script string, words []word, positional []token, runtime v1alpha1.Runtime) error {
	l.before = script[:words[0].start]
	l.after = script[words[len(words)-1].end:]
	end := words[0].start
	for i, w := range words {
		t := token{text: w.text, raw: script[w.start:w.end], known: w.known, place: inScript, gap: script[end:w.start]}
		end = w.end
		switch {
		case w.all:
			l.takePositional(t, positional)
		case w.quoted:
			l.tokens = append(l.tokens, t)
		case w.known:
			fields := strings.Fields(w.text)
			for j, f := range fields {
				part := token{text: f, known: true, place: inScript, shared: len(fields) > 1}
				if j == 0 {
					part.raw, part.gap = t.raw, t.gap
				}
				l.tokens = append(l.tokens, part)
			}
			if len(fields) == 0 { // expands to nothing, and must be kept
				l.tokens = append(l.tokens, token{raw: t.raw, gap: t.gap, known: true, shared: true, place: inScript})
			}
		case i > 0 && (isFlagOf(words[i-1]) || words[i-1].text == "serve" || words[i-1].text == "-m"): // a value
			l.tokens = append(l.tokens, t)
		default:
			return refuse(v1alpha1.SkipCommandUnreadable, "%s in the shell script may be any arguments of %s: give them as literal values", t.raw, runtime)
		}
	}
	return nil
}

// takePositional makes tokens of what "$@" stands for. The first of positional
// is $0.
func (l *line) takePositional(at token, positional []token) {
	raw, gap := at.raw, at.gap
	for i, p := range positional {
		if i > 0 {
			l.tokens = append(l.tokens, token{text: p.text, raw: raw, gap: gap, known: p.known, shared: true, place: inScript})
			raw, gap = "", ""
		}
	}
	if raw != "" { // nothing, which must be kept as it is written
		l.tokens = append(l.tokens, token{raw: raw, gap: gap, known: true, shared: true, place: inScript})
	}
}

func isFlagOf(w word) bool {
	_, ok := flagName(w.text)
	return ok && !strings.Contains(w.text, "=")
}

func wordTexts(words []word) []string {
	all := make([]string, len(words))
	for i, w := range words {
		all[i] = w.text
	}
	return all
}

// prefix counts the words before the program: reserved words and assignments.
func prefix(words []word) int {
	for i, w := range words {
		if slices.Contains([]string{"if", "then", "else", "elif", "while", "until", "do", "{", "!", "time"}, w.text) || isAssignment(w.text) {
			continue
		}
		return i
	}
	return len(words)
}

func isAssignment(s string) bool {
	name, _, ok := strings.Cut(s, "=")
	return ok && isName(strings.TrimSuffix(name, "+"))
}

// scanner reads a script.
type scanner struct {
	src      string
	at       int
	env      environment
	assigned map[string]bool // variables the script itself sets: not known
	commands []command
	now      command
	target   bool // the next word is where a redirection goes
	behind   bool // a redirection was seen in this command
}

// scan splits a script into simple commands.
func scan(script string, env environment) ([]command, error) {
	s := &scanner{src: script, env: env, assigned: make(map[string]bool)}
	for _, name := range assignments(script) {
		s.assigned[name] = true
	}
	for s.at < len(s.src) {
		if err := s.step(); err != nil {
			return nil, err
		}
	}
	s.finish()
	return s.commands, nil
}

// assignments names every variable that the script may set, generously.
func assignments(script string) (names []string) {
	for _, field := range strings.FieldsFunc(script, func(r rune) bool { return strings.ContainsRune(" \t\n;&|(){}", r) }) {
		if name, _, ok := strings.Cut(field, "="); ok && isName(strings.TrimSuffix(name, "+")) {
			names = append(names, strings.TrimSuffix(name, "+"))
		}
	}
	if strings.Contains(script, "read ") || strings.Contains(script, "for ") {
		for _, field := range strings.Fields(script) {
			if isName(field) {
				names = append(names, field)
			}
		}
	}
	return names
}

func (s *scanner) finish() {
	if len(s.now.words) > 0 {
		s.commands = append(s.commands, s.now)
	}
	s.now, s.target, s.behind = command{}, false, false
}

// step reads one blank, operator or word.
func (s *scanner) step() error {
	rest := s.src[s.at:]
	switch c := rest[0]; {
	case strings.HasPrefix(rest, "\\\n"):
		s.at += 2
	case c == ' ' || c == '\t' || c == '\r':
		s.at++
	case c == '#':
		if end := strings.IndexByte(rest, '\n'); end >= 0 {
			s.at += end
		} else {
			s.at = len(s.src)
		}
	case c == '\n' || c == ';' || c == '&' || c == '|':
		if strings.HasPrefix(rest, "&>") {
			s.at++
			return nil
		}
		s.at++
		s.finish()
	case c == '<' || c == '>':
		if strings.HasPrefix(rest, "<<") {
			return errors.New("a here-document")
		}
		s.at += len(rest) - len(strings.TrimLeft(rest, "<>&|"))
		s.target, s.behind = true, true
	case c == '(' || c == ')':
		return errors.New("parentheses")
	default:
		return s.word()
	}
	return nil
}

// word reads one word and files it.
func (s *scanner) word() error {
	w := word{start: s.at, known: true}
	for s.at < len(s.src) && !strings.ContainsRune(" \t\r\n;&|<>()", rune(s.src[s.at])) {
		if err := s.part(&w); err != nil {
			return err
		}
	}
	w.end = s.at
	raw := s.src[w.start:w.end]
	switch {
	case s.target:
		s.target = false
	case s.at < len(s.src) && strings.ContainsRune("<>", rune(s.src[s.at])) && strings.Trim(raw, "0123456789") == "":
		// the descriptor of a redirection
	case s.behind:
		s.now.redirect = true
	default:
		w.all = raw == `"$@"` || raw == `$@`
		s.now.words = append(s.now.words, w)
	}
	return nil
}

// part reads one quoted or unquoted piece of a word.
func (s *scanner) part(w *word) error {
	rest := s.src[s.at:]
	switch rest[0] {
	case '\'':
		end := strings.IndexByte(rest[1:], '\'')
		if end < 0 {
			return errors.New("a quote that is not closed")
		}
		text, known := s.env.expand(rest[1 : 1+end])
		w.text, w.known, w.quoted = w.text+text, w.known && known, true
		s.at += end + 2
	case '"':
		w.quoted = true
		s.at++
		return s.doubleQuoted(w)
	case '\\':
		if len(rest) == 1 {
			return errors.New("a backslash at its end")
		}
		if rest[1] != '\n' {
			w.text, w.quoted = w.text+rest[1:2], true
		}
		s.at += 2
	case '`':
		return errors.New("backquotes")
	case '$':
		return s.variable(w)
	default:
		w.text += rest[:1]
		s.at++
	}
	return nil
}

func (s *scanner) doubleQuoted(w *word) error {
	for s.at < len(s.src) {
		switch c := s.src[s.at]; c {
		case '"':
			s.at++
			return nil
		case '\\':
			if s.at+1 < len(s.src) && strings.ContainsRune("\"\\$`\n", rune(s.src[s.at+1])) {
				s.at++
				if s.src[s.at] == '\n' {
					s.at++
					continue
				}
			}
			w.text += s.src[s.at : s.at+1]
			s.at++
		case '`':
			return errors.New("backquotes")
		case '$':
			if err := s.variable(w); err != nil {
				return err
			}
		default:
			w.text += string(s.src[s.at : s.at+1])
			s.at++
		}
	}
	return errors.New("a quote that is not closed")
}

// variable reads what a dollar sign starts. The kubelet replaces $(NAME) of
// the container's variables before a shell sees it.
func (s *scanner) variable(w *word) error {
	rest := s.src[s.at:]
	if name, tail, ok := reference(rest); ok && s.env.present[name] {
		s.at = len(s.src) - len(tail)
		value, known := s.env.values[name]
		if plain := !strings.ContainsAny(value, "'\"\\$`;&|<>()#\n"); !known || !plain {
			w.text, w.known = w.text+"$("+name+")", false
		} else {
			w.text += value
		}
		return nil
	}
	if strings.HasPrefix(rest, "$(") {
		return s.substitution(w)
	}
	name, n := rest[1:], 0
	if strings.HasPrefix(name, "{") {
		end := strings.IndexByte(name, '}')
		if end < 0 {
			return errors.New("a brace that is not closed")
		}
		name, n = name[1:end], end+2
	} else {
		end := 0
		for end < len(name) && isName(name[:end+1]) {
			end++
		}
		name, n = name[:end], end+1
	}
	if name == "" { // $@, $$, $1
		n = min(2, len(rest))
	}
	s.at += n
	value, known := s.env.values[name]
	if known && !s.assigned[name] && !strings.ContainsAny(value, "\\*?[") {
		w.text += value
	} else {
		w.text, w.known = w.text+rest[:n], false
	}
	return nil
}

// substitution passes over $(...), whose outcome is not known.
func (s *scanner) substitution(w *word) error {
	start, depth := s.at, 0
	for s.at++; s.at < len(s.src); s.at++ {
		switch s.src[s.at] {
		case '(':
			depth++
		case ')':
			if depth--; depth == 0 {
				s.at++
				w.text, w.known = w.text+s.src[start:s.at], false
				return nil
			}
		case '\'', '"', '`', '\\':
			return errors.New("quotes in a command substitution")
		}
	}
	return errors.New("a parenthesis that is not closed")
}

// shellQuote writes s as one word.
func shellQuote(s string) string {
	if s != "" && strings.Trim(s, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_=./:,@%+") == "" {
		return s
	}
	return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'"
}
