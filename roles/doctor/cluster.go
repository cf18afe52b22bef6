package doctor

import (
	"context"
	"fmt"
	"maps"
	"math"
	"net/http"
	"slices"
	"sync"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"inferencecache.io/inferencecache/api/v1alpha1"
	pb "inferencecache.io/inferencecache/proto/inferencecache/v1alpha1"
)

const (
	controllerAudience = "inferencecache.io/controller"
	policyAudience     = "inferencecache.io/policy"
	tokenSeconds       = 600 // of the tokens that are asked for, the least there is
)

// Cluster is an installation on Kubernetes, looked at through the API server.
type Cluster struct {
	Config      *rest.Config
	Namespace   string // of what is looked at; "": all
	Home        string // of the installation; "": where its Service is
	Direct      bool   // pods are dialled by their addresses: this runs in the cluster
	ObjectsOnly bool   // no pod is asked anything
	MaxEngines  int    // engines to ask, those in trouble first

	client client.Client
	reach  *reach
}

// inspection is all that was seen of a cluster.
type inspection struct {
	objects
	tokens  tokens
	servers map[string]*evidence // by pod
	engines []engine
	skipped int // engines that were not asked
}

// tokens say what became of asking for them.
type tokens struct {
	controller string
	err        error             // why there is none
	wrong      map[string]answer // of /snapshot of a server, with the token of another path
}

// Run looks at the cluster as Local.Run does at addresses.
func (c *Cluster) Run(ctx context.Context, settle time.Duration, progress func(left time.Duration)) ([]Finding, error) {
	var err error
	if c.client, err = client.New(c.Config, client.Options{Scheme: kinds()}); err != nil {
		return nil, fmt.Errorf("reach the API server: %w", err)
	}
	c.reach = newReach(c.Config, c.Direct)
	defer c.reach.close()
	return watch(ctx, settle, progress, func(ctx context.Context) (time.Duration, func() []Finding) {
		seen := c.inspect(ctx)
		return age(seen.engines), func() []Finding { return judgeCluster(seen, time.Now()) }
	})
}

// inspect looks at everything once.
func (c *Cluster) inspect(ctx context.Context) *inspection {
	seen := &inspection{objects: *c.read(ctx), servers: map[string]*evidence{}}
	if c.ObjectsOnly {
		return seen
	}
	seen.serving = c.handshakes(ctx, seen.controllers)
	seen.tokens = c.token(ctx, seen.home, controllerAudience)
	other := c.token(ctx, seen.home, policyAudience)
	var mu sync.Mutex // guards seen
	var looking sync.WaitGroup
	for i := range seen.objects.servers {
		pod := &seen.objects.servers[i]
		looking.Go(func() {
			e, wrong := c.server(ctx, pod, seen.tokens.controller, other.controller)
			mu.Lock()
			defer mu.Unlock()
			seen.servers[pod.Name] = e
			if other.controller != "" {
				if seen.tokens.wrong == nil {
					seen.tokens.wrong = map[string]answer{}
				}
				seen.tokens.wrong[pod.Name] = wrong
			}
		})
	}
	looking.Wait()
	seen.engines, seen.skipped = c.engines(ctx, seen)
	return seen
}

// token asks for a short-lived token of the controller's account.
func (c *Cluster) token(ctx context.Context, home, audience string) tokens {
	request := &authenticationv1.TokenRequest{Spec: authenticationv1.TokenRequestSpec{Audiences: []string{audience}, ExpirationSeconds: new(int64(tokenSeconds))}}
	account := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: home, Name: controllerAccount}}
	if err := c.client.SubResource("token").Create(ctx, account, request); err != nil {
		return tokens{err: err}
	}
	return tokens{controller: request.Status.Token}
}

