package compile

import (
	"flag"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/yaml"

	"inferencecache.io/inferencecache/api/v1alpha1"
)

var update = flag.Bool("update", false, "rewrite testdata/*.out.yaml")

// read sorts the objects of a YAML stream by kind.
func read(t *testing.T, file string) (in Input) {
	t.Helper()
	content, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	in.Grants = map[string]string{}
	for document := range strings.SplitSeq(string(content), "\n---\n") {
		var head metav1.TypeMeta
		decode(t, document, &head)
		switch head.Kind {
		case "CachePolicy":
			in.Policies = append(in.Policies, v1alpha1.CachePolicy{})
			decode(t, document, &in.Policies[len(in.Policies)-1])
		case "CacheTenant":
			in.Tenants = append(in.Tenants, v1alpha1.CacheTenant{})
			decode(t, document, &in.Tenants[len(in.Tenants)-1])
		case "Namespace":
			var ns corev1.Namespace
			decode(t, document, &ns)
			in.Grants[ns.Name] = ns.Annotations[v1alpha1.AnnotationTenantGrants]
		default:
			t.Fatalf("%s: kind %q", file, head.Kind)
		}
	}
	return in
}

func decode(t *testing.T, document string, v any) {
	t.Helper()
	parse := yaml.UnmarshalStrict
	if _, ok := v.(*metav1.TypeMeta); ok {
		parse = func(b []byte, v any, _ ...yaml.JSONOpt) error { return yaml.Unmarshal(b, v) }
	}
	if err := parse([]byte(document), v); err != nil {
		t.Fatalf("%v in\n%s", err, document)
	}
}

// write is what a person compares.
func write(t *testing.T, out Output) string {
	t.Helper()
	text, err := yaml.Marshal(map[string]any{
		"document": out.Document,
		"sources":  out.Document.Sources,
		"policies": standings(out.Policies),
		"tenants":  standings(out.Tenants),
	})
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

func standings(all map[types.NamespacedName]Standing) (lines []string) {
	for _, name := range slices.SortedFunc(maps.Keys(all), func(a, b types.NamespacedName) int { return strings.Compare(a.String(), b.String()) }) {
		s := all[name]
		line := fmt.Sprintf("%s: %s", name, s.Reason)
		if s.By != "" {
			line += " by " + s.By
		}
		if !s.InForce {
			line = "not " + line
		}
		lines = append(lines, line)
	}
	return lines
}

func TestCompiledDocuments(t *testing.T) {
	t.Parallel()
	cases, err := filepath.Glob("testdata/*.in.yaml")
	if err != nil || len(cases) == 0 {
		t.Fatalf("%d cases, %v", len(cases), err)
	}
	for _, file := range cases {
		golden := strings.TrimSuffix(file, ".in.yaml") + ".out.yaml"
		in := read(t, file)
		got := write(t, Compile(in))
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
		for seed := range uint64(20) {
			r := rand.New(rand.NewPCG(seed, 0))
			r.Shuffle(len(in.Policies), func(i, j int) { in.Policies[i], in.Policies[j] = in.Policies[j], in.Policies[i] })
			r.Shuffle(len(in.Tenants), func(i, j int) { in.Tenants[i], in.Tenants[j] = in.Tenants[j], in.Tenants[i] })
			if diff := cmp.Diff(got, write(t, Compile(in))); diff != "" {
				t.Fatalf("%s in another order: %s", file, diff)
			}
		}
	}
}
