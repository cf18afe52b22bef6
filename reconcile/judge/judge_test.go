package judge

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"inferencecache.io/inferencecache/api/v1alpha1"
	"inferencecache.io/inferencecache/reconcile/render"
	"inferencecache.io/inferencecache/webhook/inject"
)

var start = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)

const wiring = "aaaa"

// world is one backend and what is observed of it, as time goes by.
type world struct {
	t *testing.T
	o Observed
}

func newWorld(t *testing.T, spec func(*v1alpha1.CacheBackend)) *world {
	b := &v1alpha1.CacheBackend{ObjectMeta: metav1.ObjectMeta{Namespace: "team", Name: "llama", UID: "u1", Generation: 1}}
	b.Spec.Runtime, b.Spec.CacheDomain = v1alpha1.RuntimeVLLM, "llama"
	spec(b)
	return &world{t, Observed{Backend: b, Now: start, Wiring: wiring}}
}

func hostOnly(b *v1alpha1.CacheBackend) {
	b.Spec.LMCache = &v1alpha1.LMCacheSpec{Topology: v1alpha1.PodLocal, PodLocal: &v1alpha1.PodLocalSpec{
		Server: v1alpha1.PodLocalServer{L1Capacity: resource.MustParse("1Gi")}}}
}

func nodeLocal(b *v1alpha1.CacheBackend) {
	b.Spec.LMCache = &v1alpha1.LMCacheSpec{Topology: v1alpha1.NodeLocal, NodeLocal: &v1alpha1.NodeLocalSpec{
		Server: v1alpha1.NodeLocalServer{L1Capacity: resource.MustParse("1Gi"), MaxGPUWorkers: 2}}}
}

func withRemote(o v1alpha1.Ownership) func(*v1alpha1.CacheBackend) {
	return func(b *v1alpha1.CacheBackend) {
		hostOnly(b)
		b.Spec.RemoteStorage = &v1alpha1.RemoteStorageSpec{Provider: v1alpha1.ProviderRedis, Ownership: o}
		if o == v1alpha1.External {
			b.Spec.RemoteStorage.Endpoint = "redis.example:6379"
		}
	}
}

func eventsOnly(b *v1alpha1.CacheBackend) { b.Spec.Integration.Mode = v1alpha1.ModeEventsOnly }

func hiCache(b *v1alpha1.CacheBackend) {
	b.Spec.Runtime, b.Spec.Type = v1alpha1.RuntimeSGLang, v1alpha1.TypeHiCache
}

// look judges, keeps the status as the next one's past, and returns conditions
// as "Type=Status/Reason".
func (w *world) look() map[string]string {
	w.t.Helper()
	w.o.Backend.Status = Backend(w.o).Status
	all := map[string]string{}
	for _, c := range w.o.Backend.Status.Conditions {
		all[c.Type] = fmt.Sprintf("%s/%s", c.Status, c.Reason)
	}
	if again := Backend(w.o); !cmp.Equal(again.Status, w.o.Backend.Status) {
		w.t.Errorf("the same observation gives another status: %s", cmp.Diff(w.o.Backend.Status, again.Status))
	}
	return all
}

// want checks some conditions; "-" is absent.
func (w *world) want(what string, pairs ...string) {
	w.t.Helper()
	all := w.look()
	for _, pair := range pairs {
		kind, want, _ := strings.Cut(pair, "=")
		have, ok := all[kind]
		if want == "-" && ok || want != "-" && have != want {
			w.t.Errorf("%s: %s is %q, want %q", what, kind, have, want)
		}
	}
}

func (w *world) pass(d time.Duration) { w.o.Now = w.o.Now.Add(d) }

// hear has servers tell of an event now.
func (w *world) hear() { w.o.Heard = Heard{Known: true, Last: w.o.Now} }