// server looks at one server, and asks it with a token that is not for what it
// asks.
func (c *Cluster) server(ctx context.Context, pod *corev1.Pod, token, other string) (*evidence, answer) {
	unreachable := func(err error) (*evidence, answer) { return &evidence{health: answer{err: err}}, answer{err: err} }
	data, err := c.reach.address(ctx, pod, dataPort)
	if err != nil {
		return unreachable(err)
	}
	l := &Local{Server: "http://" + data, Token: token, HTTP: &http.Client{}}
	defer l.HTTP.CloseIdleConnections()
	if token != "" {
		control, err := c.reach.address(ctx, pod, controlPort)
		if err != nil {
			return unreachable(err)
		}
		l.Control = "http://" + control
	}
	e := l.lookAtServer(ctx)
	if l.Control == "" || other == "" {
		return e, answer{}
	}
	l.Token = other
	return e, l.call(ctx, http.MethodGet, l.Control+"/snapshot", "")
}

// engines asks the subscribers of some engines, those first that servers do not
// follow exactly, and the engines themselves.
func (c *Cluster) engines(ctx context.Context, seen *inspection) (all []engine, skipped int) {
	exact := map[string]bool{}
	for _, e := range seen.servers {
		for _, r := range e.fleet.GetReplicas() {
			if r.GetStreamState() == pb.StreamState_STREAM_EXACT && r.GetState() == pb.ReplicaState_REPLICA_ALIVE {
				exact[r.GetTenantId()+"/"+r.GetReplicaId()] = true
			}
		}
	}
	var ask []*corev1.Pod
	for i := range seen.objects.engines {
		if pod := &seen.objects.engines[i]; subscribed(pod) && pod.Status.Phase == corev1.PodRunning {
			ask = append(ask, pod)
		}
	}
	slices.SortStableFunc(ask, func(a, b *corev1.Pod) int {
		return rank(exact[a.Namespace+"/"+a.Name]) - rank(exact[b.Namespace+"/"+b.Name])
	})
	if len(ask) > c.MaxEngines {
		skipped = len(ask) - c.MaxEngines
		ask = ask[:c.MaxEngines]
	}
	found := make([][]engine, len(ask))
	var asking sync.WaitGroup
	for i, pod := range ask {
		asking.Go(func() { found[i] = c.follow(ctx, pod) })
	}
	asking.Wait()
	return slices.Concat(found...), skipped
}

func rank(exact bool) int {
	if exact {
		return 1
	}
	return 0
}

func subscribed(pod *corev1.Pod) bool {
	return slices.ContainsFunc(pod.Spec.Containers, func(c corev1.Container) bool { return c.Name == v1alpha1.ContainerSubscriber })
}

// follow asks the subscriber in a pod, and the engine beside it.
func (c *Cluster) follow(ctx context.Context, pod *corev1.Pod) []engine {
	address, err := c.reach.address(ctx, pod, dataPort)
	if err != nil {
		return []engine{{follower: follower{Replica: pod.Name, Tenant: pod.Namespace}, silent: err}}
	}
	l := &Local{HTTP: &http.Client{}, port: func(ctx context.Context, port int) (string, error) { return c.reach.address(ctx, pod, port) }}
	defer l.HTTP.CloseIdleConnections()
	all, err := l.followers(ctx, "http://"+address)
	if err != nil {
		return []engine{{follower: follower{Replica: pod.Name, Tenant: pod.Namespace}, silent: err}}
	}
	for i := range all {
		l.ask(ctx, &all[i])
	}
	return all
}

// age is how long the youngest of some subscribers has run; without any, long
// enough.
func age(engines []engine) time.Duration {
	youngest := math.Inf(1)
	for i := range engines {
		if engines[i].silent == nil {
			youngest = min(youngest, engines[i].Uptime)
		}
	}
	if math.IsInf(youngest, 1) {
		return time.Duration(math.MaxInt64)
	}
	return time.Duration(youngest * float64(time.Second))
}

// serversByName are the servers that were asked, sorted.
func (i *inspection) serversByName() []string { return slices.Sorted(maps.Keys(i.servers)) }
