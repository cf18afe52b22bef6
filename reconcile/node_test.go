package reconcile

import (
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"inferencecache.io/inferencecache/api/v1alpha1"
	"inferencecache.io/inferencecache/reconcile/render"
	"inferencecache.io/inferencecache/webhook/inject"
)

var noon = time.Date(2026, 1, 2, 12, 0, 0, 0, time.UTC)

// nodeServer is a server of backend b, as the cache has it.
func nodeServer(t *testing.T, b *v1alpha1.CacheBackend, node string, edit func(*corev1.Pod)) corev1.Pod {
	t.Helper()
	p, err := render.NodeServer(b, node, &corev1.Pod{}, render.Options{Inject: inject.Options{LMCacheImage: "lmcache"}})
	if err != nil {
		t.Fatal(err)
	}
	p.UID = "server-" + p.UID
	if edit != nil {
		edit(p)
	}
	return *p
}

func TestServersFollowEngines(t *testing.T) {
	t.Parallel()
	b := backend(onNodes)
	hash := inject.ServerHash(b, inject.Options{LMCacheImage: "lmcache"})
	on := func(node string) corev1.Pod {
		return *engine("e-"+node, func(p *corev1.Pod) { p.Spec.NodeName = node })
	}
	started := func(node string) corev1.Pod {
		e := on(node)
		e.Status.ContainerStatuses = []corev1.ContainerStatus{{Name: "vllm", State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{}}}}
		return e
	}
	idle := func(since time.Duration) func(*corev1.Pod) {
		return func(p *corev1.Pod) {
			p.Annotations[v1alpha1.AnnotationNodeIdleSince] = noon.Add(-since).Format(time.RFC3339)
		}
	}
	older := func(p *corev1.Pod) { p.Annotations[v1alpha1.AnnotationWiringHash] = "older" }
	ending := func(p *corev1.Pod) { p.DeletionTimestamp = &metav1.Time{Time: noon} }
	for name, c := range map[string]struct {
		engines, servers []corev1.Pod
		want             string
	}{
		"demand":                  {[]corev1.Pod{on("n1"), on("n2")}, nil, "create n1 n2"},
		"served":                  {[]corev1.Pod{on("n1")}, []corev1.Pod{nodeServer(t, b, "n1", nil)}, ""},
		"not scheduled":           {[]corev1.Pod{on("")}, nil, ""},
		"wired by another":        {[]corev1.Pod{*engine("x", func(p *corev1.Pod) { p.Spec.NodeName, p.Annotations = "n1", nil })}, nil, ""},
		"demand ends":             {nil, []corev1.Pod{nodeServer(t, b, "n1", nil)}, "idle n1"},
		"retained":                {nil, []corev1.Pod{nodeServer(t, b, "n1", idle(time.Minute))}, "again 4m0s"},
		"retained long enough":    {nil, []corev1.Pod{nodeServer(t, b, "n1", idle(5*time.Minute))}, "clean n1"},
		"demand returns":          {[]corev1.Pod{on("n1")}, []corev1.Pod{nodeServer(t, b, "n1", idle(time.Hour))}, "busy n1"},
		"twins":                   {[]corev1.Pod{on("n1")}, []corev1.Pod{nodeServer(t, b, "n1", nil), nodeServer(t, b, "n1", func(p *corev1.Pod) { p.Name += "x" })}, "remove n1"},
		"another identity":        {[]corev1.Pod{on("n1")}, []corev1.Pod{nodeServer(t, b, "n1", func(p *corev1.Pod) { p.Annotations[v1alpha1.AnnotationNodeSHMName] = "x" })}, "remove n1 again 5s"},
		"still ending":            {[]corev1.Pod{on("n1")}, []corev1.Pod{nodeServer(t, b, "n1", ending)}, "again 5s"},
		"memory being freed":      {[]corev1.Pod{on("n1")}, []corev1.Pod{*render.NodeCleaner(b, "n1", "lmcache")}, "again 5s"},
		"not ours":                {[]corev1.Pod{on("n1")}, []corev1.Pod{nodeServer(t, b, "n1", func(p *corev1.Pod) { p.OwnerReferences = nil })}, "create n1"},
		"older, engines wait":     {[]corev1.Pod{on("n1"), on("n2")}, []corev1.Pod{nodeServer(t, b, "n1", older), nodeServer(t, b, "n2", older)}, "remove n1"},
		"older, an engine runs":   {[]corev1.Pod{started("n1")}, []corev1.Pod{nodeServer(t, b, "n1", older)}, ""},
		"older, and no engine":    {nil, []corev1.Pod{nodeServer(t, b, "n1", older)}, "idle n1"},
		"failed":                  {[]corev1.Pod{on("n1")}, []corev1.Pod{nodeServer(t, b, "n1", func(p *corev1.Pod) { p.Status.Phase = corev1.PodFailed })}, "remove n1 again 5s"},
		"an engine that is going": {[]corev1.Pod{*engine("x", func(p *corev1.Pod) { p.Spec.NodeName = "n1"; ending(p) })}, nil, ""},
	} {
		p := planNodes(b, c.engines, c.servers, hash, noon)
		if diff := cmp.Diff(c.want, described(p)); diff != "" {
			t.Errorf("%s: %s", name, diff)
		}
	}
}

