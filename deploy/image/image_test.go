package main

import (
	"archive/tar"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/google/go-containerregistry/pkg/v1/validate"
)

// buildBinary builds the product as `make build` does.
func buildBinary(t *testing.T, name string, flags ...string) string {
	t.Helper()
	binary := filepath.Join(t.TempDir(), name)
	build := exec.CommandContext(t.Context(), "go", append(append([]string{"build", "-o", binary}, flags...), ".")...)
	build.Dir = "../.."
	build.Env = append(os.Environ(), "CGO_ENABLED=0", "GOFLAGS=-buildvcs=false -trimpath")
	if output, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, output)
	}
	return binary
}

func packed(t *testing.T, binary string) (dir string, digest v1.Hash) {
	t.Helper()
	dir = filepath.Join(t.TempDir(), "image")
	digest, err := pack(settings{binary: binary, license: "../../LICENSE", out: dir, tag: "inferencecache:test", version: "v1", revision: "abc"})
	if err != nil {
		t.Fatal(err)
	}
	return dir, digest
}

// sums are the hashes of every file below dir.
func sums(t *testing.T, dir string) map[string][sha256.Size]byte {
	t.Helper()
	all := map[string][sha256.Size]byte{}
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		content, err := os.ReadFile(path)
		name, _ := filepath.Rel(dir, path)
		all[name] = sha256.Sum256(content)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return all
}

func TestImage(t *testing.T) {
	binary := buildBinary(t, "inferencecache", "-ldflags=-s -w -X inferencecache.io/inferencecache/roles.Version=v1")
	dir, digest := packed(t, binary)

	t.Run("is the same bytes when made again", func(t *testing.T) {
		again, _ := packed(t, binary)
		first, second := sums(t, dir), sums(t, again)
		if len(first) < 6 || len(first) != len(second) {
			t.Fatalf("%d and %d files", len(first), len(second))
		}
		for name, sum := range first {
			if second[name] != sum {
				t.Errorf("%s differs", name)
			}
		}
	})
	t.Run("is the same image in both forms", func(t *testing.T) {
		archive, err := tarball.ImageFromPath(filepath.Join(dir, "image.tar"), nil)
		if err != nil {
			t.Fatal(err)
		}
		oci, err := layout.FromPath(filepath.Join(dir, "oci"))
		if err != nil {
			t.Fatal(err)
		}
		image, err := oci.Image(digest)
		if err != nil {
			t.Fatal(err)
		}
		a, errA := archive.ConfigName()
		b, errB := image.ConfigName()
		if err := errors.Join(validate.Image(archive), validate.Image(image), errA, errB); err != nil || a != b {
			t.Errorf("configs %s and %s: %v", a, b, err)
		}
	})
	image, err := tarball.ImageFromPath(filepath.Join(dir, "image.tar"), nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Run("is nobody, on linux", func(t *testing.T) {
		config, err := image.ConfigFile()
		if err != nil {
			t.Fatal(err)
		}
		if config.Config.User != "65532:65532" || config.OS != "linux" || config.Architecture == "" || !slices.Equal(config.Config.Entrypoint, []string{program}) {
			t.Errorf("config %+v", config)
		}
	})
	root := t.TempDir()
	t.Run("holds the program and nothing to run besides", func(t *testing.T) {
		var executables []string
		for _, name := range unpack(t, image, root) {
			info, err := os.Lstat(filepath.Join(root, name))
			if err != nil {
				t.Fatal(err)
			}
			if info.Mode().IsRegular() && info.Mode()&0o111 != 0 {
				executables = append(executables, "/"+name)
			}
		}
		if !slices.Equal(executables, []string{program}) {
			t.Errorf("executables %v", executables)
		}
	})
	t.Run("runs", func(t *testing.T) {
		if os.Getuid() != 0 {
			t.Skip("only root may change its root folder")
		}
		run := exec.CommandContext(t.Context(), program, "version")
		run.Dir, run.Env = "/", []string{}
		run.SysProcAttr = &syscall.SysProcAttr{Chroot: root, Credential: &syscall.Credential{Uid: 65532, Gid: 65532}}
		output, err := run.CombinedOutput()
		if err != nil || !strings.Contains(string(output), "v1") {
			t.Errorf("%v: %s", err, output)
		}
	})
	t.Run("has a bill of what is in it", func(t *testing.T) {
		content, err := os.ReadFile(filepath.Join(dir, "sbom.spdx.json"))
		if err != nil {
			t.Fatal(err)
		}
		var d spdxDocument
		if err := json.Unmarshal(content, &d); err != nil {
			t.Fatal(err)
		}
		have := map[string]bool{}
		for _, p := range d.Packages {
			have[p.Name] = p.Version != ""
		}
		for _, want := range []string{"inferencecache", "stdlib", "connectrpc.com/connect", "github.com/spf13/cobra"} {
			if !have[want] {
				t.Errorf("%s is missing, or its version", want)
			}
		}
		if len(d.Relationships) != len(d.Packages) {
			t.Errorf("%d relationships of %d packages", len(d.Relationships), len(d.Packages))
		}
	})
}

// unpack writes the image's files below root and returns their names.
func unpack(t *testing.T, image v1.Image, root string) (names []string) {
	t.Helper()
	files := mutate.Extract(image)
	defer files.Close()
	for r := tar.NewReader(files); ; {
		header, err := r.Next()
		if errors.Is(err, io.EOF) {
			return names
		} else if err != nil {
			t.Fatal(err)
		}
		name := filepath.Clean(header.Name)
		path := filepath.Join(root, name)
		names = append(names, name)
		if header.Typeflag == tar.TypeDir {
			err = os.MkdirAll(path, 0o755)
		} else {
			var content []byte
			if content, err = io.ReadAll(r); err == nil {
				err = errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, content, header.FileInfo().Mode()))
			}
		}
		if err != nil {
			t.Fatal(err)
		}
	}
}

func TestBinariesThatWouldNotRunAreRefused(t *testing.T) {
	text := filepath.Join(t.TempDir(), "text")
	if err := os.WriteFile(text, []byte("#!/bin/sh\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	if _, err := inspect(text); err == nil || !strings.Contains(err.Error(), "build info") {
		t.Errorf("a script: %v", err)
	}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := inspect(self); err != nil {
		t.Errorf("this test, which is static: %v", err)
	}
}
