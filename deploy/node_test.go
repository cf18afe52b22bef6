//go:build cluster

package deploy

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
)

// program is the built inferencecache.
var program string

// buildProgram builds what every container of these tests runs.
func buildProgram(dir string) error {
	program = filepath.Join(dir, "inferencecache")
	build := exec.Command("go", "build", "-ldflags=-s -w", "-o", program, "inferencecache.io/inferencecache")
	if out, err := build.CombinedOutput(); err != nil {
		return fmt.Errorf("build the program: %w: %s", err, out)
	}
	return nil
}

// do runs the commands that docs/install.md has under a word, as they stand.
func do(t *testing.T, word string) {
	t.Helper()
	text, err := os.ReadFile("../docs/install.md")
	if err != nil {
		t.Fatal(err)
	}
	_, after, found := strings.Cut(string(text), "\n```sh "+word+"\n")
	script, _, closed := strings.Cut(after, "\n```\n")
	if !found || !closed {
		t.Fatalf("docs/install.md has no commands %q", word)
	}
	bash := exec.CommandContext(t.Context(), "bash", "-euo", "pipefail", "-c", script)
	bash.Dir = ".."
	bash.Env = append(it.Environ(), "PATH="+filepath.Dir(program)+":"+path(it.Environ()))
	if out, err := bash.CombinedOutput(); err != nil {
		t.Fatalf("commands %q of docs/install.md: %v: %s", word, err, out)
	}
}

func path(environ []string) (last string) {
	for _, e := range environ {
		if value, ok := strings.CutPrefix(e, "PATH="); ok {
			last = value
		}
	}
	return last
}

// process is a container that runs on this machine: the simulated node only
// says that it does.
type process struct {
	name string
	args []string
	cmd  *exec.Cmd
	done chan struct{} // closed when it has ended

	mu     sync.Mutex // guards output
	output bytes.Buffer
}

// Write implements io.Writer for what the program prints.
func (p *process) Write(b []byte) (int, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.output.Write(b)
}

func (p *process) printed() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.output.String()
}

// start runs the program until the test ends.
func start(t *testing.T, name string, args ...string) *process {
	t.Helper()
	p := &process{name: name, args: args, done: make(chan struct{})}
	p.cmd = exec.Command(program, args...)
	p.cmd.Stdout, p.cmd.Stderr = p, p
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := p.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	go func() { // ends with the process, which ends with the test
		defer close(p.done)
		_ = p.cmd.Wait()
	}()
	t.Cleanup(func() {
		p.stop()
		if t.Failed() {
			t.Logf("%s %s printed:\n%s", name, strings.Join(args, " "), last(p.printed(), 16<<10))
		}
	})
	return p
}

func last(s string, n int) string { return s[max(0, len(s)-n):] }

// stop ends the process as a kubelet does.
func (p *process) stop() {
	_ = p.cmd.Process.Signal(syscall.SIGTERM)
	select {
	case <-p.done:
	case <-time.After(20 * time.Second):
		p.kill()
	}
}

func (p *process) kill() {
	_ = p.cmd.Process.Kill()
	<-p.done
}

func (p *process) signal(t *testing.T, s syscall.Signal) {
	t.Helper()
	if err := p.cmd.Process.Signal(s); err != nil {
		t.Fatal(err)
	}
}

// again runs what p ran once more, as a kubelet does, until the test ends.
func (p *process) again(t *testing.T, change ...func(args []string) []string) *process {
	t.Helper()
	args := slices.Clone(p.args)
	for _, c := range change {
		args = c(args)
	}
	q := start(t, p.name, args...)
	at := slices.IndexFunc(args, func(a string) bool { return strings.HasPrefix(a, "--listen=") })
	q.becomesReady(t, "http://"+strings.TrimPrefix(args[at], "--listen=")+"/readyz")
	return q
}

// leads says whether a controller has won an election.
func (p *process) leads() bool { return strings.Contains(p.printed(), "Successfully acquired lease") }