// engine adds a wired and ready pod with its server; edit changes it.
func (w *world) engine(name string, edit func(*corev1.Pod)) *corev1.Pod {
	p := corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "team", UID: types.UID(name), Annotations: map[string]string{
		v1alpha1.AnnotationInjectedBy: "team/llama", v1alpha1.AnnotationInjectedByUID: "u1", v1alpha1.AnnotationWiringHash: wiring}}}
	p.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}}
	p.Status.InitContainerStatuses = []corev1.ContainerStatus{running(v1alpha1.ContainerMPServer, start)}
	p.Status.ContainerStatuses = []corev1.ContainerStatus{running("vllm", start.Add(time.Second)), running(v1alpha1.ContainerSubscriber, start)}
	if edit != nil {
		edit(&p)
	}
	w.o.Pods = append(w.o.Pods, p)
	return &w.o.Pods[len(w.o.Pods)-1]
}

func running(name string, since time.Time) corev1.ContainerStatus {
	return corev1.ContainerStatus{Name: name, Ready: true, State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{StartedAt: metav1.NewTime(since)}}}
}

func notReady(p *corev1.Pod) {
	p.Status.Conditions = nil
	p.Status.InitContainerStatuses = nil
	p.Status.ContainerStatuses = nil
}

func unwired(p *corev1.Pod) { p.Annotations = nil }

// server adds the LMCache server of a node.
func (w *world) server(node string, edit func(*corev1.Pod)) {
	w.t.Helper()
	engine := &corev1.Pod{Spec: corev1.PodSpec{NodeName: node}}
	p, err := render.NodeServer(w.o.Backend, node, engine, render.Options{Inject: inject.Options{LMCacheImage: "x"}})
	if err != nil {
		w.t.Fatal(err)
	}
	p.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}}
	p.Status.ContainerStatuses = []corev1.ContainerStatus{running(v1alpha1.ContainerMPServer, start)}
	if edit != nil {
		edit(p)
	}
	w.o.Servers = append(w.o.Servers, *p)
}

func TestModesPublishTheirConditions(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		spec func(*v1alpha1.CacheBackend)
		want []string
	}{
		"host only":   {hostOnly, []string{"ConnectorReady", "Degraded", "EngineUnwired", "EventsFresh", "Progressing", "Ready"}},
		"managed":     {withRemote(v1alpha1.Managed), []string{"ConnectorReady", "Degraded", "EngineUnwired", "EventsFresh", "Progressing", "Ready", "RemoteStorageReady"}},
		"external":    {withRemote(v1alpha1.External), []string{"ConnectorReady", "Degraded", "EngineUnwired", "EventsFresh", "Progressing", "Ready", "RemoteStorageReady"}},
		"events only": {eventsOnly, []string{"Degraded", "EngineUnwired", "EventsFresh", "Progressing", "Ready"}},
		"HiCache":     {hiCache, []string{"Degraded", "EngineUnwired", "EventsFresh", "Progressing", "Ready"}},
	} {
		w := newWorld(t, c.spec)
		var have []string
		for kind := range w.look() {
			have = append(have, kind)
		}
		slices.Sort(have)
		if diff := cmp.Diff(c.want, have); diff != "" {
			t.Errorf("%s: %s", name, diff)
		}
		w.want(name, "Ready=False/NoEnginePods", "Degraded=False/NotDegraded", "EventsFresh=Unknown/NoEnginePods")
	}
}

