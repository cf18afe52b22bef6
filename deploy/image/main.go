// Command image packs the static binary into a container image without any
// container engine: an archive that `docker load` and `ctr images import` take
// (image.tar), an OCI layout that registries' tools copy from (oci/), and a
// list of what is in it (sbom.spdx.json). There is no shell, no package manager
// and no base image; the process is nobody (65532). The same binary gives the
// same bytes on every machine. It is run by `make image`, and is a module of
// its own so that the product does not inherit what it needs.
package main

import (
	"archive/tar"
	"bytes"
	"debug/buildinfo"
	"debug/elf"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"time"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/google/go-containerregistry/pkg/v1/types"
)

const (
	program = "/usr/local/bin/inferencecache"
	nobody  = "65532:65532"
)

// epoch is when everything was made: another moment would give other bytes.
var epoch = time.Unix(0, 0).UTC()

// settings of one image.
type settings struct {
	binary, license, out   string
	tag, version, revision string
}

func main() {
	var s settings
	flag.StringVar(&s.binary, "binary", "", "static binary to pack")
	flag.StringVar(&s.license, "license", "", "file with the license")
	flag.StringVar(&s.out, "out", "", "folder to write to; what is in it is replaced")
	flag.StringVar(&s.tag, "tag", "inferencecache:dev", "name of the image in the archive")
	flag.StringVar(&s.version, "version", "dev", "version to label it with")
	flag.StringVar(&s.revision, "revision", "", "commit to label it with")
	flag.Parse()
	digest, err := pack(s)
	if err != nil {
		fmt.Fprintln(os.Stderr, "image:", err)
		os.Exit(1)
	}
	fmt.Println(digest)
}

// pack writes the image and returns its digest.
func pack(s settings) (v1.Hash, error) {
	info, err := inspect(s.binary)
	if err != nil {
		return v1.Hash{}, err
	}
	tag, err := name.NewTag(s.tag)
	if err != nil {
		return v1.Hash{}, err
	}
	image, err := build(s, info)
	if err != nil {
		return v1.Hash{}, err
	}
	bill, err := writeSBOM(s, info)
	if err != nil {
		return v1.Hash{}, err
	}
	if err := os.RemoveAll(s.out); err != nil {
		return v1.Hash{}, err
	}
	if err := os.MkdirAll(s.out, 0o755); err != nil {
		return v1.Hash{}, err
	}
	if err := os.WriteFile(filepath.Join(s.out, "sbom.spdx.json"), bill, 0o644); err != nil {
		return v1.Hash{}, err
	}
	if err := tarball.WriteToFile(filepath.Join(s.out, "image.tar"), tag, image); err != nil {
		return v1.Hash{}, err
	}
	oci, err := layout.Write(filepath.Join(s.out, "oci"), empty.Index)
	if err != nil {
		return v1.Hash{}, err
	}
	annotations := map[string]string{"org.opencontainers.image.ref.name": s.tag}
	platform := v1.Platform{OS: info.os, Architecture: info.arch}
	if err := oci.AppendImage(image, layout.WithAnnotations(annotations), layout.WithPlatform(platform)); err != nil {
		return v1.Hash{}, err
	}
	return image.Digest()
}

// facts are what the binary says of itself.
type facts struct {
	*buildinfo.BuildInfo
	os, arch string
}

// inspect refuses binaries that would need something the image lacks.
func inspect(binary string) (facts, error) {
	info, err := buildinfo.ReadFile(binary)
	if err != nil {
		return facts{}, fmt.Errorf("read the build info of %q: %w", binary, err)
	}
	f := facts{BuildInfo: info}
	for _, s := range info.Settings {
		switch s.Key {
		case "GOOS":
			f.os = s.Value
		case "GOARCH":
			f.arch = s.Value
		}
	}
	if f.os != "linux" {
		return facts{}, fmt.Errorf("%s is for %s: images are for linux", binary, f.os)
	}
	file, err := elf.Open(binary)
	if err != nil {
		return facts{}, err
	}
	defer file.Close()
	for _, p := range file.Progs {
		if p.Type == elf.PT_INTERP {
			return facts{}, fmt.Errorf("%s is linked dynamically, and the image has no libraries: build it with CGO_ENABLED=0", binary)
		}
	}
	return f, nil
}

func build(s settings, info facts) (v1.Image, error) {
	system, err := layer(
		entry{name: "etc", mode: 0o755},
		entry{name: "etc/passwd", mode: 0o644, content: []byte("root:x:0:0:root:/:/sbin/nologin\nnonroot:x:65532:65532:nonroot:/:/sbin/nologin\n")},
		entry{name: "etc/group", mode: 0o644, content: []byte("root:x:0:\nnonroot:x:65532:\n")},
		entry{name: "tmp", mode: 0o1777},
	)
	if err != nil {
		return nil, err
	}
	binary, err := os.ReadFile(s.binary)
	if err != nil {
		return nil, err
	}
	license, err := os.ReadFile(s.license)
	if err != nil {
		return nil, err
	}
	product, err := layer(
		entry{name: "LICENSE", mode: 0o644, content: license},
		entry{name: "usr", mode: 0o755},
		entry{name: "usr/local", mode: 0o755},
		entry{name: "usr/local/bin", mode: 0o755},
		entry{name: program[1:], mode: 0o755, content: binary},
	)
	if err != nil {
		return nil, err
	}
	image, err := mutate.AppendLayers(mutate.MediaType(empty.Image, types.OCIManifestSchema1), system, product)
	if err != nil {
		return nil, err
	}
	image = mutate.ConfigMediaType(image, types.OCIConfigJSON)
	config, err := image.ConfigFile()
	if err != nil {
		return nil, err
	}
	config = config.DeepCopy()
	config.OS, config.Architecture, config.Created = info.os, info.arch, v1.Time{Time: epoch}
	config.Config = v1.Config{
		Entrypoint: []string{program},
		User:       nobody,
		WorkingDir: "/",
		Env:        []string{"PATH=/usr/local/bin"},
		Labels: map[string]string{
			"org.opencontainers.image.title":    "inferencecache",
			"org.opencontainers.image.version":  s.version,
			"org.opencontainers.image.revision": s.revision,
		},
	}
	for i := range config.History {
		config.History[i].Created = v1.Time{Time: epoch}
	}
	return mutate.ConfigFile(image, config)
}

// entry is one file; without content, a folder.
type entry struct {
	name    string
	mode    int64
	content []byte
}

func layer(entries ...entry) (v1.Layer, error) {
	var archive bytes.Buffer
	w := tar.NewWriter(&archive)
	var errs []error
	for _, e := range entries {
		header := &tar.Header{Name: e.name, Mode: e.mode, Size: int64(len(e.content)), ModTime: epoch, Typeflag: tar.TypeReg, Format: tar.FormatUSTAR}
		if e.content == nil {
			header.Typeflag, header.Name = tar.TypeDir, e.name+"/"
		}
		errs = append(errs, w.WriteHeader(header))
		_, err := w.Write(e.content)
		errs = append(errs, err)
	}
	errs = append(errs, w.Close())
	if err := errors.Join(errs...); err != nil {
		return nil, err
	}
	open := func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(archive.Bytes())), nil }
	return tarball.LayerFromOpener(open, tarball.WithMediaType(types.OCILayer))
}
