package doctor

import (
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"
	"time"
)

const (
	// nearBudget is the share of the index's budget from which on it evicts.
	nearBudget = 0.95
	// expiresSoon is how long before its end a certificate is worth a word.
	expiresSoon = 14 * 24 * time.Hour
	// countSlack is how far the counts of a subscriber and a server may be apart:
	// they are not read at the same moment.
	countSlack, countSlackBlocks = 0.05, 256
	// minLookups for a model, before they say that it is not known.
	minLookups = 10
)

// judge makes findings of what was seen. It is pure.
func judge(e *evidence, now time.Time) (all []Finding) {
	all = append(all, judgeServer(e)...)
	all = append(all, judgeControl(e)...)
	for i := range e.engines {
		all = append(all, judgeEngine(&e.engines[i])...)
	}
	if len(e.engines) == 0 && e.health.err == nil {
		all = append(all, found("no-engines", "", ""))
	}
	all = append(all, judgeIndex(e)...)
	all = append(all, judgeLookups(e)...)
	all = append(all, judgeCertificate(e.certificate, now)...)
	all = append(all, judgeParity(e.parity)...)
	order(all)
	return all
}

func judgeServer(e *evidence) []Finding {
	switch body := string(e.health.body); {
	case e.health.err != nil:
		return []Finding{found("server-unreachable", "", e.health.err.Error())}
	case e.health.status != http.StatusOK || !strings.Contains(body, "SERVING"):
		return []Finding{found("server-unreachable", "", fmt.Sprintf("status %d", e.health.status))}
	case strings.Contains(body, "NOT_SERVING"):
		return []Finding{found("server-not-serving", "", strings.TrimSpace(body))}
	}
	return []Finding{found("server-serving", "", "")}
}

func judgeControl(e *evidence) []Finding {
	if !e.control {
		return []Finding{found("control-skipped", "", "")}
	}
	all := []Finding{judgeSnapshot(e)}
	for _, path := range []struct {
		name string
		answer
	}{{"policy", e.policy}, {"probe", e.probe}} {
		switch {
		case path.err != nil:
			all = append(all, found(path.name+"-unreachable", "", path.err.Error()))
		case path.status == http.StatusNotFound:
			all = append(all, found(path.name+"-unreachable", "", "status 404"))
		case path.status/100 == 2, path.status == 401, path.status == 403, path.status == 405:
			all = append(all, found(path.name+"-answers", "", ""))
		default:
			all = append(all, found(path.name+"-odd", "", fmt.Sprintf("status %d", path.status)))
		}
	}
	return all
}

func judgeSnapshot(e *evidence) Finding {
	a := e.snapshot
	switch {
	case a.err != nil:
		return found("snapshot-unreachable", "", a.err.Error())
	case a.status == 401 || a.status == 403:
		return found("snapshot-refused", "", fmt.Sprintf("status %d", a.status))
	case a.status != http.StatusOK:
		return found("snapshot-unreachable", "", fmt.Sprintf("status %d", a.status))
	case !e.readable:
		return found("snapshot-unreadable", "", "")
	case !e.token:
		return found("snapshot-open", "", "")
	}
	return found("snapshot-answers", "", "")
}

// judgeEngine gathers what may be wrong with one replica, and leaves out what
// follows from something else.
func judgeEngine(e *engine) []Finding {
	name := e.Replica
	if e.Tenant != "" {
		name = e.Tenant + "/" + e.Replica
	}
	by := map[string]Finding{}
	add := func(f Finding) { by[f.ID] = f }
	for condition, a := range e.Conditions {
		id := strings.ReplaceAll(condition, "_", "-")
		if _, ok := catalog[id]; !ok {
			continue // of a newer version
		}
		f := found(id, name, a.Detail)
		if f.Remedy == "" {
			f.Remedy = a.Do
		}
		add(f)
	}
	down := e.asked && e.serves != nil
	switch refused := slices.Sorted(maps.Keys(e.refused)); {
	case down && (len(refused) > 0 || len(e.Sources) == 0):
		add(found("engine-away", name, fmt.Sprintf("%s: %v", e.Engine, e.serves)))
	case len(refused) > 0:
		add(found("events-off", name, fmt.Sprintf("%s: %v", refused[0], e.refused[refused[0]])))
	}
	for _, s := range e.Sources {
		if s.State == "stale" && e.refused[s.Endpoint] == nil {
			add(found("engine-stalled", name, fmt.Sprintf("rank %d is %s", s.Rank, s.State)))
		}
		if s.State == "degraded" {
			add(found("stream-degraded", name, fmt.Sprintf("rank %d is %s", s.Rank, s.State)))
		}
	}
	if e.models != nil && e.Model != "" && !slices.Contains(e.models, e.Model) {
		add(found("model-mismatch", name, fmt.Sprintf("it serves %s, its subscriber reports %s", strings.Join(e.models, ", "), e.Model)))
	}
	for _, cause := range slices.Collect(maps.Keys(by)) {
		if _, still := by[cause]; still {
			for _, effect := range hides[cause] {
				delete(by, effect)
			}
		}
	}
	if len(by) == 0 {
		return []Finding{found("engine-healthy", name, "")}
	}
	return slices.Collect(maps.Values(by))
}

