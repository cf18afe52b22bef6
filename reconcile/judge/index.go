package judge

import (
	"cmp"
	"slices"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"inferencecache.io/inferencecache/api/v1alpha1"
	"inferencecache.io/inferencecache/internal/loops"
	"inferencecache.io/inferencecache/internal/status"
)

// Bounds of the lists of a CacheIndex.
const (
	maxReplicas = 500
	maxTenants  = 500
)

// Loops is how the three loops over servers do.
type Loops struct {
	Pull  loops.PullState
	Push  loops.PushState
	Probe loops.ProbeState
}

// Index is the status of the CacheIndex. pulled nil: no server answered yet,
// and what was seen before stands. If only times differ from before, before is
// the answer: while nothing happens nothing is written.
func Index(before v1alpha1.CacheIndexStatus, pulled *loops.Pulled, l Loops, now metav1.Time) v1alpha1.CacheIndexStatus {
	s := *before.DeepCopy()
	for kind, v := range map[string]verdict{
		v1alpha1.ConditionSnapshotsRead: snapshotsRead(l.Pull),
		v1alpha1.ConditionPolicyPushed:  policyPushed(l.Push),
		v1alpha1.ConditionSelfTest:      selfTest(l.Probe),
	} {
		setCondition(&s.Conditions, 0, now, kind, v)
	}
	slices.SortFunc(s.Conditions, func(a, b metav1.Condition) int { return cmp.Compare(a.Type, b.Type) })
	s.Servers = indexServers(before.Servers, pulled, l.Pull)
	if pulled != nil {
		project(&s, pulled)
	}
	if equality.Semantic.DeepEqual(timeless(s), timeless(before)) {
		return before
	}
	s.LastUpdated = &now
	return s
}

// timeless is a status without the times that pass by themselves.
func timeless(s v1alpha1.CacheIndexStatus) v1alpha1.CacheIndexStatus {
	s = *s.DeepCopy()
	s.LastUpdated = nil
	for i := range s.Replicas {
		s.Replicas[i].LastUpdate = nil
	}
	return s
}

func snapshotsRead(p loops.PullState) verdict {
	var failing []string
	for _, s := range p.Servers {
		if s.Problem != "" {
			failing = append(failing, s.Name)
		}
	}
	switch {
	case len(p.Servers) == 0:
		return not(v1alpha1.ReasonNoServers, "no server is known: see the endpoints of the server's Service")
	case len(failing) == 0:
		return is(v1alpha1.ReasonAllServers, "every server's snapshot was read")
	case len(failing) < len(p.Servers):
		return not(v1alpha1.ReasonSomeServers, "no snapshot of "+names(failing)+": see the controller's log")
	}
	return not(v1alpha1.ReasonUnreachable, "no server's snapshot could be read: see the controller's log")
}

func policyPushed(p loops.PushState) verdict {
	var behind, refused []string
	for _, s := range p.Servers {
		if s.Revision != p.Revision {
			behind = append(behind, s.Name)
			if s.Refused {
				refused = append(refused, s.Name)
			}
		}
	}
	switch {
	case p.Revision == "":
		return unknown(v1alpha1.ReasonServersPending, "there is no policy set yet")
	case len(p.Servers) == 0:
		return not(v1alpha1.ReasonNoServers, "no server is known: see the endpoints of the server's Service")
	case len(refused) > 0:
		return not(v1alpha1.ReasonRefused, "refused by "+names(refused)+": see the controller's log")
	case len(behind) > 0:
		return not(v1alpha1.ReasonServersPending, "not acknowledged by "+names(behind))
	}
	return is(v1alpha1.ReasonAllServers, "every server has the newest policies")
}

func selfTest(p loops.ProbeState) verdict {
	var silent []string
	for _, s := range p.Servers {
		switch s.Verdict {
		case loops.Broken:
			return not(v1alpha1.ReasonFailed, "server "+s.Name+" fails stage "+s.Stage+": see the controller's log")
		case loops.Unknown:
			silent = append(silent, s.Name)
		}
	}
	switch {
	case len(p.Servers) == 0:
		return unknown(v1alpha1.ReasonNoServers, "no server is known: see the endpoints of the server's Service")
	case len(silent) > 0:
		return unknown(v1alpha1.ReasonUnreachable, "no answer from "+names(silent))
	}
	return is(v1alpha1.ReasonPassed, "every server reports, stores and finds through its RPC port")
}

// names writes the first few names.
func names(all []string) string {
	const most = 5
	all = slices.Sorted(slices.Values(all))
	if len(all) > most {
		return strings.Join(all[:most], ", ") + " and " + strconv.Itoa(len(all)-most) + " more"
	}
	return strings.Join(all, ", ")
}

