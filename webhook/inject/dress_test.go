package inject

import (
	"bytes"
	"encoding/json"
	"flag"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/yaml"

	"inferencecache.io/inferencecache/api/v1alpha1"
)

var update = flag.Bool("update", false, "rewrite testdata/*.out.yaml")

var options = Options{LMCacheImage: "lmcache:default", SubscriberImage: "inferencecache:v1", Servers: []string{"dns://inference-cache-server.cache-system:9090"}}

// output is what a golden file shows of an Outcome.
type output struct {
	Refusal  *Refusal    `json:"refusal,omitempty"`
	Warnings []string    `json:"warnings,omitempty"`
	Pod      *corev1.Pod `json:"pod"`
}

// readCase reads a backend and a pod, in two documents.
func readCase(t *testing.T, name string) (*v1alpha1.CacheBackend, *corev1.Pod) {
	t.Helper()
	text, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	documents := bytes.Split(text, []byte("\n---\n"))
	if len(documents) != 2 {
		t.Fatalf("%s has %d documents, want a CacheBackend and a Pod", name, len(documents))
	}
	backend, pod := &v1alpha1.CacheBackend{}, &corev1.Pod{}
	for i, into := range []any{backend, pod} {
		if err := yaml.UnmarshalStrict(documents[i], into); err != nil {
			t.Fatalf("%s, document %d: %v", name, i+1, err)
		}
	}
	return backend, pod
}

func show(t *testing.T, o Outcome) []byte {
	t.Helper()
	text, err := yaml.Marshal(output{o.Refusal, o.Warnings, o.Pod})
	if err != nil {
		t.Fatal(err)
	}
	return text
}

func asJSON(t *testing.T, pod *corev1.Pod) string {
	t.Helper()
	text, err := json.Marshal(pod)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// TestDress holds every case of testdata to its golden file, and to what is
// true of all: neither argument is changed, admitting the result again changes
// nothing, and a refused pod differs in annotations of ours alone.
func TestDress(t *testing.T) {
	t.Parallel()
	cases, err := filepath.Glob("testdata/*.in.yaml")
	if err != nil || len(cases) == 0 {
		t.Fatalf("%d cases, %v", len(cases), err)
	}
	for _, name := range cases {
		t.Run(strings.TrimSuffix(filepath.Base(name), ".in.yaml"), func(t *testing.T) {
			t.Parallel()
			backend, pod := readCase(t, name)
			untouched := pod.DeepCopy()
			o := Dress(pod, backend, options)
			if diff := cmp.Diff(untouched, pod); diff != "" {
				t.Errorf("the pod given was changed:\n%s", diff)
			}
			golden := strings.TrimSuffix(name, ".in.yaml") + ".out.yaml"
			got := show(t, o)
			if *update {
				if err := os.WriteFile(golden, got, 0o644); err != nil {
					t.Fatal(err)
				}
			}
			want, err := os.ReadFile(golden)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(string(want), string(got)); diff != "" {
				t.Errorf("%s (-want +got):\n%s", golden, diff)
			}
			again := Dress(o.Pod, backend, options)
			if diff := cmp.Diff(asJSON(t, o.Pod), asJSON(t, again.Pod)); diff != "" {
				t.Errorf("admitted again, it changes:\n%s", diff)
			}
			if o.Refusal != nil {
				checkUntouched(t, pod, o.Pod)
				return
			}
			checkWired(t, o.Pod)
		})
	}
}

// TestServerWithoutImageRunsTheEngines: the operator has no default either.
func TestServerWithoutImageRunsTheEngines(t *testing.T) {
	t.Parallel()
	bare := options
	bare.LMCacheImage = ""
	backend, pod := readCase(t, "testdata/vllm-podlocal.in.yaml")
	backend.Spec.LMCache.PodLocal.Server.Image = ""
	o := Dress(pod, backend, bare)
	at := slices.IndexFunc(o.Pod.Spec.InitContainers, func(c corev1.Container) bool { return c.Name == v1alpha1.ContainerMPServer })
	if o.Refusal != nil || at < 0 || o.Pod.Spec.InitContainers[at].Image != pod.Spec.Containers[0].Image {
		t.Errorf("refusal %v, init containers %v", o.Refusal, o.Pod.Spec.InitContainers)
	}
	backend, pod = readCase(t, "testdata/vllm-nodelocal.in.yaml")
	backend.Spec.LMCache.NodeLocal.Server.Image = ""
	if o := Dress(pod, backend, bare); o.Refusal == nil || !strings.Contains(o.Refusal.Message, "nodeLocal.server.image") {
		t.Errorf("a NodeLocal server without an image: %v", o.Refusal)
	}
}

func checkUntouched(t *testing.T, before, after *corev1.Pod) {
	t.Helper()
	want, got := Clean(before), Clean(after)
	if len(got.Annotations) == 0 {
		got.Annotations = want.Annotations
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("a refused pod was changed:\n%s", diff)
	}
}

// checkWired holds our containers to restricted Pod Security, and names to be
// unique.
func checkWired(t *testing.T, pod *corev1.Pod) {
	t.Helper()
	if pod.Annotations[v1alpha1.AnnotationInjectedBy] == "" || pod.Annotations[v1alpha1.AnnotationInjectSkipped] != "" {
		t.Errorf("a wired pod has annotations %v", pod.Annotations)
	}
	seen := make(map[string]bool)
	for _, c := range slices.Concat(pod.Spec.InitContainers, pod.Spec.Containers) {
		if seen[c.Name] {
			t.Errorf("two containers are named %s", c.Name)
		}
		seen[c.Name] = true
		if !isMarked(c) {
			continue
		}
		s := c.SecurityContext
		if *s.AllowPrivilegeEscalation || !slices.Equal(s.Capabilities.Drop, []corev1.Capability{"ALL"}) || s.SeccompProfile.Type != corev1.SeccompProfileTypeRuntimeDefault {
			t.Errorf("container %s is not confined: %+v", c.Name, s)
		}
	}
	volumes := make(map[string]bool)
	for _, v := range pod.Spec.Volumes {
		if volumes[v.Name] {
			t.Errorf("two volumes are named %s", v.Name)
		}
		volumes[v.Name] = true
	}
}
