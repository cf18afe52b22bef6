package inject

import (
	"errors"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"inferencecache.io/inferencecache/api/v1alpha1"
)

func TestOptedOut(t *testing.T) {
	t.Parallel()
	f := func(value string, want bool) {
		t.Helper()
		pod := &corev1.Pod{}
		pod.Annotations = map[string]string{v1alpha1.AnnotationSkipInject: value}
		if got := OptedOut(pod); got != want {
			t.Errorf("%q: %v, want %v", value, got, want)
		}
	}
	for _, value := range []string{"true", "TRUE", "1", "t", "yes", "on", "please", " true "} {
		f(value, true)
	}
	for _, value := range []string{"", " ", "false", "0", "F", "no", "NO", "off", "Disable", "disabled"} {
		f(value, false)
	}
	if OptedOut(&corev1.Pod{}) {
		t.Error("a pod without the annotation is opted out")
	}
}

func TestExpandAsTheKubeletDoes(t *testing.T) {
	t.Parallel()
	env := environmentOf(&corev1.Container{Env: []envVar{
		{Name: "A", Value: "one"}, {Name: "B", Value: "$(A)-two"},
		{Name: "C", ValueFrom: &corev1.EnvVarSource{}}, {Name: "D", Value: "x$(C)"},
	}})
	f := func(in, want string, known bool) {
		t.Helper()
		if got, ok := env.expand(in); got != want || ok != known {
			t.Errorf("%q: %q, %v, want %q, %v", in, got, ok, want, known)
		}
	}
	f("plain", "plain", true)
	f("$(A)/$(B)", "one/one-two", true)
	f("$$(A)", "$(A)", true)
	f("$(NOT_THERE)", "$(NOT_THERE)", true)
	f("$(C)", "$(C)", false)
	f("$(D)", "$(D)", false)
	f("cost $5", "cost $5", true)
	f("$(date -u)", "$(date -u)", true)
	f("$", "$", true)
	f("$(A", "$(A", true)
}

// TestScripts pins which shell scripts are read, and that they come back with
// an argument behind the engine's last word and nothing else changed.
func TestScripts(t *testing.T) {
	t.Parallel()
	const added = ` --x 'a "b"'`
	f := func(script, want string) {
		t.Helper()
		c := &corev1.Container{Command: []string{"/bin/sh", "-c", script}, Env: []envVar{
			{Name: "ONE", Value: "1"}, {Name: "MANY", Value: "--a 1 --b"}, {Name: "SECRET", ValueFrom: &corev1.EnvVarSource{}}}}
		l, err := parseLine(c, v1alpha1.RuntimeVLLM)
		if err != nil {
			var refusal *Refusal
			if want != "" || !errors.As(err, &refusal) || refusal.Reason != v1alpha1.SkipCommandUnreadable {
				t.Errorf("%q: %v", script, err)
			}
			return
		}
		l.write(c)
		if c.Command[2] != script {
			t.Errorf("%q came back as %q", script, c.Command[2])
		}
		l.add("--x", `a "b"`)
		l.write(c)
		if c.Command[2] != want {
			t.Errorf("%q: %q, want %q", script, c.Command[2], want)
		}
	}
	f("vllm serve m", "vllm serve m"+added)
	f("exec vllm serve m;\n", "exec vllm serve m"+added+";\n")
	f("cd /x && exec env A=b vllm serve m --port $ONE || exit 1", "cd /x && exec env A=b vllm serve m --port $ONE"+added+" || exit 1")
	f("vllm serve m 2>&1 | tee log", "vllm serve m"+added+" 2>&1 | tee log")
	f("vllm serve m > log 2>&1 &\nwait", "vllm serve m"+added+" > log 2>&1 &\nwait")
	f("if [ -f x ]; then vllm serve m; fi # end", "if [ -f x ]; then vllm serve m"+added+"; fi # end")
	f("HOST=$(hostname -i)\npython3 -m vllm.entrypoints.openai.api_server --host $HOST", "HOST=$(hostname -i)\npython3 -m vllm.entrypoints.openai.api_server --host $HOST"+added)
	f("pip install vllm && vllm serve m", "pip install vllm && vllm serve m"+added)
	f("vllm serve m $MANY", "vllm serve m $MANY"+added)
	f(`vllm serve "${MODEL}" --chat-template 'it''s' \`+"\n --a", `vllm serve "${MODEL}" --chat-template 'it''s' \`+"\n --a"+added)
	f("numactl -N 0 vllm serve m", "numactl -N 0 vllm serve m"+added)
	for _, refused := range []string{
		"vllm serve m $UNKNOWN", "vllm serve m $(flags)", "ONE=--y; vllm serve m $ONE", "vllm serve m $SECRET",
		"vllm serve a & vllm serve b", "(vllm serve m)", "vllm serve `model`", "vllm serve m <<E\nE", "vllm serve 'm",
		"vllm bench m", "echo vllm serve m", "/start.sh", "", "f() { vllm serve m; }", "vllm serve m > log --port 1", "vllm serve m \\",
	} {
		f(refused, "")
	}
}

func TestFlagsInEveryForm(t *testing.T) {
	t.Parallel()
	c := &corev1.Container{Command: []string{"vllm", "serve", "m", "--a_b", "1"}, Args: []string{"--a-b=2", "-x", "-y", "v", "--", "--a-b", "$(P)"},
		Env: []envVar{{Name: "P", Value: "3"}}}
	l, err := parseLine(c, v1alpha1.RuntimeVLLM)
	if err != nil {
		t.Fatal(err)
	}
	if value, known, ok := l.last("--a-b"); value != "3" || !known || !ok {
		t.Errorf("--a-b is %q, known %v, found %v", value, known, ok)
	}
	if n := len(l.find("--a-b")); n != 3 {
		t.Errorf("%d times --a-b, want 3", n)
	}
	if x := l.find("-x"); len(x) != 1 || x[0].given {
		t.Errorf("-x: %+v", x)
	}
	if _, _, ok := l.last("--none"); ok {
		t.Error("found a flag that is not there")
	}
	if err := l.replace(l.find("--a-b")[0], "--c=1"); err != nil {
		t.Fatal(err)
	}
	l.write(c)
	if got := c.Command[3]; got != "--c=1" || len(c.Command) != 4 || c.Args[6] != "$(P)" {
		t.Errorf("command %q, args %q", c.Command, c.Args)
	}
}
