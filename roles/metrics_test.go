package roles

import (
	"io"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

var metricName = regexp.MustCompile(`inferencecache_[a-z0-9_]+`)

// listedMetrics are the names in docs/metrics.md.
func listedMetrics(t *testing.T) []string {
	t.Helper()
	text, err := os.ReadFile("../docs/metrics.md")
	if err != nil {
		t.Fatal(err)
	}
	return metricName.FindAllString(string(text), -1)
}

// family is a series' name without what a histogram adds to it.
func family(name string) string {
	for _, suffix := range []string{"_bucket", "_sum", "_count"} {
		name = strings.TrimSuffix(name, suffix)
	}
	return name
}

// checkMetrics holds the page of a running system to the list: each metric on it
// is listed, and each listed one is on it or named in the code.
func checkMetrics(t *testing.T, page string) {
	t.Helper()
	var shown []string
	for line := range strings.Lines(page) {
		if name := metricName.FindString(line); name != "" && !strings.HasPrefix(line, "#") {
			shown = append(shown, family(name))
		}
	}
	listed := listedMetrics(t)
	slices.Sort(shown)
	for _, name := range slices.Compact(shown) {
		if !slices.Contains(listed, name) {
			t.Errorf("%s is on the page and not in docs/metrics.md", name)
		}
	}
	code := sources(t)
	for _, name := range listed {
		// Names of a family are put together in the code.
		inCode := strings.Contains(code, `"`+strings.TrimPrefix(name, "inferencecache_subscriber_")+`"`) || strings.Contains(code, name)
		if !inCode && !slices.Contains(shown, name) && !strings.HasSuffix(name, "_auth_total") {
			t.Errorf("%s is in docs/metrics.md and nowhere else", name)
		}
	}
}

func sources(t *testing.T) string {
	t.Helper()
	var all strings.Builder
	for _, pattern := range []string{"*.go", "server/*.go", "../subscriber/*.go", "../bridge/*.go", "../webhook/*.go", "../webhook/certs/*.go", "../reconcile/*.go", "../internal/obs/*.go", "../internal/tracing/*.go"} {
		files, err := filepath.Glob(pattern)
		if err != nil {
			t.Fatal(err)
		}
		for _, name := range files {
			if strings.HasSuffix(name, "_test.go") {
				continue
			}
			text, err := os.ReadFile(name)
			if err != nil {
				t.Fatal(err)
			}
			all.Write(text)
		}
	}
	return all.String()
}

// Alerts are about metrics that there are, and each has a runbook.
func TestAlertsNameListedMetricsAndHaveRunbooks(t *testing.T) {
	text, err := os.ReadFile("../deploy/alerts/inferencecache.rules.yaml")
	if err != nil {
		t.Fatal(err)
	}
	runbooks, err := os.ReadFile("../docs/runbooks.md")
	if err != nil {
		t.Fatal(err)
	}
	listed := listedMetrics(t)
	rules := regexp.MustCompile(`(?m)^\s*#.*$|runbook_url:.*$`).ReplaceAllString(string(text), "")
	for _, name := range metricName.FindAllString(rules, -1) {
		if strings.HasSuffix(name, "_") || slices.Contains(listed, name) {
			continue // the beginning of a pattern
		}
		t.Errorf("%s is in an alert and not in docs/metrics.md", name)
	}
	alerts := regexp.MustCompile(`alert: (\w+)`).FindAllStringSubmatch(string(text), -1)
	if len(alerts) < 10 {
		t.Fatalf("%d alerts", len(alerts))
	}
	for _, alert := range alerts {
		if !strings.Contains(string(runbooks), "\n## "+alert[1]+"\n") {
			t.Errorf("no runbook for %s", alert[1])
		}
		if !strings.Contains(string(text), "runbook_url: docs/runbooks.md#"+strings.ToLower(alert[1])+"\n") {
			t.Errorf("%s does not name its runbook", alert[1])
		}
	}
}

// get fetches a page.
func get(t *testing.T, url string) string {
	t.Helper()
	response, err := http.Get(url)
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}
