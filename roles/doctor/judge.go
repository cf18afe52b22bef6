package doctor

import (
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"
	"time"

	"inferencecache.io/inferencecache/internal/status"
	pb "inferencecache.io/inferencecache/proto/inferencecache/v1alpha1"
)

const (
	// nearBudget is the share of the index's budget from which on it is said to be
	// near it: it keeps back a sixteenth, so one that evicts is above 0.9.
	nearBudget = 0.9
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
	all = append(all, judgeFleet(e.fleet)...)
	all = append(all, judgeLookups(e.asked, e.indexed)...)
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
	case json.Unmarshal(a.body, new(status.Snapshot)) != nil:
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
	case down:
		add(found("api-silent", name, fmt.Sprintf("%s: %v", e.Engine, e.serves)))
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
	if len(by) == 0 {
		return []Finding{found("engine-healthy", name, "")}
	}
	return causes(slices.Collect(maps.Values(by)))
}

// causes leaves out what follows from another finding. What is left out itself
// hides too.
func causes(all []Finding) []Finding {
	hidden := map[string]bool{}
	for _, f := range all {
		for _, effect := range hides[f.ID] {
			hidden[effect] = true
		}
	}
	return slices.DeleteFunc(all, func(f Finding) bool { return hidden[f.ID] })
}

// judgeFleet looks at what the server makes of its index and of each replica.
func judgeFleet(fleet *pb.GetFleetResponse) (all []Finding) {
	if fleet == nil {
		return nil
	}
	bytes, limit := fleet.GetServer().GetIndexBytes(), fleet.GetServer().GetIndexBytesLimit()
	full := limit > 0 && float64(bytes) > nearBudget*float64(limit)
	if full {
		all = append(all, found("index-near-budget", "", fmt.Sprintf("%d of %d MiB", bytes>>20, limit>>20)))
	}
	quarantined := false
	for _, r := range fleet.GetReplicas() {
		name := r.GetTenantId() + "/" + r.GetReplicaId()
		if held, differs := disagrees(r); differs && !full { // evicting makes them differ
			all = append(all, found("index-disagrees", name, fmt.Sprintf("%d blocks there, %d in the index", held, r.GetIndexedBlocks())))
		}
		if a := r.GetAudit(); a.GetQuarantined() {
			quarantined = true
			all = append(all, found("replica-quarantined", name, fmt.Sprintf("%d of %d tokens found in %d outcomes", a.GetFoundTokens(), a.GetPromisedTokens(), a.GetOutcomes())))
		}
	}
	if !quarantined {
		all = append(all, found("reports-true", "", ""))
	}
	if !slices.ContainsFunc(all, func(f Finding) bool { return f.Check == checkIndex }) {
		all = append(all, found("index-fits", "", ""))
	}
	return all
}

// disagrees compares what a replica says to hold with what the index has of it,
// unless it has reported more since.
func disagrees(r *pb.FleetReplica) (held int64, differs bool) {
	h := r.GetHeld()
	if h == nil || r.GetStreamState() != pb.StreamState_STREAM_EXACT || r.GetChangedAgeMs() >= 0 && r.GetChangedAgeMs() < r.GetHeldAgeMs() {
		return 0, false
	}
	held = h.GetT1() + h.GetT2() + h.GetT3()
	apart := max(held-r.GetIndexedBlocks(), r.GetIndexedBlocks()-held)
	return held, apart > countSlackBlocks && float64(apart) > countSlack*float64(held)
}

// judgeLookups finds models that gateways ask for and nobody reports.
func judgeLookups(asked, held map[string]float64) []Finding {
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
