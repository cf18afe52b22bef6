package reconcile

import (
	"cmp"
	"context"
	"fmt"
	"net"
	"slices"
	"strconv"
	"sync"

	discoveryv1 "k8s.io/api/discovery/v1"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"inferencecache.io/inferencecache/internal/loops"
)

// Names of the ports of the servers' Service.
const (
	portRPC     = "grpc"
	portControl = "snapshot"
)

// Servers knows the servers there are, from the EndpointSlices of their
// Service. It is what the bridge's loops ask. Safe for concurrent use.
type Servers struct {
	reader  client.Reader
	config  Config
	schemes Schemes

	mu      sync.Mutex // guards changed
	changed chan struct{}
}

// Schemes are how servers are reached, http or https.
type Schemes struct{ Control, RPC string }

// NewServers reads from the manager's cache.
func NewServers(reader client.Reader, c Config, s Schemes) *Servers {
	return &Servers{reader: reader, config: c, schemes: s, changed: make(chan struct{})}
}

// +kubebuilder:rbac:groups=discovery.k8s.io,resources=endpointslices,verbs=get;list;watch,namespace=inference-cache-system

// Endpoints lists every server, ready or not: one that is not ready yet needs
// policies too. Those that are ending are left alone.
func (s *Servers) Endpoints(ctx context.Context) ([]loops.Server, error) {
	var list discoveryv1.EndpointSliceList
	err := s.reader.List(ctx, &list, client.InNamespace(s.config.Namespace), client.MatchingLabels{discoveryv1.LabelServiceName: s.config.ServerService})
	if err != nil {
		return nil, fmt.Errorf("list the endpoints of Service %s/%s: %w", s.config.Namespace, s.config.ServerService, err)
	}
	return serversOf(list.Items, s.schemes), nil
}

// Changed implements the bridge's Endpoints.
func (s *Servers) Changed() <-chan struct{} {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.changed
}

// Reconcile tells whoever waits that slices changed.
func (s *Servers) Reconcile(context.Context, ctrl.Request) (ctrl.Result, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	close(s.changed)
	s.changed = make(chan struct{})
	return ctrl.Result{}, nil
}

// serversOf reads slices. A pod may be in several, for a Service of two
// address families; the first by address counts.
func serversOf(slicesOf []discoveryv1.EndpointSlice, schemes Schemes) (servers []loops.Server) {
	for i := range slicesOf {
		control, rpc := portOf(&slicesOf[i], portControl), portOf(&slicesOf[i], portRPC)
		if control == 0 || rpc == 0 {
			continue
		}
		for _, e := range slicesOf[i].Endpoints {
			if len(e.Addresses) == 0 || e.Conditions.Terminating != nil && *e.Conditions.Terminating {
				continue
			}
			name := e.Addresses[0]
			if e.TargetRef != nil && e.TargetRef.Name != "" {
				name = e.TargetRef.Name
			}
			servers = append(servers, loops.Server{
				Name:    name,
				Control: schemes.Control + "://" + net.JoinHostPort(e.Addresses[0], strconv.Itoa(int(control))),
				RPC:     schemes.RPC + "://" + net.JoinHostPort(e.Addresses[0], strconv.Itoa(int(rpc))),
			})
		}
	}
	slices.SortFunc(servers, func(a, b loops.Server) int {
		return cmp.Or(cmp.Compare(a.Name, b.Name), cmp.Compare(a.Control, b.Control))
	})
	return slices.CompactFunc(servers, func(a, b loops.Server) bool { return a.Name == b.Name })
}

func portOf(slice *discoveryv1.EndpointSlice, name string) int32 {
	for _, p := range slice.Ports {
		if p.Name != nil && *p.Name == name && p.Port != nil {
			return *p.Port
		}
	}
	return 0
}
