//go:build cluster

package deploy

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"inferencecache.io/inferencecache/api/v1alpha1"
)

const (
	scaleBackends = 20
	scalePods     = 50 // of each
	maxResident   = 128 << 20
	maxReconcile  = 0.1 // seconds, of 99 in 100
)

// TestThousandEnginesAreQuietAndCheap has a controller watch a thousand engines
// that report all the time, and counts what it writes when nothing happens, for
// INFERENCECACHE_QUIET (1m).
func TestThousandEnginesAreQuietAndCheap(t *testing.T) {
	if testing.Short() {
		t.Skip("a thousand pods start: minutes")
	}
	quiet := time.Minute
	if text := os.Getenv("INFERENCECACHE_QUIET"); text != "" {
		var err error
		if quiet, err = time.ParseDuration(text); err != nil {
			t.Fatal(err)
		}
	}
	for i := range scaleBackends {
		it.Node(t, fmt.Sprintf("node-%d", i), 0)
	}
	in := apply(t)
	for _, c := range in.controllers {
		c.stop()
	}
	wit := newWitness(t, controllerAccount)
	pods := podsOf(t, home, "controller", 2)
	controller := start(t, "controller", contain(t, &pods[0], "controller", "--kubeconfig="+wit.kubeconfig)...)
	page := "http://" + pods[0].Status.PodIP + ":9090"
	controller.becomesReady(t, page+"/readyz")
	// The API server asks the other pod too.
	other := start(t, "second controller", contain(t, &pods[1], "controller", "--kubeconfig="+it.KubeconfigOf(t, home, controllerAccount))...)
	other.becomesReady(t, "http://"+pods[1].Status.PodIP+":9090/readyz")

	ns := it.Namespace(t)
	var objects strings.Builder
	for i := range scaleBackends {
		fmt.Fprintf(&objects, `
{apiVersion: inferencecache.io/v1alpha1, kind: CacheBackend, metadata: {name: b%d}, spec: {runtime: VLLM, cacheDomain: b%d, lmCache: {podLocal: {server: {l1Capacity: 8Gi}}}}}
---
{apiVersion: apps/v1, kind: Deployment, metadata: {name: e%d}, spec: {replicas: %d, selector: {matchLabels: {app: e%d}}, template: {metadata: {labels: {app: e%d, inferencecache.io/cache-domain: b%d}},
  spec: {containers: [{name: vllm, image: vllm, args: [--model, m]}]}}}}
---`, i, i, i, scalePods, i, i, i)
	}
	if _, err := it.Kubectl(t, objects.String(), "apply", "-n", ns, "-f", "-"); err != nil {
		t.Fatal(err)
	}
	var all corev1.PodList
	waitFor(t, 10*time.Minute, "a thousand engines", func(ctx context.Context) error {
		time.Sleep(2 * time.Second) // so many are long in a list
		if err := it.Client.List(ctx, &all, client.InNamespace(ns)); err != nil {
			return err
		}
		running := 0
		for i := range all.Items {
			switch pod := &all.Items[i]; {
			case pod.Status.PodIP == "" || pod.DeletionTimestamp != nil:
			case pod.Annotations[v1alpha1.AnnotationInjectedBy] != "":
				running++
			default:
				// The webhook did not answer in time on this machine, so the pod
				// runs without cache. An operator has it made anew, as doctor says.
				t.Logf("delete %s, which is not wired", pod.Name)
				if err := it.Client.Delete(ctx, pod); err != nil && !apierrors.IsNotFound(err) {
					return err
				}
			}
		}
		if running != scaleBackends*scalePods {
			return fmt.Errorf("%d are wired and run", running)
		}
		return nil
	})
	in.report(t, all.Items)
	waitFor(t, 5*time.Minute, "every backend to be ready", func(ctx context.Context) error {
		var list v1alpha1.CacheBackendList
		if err := it.Client.List(ctx, &list, client.InNamespace(ns)); err != nil {
			return err
		}
		for _, b := range list.Items {
			if !meta.IsStatusConditionTrue(b.Status.Conditions, v1alpha1.ConditionReady) {
				return fmt.Errorf("%s: %s", b.Name, show(b.Status.Conditions))
			}
		}
		return nil
	})
	// One more round of every loop, so that nothing is left of the beginning.
	time.Sleep(35 * time.Second)
	wit.wrote()
	quickBefore, before := reconciles(t, page, maxReconcile)
	time.Sleep(quiet)
	writes := slices.DeleteFunc(wit.wrote(), func(w string) bool { return strings.Contains(w, "tokenreviews") })
	if len(writes) > 0 {
		t.Errorf("wrote in %s of quiet: %q", quiet, writes)
	}
	resident := peak(t, controller)
	quick, n := reconciles(t, page, maxReconcile)
	// While a thousand pods start, reconciles wait for an API server that shares
	// two cores with everything else.
	t.Logf("%d engines: peak of %.1f MiB resident; %.0f of %.0f reconciles within %v s before, %.0f of %.0f and %d writes in %s of quiet",
		len(all.Items), float64(resident)/(1<<20), quickBefore, before, maxReconcile, quick-quickBefore, n-before, len(writes), quiet)
	if resident > maxResident {
		t.Errorf("%d bytes resident, want at most %d", resident, maxResident)
	}
	if n == before || quick-quickBefore < 0.99*(n-before) {
		t.Errorf("%.0f of %.0f reconciles within %v s, want 99 %%", quick-quickBefore, n-before, maxReconcile)
	}
}

