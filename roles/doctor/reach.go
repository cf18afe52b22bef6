package doctor

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/httpstream"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/portforward"
	"k8s.io/client-go/transport/spdy"
)

// forwardTimeout is how long a forwarded port may take to open.
const forwardTimeout = 10 * time.Second

// reach makes the ports of pods ports that can be dialled from here: their own,
// if this runs in the cluster, or forwarded ones through the API server. Safe
// for concurrent use.
type reach struct {
	config *rest.Config
	direct bool

	mu   sync.Mutex // guards open
	open map[string]*forwarded
}

// forwarded is one forwarded port.
type forwarded struct {
	address string
	err     error
	ready   chan struct{} // closed when address or err is known
	stop    context.CancelFunc
	ended   chan struct{}
}

func newReach(config *rest.Config, direct bool) *reach {
	return &reach{config: config, direct: direct, open: map[string]*forwarded{}}
}

// address is where a pod's port is to be dialled.
func (r *reach) address(ctx context.Context, pod *corev1.Pod, port int) (string, error) {
	if r.direct {
		if pod.Status.PodIP == "" {
			return "", errors.New("the pod has no address yet")
		}
		return net.JoinHostPort(pod.Status.PodIP, strconv.Itoa(port)), nil
	}
	key := fmt.Sprintf("%s/%s:%d", pod.Namespace, pod.Name, port)
	r.mu.Lock()
	f := r.open[key]
	if f == nil {
		life, stop := context.WithCancel(context.WithoutCancel(ctx)) // the port outlives who asked first
		f = &forwarded{ready: make(chan struct{}), stop: stop, ended: make(chan struct{})}
		r.open[key] = f
		go func() { // ends with close
			defer close(f.ended)
			r.forward(life, f, pod, port)
			stop()
			r.mu.Lock()
			defer r.mu.Unlock()
			if r.open[key] == f {
				delete(r.open, key) // the next look tries again
			}
		}()
	}
	r.mu.Unlock()
	select {
	case <-f.ready:
		return f.address, f.err
	case <-ctx.Done():
		return "", ctx.Err()
	}
}

// forward keeps a port forwarded until ctx ends, as kubectl port-forward does.
func (r *reach) forward(ctx context.Context, f *forwarded, pod *corev1.Pod, port int) {
	fail := func(err error) {
		f.err = fmt.Errorf("forward port %d of pod %s/%s: %w", port, pod.Namespace, pod.Name, err)
		close(f.ready)
	}
	dialer, err := r.dialer(pod)
	if err != nil {
		fail(err)
		return
	}
	opened := make(chan struct{})
	forwarder, err := portforward.NewOnAddresses(dialer, []string{"127.0.0.1"}, []string{"0:" + strconv.Itoa(port)}, ctx.Done(), opened, io.Discard, io.Discard)
	if err != nil {
		fail(err)
		return
	}
	over := make(chan error, 1)
	go func() { over <- forwarder.ForwardPorts() }() // ends with stop
	select {
	case <-opened:
		ports, err := forwarder.GetPorts()
		if err != nil || len(ports) == 0 {
			fail(errors.Join(err, errors.New("no local port was opened")))
			f.stop()
			break
		}
		f.address = net.JoinHostPort("127.0.0.1", strconv.Itoa(int(ports[0].Local)))
		close(f.ready)
	case err := <-over:
		fail(err)
		return
	case <-time.After(forwardTimeout):
		fail(errors.New("no answer"))
		f.stop()
	}
	<-over
}

// dialer speaks the tunnel's protocol: SPDY within WebSockets, or SPDY alone
// with API servers that do not know that.
func (r *reach) dialer(pod *corev1.Pod) (httpstream.Dialer, error) {
	base, _, err := rest.DefaultServerUrlFor(r.config)
	if err != nil {
		return nil, err
	}
	target := base.JoinPath("api", "v1", "namespaces", pod.Namespace, "pods", pod.Name, "portforward")
	transport, upgrader, err := spdy.RoundTripperFor(r.config)
	if err != nil {
		return nil, err
	}
	plain := spdy.NewDialer(upgrader, &http.Client{Transport: transport}, http.MethodPost, target)
	tunnel, err := portforward.NewSPDYOverWebsocketDialer(target, r.config)
	if err != nil {
		return nil, err
	}
	return portforward.NewFallbackDialer(tunnel, plain, func(err error) bool { return err != nil }), nil
}

// close ends every forwarded port and waits for it.
func (r *reach) close() {
	r.mu.Lock()
	open := r.open
	r.open = map[string]*forwarded{}
	r.mu.Unlock()
	for _, f := range open {
		f.stop()
	}
	for _, f := range open {
		<-f.ended
	}
}

// loopbackPort is the port of an address that means the machine, or pod, of
// whoever has it; 0: it is another's.
func loopbackPort(address string) int {
	u, err := url.Parse(address)
	if err != nil {
		return 0
	}
	ip := net.ParseIP(u.Hostname())
	if u.Hostname() != "localhost" && !(ip != nil && ip.IsLoopback()) {
		return 0
	}
	port, err := strconv.Atoi(u.Port())
	if err != nil {
		return 0
	}
	return port
}
