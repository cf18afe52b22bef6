package reconcile

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/event"

	"inferencecache.io/inferencecache/api/v1alpha1"
	"inferencecache.io/inferencecache/reconcile/judge"
)

const (
	dialEvery   = 30 * time.Second
	dialTimeout = 3 * time.Second
	// dialsAtOnce bounds the endpoints that are waited for at a time.
	dialsAtOnce = 16
)

// Dials finds out whether External storage answers, so that reconcilers need
// not wait for it. It sends one PING without credentials; that it is answered
// at all is enough, since only engines have the password.
type Dials struct {
	dial   func(ctx context.Context, endpoint string) error
	answer chan event.GenericEvent // a backend whose endpoint changed its mind

	mu     sync.Mutex // guards what follows
	wanted map[types.NamespacedName]string
	known  map[string]judge.Dial
	added  chan struct{} // one slot: there is something new to dial
}

// NewDials dials nothing before Run.
func NewDials(dial func(ctx context.Context, endpoint string) error) *Dials {
	return &Dials{dial: dial, answer: make(chan event.GenericEvent, 64), added: make(chan struct{}, 1),
		wanted: map[types.NamespacedName]string{}, known: map[string]judge.Dial{}}
}

// Ask tells how an endpoint does, and has it dialled from now on.
func (d *Dials) Ask(backend types.NamespacedName, endpoint string) judge.Dial {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.wanted[backend] != endpoint {
		d.wanted[backend] = endpoint
		select {
		case d.added <- struct{}{}:
		default:
		}
	}
	return d.known[endpoint]
}

// Forget ends the dialling for a backend.
func (d *Dials) Forget(backend types.NamespacedName) {
	d.mu.Lock()
	defer d.mu.Unlock()
	delete(d.wanted, backend)
}

// Start dials until ctx ends.
func (d *Dials) Start(ctx context.Context) error {
	for {
		d.round(ctx)
		select {
		case <-ctx.Done():
			return nil
		case <-d.added:
		case <-time.After(dialEvery):
		}
	}
}

// NeedLeaderElection: only who writes status asks.
func (d *Dials) NeedLeaderElection() bool { return true }

// round dials every endpoint once and tells of those that changed.
func (d *Dials) round(ctx context.Context) {
	endpoints := map[string]bool{}
	d.mu.Lock()
	for _, endpoint := range d.wanted {
		endpoints[endpoint] = true
	}
	d.mu.Unlock()
	var group sync.WaitGroup
	slots := make(chan struct{}, dialsAtOnce)
	for endpoint := range endpoints {
		slots <- struct{}{}
		group.Go(func() {
			defer func() { <-slots }()
			limited, cancel := context.WithTimeout(ctx, dialTimeout)
			defer cancel()
			result := judge.Dial{Done: true}
			if err := d.dial(limited, endpoint); err != nil {
				result.Problem = err.Error()
			}
			d.learn(ctx, endpoint, result)
		})
	}
	group.Wait()
	d.mu.Lock()
	defer d.mu.Unlock()
	for endpoint := range d.known {
		if !endpoints[endpoint] {
			delete(d.known, endpoint)
		}
	}
}

func (d *Dials) learn(ctx context.Context, endpoint string, result judge.Dial) {
	if ctx.Err() != nil {
		return // we are leaving: that is not the endpoint's fault
	}
	d.mu.Lock()
	changed := d.known[endpoint] != result
	d.known[endpoint] = result
	var tell []types.NamespacedName
	for backend, wanted := range d.wanted {
		if changed && wanted == endpoint {
			tell = append(tell, backend)
		}
	}
	d.mu.Unlock()
	for _, b := range tell {
		select {
		case d.answer <- event.GenericEvent{Object: &v1alpha1.CacheBackend{ObjectMeta: metav1.ObjectMeta{Namespace: b.Namespace, Name: b.Name}}}:
		case <-ctx.Done():
		}
	}
}

// Ping sends one Redis PING and wants any answer of that protocol. Its errors
// hold no local address, which would differ from try to try.
func Ping(ctx context.Context, endpoint string) error {
	var dialer net.Dialer
	conn, err := dialer.DialContext(ctx, "tcp", endpoint)
	if err != nil {
		return fmt.Errorf("dial %s: %s", endpoint, plain(err))
	}
	defer conn.Close()
	if deadline, ok := ctx.Deadline(); ok {
		_ = conn.SetDeadline(deadline) // it fails only on closed connections
	}
	if _, err := conn.Write([]byte("PING\r\n")); err != nil {
		return fmt.Errorf("write to %s: %s", endpoint, plain(err))
	}
	first := make([]byte, 1)
	if _, err := conn.Read(first); err != nil {
		return fmt.Errorf("%s took the connection but does not answer a PING: %s", endpoint, plain(err))
	}
	if first[0] != '+' && first[0] != '-' {
		return fmt.Errorf("%s answers, but not as Redis does", endpoint)
	}
	return nil
}

// plain is the innermost cause of a network error.
func plain(err error) string {
	if errors.Is(err, context.DeadlineExceeded) {
		return "no answer in time"
	}
	var op *net.OpError
	if errors.As(err, &op) {
		if op.Timeout() {
			return "no answer in time"
		}
		return op.Err.Error()
	}
	return err.Error()
}
