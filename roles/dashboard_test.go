package roles

import (
	"encoding/json"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// dashboard is what of Grafana's JSON is held to rules.
type dashboard struct {
	SchemaVersion int
	Panels        []dashboardPanel
	Templating    struct {
		List []struct{ Name, Type, Definition string }
	}
}

type dashboardPanel struct {
	ID                       int
	Type, Title, Description string
	Datasource               struct{ UID string }
	GridPos                  struct{ X, Y, W, H int }
	FieldConfig              struct{ Defaults struct{ Unit string } }
	Targets                  []struct{ Expr, LegendFormat, RefID string }
}

func readDashboard(t *testing.T) *dashboard {
	t.Helper()
	text, err := os.ReadFile("../deploy/dashboards/inferencecache.json")
	if err != nil {
		t.Fatal(err)
	}
	d := &dashboard{}
	if err := json.Unmarshal(text, d); err != nil {
		t.Fatal(err)
	}
	if len(d.Panels) < 30 || d.SchemaVersion < 39 {
		t.Fatalf("%d panels, schema %d", len(d.Panels), d.SchemaVersion)
	}
	return d
}

// labelsOf are the labels of each metric in docs/metrics.md.
func labelsOf(t *testing.T) map[string][]string {
	t.Helper()
	text, err := os.ReadFile("../docs/metrics.md")
	if err != nil {
		t.Fatal(err)
	}
	labels := map[string][]string{}
	for line := range strings.Lines(string(text)) {
		if cells := strings.Split(line, "|"); len(cells) > 4 {
			own := strings.FieldsFunc(cells[3], func(r rune) bool { return r == ',' || r == ' ' })
			if strings.Contains(cells[1], "_subscriber_") {
				own = append(own, "replica")
			}
			for _, name := range metricName.FindAllString(cells[1], -1) {
				labels[name] = own
			}
		}
	}
	return labels
}

var (
	legendLabel = regexp.MustCompile(`\{\{(\w+)\}\}`)
	byLabels    = regexp.MustCompile(`\b(?:by|on) \(([a-z_, ]*)\)`)
	variable    = regexp.MustCompile(`\$\{?(\w+)`)
)

// Panels are about metrics and labels that there are, and say what they mean.
func TestDashboardNamesListedMetricsAndExplainsThem(t *testing.T) {
	d, labels := readDashboard(t), labelsOf(t)
	shown := map[string]bool{}
	for _, p := range d.Panels {
		if p.Type == "row" {
			continue
		}
		if p.Title == "" || len(p.Description) < 60 || p.FieldConfig.Defaults.Unit == "" {
			t.Errorf("%q: wants a title, a description that says what to do, and a unit", p.Title)
		}
		if p.Datasource.UID != "${datasource}" || len(p.Targets) == 0 {
			t.Errorf("%q: data source %q, %d queries", p.Title, p.Datasource.UID, len(p.Targets))
		}
		for _, query := range p.Targets {
			allowed := []string{"namespace", "job", "pod", "instance", "le"} // of scrapes and of histograms
			expr := regexp.MustCompile(`__name__=~"[^"]*"`).ReplaceAllString(query.Expr, "")
			for _, name := range metricName.FindAllString(expr, -1) {
				own, listed := labels[family(name)]
				if !listed {
					t.Errorf("%q names %s, which is not in docs/metrics.md", p.Title, name)
				}
				allowed = append(allowed, own...)
				shown[family(name)] = true
			}
			var used []string
			for _, match := range legendLabel.FindAllStringSubmatch(query.LegendFormat, -1) {
				used = append(used, match[1])
			}
			for _, match := range byLabels.FindAllStringSubmatch(query.Expr, -1) {
				used = append(used, strings.Split(match[1], ", ")...)
			}
			for _, label := range used {
				if !slices.Contains(allowed, label) {
					t.Errorf("%q uses the label %s, which its metrics do not have", p.Title, label)
				}
			}
		}
	}
	for _, name := range []string{
		"lookup_route_calls_total", "lookup_route_latency_seconds", "lookup_refused_inputs_total", "outcome_promised_tokens_total",
		"outcome_found_tokens_total", "index_bytes", "index_bytes_limit", "index_evictions_total", "tenant_evictions_total", "ingest_age_seconds",
		"ingest_dropped_total", "replicas", "replicas_quarantined", "replica_deaths_total", "policy_age_seconds", "server_tls_expiry_seconds",
		"subscriber_condition", "subscriber_state", "subscriber_missing_batches_total", "subscriber_lost_batches_total", "subscriber_held_blocks",
		"subscriber_event_delay_seconds", "subscriber_outbox_bytes", "subscriber_resyncs_total", "subscriber_drift_resets_total",
	} {
		if !shown["inferencecache_"+name] {
			t.Errorf("no panel shows inferencecache_%s", name)
		}
	}
}

// The dashboard works wherever it is imported: it asks for its data source, and
// its panels lie beside each other.
func TestDashboardStandsByItself(t *testing.T) {
	d := readDashboard(t)
	known := []string{"__rate_interval"}
	for _, v := range d.Templating.List {
		known = append(known, v.Name)
	}
	if len(known) < 6 || d.Templating.List[0].Type != "datasource" {
		t.Errorf("variables %v", known)
	}
	var used []string
	for _, v := range d.Templating.List {
		used = append(used, v.Definition)
	}
	ids := map[int]bool{}
	for i, p := range d.Panels {
		if ids[p.ID] {
			t.Errorf("%q shares its id", p.Title)
		}
		ids[p.ID] = true
		for _, query := range p.Targets {
			used = append(used, query.Expr)
		}
		a := p.GridPos
		if a.W < 1 || a.X+a.W > 24 {
			t.Errorf("%q: from %d, %d wide", p.Title, a.X, a.W)
		}
		for _, other := range d.Panels[:i] {
			if b := other.GridPos; a.X < b.X+b.W && b.X < a.X+a.W && a.Y < b.Y+b.H && b.Y < a.Y+a.H {
				t.Errorf("%q lies over %q", p.Title, other.Title)
			}
		}
	}
	for _, match := range variable.FindAllStringSubmatch(strings.Join(used, "\n"), -1) {
		if !slices.Contains(known, match[1]) {
			t.Errorf("$%s is no variable", match[1])
		}
	}
}
