package reconcile

import (
	"log/slog"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	ctrl "sigs.k8s.io/controller-runtime"

	"inferencecache.io/inferencecache/api/v1alpha1"
	"inferencecache.io/inferencecache/internal/loops"
	"inferencecache.io/inferencecache/internal/policy"
	"inferencecache.io/inferencecache/internal/status"
)

// pusher is what the loops say of themselves.
type pusher struct {
	newest policy.Document
	push   loops.PushState
	pull   loops.PullState
	probe  loops.ProbeState
}

func (p *pusher) Push(d policy.Document) error { p.newest = d; return nil }
func (p *pusher) State() loops.PushState       { return p.push }

type pull struct{ *pusher }

func (p pull) State() loops.PullState { return p.pull }

type probe struct{ *pusher }

func (p probe) State() loops.ProbeState { return p.probe }

// acks has a server acknowledge the newest document.
func (p *pusher) acks(server string) {
	p.push.Revision = "r"
	p.push.Servers = append(p.push.Servers, loops.PushedServer{ServerState: loops.ServerState{Name: server}, Revision: "r", Sources: p.newest.Sources})
}

func TestPoliciesTellWhoServesByThem(t *testing.T) {
	t.Parallel()
	at := func(name string) metav1.ObjectMeta {
		return metav1.ObjectMeta{Namespace: "team", Name: name, Generation: 4}
	}
	w := newWorld(t, &v1alpha1.CachePolicy{ObjectMeta: at("a")}, &v1alpha1.CachePolicy{ObjectMeta: at("b")},
		&v1alpha1.CacheTenant{ObjectMeta: at("own"), Spec: v1alpha1.CacheTenantSpec{Quota: &v1alpha1.TenantQuota{MaxIndexEntries: new(int64(5))}}},
		&v1alpha1.CacheTenant{ObjectMeta: at("granted"), Spec: v1alpha1.CacheTenantSpec{TenantID: "other"}},
		&v1alpha1.CacheTenant{ObjectMeta: at("stolen"), Spec: v1alpha1.CacheTenantSpec{TenantID: "victim"}},
		&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "team", Annotations: map[string]string{v1alpha1.AnnotationTenantGrants: "other"}}})
	p := &pusher{}
	r := &policies{client: w.client, pusher: p, heard: NewHeard(), log: slog.New(slog.DiscardHandler)}
	reconcile := func() {
		t.Helper()
		if _, err := r.Reconcile(t.Context(), ctrl.Request{}); err != nil {
			t.Fatal(err)
		}
	}
	want := func(what string, conditions []metav1.Condition, kind, reason string) {
		t.Helper()
		if c := meta.FindStatusCondition(conditions, kind); c == nil || c.Reason != reason {
			t.Errorf("%s: %s is %+v, want %s", what, kind, c, reason)
		}
	}
	policyOf := func(name string) v1alpha1.CachePolicyStatus {
		var o v1alpha1.CachePolicy
		w.get(&o, name)
		return o.Status
	}
	tenantOf := func(name string) v1alpha1.CacheTenantStatus {
		var o v1alpha1.CacheTenant
		w.get(&o, name)
		return o.Status
	}
	reconcile()
	if len(p.newest.Policies) != 1 || len(p.newest.Tenants) != 1 {
		t.Errorf("pushed %+v", p.newest)
	}
	want("chosen", policyOf("a").Conditions, v1alpha1.ConditionAccepted, v1alpha1.ReasonPolicyChosen)
	want("no server", policyOf("a").Conditions, v1alpha1.ConditionProgrammed, v1alpha1.ReasonNoServers)
	want("second", policyOf("b").Conditions, v1alpha1.ConditionAccepted, v1alpha1.ReasonPolicyShadowed)
	want("second", policyOf("b").Conditions, v1alpha1.ConditionProgrammed, v1alpha1.ReasonPolicyNotEffective)
	want("stolen", tenantOf("stolen").Conditions, v1alpha1.ConditionReady, v1alpha1.ReasonTenantNotGranted)
	want("not asked", tenantOf("own").Conditions, v1alpha1.ConditionReady, v1alpha1.ReasonUnreachable)

	p.acks("s-0")
	p.push.Servers = append(p.push.Servers, loops.PushedServer{ServerState: loops.ServerState{Name: "s-1", Problem: "answered 403", Refused: true}})
	r.heard.Receive(t.Context(), loops.Pulled{Snapshot: status.Snapshot{Tenants: []status.Tenant{{TenantID: "team", IndexEntries: 6}, {TenantID: "victim", IndexEntries: 9}}}})
	reconcile()
	a := policyOf("a")
	want("one refuses", a.Conditions, v1alpha1.ConditionProgrammed, v1alpha1.ReasonServersRefused)
	if len(a.Servers) != 2 || a.Servers[0].Generation != 4 || a.Servers[1].Generation != 0 || a.Servers[1].Message == "" {
		t.Errorf("servers %+v", a.Servers)
	}
	want("over quota", tenantOf("own").Conditions, v1alpha1.ConditionQuotaExceeded, v1alpha1.ReasonOverEntryBudget)
	want("no quota", tenantOf("granted").Conditions, v1alpha1.ConditionQuotaExceeded, v1alpha1.ReasonNoQuota)
	if n := tenantOf("granted").IndexEntries; n == nil || *n != 0 {
		t.Error("a tenant that servers know nothing of holds 0 entries")
	}
	if tenantOf("stolen").IndexEntries != nil {
		t.Error("who has no right to a tenant sees how much it holds")
	}

	p.push.Servers = nil
	p.acks("s-0")
	reconcile()
	want("all serve", policyOf("a").Conditions, v1alpha1.ConditionProgrammed, v1alpha1.ReasonServersProgrammed)
	w.wrote()
	reconcile()
	w.quiet("nothing happens")
}