func judgeIndex(e *evidence) (all []Finding) {
	if len(e.metrics) == 0 {
		return nil
	}
	bytes, limit := sum(e.metrics, "inferencecache_index_bytes", "")[""], sum(e.metrics, "inferencecache_index_bytes_limit", "")[""]
	if limit > 0 && bytes > nearBudget*limit {
		all = append(all, found("index-near-budget", "", fmt.Sprintf("%.0f of %.0f MiB", bytes/(1<<20), limit/(1<<20))))
	}
	if e.readable {
		for i := range e.engines {
			if f, differs := disagree(e, &e.engines[i].follower); differs {
				all = append(all, f)
			}
		}
	}
	if len(all) == 0 {
		all = append(all, found("index-fits", "", ""))
	}
	if n := sum(e.metrics, "inferencecache_replicas_quarantined", "")[""]; n > 0 {
		return append(all, found("replica-quarantined", "", fmt.Sprintf("%.0f replicas", n)))
	}
	return append(all, found("reports-true", "", ""))
}

// disagree compares what a subscriber holds with what the server knows of it,
// once the subscriber is sure to have said it.
func disagree(e *evidence, f *follower) (Finding, bool) {
	r, known := e.replicas[replicaKey{f.Tenant, f.Replica}]
	if f.State != "exact" || slices.ContainsFunc(f.Servers, func(s told) bool { return !s.Settled }) {
		return Finding{}, false
	}
	held := 0
	for _, n := range f.Held {
		held += n
	}
	apart := max(held-int(r.PrefixCount), int(r.PrefixCount)-held)
	if !known && held == 0 || apart <= countSlackBlocks || float64(apart) <= countSlack*float64(held) {
		return Finding{}, false
	}
	return found("index-disagrees", f.Tenant+"/"+f.Replica, fmt.Sprintf("%d blocks there, %d in the index", held, r.PrefixCount)), true
}

// judgeLookups finds models that gateways ask for and nobody reports.
func judgeLookups(e *evidence) []Finding {
	asked := sum(e.metrics, "inferencecache_lookup_route_calls_total", "model")
	held := sum(e.metrics, "inferencecache_index_entries", "model")
	var unknown, known []string
	for model, n := range held {
		if n > 0 {
			known = append(known, model)
		}
	}
	for model, n := range asked {
		if n >= minLookups && held[model] == 0 && model != "" {
			unknown = append(unknown, model)
		}
	}
	slices.Sort(unknown)
	slices.Sort(known)
	switch {
	case len(asked) == 0:
		return nil
	case len(unknown) > 0 && len(known) > 0:
		return []Finding{found("model-unknown", "", fmt.Sprintf("asked for: %s; reported: %s", strings.Join(unknown, ", "), strings.Join(known, ", ")))}
	}
	return []Finding{found("models-known", "", "")}
}

func judgeCertificate(ends, now time.Time) []Finding {
	left := ends.Sub(now)
	switch {
	case ends.IsZero():
		return nil
	case left <= 0:
		return []Finding{found("certificate-expired", "", ends.UTC().Format(time.RFC3339))}
	case left < expiresSoon:
		return []Finding{found("certificate-expires", "", ends.UTC().Format(time.RFC3339), int(left.Hours()/24))}
	}
	return []Finding{found("certificate-valid", "", ends.UTC().Format(time.RFC3339))}
}

func judgeParity(p *parity) []Finding {
	switch {
	case p == nil:
		return nil
	case p.trouble != "":
		return []Finding{found("parity-unknown", "", p.trouble)}
	case len(p.different) > 0:
		return []Finding{found("token-parity", "", p.different[0], len(p.different), p.compared)}
	}
	return []Finding{found("tokens-equal", "", "", p.compared)}
}
