package v1alpha1_test

import (
	"bytes"
	"os"
	"path/filepath"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/yaml"

	"inferencecache.io/inferencecache/api/v1alpha1"
)

// TestSamplesAreOfTheseKinds reads every sample strictly: an unknown or
// doubled field is an error. All six kinds are shown.
func TestSamplesAreOfTheseKinds(t *testing.T) {
	t.Parallel()
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{v1alpha1.AddToScheme, appsv1.AddToScheme} {
		if err := add(scheme); err != nil {
			t.Fatal(err)
		}
	}
	files, err := filepath.Glob("../../deploy/samples/*.yaml")
	if err != nil || len(files) == 0 {
		t.Fatalf("%d samples, %v", len(files), err)
	}
	shown := make(map[string]bool)
	for _, name := range files {
		text, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		for i, document := range bytes.Split(text, []byte("\n---\n")) {
			var head struct {
				APIVersion string `json:"apiVersion"`
				Kind       string `json:"kind"`
			}
			if err := yaml.Unmarshal(document, &head); err != nil {
				t.Errorf("%s, document %d: %v", name, i+1, err)
				continue
			}
			object, err := scheme.New(schema.FromAPIVersionAndKind(head.APIVersion, head.Kind))
			if err != nil {
				t.Errorf("%s, document %d: %v", name, i+1, err)
				continue
			}
			if err := yaml.UnmarshalStrict(document, object); err != nil {
				t.Errorf("%s, document %d: %v", name, i+1, err)
			}
			shown[head.Kind] = true
		}
	}
	for _, kind := range []string{"CacheBackend", "CachePolicy", "CacheTenant", "CacheIndex", "PromptTemplate", "PDTopology"} {
		if !shown[kind] {
			t.Errorf("no sample shows a %s", kind)
		}
	}
}
