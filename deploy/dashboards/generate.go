//go:build generate

// Command generate writes inferencecache.json, a dashboard for Grafana, from
// panels.yaml. It is run by `make generate`, from here. With -rules it prints the
// panels' expressions as recording rules instead, for promtool to check.
package main

import (
	"bytes"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"strings"

	"sigs.k8s.io/yaml"
)

// list is panels.yaml.
type list struct {
	Rows []struct {
		Title  string
		Panels []panel
	}
}

type panel struct {
	Title, About, Unit string
	Kind               string // timeseries if empty, stat or timeline
	Width              int    // of 24
	Stack              bool
	Queries            []struct{ Expr, Legend string }
}

// height of panels, in Grafana's units.
var height = map[string]int{"timeseries": 8, "stat": 4, "timeline": 8}

func main() {
	rules := flag.Bool("rules", false, "print the expressions as Prometheus rules")
	flag.Parse()
	if err := generate(*rules); err != nil {
		fmt.Fprintln(os.Stderr, "generate:", err)
		os.Exit(1)
	}
}

func generate(rules bool) error {
	text, err := os.ReadFile("panels.yaml")
	if err != nil {
		return err
	}
	var l list
	if err := yaml.UnmarshalStrict(text, &l); err != nil {
		return fmt.Errorf("read panels.yaml: %w", err)
	}
	if rules {
		return l.rules()
	}
	var out bytes.Buffer
	encoder := json.NewEncoder(&out)
	encoder.SetEscapeHTML(false)
	encoder.SetIndent("", "  ")
	if err := encoder.Encode(l.dashboard()); err != nil {
		return err
	}
	return os.WriteFile("inferencecache.json", out.Bytes(), 0o644)
}

const (
	server  = `namespace=~"$namespace",job=~"$job"`
	model   = server + `,model=~"$model"`
	replica = server + `,replica=~"$replica"`
)

// expression replaces what panels.yaml abbreviates.
func expression(expr, window string) string {
	return strings.NewReplacer("SERVER}", server+"}", "SERVER,", server+",", "MODEL}", model+"}", "MODEL,", model+",",
		"REPLICA}", replica+"}", "REPLICA,", replica+",", "[RANGE]", "["+window+"]").Replace(expr)
}

func (l *list) rules() error {
	type rule struct {
		Record string `json:"record"`
		Expr   string `json:"expr"`
	}
	var all []rule
	for _, row := range l.Rows {
		for _, p := range row.Panels {
			for _, q := range p.Queries {
				all = append(all, rule{fmt.Sprintf("dashboard:panel_%d", len(all)+1), expression(q.Expr, "5m")})
			}
		}
	}
	text, err := yaml.Marshal(object{"groups": []object{{"name": "dashboard", "rules": all}}})
	if err != nil {
		return err
	}
	_, err = os.Stdout.Write(text)
	return err
}

// object is one of JSON, whose keys are written in order of the alphabet.
type object map[string]any

var source = object{"type": "prometheus", "uid": "${datasource}"}

func (l *list) dashboard() object {
	var panels []object
	id, y := 0, 0
	place := func(p object, x, width, height int) {
		id++
		p["id"], p["gridPos"] = id, object{"x": x, "y": y, "w": width, "h": height}
		panels = append(panels, p)
	}
	for _, row := range l.Rows {
		place(object{"type": "row", "title": row.Title, "collapsed": false, "panels": []object{}}, 0, 24, 1)
		y++
		x, tallest := 0, 0
		for _, p := range row.Panels {
			if x+p.Width > 24 {
				x, y, tallest = 0, y+tallest, 0
			}
			place(p.object(), x, p.Width, height[p.kind()])
			x, tallest = x+p.Width, max(tallest, height[p.kind()])
		}
		y += tallest
	}
	return object{
		"uid": "inferencecache", "title": "inferencecache", "tags": []string{"inferencecache"},
		"description":   "What servers answer, what they know, and how their subscribers follow engines. Generated from panels.yaml.",
		"schemaVersion": 39, "version": 1, "editable": true, "graphTooltip": 1, "refresh": "30s", "timezone": "browser",
		"time": object{"from": "now-3h", "to": "now"}, "timepicker": object{}, "links": []object{}, "fiscalYearStartMonth": 0,
		"annotations": object{"list": []object{}}, "templating": object{"list": variables()}, "panels": panels,
	}
}