func TestHostOnlyBecomesReadyAndFallsBack(t *testing.T) {
	t.Parallel()
	w := newWorld(t, hostOnly)
	w.o.Heard.Known = true
	w.want("no pods", "Ready=False/NoEnginePods", "Progressing=False/NoEnginePods")
	if w.o.Backend.Status.EngineSelectorMessage == "" {
		t.Error("no pods: nothing says how to label them")
	}
	e := w.engine("a", notReady)
	w.want("starting", "ConnectorReady=False/MPServersNotReady", "Ready=False/MPServersNotReady", "Progressing=True/MPServersNotReady", "Degraded=False/NotDegraded")
	w.o.Pods = nil
	e = w.engine("a", nil)
	w.want("runs", "ConnectorReady=True/ConnectorReady", "Ready=False/AwaitingFirstKVEvent", "Progressing=True/AwaitingFirstKVEvent", "EngineUnwired=False/AllPodsWired")
	w.hear()
	w.want("an event", "Ready=True/ConnectorReady", "Progressing=False/Synced", "EventsFresh=True/KVEventsObserved")
	if s := w.o.Backend.Status; s.FirstKVEventObservedAt == nil || s.ObservedGeneration != 1 || *s.MatchedEnginePods != 1 || s.Connector.CoveredEnginePods != 1 {
		t.Errorf("status %+v", s)
	}
	e.Annotations[v1alpha1.AnnotationWiringHash] = "older"
	w.want("outdated", "Ready=True/ConnectorReady")
	if s := w.o.Backend.Status; *s.OutdatedEnginePods != 1 || s.Connector.EnginePodCoverage[0].Reason != v1alpha1.ReasonOutdated {
		t.Errorf("outdated: %+v", s.Connector)
	}
	e.Status.InitContainerStatuses[0] = corev1.ContainerStatus{Name: v1alpha1.ContainerMPServer, RestartCount: 3,
		State: corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: "CrashLoopBackOff"}}}
	w.want("dead server", "Ready=False/MPServersNotReady", "Degraded=True/MPServersNotReady", "Progressing=False/MPServersNotReady")
	e.Status.InitContainerStatuses[0] = running(v1alpha1.ContainerMPServer, start.Add(time.Hour))
	w.want("it restarted under the engine", "Ready=False/EngineNotRegistered", "Degraded=True/EngineNotRegistered")
}

func TestUnwiredPodsAreFound(t *testing.T) {
	t.Parallel()
	w := newWorld(t, hostOnly)
	w.hear()
	w.engine("a", nil)
	w.engine("b", func(p *corev1.Pod) {
		p.Annotations = map[string]string{v1alpha1.AnnotationInjectSkipped: v1alpha1.SkipForeignConnector}
	})
	w.engine("c", func(p *corev1.Pod) { p.Annotations[v1alpha1.AnnotationInjectedByUID] = "an older backend" })
	w.want("two are not wired", "EngineUnwired=True/PodsUnwired", "Ready=Unknown/ConnectorInjectionUnverified")
	if c := w.o.Backend.Status.Connector; c.EnginePodCoverage[1].Reason != v1alpha1.SkipForeignConnector || c.UncoveredEnginePods != 2 {
		t.Errorf("coverage %+v", c)
	}
	w.o.Pods = nil
	w.engine("a", nil)
	w.engine("b", func(p *corev1.Pod) {
		p.Annotations = map[string]string{v1alpha1.AnnotationSkipInject: "true", v1alpha1.AnnotationInjectSkipped: v1alpha1.SkipAnnotation}
	})
	w.engine("c", func(p *corev1.Pod) { unwired(p); p.DeletionTimestamp = &metav1.Time{Time: start} })
	w.want("opted out and ending pods do not count", "EngineUnwired=False/AllPodsWired", "Ready=True/ConnectorReady")
	if *w.o.Backend.Status.MatchedEnginePods != 3 {
		t.Errorf("%d pods matched", *w.o.Backend.Status.MatchedEnginePods)
	}
}

func TestEventsGoStaleAndFreshWithHysteresis(t *testing.T) {
	t.Parallel()
	w := newWorld(t, hostOnly)
	w.engine("a", nil)
	w.o.Heard.Known = true
	w.want("nothing heard", "Ready=False/AwaitingFirstKVEvent")
	w.pass(5*time.Minute - time.Second)
	w.want("still in time", "Ready=False/AwaitingFirstKVEvent", "Degraded=False/NotDegraded")
	w.pass(time.Second)
	w.want("out of time", "Ready=False/NoKVEventsObserved", "Degraded=True/NoKVEventsObserved")
	w.hear()
	w.want("late but well", "Ready=True/ConnectorReady", "Degraded=False/NotDegraded")
	w.pass(2*time.Minute - time.Second)
	w.want("silent, not for long", "Ready=True/ConnectorReady")
	w.pass(time.Second)
	w.want("stale", "Ready=False/KVEventsStale", "Degraded=True/KVEventsStale", "EventsFresh=False/KVEventsStale")
	w.o.Heard.Last = w.o.Now.Add(-time.Minute)
	w.want("an event, but not of now", "EventsFresh=False/KVEventsStale")
	w.o.Heard.Last = w.o.Now.Add(-59 * time.Second)
	w.want("an event of now", "EventsFresh=True/KVEventsObserved", "Ready=True/ConnectorReady")
	w.o.Heard = Heard{}
	w.pass(time.Hour)
	w.want("a new controller has not asked yet", "EventsFresh=True/KVEventsObserved", "Ready=True/ConnectorReady")
}

