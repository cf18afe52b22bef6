// Package deploy holds what a cluster needs to run inferencecache, so that the
// program can print it. It changes two words of a finished manifest and renders
// nothing: the manifest is made from chart/ by `make generate`.
package deploy

import (
	_ "embed"
	"fmt"
	"regexp"
	"strings"
)

//go:embed install.yaml
var install string

// What the manifest says where nothing else is asked for.
const (
	DefaultNamespace = "inference-cache-system"
	DefaultImage     = "inferencecache:dev"
)

var (
	namespaceForm = regexp.MustCompile(`^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$`)
	imageForm     = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._/:@-]*$`)
)

// Manifest is everything to apply, in order, for a namespace and an image.
func Manifest(namespace, image string) (string, error) {
	if !namespaceForm.MatchString(namespace) {
		return "", fmt.Errorf("namespace %q: want up to 63 lower-case letters, digits and '-'", namespace)
	}
	if !imageForm.MatchString(image) {
		return "", fmt.Errorf("image %q: want [registry/]name[:tag][@digest]", image)
	}
	return strings.NewReplacer(DefaultNamespace, namespace, DefaultImage, image).Replace(install), nil
}