func variables() []object {
	every := func(name, label, query string) object {
		return object{
			"name": name, "label": label, "type": "query", "datasource": source, "definition": query,
			"query": object{"query": query, "refId": "variable-" + name}, "refresh": 2, "sort": 1, "regex": "", "hide": 0, "skipUrlSync": false,
			"includeAll": true, "multi": true, "allValue": ".*", "options": []object{},
			"current": object{"selected": true, "text": []string{"All"}, "value": []string{"$__all"}},
		}
	}
	const ours = `{__name__=~"inferencecache_server_up|inferencecache_subscriber_servers"`
	return []object{
		{"name": "datasource", "label": "Data source", "type": "datasource", "query": "prometheus", "refresh": 1, "regex": "", "hide": 0,
			"skipUrlSync": false, "includeAll": false, "multi": false, "options": []object{}, "current": object{}},
		every("namespace", "Namespace", "label_values("+ours+"}, namespace)"),
		every("job", "Job", "label_values("+ours+`,namespace=~"$namespace"}, job)`),
		every("model", "Model", `label_values(inferencecache_lookup_route_calls_total{`+server+`}, model)`),
		every("replica", "Replica", `label_values(inferencecache_subscriber_servers{`+server+`}, replica)`),
	}
}

func (p *panel) kind() string {
	if p.Kind == "" {
		return "timeseries"
	}
	return p.Kind
}

func (p *panel) object() object {
	var targets []object
	for i, q := range p.Queries {
		targets = append(targets, object{
			"datasource": source, "editorMode": "code", "expr": expression(q.Expr, "$__rate_interval"), "legendFormat": q.Legend,
			"range": true, "refId": string(rune('A' + i)),
		})
	}
	defaults := object{"unit": p.Unit, "color": object{"mode": "palette-classic"}, "mappings": []object{}}
	o := object{
		"title": p.Title, "description": p.About, "datasource": source, "targets": targets,
		"fieldConfig": object{"defaults": defaults, "overrides": []object{}},
	}
	switch p.kind() {
	case "stat":
		o["type"] = "stat"
		o["options"] = object{"reduceOptions": object{"calcs": []string{"lastNotNull"}, "fields": "", "values": false},
			"colorMode": "value", "graphMode": "area", "justifyMode": "auto", "orientation": "auto", "textMode": "auto"}
	case "timeline":
		o["type"] = "state-timeline"
		defaults["custom"] = object{"fillOpacity": 70, "lineWidth": 0, "insertNulls": 120000}
		defaults["color"] = object{"mode": "fixed", "fixedColor": "orange"}
		o["options"] = object{"mergeValues": true, "showValue": "never", "rowHeight": 0.8,
			"legend": object{"showLegend": false, "displayMode": "list", "placement": "bottom"}, "tooltip": object{"mode": "single", "sort": "none"}}
	default:
		o["type"] = "timeseries"
		stacking, opacity := "none", 5
		if p.Stack {
			stacking, opacity = "normal", 30
		}
		defaults["custom"] = object{"drawStyle": "line", "lineWidth": 1, "fillOpacity": opacity, "showPoints": "auto", "spanNulls": false, "axisSoftMin": 0,
			"stacking": object{"mode": stacking, "group": "A"}}
		o["options"] = object{"legend": object{"showLegend": true, "displayMode": "list", "placement": "bottom", "calcs": []string{}},
			"tooltip": object{"mode": "multi", "sort": "desc"}}
	}
	return o
}
