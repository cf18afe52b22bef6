package deploy

import (
	"strings"
	"testing"
)

func TestManifestIsForTheNamespaceAndImage(t *testing.T) {
	t.Parallel()
	text, err := Manifest("elsewhere", "registry.example/caches/inferencecache@sha256:00")
	if err != nil {
		t.Fatal(err)
	}
	for word, want := range map[string]bool{
		DefaultNamespace: false, DefaultImage: false,
		`image: "registry.example/caches/inferencecache@sha256:00"`:                          true,
		`--subscriber-image=registry.example/caches/inferencecache@sha256:00`:                true,
		`--allowed-controller-sa=system:serviceaccount:elsewhere:inference-cache-controller`: true,
		`name: "elsewhere"`: true,
	} {
		if strings.Contains(text, word) != want {
			t.Errorf("%s: in the manifest %t, want %t", word, !want, want)
		}
	}
}

func TestManifestRefusesWhatIsNoName(t *testing.T) {
	t.Parallel()
	for _, namespace := range []string{"", "A", "a b", "-a", "a-", "a.b", strings.Repeat("a", 64), "a\nb"} {
		if _, err := Manifest(namespace, DefaultImage); err == nil || !strings.Contains(err.Error(), "namespace") {
			t.Errorf("namespace %q: %v", namespace, err)
		}
	}
	for _, image := range []string{"", "a b", "a\nb", "-a", `a"`, "a{b"} {
		if _, err := Manifest("a", image); err == nil || !strings.Contains(err.Error(), "image") {
			t.Errorf("image %q: %v", image, err)
		}
	}
}