func indexServers(before []v1alpha1.IndexServer, pulled *loops.Pulled, p loops.PullState) (rows []v1alpha1.IndexServer) {
	for _, s := range p.Servers[:min(len(p.Servers), maxServers)] {
		row := v1alpha1.IndexServer{Name: s.Name, Reachable: s.Problem == ""}
		if i := slices.IndexFunc(before, func(r v1alpha1.IndexServer) bool { return r.Name == s.Name }); i >= 0 {
			row.Prefixes = before[i].Prefixes
		}
		if pulled != nil {
			if n, ok := pulled.Prefixes[s.Name]; ok {
				row.Prefixes = &n
			}
		}
		rows = append(rows, row)
	}
	return rows
}

func project(s *v1alpha1.CacheIndexStatus, pulled *loops.Pulled) {
	s.Prefixes = &v1alpha1.IndexPrefixes{Summary: v1alpha1.IndexPrefixSummary{Total: pulled.Snapshot.TotalPrefixes}}
	s.ObservedServer = strings.Join(pulled.Answered[:min(len(pulled.Answered), maxServers)], ",")
	s.Replicas = nil
	total := int64(0)
	for _, r := range pulled.Snapshot.Replicas {
		if r.LastUpdate.IsZero() {
			continue
		}
		if total++; total > maxReplicas {
			continue
		}
		at := metav1.NewTime(r.LastUpdate.Truncate(time.Second))
		row := v1alpha1.IndexReplica{Tenant: r.Tenant, ID: r.ReplicaID, CacheMemoryBytes: r.CacheMemoryBytes, Pressure: rate(float64(r.Pressure)), LastUpdate: &at}
		if r.StatsReported {
			hit := rate(float64(r.HitRate))
			row.HitRate = &hit
		}
		s.Replicas = append(s.Replicas, row)
	}
	s.ReplicasTotal = &total
	s.Tenants = indexTenants(pulled.Snapshot.Tenants)
}

func indexTenants(all []status.Tenant) (rows []v1alpha1.IndexTenant) {
	all = slices.Clone(all)
	slices.SortFunc(all, func(a, b status.Tenant) int {
		return cmp.Or(cmp.Compare(b.IndexEntries, a.IndexEntries), cmp.Compare(a.TenantID, b.TenantID))
	})
	all = all[:min(len(all), maxTenants)]
	slices.SortFunc(all, func(a, b status.Tenant) int { return cmp.Compare(a.TenantID, b.TenantID) })
	for _, t := range all {
		row := v1alpha1.IndexTenant{ID: t.TenantID, IndexEntries: new(t.IndexEntries)}
		if t.HitRateReported {
			row.HitRate = new(rate(t.HitRate))
		}
		rows = append(rows, row)
	}
	return rows
}

// rate is a share of one with two decimals, so that noise is no change.
func rate(v float64) string {
	return strconv.FormatFloat(min(1, max(0, v)), 'f', 2, 64)
}

// Participation is what servers hold of a backend's engines.
type Participation struct {
	Prefixes int64
	Last     time.Time // of the newest event or heartbeat; zero: never
	Hits     int64     // tokens served by host tiers since engines started
	Queries  int64     // tokens asked of them
	Found    int       // engines that servers know
}

// Participate sums up what servers hold of a backend's pods, whose namespace is
// their tenant and whose names are replicas.
func Participate(pods []corev1.Pod, replicas map[string]status.Replica) (p Participation) {
	for i := range pods {
		r, ok := replicas[pods[i].Name]
		if !ok {
			continue
		}
		p.Found++
		p.Prefixes += r.PrefixCount
		p.Hits += r.T2HitTokens
		p.Queries += r.T2QueryTokens
		for _, at := range []time.Time{r.LastEventAt, r.LastUpdate} {
			if at.After(p.Last) {
				p.Last = at
			}
		}
	}
	return p
}

// lastEventStep is how far lastEventAt may lag behind while nothing else
// changes: engines send heartbeats for ever, and a write for each would never
// end. How fresh events are is EventsFresh's to say.
const lastEventStep = 10 * time.Minute

// Status is the index participation of a backend as it should be; hitRate nil: the host tier was
// not asked. The second result tells whether it differs from before.
func (p Participation) Status(before *v1alpha1.IndexParticipation, hitRate *string) (*v1alpha1.IndexParticipation, bool) {
	if before == nil && p.Found == 0 {
		return nil, false // nothing was ever known
	}
	s := &v1alpha1.IndexParticipation{PrefixCount: p.Prefixes, T2HitRate: hitRate}
	if before != nil {
		s.LastEventAt = before.LastEventAt
	}
	same := before != nil && equality.Semantic.DeepEqual(s, before)
	if !p.Last.IsZero() && (!same || s.LastEventAt == nil || p.Last.Sub(s.LastEventAt.Time) >= lastEventStep) {
		if at := metav1.NewTime(p.Last.Truncate(time.Second)); s.LastEventAt == nil || at.After(s.LastEventAt.Time) {
			s.LastEventAt, same = &at, false
		}
	}
	return s, !same
}
