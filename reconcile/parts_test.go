package reconcile

import (
	"context"
	"errors"
	"net"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"inferencecache.io/inferencecache/api/v1alpha1"
	"inferencecache.io/inferencecache/internal/loops"
	"inferencecache.io/inferencecache/reconcile/judge"
)

func TestServersAreEveryEndpoint(t *testing.T) {
	t.Parallel()
	slice := func(address string, ports map[string]int32, pod string, terminating bool) discoveryv1.EndpointSlice {
		s := discoveryv1.EndpointSlice{Endpoints: []discoveryv1.Endpoint{{Addresses: []string{address}, Conditions: discoveryv1.EndpointConditions{Terminating: &terminating, Ready: new(false)}}}}
		if pod != "" {
			s.Endpoints[0].TargetRef = &corev1.ObjectReference{Name: pod}
		}
		for name, port := range ports {
			s.Ports = append(s.Ports, discoveryv1.EndpointPort{Name: &name, Port: &port})
		}
		return s
	}
	both := map[string]int32{"grpc": 9090, "snapshot": 8081}
	got := serversOf([]discoveryv1.EndpointSlice{
		slice("fd00::2", both, "s-1", false), slice("10.0.0.2", both, "s-1", false), slice("10.0.0.1", both, "s-0", false),
		slice("10.0.0.3", both, "", false), slice("10.0.0.4", both, "s-4", true), slice("10.0.0.5", map[string]int32{"grpc": 9090}, "s-5", false),
	}, Schemes{"http", "https"})
	want := []loops.Server{
		{Name: "10.0.0.3", Control: "http://10.0.0.3:8081", RPC: "https://10.0.0.3:9090"},
		{Name: "s-0", Control: "http://10.0.0.1:8081", RPC: "https://10.0.0.1:9090"},
		{Name: "s-1", Control: "http://10.0.0.2:8081", RPC: "https://10.0.0.2:9090"},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}

func TestHitRateIsOfTheLastMinutes(t *testing.T) {
	t.Parallel()
	h, name := NewHeard(), types.NamespacedName{Name: "b"}
	now := time.Now()
	rate := func(after time.Duration, hits, queries int64) string {
		now = now.Add(after)
		if r := h.HitRate(name, judge.Participation{Hits: hits, Queries: queries}, now); r != nil {
			return *r
		}
		return "none"
	}
	for i, step := range []struct {
		after         time.Duration
		hits, queries int64
		want          string
	}{
		{0, 500, 1000, "none"}, // what was before is not of now
		{time.Minute, 500, 1000, "none"},
		{time.Minute, 550, 1100, "0.50"},
		{9 * time.Minute, 550, 1200, "0.25"}, // over ten minutes
		{10 * time.Minute, 550, 1300, "0"},   // it worked once, and does not now
		{11 * time.Minute, 550, 1300, "none"},
		{time.Minute, 5, 10, "none"}, // engines restarted
		{time.Minute, 15, 20, "1.00"},
	} {
		if got := rate(step.after, step.hits, step.queries); got != step.want {
			t.Errorf("step %d: %s, want %s", i, got, step.want)
		}
	}
	h.Keep(nil)
	if len(h.rates) > 0 {
		t.Error("backends that are gone are remembered")
	}
}

func TestEndpointsAreDialledAgainAndChangesTold(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var refuses atomic.Bool
		d := NewDials(func(context.Context, string) error {
			if refuses.Load() {
				return errors.New("refused")
			}
			return nil
		})
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error)
		go func() { done <- d.Start(ctx) }()
		name := types.NamespacedName{Namespace: "team", Name: "b"}
		told := func() bool {
			synctest.Wait()
			select {
			case e := <-d.answer:
				return e.Object.GetName() == name.Name
			default:
				return false
			}
		}
		if d.Ask(name, "redis:6379").Done {
			t.Error("answered before it was dialled")
		}
		if !told() || d.Ask(name, "redis:6379") != (judge.Dial{Done: true}) {
			t.Error("the first answer is not told")
		}
		time.Sleep(dialEvery)
		if told() {
			t.Error("the same answer is told again")
		}
		refuses.Store(true)
		time.Sleep(dialEvery)
		if !told() || d.Ask(name, "redis:6379").Problem != "refused" {
			t.Error("an endpoint that went away is not told")
		}
		d.Forget(name)
		time.Sleep(dialEvery)
		synctest.Wait()
		if len(d.known) > 0 {
			t.Error("an endpoint that nobody wants is still dialled")
		}
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}