// report is what the subscribers of engines tell every server until the test
// ends: something that is held, then heartbeats.
func (in *installed) report(t *testing.T, engines []corev1.Pod) {
	t.Helper()
	const beat = 20 * time.Second
	tell := func(ctx context.Context, server string, pod *corev1.Pod, first bool) error {
		update := map[string]any{
			"replicaId": pod.Name, "tenantId": pod.Namespace, "modelId": "m", "hashScheme": "vllm",
			"heartbeatMs": beat.Milliseconds(), "streamState": "STREAM_EXACT", "stats": map[string]any{"replicaId": pod.Name},
		}
		if first {
			update["prefixes"] = []any{map[string]any{"prefixHash": "AAAAAAAAAAE=", "tokenCount": 16}}
		}
		body, err := json.Marshal(update)
		if err != nil {
			return err
		}
		frame := append(binary.BigEndian.AppendUint32([]byte{0}, uint32(len(body))), body...)
		request, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://"+server+":9090/inferencecache.v1alpha1.InferenceCache/ReportCacheState", bytes.NewReader(frame))
		if err != nil {
			return err
		}
		request.Header.Set("Content-Type", "application/connect+json")
		request.Header.Set("Connect-Protocol-Version", "1")
		response, err := http.DefaultClient.Do(request)
		if err != nil {
			return err
		}
		defer response.Body.Close()
		answer, err := io.ReadAll(response.Body)
		if err == nil && !bytes.Contains(bytes.ReplaceAll(answer, []byte(" "), nil), []byte(`"accepted":true`)) {
			err = fmt.Errorf("answer %s", answer)
		}
		return err
	}
	var reporters sync.WaitGroup
	t.Cleanup(reporters.Wait)
	for _, server := range in.servers {
		for i := range engines {
			if err := tell(t.Context(), server, &engines[i], true); err != nil {
				t.Fatal(err)
			}
		}
		reporters.Go(func() { // ends with the test
			for t.Context().Err() == nil {
				for i := range engines {
					if err := tell(t.Context(), server, &engines[i], false); err != nil && t.Context().Err() == nil {
						t.Errorf("report to %s: %v", server, err)
						return
					}
					time.Sleep(beat / 2 / time.Duration(len(engines)))
				}
			}
		})
	}
}

// peak is the most memory that was resident, in bytes.
func peak(t *testing.T, p *process) int64 {
	t.Helper()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", p.cmd.Process.Pid))
	if err != nil {
		t.Fatal(err)
	}
	found := regexp.MustCompile(`VmHWM:\s+(\d+) kB`).FindSubmatch(text)
	if found == nil {
		t.Fatalf("no VmHWM in %s", text)
	}
	kb, err := strconv.ParseInt(string(found[1]), 10, 64)
	if err != nil {
		t.Fatal(err)
	}
	return kb << 10
}

// reconciles counts those of CacheBackends so far, and of them those that took
// at most so many seconds.
func reconciles(t *testing.T, page string, seconds float64) (quick, all float64) {
	t.Helper()
	_, text, err := fetch(t, page+"/metrics", "")
	if err != nil {
		t.Fatal(err)
	}
	value := func(le string) float64 {
		found := regexp.MustCompile(`controller_runtime_reconcile_time_seconds_bucket\{controller="backends",le="` + regexp.QuoteMeta(le) + `"\} (\S+)`).FindStringSubmatch(text)
		if found == nil {
			t.Fatalf("no bucket %s of reconcile times", le)
		}
		v, err := strconv.ParseFloat(found[1], 64)
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
	return value(strconv.FormatFloat(seconds, 'g', -1, 64)), value("+Inf")
}