func TestIndexShowsWhatServersHold(t *testing.T) {
	t.Parallel()
	w := newWorld(t, backend(hostOnly), engine("e-0", nil), engine("e-1", nil))
	p := &pusher{}
	r := &index{client: w.client, heard: NewHeard(), pusher: p, loops: Loops{Pull: pull{p}, Probe: probe{p}}}
	reconcile := func() (have v1alpha1.CacheIndex) {
		t.Helper()
		if _, err := r.Reconcile(t.Context(), ctrl.Request{}); err != nil {
			t.Fatal(err)
		}
		w.must(w.client.Get(t.Context(), types.NamespacedName{Name: v1alpha1.CacheIndexName}, &have))
		return have
	}
	reason := func(x v1alpha1.CacheIndex, kind string) string {
		if c := meta.FindStatusCondition(x.Status.Conditions, kind); c != nil {
			return c.Reason
		}
		return ""
	}
	if x := reconcile(); reason(x, v1alpha1.ConditionSnapshotsRead) != v1alpha1.ReasonNoServers || x.Status.Prefixes != nil {
		t.Errorf("no servers: %+v", x.Status)
	}
	p.acks("s-0")
	p.pull.Servers = []loops.ServerState{{Name: "s-0"}, {Name: "s-1", Problem: "away"}}
	p.probe.Servers = []loops.ProbedServer{{Name: "s-0", Verdict: loops.Healthy}}
	event := time.Now().Add(-time.Minute)
	hear := func(prefixes, hits, queries int64, event time.Time) {
		r.heard.Receive(t.Context(), loops.Pulled{At: time.Now(), Answered: []string{"s-0"}, Prefixes: map[string]int64{"s-0": 9}, Snapshot: status.Snapshot{
			TotalPrefixes: 9, Tenants: []status.Tenant{{TenantID: "team", IndexEntries: 9}},
			Replicas: []status.Replica{
				{ReplicaID: "e-0", Tenant: "team", PrefixCount: prefixes, LastEventAt: event, LastUpdate: event, StatsReported: true, HitRate: 0.5, T2HitTokens: hits, T2QueryTokens: queries},
				{ReplicaID: "e-1", Tenant: "elsewhere", PrefixCount: 100, LastUpdate: event},
			}}})
	}
	hear(7, 0, 0, event)
	x := reconcile()
	if reason(x, v1alpha1.ConditionSnapshotsRead) != v1alpha1.ReasonSomeServers || reason(x, v1alpha1.ConditionPolicyPushed) != v1alpha1.ReasonAllServers || reason(x, v1alpha1.ConditionSelfTest) != v1alpha1.ReasonPassed {
		t.Errorf("conditions %+v", x.Status.Conditions)
	}
	if s := x.Status; s.Prefixes.Summary.Total != 9 || len(s.Replicas) != 2 || *s.Replicas[0].HitRate != "0.50" || s.Replicas[1].HitRate != nil || *s.Servers[0].Prefixes != 9 || s.Servers[1].Reachable {
		t.Errorf("status %+v", s)
	}
	part := w.llama().Status.IndexParticipation
	if part == nil || part.PrefixCount != 7 || part.LastEventAt == nil || part.T2HitRate != nil {
		t.Fatalf("participation %+v", part)
	}
	w.wrote()
	hear(7, 0, 0, event.Add(9*time.Minute)) // heartbeats
	reconcile()
	w.quiet("nothing but heartbeats")
	hear(7, 0, 0, event.Add(10*time.Minute))
	reconcile()
	if writes := w.wrote(); len(writes) != 1 {
		t.Errorf("long after the last event that was written: wrote %q", writes)
	}
	hear(8, 30, 40, event)
	reconcile()
	if part := w.llama().Status.IndexParticipation; part.PrefixCount != 8 || part.T2HitRate == nil || *part.T2HitRate != "0.75" {
		t.Errorf("participation %+v", part)
	}
}
