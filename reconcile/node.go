package reconcile

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"inferencecache.io/inferencecache/api/v1alpha1"
	"inferencecache.io/inferencecache/reconcile/judge"
	"inferencecache.io/inferencecache/reconcile/render"
	"inferencecache.io/inferencecache/webhook/inject"
)

const (
	// cleanWithin is how long a pod that frees a node's memory may take,
	// scheduling included, before it is given up.
	cleanWithin = 5 * time.Minute
	nodeAgain   = 5 * time.Second
)

// nodePlan is what is to be done about the servers of one backend.
type nodePlan struct {
	create map[string]*corev1.Pod // node -> an engine there
	remove []removal
	idle   []*corev1.Pod // to be stamped with now
	busy   []*corev1.Pod // to lose their stamp
	again  time.Duration
}

// removal is one server that goes.
type removal struct {
	pod   *corev1.Pod
	clean bool // and the memory that it and its engines used
	why   string
}

// planNodes decides where servers should run and which should go. There is one
// for each node that hosts a scheduled engine of the backend. A server without
// engines stays for retention. One that was made from an older spec, but that
// engines can still use, is replaced only while no engine of its node runs:
// engines register when they start, and would lose their server for good.
func planNodes(b *v1alpha1.CacheBackend, engines, servers []corev1.Pod, hash string, now time.Time) nodePlan {
	p := nodePlan{create: map[string]*corev1.Pod{}}
	demand, running := demandOf(b, engines)
	at := map[string][]*corev1.Pod{}
	busyNodes := map[string]bool{} // a pod of ours is still, or again, at work there
	for i := range servers {
		s := &servers[i]
		node := s.Annotations[v1alpha1.AnnotationNodeTarget]
		switch {
		case !metav1.IsControlledBy(s, b):
		case s.Labels[v1alpha1.LabelName] == render.NameCleaner, !s.DeletionTimestamp.IsZero():
			busyNodes[node] = true
		case !judge.NodeServerFits(b, s) || s.Status.Phase == corev1.PodFailed || s.Status.Phase == corev1.PodSucceeded:
			p.remove = append(p.remove, removal{s, false, "engines cannot use it"})
			busyNodes[node] = true
		default:
			at[node] = append(at[node], s)
		}
	}
	for _, node := range slices.Sorted(maps.Keys(at)) {
		p.planNode(b, at[node], demand[node] != nil, running[node], hash, now, busyNodes)
	}
	for node, engine := range demand {
		if len(at[node]) == 0 && !busyNodes[node] {
			p.create[node] = engine
		} else if len(at[node]) == 0 {
			p.again = sooner(p.again, nodeAgain)
		}
	}
	return p
}

// planNode decides about the servers of one node.
func (p *nodePlan) planNode(b *v1alpha1.CacheBackend, servers []*corev1.Pod, demanded, running bool, hash string, now time.Time, busy map[string]bool) {
	slices.SortFunc(servers, func(a, b *corev1.Pod) int {
		return cmp.Or(a.CreationTimestamp.Compare(b.CreationTimestamp.Time), cmp.Compare(a.Name, b.Name))
	})
	for _, twin := range servers[1:] {
		p.remove = append(p.remove, removal{twin, false, "the node has another one"})
	}
	s := servers[0]
	since, err := time.Parse(time.RFC3339, s.Annotations[v1alpha1.AnnotationNodeIdleSince])
	stamped := err == nil
	retention := v1alpha1.DefaultIdleRetention
	if n := b.Spec.LMCache.NodeLocal.IdleRetentionSeconds; n != nil {
		retention = time.Duration(*n) * time.Second
	}
	switch {
	case demanded && s.Annotations[v1alpha1.AnnotationWiringHash] != hash && !running && !p.replacing():
		p.remove = append(p.remove, removal{s, false, "the spec changed"})
		busy[s.Annotations[v1alpha1.AnnotationNodeTarget]] = true
	case demanded && s.Annotations[v1alpha1.AnnotationNodeIdleSince] != "":
		p.busy = append(p.busy, s)
	case demanded:
	case retention == 0, stamped && now.Sub(since) >= retention:
		p.remove = append(p.remove, removal{s, true, "its node has no engines any more"})
	case stamped:
		p.again = sooner(p.again, max(time.Second, since.Add(retention).Sub(now)))
	default:
		p.idle = append(p.idle, s)
		p.again = sooner(p.again, retention)
	}
}