func TestPingTellsRedisFromOthers(t *testing.T) {
	t.Parallel()
	for answer, want := range map[string]string{"+PONG\r\n": "", "-NOAUTH Authentication required.\r\n": "", "HTTP/1.1 400 Bad Request\r\n": "not as Redis does", "": "does not answer"} {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		done := make(chan struct{})
		go func() {
			defer close(done)
			if conn, err := l.Accept(); err == nil {
				buffer := make([]byte, 64)
				_, _ = conn.Read(buffer)
				_, _ = conn.Write([]byte(answer))
				_ = conn.Close()
			}
		}()
		err = Ping(t.Context(), l.Addr().String())
		if (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, want %q", answer, err, want)
		}
		_ = l.Close()
		<-done
		if err := Ping(t.Context(), l.Addr().String()); err == nil || !strings.Contains(err.Error(), "refused") {
			t.Errorf("nobody listens: %v", err)
		}
	}
}

func TestCachedPodsKeepWhatIsLookedAt(t *testing.T) {
	t.Parallel()
	p := engine("e", func(p *corev1.Pod) {
		p.Annotations[corev1.LastAppliedConfigAnnotation] = strings.Repeat("x", 10000)
		p.ManagedFields = []metav1.ManagedFieldsEntry{{Manager: "x"}}
		p.Spec.NodeName = "n1"
		p.Spec.Tolerations = []corev1.Toleration{{Key: "gpu"}}
		p.Spec.Containers = []corev1.Container{{Name: "vllm", Args: []string{strings.Repeat("x", 10000)}}}
		p.Spec.InitContainers = []corev1.Container{{Name: v1alpha1.ContainerKernelCheck, Env: []corev1.EnvVar{{Name: "KERNEL_CHECK_STRICT", Value: "1"}}, Command: []string{"x"}}}
		p.Status.ContainerStatuses = []corev1.ContainerStatus{{Name: "vllm", RestartCount: 2}}
	})
	object, err := trimPod(p.DeepCopy())
	if err != nil {
		t.Fatal(err)
	}
	got := object.(*corev1.Pod)
	if n := got.Size(); n > 1000 {
		t.Errorf("%d bytes are kept", n)
	}
	if got.Spec.NodeName != "n1" || len(got.Spec.Tolerations) != 1 || got.Status.ContainerStatuses[0].RestartCount != 2 ||
		got.Spec.InitContainers[0].Env[0].Value != "1" || !judge.Verified(backend(hostOnly), got) || got.Labels[v1alpha1.LabelCacheDomain] == "" {
		t.Errorf("lost something of %+v", got)
	}
}

func TestOnlyChangesAreTold(t *testing.T) {
	t.Parallel()
	condition := func(kind string, status metav1.ConditionStatus, reason string) metav1.Condition {
		return metav1.Condition{Type: kind, Status: status, Reason: reason}
	}
	with := func(all ...metav1.Condition) (s v1alpha1.CacheBackendStatus) {
		s.Conditions = all
		return s
	}
	closed, open := with(), with()
	closed.FailOpen, open.FailOpen = new(false), new(true)
	well := with(condition("Degraded", metav1.ConditionFalse, "NotDegraded"), condition("EventsFresh", metav1.ConditionTrue, "KVEventsObserved"))
	ill := with(condition("Degraded", metav1.ConditionTrue, "KVEventsStale"), condition("EventsFresh", metav1.ConditionFalse, "KVEventsStale"))
	for name, c := range map[string]struct {
		before, after v1alpha1.CacheBackendStatus
		want          []string
	}{
		"the same": {ill, ill, nil},
		"said twice": {with(), with(condition("ConnectorReady", metav1.ConditionFalse, "NoEnginePods"), condition("EventsFresh", metav1.ConditionFalse, "NoEnginePods")),
			[]string{"Warning NoEnginePods"}},
		"first":        {with(), well, []string{"Normal KVEventsObserved"}},
		"went bad":     {well, ill, []string{"Warning KVEventsStale", "Warning BackendDegraded"}},
		"recovered":    {ill, well, []string{"Normal KVEventsObserved", "Normal BackendRecovered"}},
		"fails closed": {open, closed, []string{"Warning FailClosedEnabled"}},
		"opens":        {closed, open, []string{"Normal FailOpenRestored"}},
		"open at once": {with(), open, nil},
	} {
		var got []string
		for _, h := range happenings(c.before, c.after) {
			got = append(got, h.kind+" "+h.reason)
		}
		if diff := cmp.Diff(c.want, got); diff != "" {
			t.Errorf("%s: %s", name, diff)
		}
	}
}