// contain makes the arguments of a pod's container those of a process here: it
// listens on the pod's address alone, since all pods share this machine, finds
// its projected tokens, and its environment filled in.
func contain(t *testing.T, pod *corev1.Pod, container string, more ...string) []string {
	t.Helper()
	at := slices.IndexFunc(pod.Spec.Containers, func(c corev1.Container) bool { return c.Name == container })
	if at < 0 {
		t.Fatalf("pod %s has no container %s; annotations %q", pod.Name, container, pod.Annotations)
	}
	c := pod.Spec.Containers[at]
	ip := pod.Status.PodIP
	mounts := mountTokens(t, pod, c)
	var args []string
	for _, arg := range append(slices.Clone(c.Args), more...) {
		for _, e := range c.Env {
			value := e.Value
			if e.ValueFrom != nil && e.ValueFrom.FieldRef != nil {
				value = map[string]string{"metadata.name": pod.Name, "metadata.namespace": pod.Namespace, "status.podIP": ip}[e.ValueFrom.FieldRef.FieldPath]
			}
			arg = strings.ReplaceAll(arg, "$("+e.Name+")", value)
		}
		if name, value, _ := strings.Cut(arg, "="); strings.HasSuffix(name, "listen") && strings.HasPrefix(value, ":") {
			arg = name + "=" + ip + value
		}
		arg = strings.ReplaceAll(arg, "127.0.0.1", ip)
		args = append(args, arg)
	}
	for flag, file := range mounts {
		args = append(args, flag+"="+file)
	}
	if container == "controller" {
		args = append(args, "--webhook-listen="+ip+":9443") // by default all addresses
	}
	return args
}

// mountTokens writes a pod's projected tokens to files, by the flag that names
// the file.
func mountTokens(t *testing.T, pod *corev1.Pod, c corev1.Container) map[string]string {
	t.Helper()
	files := map[string]string{}
	for _, mount := range c.VolumeMounts {
		for _, v := range pod.Spec.Volumes {
			if v.Name != mount.Name || v.Projected == nil || !strings.HasPrefix(mount.MountPath, "/var/run/secrets/inferencecache.io/") {
				continue
			}
			source := v.Projected.Sources[0].ServiceAccountToken
			file := filepath.Join(t.TempDir(), source.Path)
			token := it.Token(t, pod.Namespace, pod.Spec.ServiceAccountName, source.Audience)
			if err := os.WriteFile(file, []byte(token), 0o600); err != nil {
				t.Fatal(err)
			}
			files["--"+filepath.Base(mount.MountPath)+"-file"] = file
		}
	}
	return files
}

// fetch is what a URL answers, with a bearer token if not "".
func fetch(t *testing.T, url, token string) (status int, body string, _ error) {
	t.Helper()
	request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url, nil)
	if err != nil {
		t.Fatal(err)
	}
	if token != "" {
		request.Header.Set("Authorization", "Bearer "+token)
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return 0, "", err
	}
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	return response.StatusCode, string(text), err
}

// becomesReady waits for a process to answer at its readiness URL.
func (p *process) becomesReady(t *testing.T, url string) {
	t.Helper()
	deadline := time.Now().Add(time.Minute)
	for {
		status, _, err := fetch(t, url, "")
		if err == nil && status == http.StatusOK {
			return
		}
		select {
		case <-p.done:
			t.Fatalf("%s ended: %s", p.name, last(p.printed(), 16<<10))
		case <-time.After(50 * time.Millisecond):
		}
		if time.Now().After(deadline) {
			t.Fatalf("%s is not ready: %v: %s", p.name, errors.Join(err, fmt.Errorf("status %d", status)), last(p.printed(), 16<<10))
		}
	}
}

// topicOf is where the engine in a pod was told to publish its events.
func topicOf(t *testing.T, pod *corev1.Pod) string {
	t.Helper()
	args := pod.Spec.Containers[0].Args
	at := slices.Index(args, "--kv-events-config")
	var config struct{ Topic string }
	if at < 0 || at+1 == len(args) {
		t.Fatalf("the engine of pod %s publishes no events: %q; annotations %q", pod.Name, args, pod.Annotations)
	}
	if err := json.Unmarshal([]byte(args[at+1]), &config); err != nil {
		t.Fatalf("events of pod %s: %v", pod.Name, err)
	}
	return config.Topic
}
