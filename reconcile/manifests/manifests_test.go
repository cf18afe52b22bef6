package manifests

import (
	"context"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"inferencecache.io/inferencecache/internal/policy"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func write(t *testing.T, dir, name, content string) {
	t.Helper()
	if err := os.WriteFile(filepath.Join(dir, name), []byte(content), 0o644); err != nil {
		t.Fatal(err)
	}
}

const (
	policyFile = "apiVersion: inferencecache.io/v1alpha1\nkind: CachePolicy\nmetadata: {name: p, namespace: team}\nspec: {minimumMatchedTokens: 7}\n"
	tenantFile = "apiVersion: inferencecache.io/v1alpha1\nkind: CacheTenant\nmetadata: {name: t, namespace: team}\nspec: {quota: {maxIndexEntries: 5}}\n"
)

func TestFolderIsReadAsTheControllerWould(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	write(t, dir, "a.yaml", "# only a comment\n---\n"+policyFile+"---\n"+tenantFile+"--- # end\n")
	write(t, dir, "b.json", `{"apiVersion":"inferencecache.io/v1alpha1","kind":"CachePolicy","metadata":{"name":"q"},"spec":{}}`)
	write(t, dir, "c.yml", "apiVersion: v1\nkind: Namespace\nmetadata: {name: team, annotations: {inferencecache.io/tenant-grants: other}}\n")
	write(t, dir, "readme.txt", "not: [yaml")
	var got policy.Document
	f := &Folder{Dir: dir, Adopt: func(d policy.Document) error { got = d; return nil }, Log: slog.New(slog.DiscardHandler)}
	if err := f.Load(); err != nil {
		t.Fatal(err)
	}
	if len(got.Policies) != 2 || got.Policies[0].Namespace != "default" || got.Policies[1].MinimumMatchedTokens != 7 {
		t.Errorf("policies %+v", got.Policies)
	}
	if len(got.Tenants) != 1 || got.Tenants[0] != (policy.Quota{TenantID: "team", MaxIndexEntries: 5}) {
		t.Errorf("tenants %+v", got.Tenants)
	}
}

func TestWrongFilesAreNamed(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct{ content, want string }{
		"unknown field": {strings.Replace(policyFile, "minimumMatchedTokens", "minimumMatched", 1), `unknown field "minimumMatched"`},
		"twice":         {policyFile + "---\n" + policyFile, "CachePolicy team/p is in"},
		"foreign kind":  {"apiVersion: v1\nkind: Pod\nmetadata: {name: p}\n", "want CachePolicy"},
		"no name":       {strings.Replace(policyFile, "name: p, ", "", 1), "metadata.name is missing"},
		"no yaml":       {"a: [", "document 1"},
	} {
		dir := t.TempDir()
		write(t, dir, "x.yaml", c.content)
		if _, err := Read(dir); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want %q", name, err, c.want)
		}
	}
}

func TestFolderIsFollowed(t *testing.T) {
	dir := t.TempDir()
	write(t, dir, "p.yaml", policyFile)
	synctest.Test(t, func(t *testing.T) {
		var adopted atomic.Int64
		f := &Folder{Dir: dir, Adopt: func(policy.Document) error { adopted.Add(1); return nil }, Log: slog.New(slog.DiscardHandler)}
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error)
		go func() { done <- f.Run(ctx) }()
		defer func() {
			cancel()
			if err := <-done; err != nil {
				t.Error(err)
			}
		}()
		step := func(what string, want int64) {
			t.Helper()
			time.Sleep(2 * Every)
			synctest.Wait()
			if got := adopted.Load(); got != want {
				t.Errorf("%s: adopted %d times, want %d", what, got, want)
			}
		}
		step("nothing changed", 0)
		write(t, dir, "t.yaml", tenantFile)
		step("a file came", 1)
		step("nothing changed again", 1)
		write(t, dir, "t.yaml", "a: [")
		step("a file cannot be read", 1)
		if err := os.Remove(filepath.Join(dir, "t.yaml")); err != nil {
			t.Fatal(err)
		}
		step("it is gone", 2)
	})
}