func TestEnginesThatStartAnewGetTheTimeOfTheFirst(t *testing.T) {
	t.Parallel()
	w := newWorld(t, hostOnly)
	w.engine("a", nil)
	w.hear()
	w.want("runs", "Ready=True/ConnectorReady")
	w.o.Pods = nil
	w.pass(time.Hour)
	w.want("scaled to zero", "Ready=False/NoEnginePods", "Degraded=False/NotDegraded")
	w.engine("b", nil)
	w.want("back", "Ready=True/ConnectorReady")
	w.pass(5 * time.Minute)
	w.want("back, and silent", "Ready=False/KVEventsStale")
}

func TestEventsMayBeTakenOutOfReady(t *testing.T) {
	t.Parallel()
	w := newWorld(t, hostOnly)
	w.o.Backend.Annotations = map[string]string{v1alpha1.AnnotationRequireKVEvents: "false"}
	w.o.Heard.Known = true
	w.engine("a", nil)
	w.want("not required", "Ready=True/ConnectorReady", "EventsFresh=Unknown/KVEventsNotRequired")
	w.pass(time.Hour)
	w.want("nor later", "Ready=True/ConnectorReady", "Degraded=False/NotDegraded")
}

func TestManagedStorage(t *testing.T) {
	t.Parallel()
	w := newWorld(t, withRemote(v1alpha1.Managed))
	w.engine("a", nil)
	w.hear()
	w.want("not there", "RemoteStorageReady=Unknown/RemoteStoragePending", "Ready=True/ConnectorReady", "Progressing=True/RemoteStoragePending")
	w.o.Remote.Conflict = "Service llama-l3"
	w.o.Backend.Generation = 2
	w.want("taken", "RemoteStorageReady=False/NameConflict", "Degraded=True/NameConflict")
	if w.o.Backend.Status.ObservedGeneration != 1 {
		t.Error("what was not applied counts as observed")
	}
	w.o.Remote = Remote{MissingSecret: "Secret own"}
	w.want("no password", "RemoteStorageReady=False/RemoteSecretMissing")
	d := &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Name: "llama-l3", Generation: 1}}
	w.o.Remote = Remote{Deployment: d, Service: &corev1.Service{}, Credentials: "c1"}
	w.want("created", "RemoteStorageReady=Unknown/RemoteStoragePending")
	if s := w.o.Backend.Status.RemoteStorage; s.Endpoint != "llama-l3.team.svc.cluster.local:6379" || s.CredentialsHash != "c1" {
		t.Errorf("%+v", s)
	}
	d.Status = appsv1.DeploymentStatus{ObservedGeneration: 1, UpdatedReplicas: 1, AvailableReplicas: 1}
	w.want("runs", "RemoteStorageReady=True/RemoteStorageReady", "Ready=True/ConnectorReady", "Progressing=False/Synced")
	d.Status.AvailableReplicas = 0
	d.Status.Conditions = []appsv1.DeploymentCondition{{Type: appsv1.DeploymentProgressing, Status: corev1.ConditionTrue, Reason: "NewReplicaSetAvailable"}}
	w.want("died", "RemoteStorageReady=False/RemoteStorageUnavailable", "Ready=True/ConnectorReady", "Degraded=True/RemoteStorageUnavailable")
	w.o.Backend.Spec.Integration.FailOpen = new(false)
	w.want("and is required", "Ready=False/RemoteStorageUnavailable")
}