// described is a plan in words; waiting for retention to pass is left out where
// it begins.
func described(p nodePlan) string {
	var words []string
	if nodes := slices.Sorted(maps.Keys(p.create)); len(nodes) > 0 {
		words = append(words, "create "+strings.Join(nodes, " "))
	}
	for _, r := range p.remove {
		verb := "remove "
		if r.clean {
			verb = "clean "
		}
		words = append(words, verb+r.pod.Annotations[v1alpha1.AnnotationNodeTarget])
	}
	for _, s := range p.idle {
		words = append(words, "idle "+s.Annotations[v1alpha1.AnnotationNodeTarget])
	}
	for _, s := range p.busy {
		words = append(words, "busy "+s.Annotations[v1alpha1.AnnotationNodeTarget])
	}
	if p.again > 0 && len(p.idle) == 0 {
		words = append(words, "again "+p.again.String())
	}
	return strings.Join(words, " ")
}

// TestServersOfAnotherIdentityAreReplaced: each mark of whose it is counts.
func TestServersOfAnotherIdentityAreReplaced(t *testing.T) {
	t.Parallel()
	b := backend(onNodes)
	e := *engine("e-0", func(p *corev1.Pod) { p.Spec.NodeName = "n1" })
	for name, edit := range map[string]func(*corev1.Pod){
		"owner":     func(p *corev1.Pod) { p.Annotations[v1alpha1.AnnotationNodeOwner] = "team/other" },
		"owner UID": func(p *corev1.Pod) { p.Annotations[v1alpha1.AnnotationNodeOwnerUID] = "u0" },
		"label":     func(p *corev1.Pod) { delete(p.Labels, v1alpha1.LabelNodeServer) },
		"memory":    func(p *corev1.Pod) { p.Spec.Volumes[0].HostPath.Path += "x" },
		"argument":  func(p *corev1.Pod) { p.Spec.Containers[0].Args = nil },
	} {
		p := planNodes(b, []corev1.Pod{e}, []corev1.Pod{nodeServer(t, b, "n1", edit)}, inject.ServerHash(b, inject.Options{LMCacheImage: "lmcache"}), noon)
		if diff := cmp.Diff("remove n1 again 5s", described(p)); diff != "" {
			t.Errorf("%s: %s", name, diff)
		}
	}
}

func TestNodeMemoryIsGivenBack(t *testing.T) {
	t.Parallel()
	w := newWorld(t, backend(func(b *v1alpha1.CacheBackend) {
		onNodes(b)
		b.Spec.LMCache.NodeLocal.IdleRetentionSeconds = new(int32(0))
	}), engine("e-0", func(p *corev1.Pod) { p.Spec.NodeName = "n1" }))
	r := w.backends()
	pods := func() (names []string) {
		var list corev1.PodList
		w.must(w.client.List(t.Context(), &list))
		for _, p := range list.Items {
			if p.Labels[v1alpha1.LabelName] != "" {
				names = append(names, p.Labels[v1alpha1.LabelName])
			}
		}
		return names
	}
	w.settle(r)
	if got := pods(); !slices.Equal(got, []string{render.NameServer}) {
		t.Fatalf("an engine: %q", got)
	}
	w.must(w.client.Delete(t.Context(), engine("e-0", nil)))
	w.settle(r)
	if got := pods(); !slices.Equal(got, []string{render.NameCleaner}) {
		t.Fatalf("no engine: %q", got)
	}
	var list corev1.PodList
	w.must(w.client.List(t.Context(), &list))
	list.Items[0].Status.Phase = corev1.PodSucceeded
	w.must(w.client.Status().Update(t.Context(), &list.Items[0]))
	w.settle(r)
	if got := pods(); len(got) > 0 {
		t.Errorf("memory is freed: %q", got)
	}
	w.tells("memory is freed", v1alpha1.EventSharedMemoryReleased)
}

// TestForeignPodOfAServersNameIsLeftAlone: it may be anybody's.
func TestForeignPodOfAServersNameIsLeftAlone(t *testing.T) {
	t.Parallel()
	server := nodeServer(t, backend(onNodes), "n1", nil)
	theirs := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "team", Name: server.Name, UID: "theirs"}}
	w := newWorld(t, backend(onNodes), engine("e-0", func(p *corev1.Pod) { p.Spec.NodeName = "n1" }), theirs)
	if _, err := w.reconcile(w.backends()); err == nil || !strings.Contains(err.Error(), "left alone") {
		t.Errorf("a taken name: %v", err)
	}
	w.want("a taken name", v1alpha1.ConditionDegraded, v1alpha1.ReasonApplyFailed)
	have := &corev1.Pod{}
	if !w.get(have, server.Name) || have.UID != "theirs" || len(have.Labels) > 0 || len(have.OwnerReferences) > 0 {
		t.Errorf("it was changed: %+v", have.ObjectMeta)
	}
}

func TestNodeServersNeedPermission(t *testing.T) {
	t.Parallel()
	w := newWorld(t, backend(onNodes), engine("e-0", func(p *corev1.Pod) { p.Spec.NodeName = "n1" }))
	r := w.backends()
	r.config.NodeLocalNamespaces = []string{"other"}
	w.settle(r)
	w.want("not allowed", v1alpha1.ConditionConnectorReady, v1alpha1.ReasonNodeLocalNotAllowed)
	for _, write := range w.wrote() {
		if strings.Contains(write, "create pod") {
			t.Error(write)
		}
	}
}