// replacing reports whether a server is being replaced: one at a time.
func (p *nodePlan) replacing() bool {
	return slices.ContainsFunc(p.remove, func(r removal) bool { return r.why == "the spec changed" })
}

// demandOf is, for each node with scheduled engines of the backend, the first
// of them by name, and whether any of them has started.
func demandOf(b *v1alpha1.CacheBackend, engines []corev1.Pod) (demand map[string]*corev1.Pod, running map[string]bool) {
	demand, running = map[string]*corev1.Pod{}, map[string]bool{}
	for i := range engines {
		e := &engines[i]
		node := e.Spec.NodeName
		if node == "" || !judge.Active(e) || !judge.Verified(b, e) {
			continue
		}
		if demand[node] == nil || e.Name < demand[node].Name {
			demand[node] = e
		}
		running[node] = running[node] || slices.ContainsFunc(e.Status.ContainerStatuses, func(c corev1.ContainerStatus) bool {
			return c.State.Running != nil && c.Name != v1alpha1.ContainerSubscriber
		})
	}
	return demand, running
}

// +kubebuilder:rbac:groups="",resources=pods,verbs=get;list;watch;create;patch;delete

// serveNodes carries a plan out; for a backend without servers on nodes it
// removes those of an earlier spec.
func (r *backends) serveNodes(ctx context.Context, b *v1alpha1.CacheBackend, o *judge.Observed) (time.Duration, error) {
	again, err := r.tidyCleaners(ctx, b, o.Servers)
	if !nodeLocal(b) || o.Forbidden != "" {
		more, removeErr := r.removeServers(ctx, b, o.Servers)
		return sooner(again, more), errors.Join(err, removeErr)
	}
	p := planNodes(b, o.Pods, o.Servers, inject.ServerHash(b, r.config.Inject()), o.Now)
	errs := []error{err}
	for _, gone := range p.remove {
		errs = append(errs, r.remove(ctx, b, gone))
	}
	for _, s := range p.idle {
		errs = append(errs, r.annotate(ctx, s, o.Now.UTC().Format(time.RFC3339)))
	}
	for _, s := range p.busy {
		errs = append(errs, r.annotate(ctx, s, ""))
	}
	for _, node := range slices.Sorted(maps.Keys(p.create)) {
		errs = append(errs, r.createServer(ctx, b, node, p.create[node]))
	}
	return sooner(again, p.again), errors.Join(errs...)
}

func (r *backends) createServer(ctx context.Context, b *v1alpha1.CacheBackend, node string, engine *corev1.Pod) error {
	pod, err := render.NodeServer(b, node, engine, r.config.render())
	var refusal *inject.Refusal
	if errors.As(err, &refusal) && refusal.Reason == v1alpha1.SkipEndpointMissing {
		return nil // the remote tier is on its way, and its status comes back here
	} else if err != nil {
		return fmt.Errorf("render the LMCache server of node %s: %w", node, err)
	}
	return r.createPod(ctx, b, pod)
}

// createPod creates a pod; one of that name that is not ours is an error, and
// one that is ours will be in the cache soon.
func (r *backends) createPod(ctx context.Context, b *v1alpha1.CacheBackend, pod *corev1.Pod) error {
	err := r.client.Create(ctx, pod)
	if !apierrors.IsAlreadyExists(err) {
		return err
	}
	ours, err := r.isOurs(ctx, b, pod)
	if err == nil && !ours {
		return fmt.Errorf("pod %s exists and is not this backend's, and is left alone: rename it, or the backend", pod.Name)
	}
	return client.IgnoreNotFound(err)
}

