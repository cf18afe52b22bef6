package roles

import (
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
)

func TestRoleAllServesByTheManifestsOfAFolder(t *testing.T) {
	dir := t.TempDir()
	write := func(spec string) {
		t.Helper()
		text := "apiVersion: inferencecache.io/v1alpha1\nkind: CachePolicy\nmetadata: {name: p, namespace: demo}\nspec: " + spec + "\n"
		if err := os.WriteFile(filepath.Join(dir, "policy.yaml"), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write("{minimumMatched: 3}")
	if _, err := command(t.Context(), "run", "--sim=0", "--listen=127.0.0.1:0", "--control-listen=127.0.0.1:0", "--manifests="+dir); err == nil || !strings.Contains(err.Error(), "minimumMatched") {
		t.Errorf("a manifest with a mistake: %v", err)
	}

	write("{minimumMatchedTokens: 3}")
	server, _, _, stop := started(t, "--sim=0", "--manifests="+dir)
	metric := func(name string) float64 {
		t.Helper()
		found := regexp.MustCompile(`(?m)^` + name + ` (\S+)$`).FindStringSubmatch(post(t, server+"/metrics", ""))
		if found == nil {
			t.Fatalf("no metric %s", name)
		}
		value, err := strconv.ParseFloat(found[1], 64)
		if err != nil {
			t.Fatal(err)
		}
		return value
	}
	if v := metric("inferencecache_policy_version"); v != 8 {
		t.Errorf("policies of version %v", v)
	}
	eventually(t, "the policy to age", func() bool { return metric("inferencecache_policy_age_seconds") > 2 })
	write("{minimumMatchedTokens: 4}")
	eventually(t, "the policy that replaced it", func() bool { return metric("inferencecache_policy_age_seconds") < 1.5 })
	write("{minimumMatched: 3}")
	eventually(t, "a mistake, which changes nothing", func() bool { return metric("inferencecache_policy_age_seconds") > 3 })
	if out := stop(); !strings.Contains(out, "manifests not adopted") {
		t.Errorf("the mistake is not logged: %s", out)
	}
}
