// Package manifests is a cluster for a process that has none: it reads
// CachePolicies, CacheTenants and Namespaces from a folder of YAML files,
// compiles them as the controller would, and hands the document on whenever
// the files change. It writes nothing and reports no status but in the log.
package manifests

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"

	"inferencecache.io/inferencecache/api/v1alpha1"
	"inferencecache.io/inferencecache/internal/policy"
	"inferencecache.io/inferencecache/reconcile/compile"
)

const (
	// Every is how often files are looked at. Looking is done by asking, not by
	// waiting for notices: those do not come for mounted volumes, and differ
	// between editors, which write in place, or beside and rename.
	Every = time.Second
	// maxFile bounds one file, maxFiles their number.
	maxFile  = 4 << 20
	maxFiles = 1000

	defaultNamespace = "default"
)

// Folder follows one folder.
type Folder struct {
	Dir   string
	Adopt func(policy.Document) error
	Log   *slog.Logger
}

// Load reads the folder once and hands on what is in it.
func (f *Folder) Load() error {
	in, err := Read(f.Dir)
	if err != nil {
		return err
	}
	out := compile.Compile(in)
	for name, s := range out.Policies {
		f.shadowed("CachePolicy", name.String(), s)
	}
	for name, s := range out.Tenants {
		f.shadowed("CacheTenant", name.String(), s)
	}
	return f.Adopt(out.Document)
}

func (f *Folder) shadowed(kind, name string, s compile.Standing) {
	if !s.InForce {
		f.Log.Warn("manifest is not in force", "kind", kind, "name", name, "reason", s.Reason, "by", s.By)
	}
}

// Run loads the folder whenever it changed since Run began, until ctx ends.
// What cannot be read leaves the policies before it in force.
func (f *Folder) Run(ctx context.Context) error {
	seen := signature(f.Dir)
	tick := time.NewTicker(Every)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
		now := signature(f.Dir)
		if now == seen {
			continue
		}
		seen = now
		if err := f.Load(); err != nil {
			f.Log.Warn("manifests not adopted; those before stay in force", "dir", f.Dir, "err", err)
			continue
		}
		f.Log.Info("manifests adopted", "dir", f.Dir)
	}
}

// signature changes when a file does.
func signature(dir string) string {
	var b strings.Builder
	files, err := list(dir)
	if err != nil {
		return err.Error()
	}
	for _, file := range files {
		// Stat follows links: a mounted ConfigMap is replaced by moving one.
		if info, err := os.Stat(file); err == nil {
			fmt.Fprintf(&b, "%s %d %d\n", file, info.Size(), info.ModTime().UnixNano())
		}
	}
	return b.String()
}

func list(dir string) ([]string, error) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, fmt.Errorf("read manifests: %w", err)
	}
	var files []string
	for _, e := range entries {
		if ext := filepath.Ext(e.Name()); !strings.HasPrefix(e.Name(), ".") && slices.Contains([]string{".yaml", ".yml", ".json"}, ext) {
			files = append(files, filepath.Join(dir, e.Name()))
		}
	}
	if len(files) > maxFiles {
		return nil, fmt.Errorf("read manifests: %d files in %s, and %d are the most", len(files), dir, maxFiles)
	}
	return files, nil
}

// Read parses every .yaml, .yml and .json file of a folder. Kinds of ours that
// only a cluster can serve are passed over; unknown fields, and two objects of
// one name, are errors.
func Read(dir string) (in compile.Input, err error) {
	files, err := list(dir)
	if err != nil {
		return in, err
	}
	in.Grants = map[string]string{}
	seen := map[string]string{}
	var errs []error
	for _, file := range files {
		info, err := os.Stat(file)
		if err != nil {
			errs = append(errs, err)
			continue
		}
		if info.Size() > maxFile {
			errs = append(errs, fmt.Errorf("%s has %d bytes, and %d are the most", file, info.Size(), maxFile))
			continue
		}
		content, err := os.ReadFile(file)
		if err != nil {
			errs = append(errs, err)
			continue
		}
		for i, document := range documents(content) {
			if err := add(&in, document, file, seen); err != nil {
				errs = append(errs, fmt.Errorf("%s, document %d: %w", file, i+1, err))
			}
		}
	}
	return in, errors.Join(errs...)
}

// documents splits a YAML stream at its separators.
func documents(content []byte) [][]byte {
	content = append([]byte("\n"), bytes.ReplaceAll(content, []byte("\r\n"), []byte("\n"))...)
	var all [][]byte
	for part := range bytes.SplitSeq(content, []byte("\n---")) {
		// What follows the separator on its line is a comment, or nothing.
		if rest, ok := bytes.CutPrefix(part, []byte("\n")); ok {
			part = rest
		}
		if len(bytes.TrimSpace(part)) > 0 {
			all = append(all, part)
		}
	}
	return all
}

func add(in *compile.Input, document []byte, file string, seen map[string]string) error {
	var head metav1.PartialObjectMetadata
	if err := yaml.Unmarshal(document, &head); err != nil {
		return err
	}
	if head.Kind == "" && head.Name == "" {
		return nil // comments only
	}
	ours := head.APIVersion == v1alpha1.GroupVersion.String()
	switch {
	case head.Kind == "Namespace" && head.APIVersion == "v1":
		var ns corev1.Namespace
		if err := yaml.UnmarshalStrict(document, &ns); err != nil {
			return err
		}
		in.Grants[ns.Name] = ns.Annotations[v1alpha1.AnnotationTenantGrants]
		return nil
	case ours && head.Kind == "CachePolicy":
		var p v1alpha1.CachePolicy
		if err := parse(document, &p, &p.ObjectMeta, "CachePolicy", file, seen); err != nil {
			return err
		}
		in.Policies = append(in.Policies, p)
		return nil
	case ours && head.Kind == "CacheTenant":
		var t v1alpha1.CacheTenant
		if err := parse(document, &t, &t.ObjectMeta, "CacheTenant", file, seen); err != nil {
			return err
		}
		in.Tenants = append(in.Tenants, t)
		return nil
	case ours && slices.Contains([]string{"CacheBackend", "CacheIndex", "PromptTemplate", "PDTopology"}, head.Kind):
		return nil
	}
	return fmt.Errorf("%s of %s: want CachePolicy, CacheTenant or Namespace", head.Kind, head.APIVersion)
}

// parse reads one object of ours; without a namespace it is in that of kubectl.
func parse(document []byte, into any, m *metav1.ObjectMeta, kind, file string, seen map[string]string) error {
	if err := yaml.UnmarshalStrict(document, into); err != nil {
		return err
	}
	if m.Name == "" {
		return errors.New("metadata.name is missing")
	}
	if m.Namespace == "" {
		m.Namespace = defaultNamespace
	}
	name := kind + " " + m.Namespace + "/" + m.Name
	if other, ok := seen[name]; ok {
		return fmt.Errorf("%s is in %s too: remove one", name, other)
	}
	seen[name] = file
	return nil
}
