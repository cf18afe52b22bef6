package render

import (
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/yaml"

	"inferencecache.io/inferencecache/api/v1alpha1"
	"inferencecache.io/inferencecache/webhook/inject"
)

var update = flag.Bool("update", false, "rewrite testdata/*.out.yaml")

// everything that is made for a backend, and for an engine of it on a node.
func everything(t *testing.T, b *v1alpha1.CacheBackend) []any {
	t.Helper()
	o := Options{Inject: inject.Options{LMCacheImage: "lmcache:operator"}}
	var all []any
	if r := b.Spec.RemoteStorage; r != nil && r.Ownership == v1alpha1.Managed {
		s := Redis(b, "0123", o)
		all = append(all, RedisSecret(b, "generated"), s.Deployment, s.Service, s.NetworkPolicy)
	}
	if lm := b.Spec.LMCache; lm != nil && lm.Topology == v1alpha1.NodeLocal {
		engine := &corev1.Pod{Spec: corev1.PodSpec{
			NodeName:          "gpu-1.example",
			Tolerations:       []corev1.Toleration{{Key: "nvidia.com/gpu", Operator: corev1.TolerationOpExists}},
			PriorityClassName: "engines", SchedulerName: "default-scheduler",
			ImagePullSecrets: []corev1.LocalObjectReference{{Name: "pull"}},
		}}
		server, err := NodeServer(b, engine.Spec.NodeName, engine, o)
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, server, NodeCleaner(b, engine.Spec.NodeName, server.Spec.Containers[0].Image))
	}
	return all
}

func TestRenderedObjects(t *testing.T) {
	t.Parallel()
	cases, err := filepath.Glob("testdata/*.in.yaml")
	if err != nil || len(cases) == 0 {
		t.Fatalf("%d cases, %v", len(cases), err)
	}
	for _, file := range cases {
		content, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		var b v1alpha1.CacheBackend
		if err := yaml.UnmarshalStrict(content, &b); err != nil {
			t.Fatalf("%s: %v", file, err)
		}
		var documents []string
		for _, object := range everything(t, &b) {
			text, err := yaml.Marshal(object)
			if err != nil {
				t.Fatal(err)
			}
			documents = append(documents, string(text))
		}
		got := strings.Join(documents, "---\n")
		golden := strings.TrimSuffix(file, ".in.yaml") + ".out.yaml"
		if *update {
			if err := os.WriteFile(golden, []byte(got), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		want, err := os.ReadFile(golden)
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(string(want), got); diff != "" {
			t.Errorf("%s: %s", file, diff)
		}
	}
}

func TestNamesOfNodePodsFitAndDiffer(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("a.", 126) + "b" // 253 characters, dots where it is cut
	seen := map[string]bool{}
	for _, infix := range []string{"", "clean-"} {
		for _, node := range []string{"n1", "n2"} {
			name := nodeName(long, infix, node)
			if len(name) > maxName || strings.Contains(name, ".-") || seen[name] {
				t.Errorf("%q", name)
			}
			seen[name] = true
		}
	}
}
