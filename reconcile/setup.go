package reconcile

import (
	"context"
	"fmt"
	"log/slog"

	"github.com/VictoriaMetrics/metrics"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/cluster"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/source"

	"inferencecache.io/inferencecache/api/v1alpha1"
)

// eventSource is who Events say they are from.
const eventSource = "inferencecache-controller"

// everything stands for all objects of a controller that has one key.
var everything = &v1alpha1.CacheIndex{ObjectMeta: metav1.ObjectMeta{Name: v1alpha1.CacheIndexName}}

// Deps are what the controllers need besides the manager.
type Deps struct {
	Config  Config
	Heard   *Heard   // that the puller fills
	Servers *Servers // that the loops ask
	Pusher  Pusher
	Loops   Loops
	Log     *slog.Logger
	Metrics *metrics.Set
	// Acknowledged gets a value when a server's acknowledgement, or its
	// trouble, became another.
	Acknowledged <-chan event.GenericEvent
}

// +kubebuilder:rbac:groups=coordination.k8s.io,resources=leases,verbs=get;create;update,namespace=inference-cache-system
// +kubebuilder:rbac:groups="",resources=events,verbs=create;patch,namespace=inference-cache-system

// Setup registers the controllers with a manager made with CacheOptions and
// ClientOptions. It starts nothing.
func Setup(mgr ctrl.Manager, d Deps) error {
	nodes, err := cluster.New(mgr.GetConfig(), func(o *cluster.Options) {
		o.Scheme, o.Cache, o.Logger = mgr.GetScheme(), nodeCacheOptions(), mgr.GetLogger()
	})
	if err != nil {
		return fmt.Errorf("make the cache of pods that serve nodes: %w", err)
	}
	dials := NewDials(Ping)
	for _, r := range []interface{ Start(context.Context) error }{nodes, dials} {
		if err := mgr.Add(r); err != nil {
			return err
		}
	}
	if err := setupServers(mgr, d); err != nil {
		return err
	}
	if err := setupPolicies(mgr, d); err != nil {
		return err
	}
	if err := setupIndex(mgr, d); err != nil {
		return err
	}
	return setupBackends(mgr, d, nodes, dials)
}

// setupServers watches endpoints on every replica of the controller: nothing
// is written.
func setupServers(mgr ctrl.Manager, d Deps) error {
	return ctrl.NewControllerManagedBy(mgr).Named("servers").
		WithOptions(controller.Options{NeedLeaderElection: new(false)}).
		Watches(&discoveryv1.EndpointSlice{}, toEverything()).
		Complete(d.Servers)
}

func setupPolicies(mgr ctrl.Manager, d Deps) error {
	wake := make(chan event.GenericEvent, 1)
	d.Heard.wake = append(d.Heard.wake, wake)
	changed := builder.WithPredicates(predicate.GenerationChangedPredicate{})
	return ctrl.NewControllerManagedBy(mgr).Named("policies").
		Watches(&v1alpha1.CachePolicy{}, toEverything(), changed).
		Watches(&v1alpha1.CacheTenant{}, toEverything(), changed).
		WatchesMetadata(&corev1.Namespace{}, toEverything(), builder.WithPredicates(predicate.AnnotationChangedPredicate{})).
		WatchesRawSource(source.Channel(d.Acknowledged, toEverything())).
		WatchesRawSource(source.Channel(wake, toEverything())).
		Complete(&policies{client: mgr.GetClient(), pusher: d.Pusher, heard: d.Heard, log: d.Log})
}

func setupIndex(mgr ctrl.Manager, d Deps) error {
	wake := make(chan event.GenericEvent, 1)
	d.Heard.wake = append(d.Heard.wake, wake)
	return ctrl.NewControllerManagedBy(mgr).Named("index").
		Watches(&v1alpha1.CacheIndex{}, toEverything(), builder.WithPredicates(predicate.GenerationChangedPredicate{})).
		WatchesRawSource(source.Channel(wake, toEverything())).
		WatchesRawSource(once(everything)).
		Complete(&index{client: mgr.GetClient(), heard: d.Heard, pusher: d.Pusher, loops: d.Loops})
}

func setupBackends(mgr ctrl.Manager, d Deps, nodes cluster.Cluster, dials *Dials) error {
	r := &backends{
		client: mgr.GetClient(), nodes: nodes.GetClient(), live: mgr.GetAPIReader(), config: d.Config, heard: d.Heard, dials: dials,
		record: mgr.GetEventRecorder(eventSource), log: d.Log, memo: map[types.NamespacedName]*memory{},
	}
	r.meters = newMeters(d.Metrics, r)
	owner := handler.TypedEnqueueRequestForOwner[*corev1.Pod](mgr.GetScheme(), mgr.GetRESTMapper(), &v1alpha1.CacheBackend{}, handler.OnlyControllerOwner())
	return ctrl.NewControllerManagedBy(mgr).Named("backends").
		WithOptions(controller.Options{MaxConcurrentReconciles: d.Config.Workers}).
		For(&v1alpha1.CacheBackend{}).
		Owns(&appsv1.Deployment{}).Owns(&corev1.Service{}).Owns(&networkingv1.NetworkPolicy{}).
		Watches(&corev1.Pod{}, handler.EnqueueRequestsFromMapFunc(r.ownersOf)).
		WatchesRawSource(source.Kind(nodes.GetCache(), &corev1.Pod{}, owner)).
		WatchesRawSource(source.Channel(dials.answer, &handler.EnqueueRequestForObject{})).
		Complete(r)
}

// ownersOf are the backends that have a pod's domain.
func (r *backends) ownersOf(ctx context.Context, pod client.Object) (requests []ctrl.Request) {
	var list v1alpha1.CacheBackendList
	if err := r.client.List(ctx, &list, client.InNamespace(pod.GetNamespace())); err != nil {
		r.log.Error("list the CacheBackends of a pod's namespace", "pod", client.ObjectKeyFromObject(pod), "err", err)
		return nil
	}
	for i := range list.Items {
		if list.Items[i].Owns(pod.GetLabels()) {
			requests = append(requests, ctrl.Request{NamespacedName: client.ObjectKeyFromObject(&list.Items[i])})
		}
	}
	return requests
}

// toEverything maps any object to the one key there is.
func toEverything() handler.EventHandler {
	return handler.EnqueueRequestsFromMapFunc(func(context.Context, client.Object) []ctrl.Request {
		return []ctrl.Request{{NamespacedName: types.NamespacedName{Name: everything.Name}}}
	})
}

// once starts a controller whose objects may not exist yet.
func once(o client.Object) source.Source {
	start := make(chan event.GenericEvent, 1)
	start <- event.GenericEvent{Object: o}
	return source.Channel(start, toEverything())
}

// NewWake returns a channel for Deps.Acknowledged and what puts a value in it.
func NewWake() (<-chan event.GenericEvent, func()) {
	wake := make(chan event.GenericEvent, 1)
	return wake, func() { poke(wake) }
}