func TestExternalStorageIsDialled(t *testing.T) {
	t.Parallel()
	w := newWorld(t, withRemote(v1alpha1.External))
	w.engine("a", nil)
	w.hear()
	w.want("not dialled", "RemoteStorageReady=Unknown/RemoteStoragePending")
	w.o.Remote.Dial = Dial{Done: true}
	w.want("answers", "RemoteStorageReady=True/RemoteStorageReady", "Ready=True/ConnectorReady")
	w.o.Remote.Dial = Dial{}
	w.want("a new controller has not dialled yet", "RemoteStorageReady=True/RemoteStorageReady")
	w.o.Remote.Dial = Dial{Done: true, Problem: "dial: refused"}
	w.want("away", "RemoteStorageReady=False/RemoteStorageUnreachable", "Ready=True/ConnectorReady", "Degraded=True/RemoteStorageUnreachable")
	w.o.Backend.Spec.RemoteStorage.Endpoint = "nonsense"
	w.want("no endpoint", "RemoteStorageReady=False/ExternalEndpointInvalid")
	w.o.Backend.Spec.RemoteStorage.Endpoint = ""
	w.want("none", "RemoteStorageReady=False/ExternalEndpointMissing")
}

func TestModesWithoutServers(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		spec   func(*v1alpha1.CacheBackend)
		reason string
	}{{eventsOnly, "EventsOnlyActive"}, {hiCache, "HiCacheReady"}} {
		w := newWorld(t, c.spec)
		w.hear()
		w.engine("a", notReady)
		w.want(c.reason, "Ready=False/EnginesNotReady", "Progressing=True/EnginesNotReady")
		w.o.Pods = nil
		w.engine("a", nil)
		w.want(c.reason, "Ready=True/"+c.reason)
		w.engine("b", unwired)
		w.want(c.reason, "Ready=Unknown/ConnectorInjectionUnverified", "EngineUnwired=True/PodsUnwired")
		w.o.Backend.Spec.Integration.KVEvents = v1alpha1.KVEventsExternal
		if w.o.Backend.EventsOnly() {
			w.want("nothing is wired", "Ready=True/EventsOnlyActive", "EngineUnwired=-")
		}
	}
}

func TestNodeLocalCoverage(t *testing.T) {
	t.Parallel()
	on := func(node string) func(*corev1.Pod) { return func(p *corev1.Pod) { p.Spec.NodeName = node } }
	w := newWorld(t, nodeLocal)
	w.hear()
	w.engine("a", on(""))
	w.want("no node", "ConnectorReady=False/NodeLocalServerPoolPending", "Progressing=True/NodeLocalServerPoolPending")
	w.o.Pods = nil
	w.engine("a", on("n1"))
	w.want("no server", "ConnectorReady=False/NodeLocalServerPoolPending")
	w.server("n1", nil)
	w.want("served", "ConnectorReady=True/ConnectorReady", "Ready=True/ConnectorReady")
	if c := w.o.Backend.Status.Connector; c.DesiredServers != 1 || c.ReadyServers != 1 {
		t.Errorf("%+v", c)
	}
	w.server("n1", func(p *corev1.Pod) { p.Name += "-twin" })
	w.want("two servers", "ConnectorReady=False/AmbiguousNodeLocalServers", "Degraded=True/AmbiguousNodeLocalServers")
	w.o.Servers = w.o.Servers[:1]
	w.engine("b", on("n1"))
	w.engine("c", on("n1"))
	w.want("crowded", "ConnectorReady=False/NodeLocalWorkerCapacityExceeded")
	w.o.Pods = w.o.Pods[:1]
	w.o.Servers[0].Status = corev1.PodStatus{Conditions: []corev1.PodCondition{{Type: corev1.PodScheduled, Reason: corev1.PodReasonUnschedulable,
		Message: "0/1 nodes are available: 1 node(s) didn't have free ports for the requested pod ports."}}}
	w.want("no port", "ConnectorReady=False/NodeLocalHostPortConflict", "Degraded=True/NodeLocalHostPortConflict")
	w.o.Servers = nil
	w.server("n1", func(p *corev1.Pod) { p.Annotations[v1alpha1.AnnotationNodeSHMName] = "another" })
	w.want("a server that does not fit is none", "ConnectorReady=False/NodeLocalServerPoolPending")
	w.o.Forbidden = "not here"
	w.want("forbidden", "ConnectorReady=False/NodeLocalNotAllowed")
}

