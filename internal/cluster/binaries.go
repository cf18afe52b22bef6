package cluster

import (
	"bytes"
	"context"
	_ "embed"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

// programs are what testdata/cluster builds.
var programs = []string{"etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler", "kubectl", "kwok"}

//go:embed stages.yaml
var stagesYAML []byte

var errNoBinaries = errors.New("the Kubernetes binaries are not built: run `make cluster-bins` (ten minutes on two cores, once)")

// binaries returns the folder of the control plane's binaries. In CI it builds
// what is missing: a test that CI cannot run must not pass.
func binaries(ctx context.Context) (string, error) {
	root, err := moduleRoot()
	if err != nil {
		return "", err
	}
	source := filepath.Join(root, "testdata", "cluster")
	output, err := exec.CommandContext(ctx, "make", "-s", "-C", source, "bindir").Output()
	if err != nil {
		return "", fmt.Errorf("ask %s for its bindir: %w", source, err)
	}
	dir := string(bytes.TrimSpace(output))
	if _, err := os.Stat(filepath.Join(dir, ".ok")); err == nil {
		return dir, nil
	}
	if os.Getenv("CI") != "true" {
		return "", errNoBinaries
	}
	build := exec.CommandContext(ctx, "make", "-s", "-C", source, "bins")
	build.Stdout, build.Stderr = os.Stderr, os.Stderr
	if err := build.Run(); err != nil {
		return "", fmt.Errorf("build the Kubernetes binaries: %w", err)
	}
	return dir, nil
}

// moduleRoot finds the folder of this module above the working directory,
// which is that of the package under test.
func moduleRoot() (string, error) {
	dir, err := os.Getwd()
	if err != nil {
		return "", err
	}
	for {
		content, err := os.ReadFile(filepath.Join(dir, "go.mod"))
		if err == nil && strings.HasPrefix(string(content), "module inferencecache.io/inferencecache\n") {
			return dir, nil
		}
		parent := filepath.Dir(dir)
		if parent == dir {
			return "", errors.New("the working directory is not inside the module inferencecache.io/inferencecache")
		}
		dir = parent
	}
}
