package subscriber

import (
	"os"
	"path/filepath"
	"testing"

	"sigs.k8s.io/yaml"
)

// TestInjectedSidecarsAreUnderstood: every command line that the pod webhook
// gives a subscriber, as its golden files have them, parses and is valid.
func TestInjectedSidecarsAreUnderstood(t *testing.T) {
	t.Parallel()
	files, err := filepath.Glob("../webhook/inject/testdata/*.out.yaml")
	if err != nil {
		t.Fatal(err)
	}
	found := 0
	for _, name := range files {
		text, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		var golden struct {
			Pod struct {
				Spec struct {
					Containers []struct {
						Name string
						Args []string
					}
				}
			}
		}
		if err := yaml.Unmarshal(text, &golden); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		for _, c := range golden.Pod.Spec.Containers {
			if c.Name != "kvevent-subscriber" || len(c.Args) == 0 {
				continue
			}
			found++
			config := parse(t, c.Args[2:]...) // behind "run --role=subscriber"
			if err := config.Validate(); err != nil {
				t.Errorf("%s: %v", name, err)
			}
		}
	}
	if found < 20 {
		t.Errorf("%d command lines in %d files, want 20 at least", found, len(files))
	}
}