// remove deletes a server. Where its memory is to be given back, the pod that
// does so exists first: a controller that dies in between leaves nothing.
func (r *backends) remove(ctx context.Context, b *v1alpha1.CacheBackend, gone removal) error {
	if gone.clean {
		if err := r.createCleaner(ctx, b, gone.pod); err != nil {
			return err
		}
	}
	err := r.client.Delete(ctx, gone.pod, client.Preconditions{UID: &gone.pod.UID})
	if client.IgnoreNotFound(err) != nil {
		return fmt.Errorf("delete LMCache server %s: %w", gone.pod.Name, err)
	}
	r.record.Eventf(b, gone.pod, corev1.EventTypeNormal, v1alpha1.EventNodeServerReplaced, "Delete", "removed LMCache server %s: %s", gone.pod.Name, gone.why)
	return nil
}

func (r *backends) createCleaner(ctx context.Context, b *v1alpha1.CacheBackend, server *corev1.Pod) error {
	image := r.config.LMCacheImage
	for _, c := range server.Spec.Containers {
		if c.Name == v1alpha1.ContainerMPServer {
			image = c.Image
		}
	}
	return r.createPod(ctx, b, render.NodeCleaner(b, server.Annotations[v1alpha1.AnnotationNodeTarget], image))
}

func (r *backends) annotate(ctx context.Context, pod *corev1.Pod, idleSince string) error {
	next := pod.DeepCopy()
	if idleSince == "" {
		delete(next.Annotations, v1alpha1.AnnotationNodeIdleSince)
	} else {
		next.Annotations[v1alpha1.AnnotationNodeIdleSince] = idleSince
	}
	return client.IgnoreNotFound(r.client.Patch(ctx, next, client.MergeFrom(pod)))
}

// removeServers removes every server of a backend, and their memory; again: it
// is not done.
func (r *backends) removeServers(ctx context.Context, b *v1alpha1.CacheBackend, servers []corev1.Pod) (again time.Duration, _ error) {
	var errs []error
	for i := range servers {
		s := &servers[i]
		if !metav1.IsControlledBy(s, b) {
			continue
		}
		again = nodeAgain
		if s.Labels[v1alpha1.LabelName] != render.NameCleaner && s.DeletionTimestamp.IsZero() {
			errs = append(errs, r.remove(ctx, b, removal{s, true, "the backend has no servers on nodes any more"}))
		}
	}
	return again, errors.Join(errs...)
}

// tidyCleaners deletes pods that have freed a node's memory, and those that do
// not get to it.
func (r *backends) tidyCleaners(ctx context.Context, b *v1alpha1.CacheBackend, pods []corev1.Pod) (again time.Duration, _ error) {
	var errs []error
	for i := range pods {
		c := &pods[i]
		if c.Labels[v1alpha1.LabelName] != render.NameCleaner || !metav1.IsControlledBy(c, b) || !c.DeletionTimestamp.IsZero() {
			continue
		}
		done, late := c.Status.Phase == corev1.PodSucceeded, time.Since(c.CreationTimestamp.Time) > cleanWithin
		if !done && !late && c.Status.Phase != corev1.PodFailed {
			again = nodeAgain
			continue
		}
		node := c.Annotations[v1alpha1.AnnotationNodeTarget]
		if err := r.client.Delete(ctx, c, client.Preconditions{UID: &c.UID}); client.IgnoreNotFound(err) != nil {
			errs = append(errs, fmt.Errorf("delete pod %s: %w", c.Name, err))
		} else if done {
			r.record.Eventf(b, nil, corev1.EventTypeNormal, v1alpha1.EventSharedMemoryReleased, "Clean", "gave back the shared memory on node %s", node)
		} else {
			r.record.Eventf(b, nil, corev1.EventTypeWarning, v1alpha1.EventSharedMemoryReleased, "Clean",
				"could not give back the shared memory on node %s: delete %s there, or restart the node", node, inject.SHMDirectory(b))
		}
	}
	return again, errors.Join(errs...)
}