func TestKernelChecks(t *testing.T) {
	t.Parallel()
	checked := func(strict, message string, code int32) func(*corev1.Pod) {
		return func(p *corev1.Pod) {
			p.Spec.InitContainers = []corev1.Container{{Name: v1alpha1.ContainerKernelCheck, Env: []corev1.EnvVar{{Name: KernelStrictEnv, Value: strict}}}}
			status := corev1.ContainerStatus{Name: v1alpha1.ContainerKernelCheck}
			if message != "" {
				status.State.Terminated = &corev1.ContainerStateTerminated{Message: message, ExitCode: code}
			}
			p.Status.InitContainerStatuses = append(p.Status.InitContainerStatuses, status)
		}
	}
	w := newWorld(t, hostOnly)
	w.hear()
	w.engine("a", checked("0", "OK", 0))
	w.want("ok", "EngineKernelsHealthy=True/KernelsHealthy")
	w.engine("b", checked("0", "", 0))
	w.want("pending", "EngineKernelsHealthy=Unknown/KernelCheckPending")
	w.engine("c", checked("0", "Killed", 137))
	w.want("no answer", "EngineKernelsHealthy=Unknown/KernelCheckError")
	w.engine("d", checked("0", "FAIL: undefined symbol", 0))
	w.want("fails", "EngineKernelsHealthy=False/KernelLoadFailed", "Ready=True/ConnectorReady")
	w.engine("e", checked("1", "FAIL: undefined symbol", 1))
	w.want("fails strictly", "Ready=False/EngineKernelDegraded", "Degraded=True/EngineKernelDegraded")
}

func TestAdvice(t *testing.T) {
	t.Parallel()
	w := newWorld(t, hostOnly)
	w.hear()
	e := w.engine("a", nil)
	w.want("well", "EngineCompatibility=-", "T2Degraded=-")
	e.Status.ContainerStatuses[0].State = corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: "CrashLoopBackOff"}}
	w.o.Backend.Status.IndexParticipation = &v1alpha1.IndexParticipation{T2HitRate: new("0")}
	w.want("ill", "EngineCompatibility=False/InjectedEngineCrashLooping", "T2Degraded=True/T2ZeroHitRate")
	w.o.Backend.Status.IndexParticipation.T2HitRate = new("0.5")
	w.want("serving", "T2Degraded=False/T2Serving")
	w.o.Taken = "elder"
	w.want("domain of another", "Ready=False/DomainTaken", "Degraded=True/DomainTaken")
	w.o.Taken, w.o.Failed = "", "create Service: forbidden"
	w.want("not applied", "Progressing=True/ApplyFailed", "Degraded=True/ApplyFailed")
	w.o.Backend.DeletionTimestamp = &metav1.Time{Time: start}
	w.o.Failed = ""
	w.want("deleted", "Ready=False/Draining", "Progressing=True/Draining")
}

func TestCoverageIsBounded(t *testing.T) {
	t.Parallel()
	w := newWorld(t, hostOnly)
	w.hear()
	for i := range 1000 {
		w.engine(fmt.Sprintf("e-%04d", i), func(p *corev1.Pod) {
			if i == 900 {
				notReady(p)
			}
		})
	}
	w.look()
	c := w.o.Backend.Status.Connector
	if len(c.EnginePodCoverage) != maxCoverage || c.MatchedEnginePods != 1000 || c.CoveredEnginePods != 999 {
		t.Errorf("%d rows, %+v", len(c.EnginePodCoverage), c.MatchedEnginePods)
	}
	if !slices.ContainsFunc(c.EnginePodCoverage, func(e v1alpha1.EnginePodCoverage) bool { return e.Name == "e-0900" && !e.Covered }) {
		t.Error("the pod that is wrong is left out")
	}
}
