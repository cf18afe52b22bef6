package roles

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"time"

	"golang.org/x/sync/errgroup"
)

// doors are the listeners of one handler.
type doors struct {
	http      *http.Server
	listeners []net.Listener
	// onStop runs when the doors are told to close, while they still are open.
	onStop func()
	// delay is how long they stay open after that, so that load balancers see it.
	delay time.Duration
	// grace is how long requests may then take to finish.
	grace time.Duration
}

// openDoors binds every address; nothing is served before Run.
func openDoors(handler http.Handler, addresses []string, tlsConfig *tls.Config, log *slog.Logger) (*doors, error) {
	protocols := new(http.Protocols)
	protocols.SetHTTP1(true)
	protocols.SetHTTP2(true)
	protocols.SetUnencryptedHTTP2(true)
	d := &doors{grace: 3 * time.Second, http: &http.Server{
		Handler: handler, Protocols: protocols, TLSConfig: tlsConfig,
		ReadHeaderTimeout: 5 * time.Second, IdleTimeout: 2 * time.Minute,
		ErrorLog: slog.NewLogLogger(log.Handler(), slog.LevelDebug),
	}}
	for _, address := range addresses {
		l, err := net.Listen("tcp", address)
		if err != nil {
			d.close()
			return nil, fmt.Errorf("listen: %w", err)
		}
		d.listeners = append(d.listeners, l)
	}
	return d, nil
}

func (d *doors) close() {
	for _, l := range d.listeners {
		_ = l.Close()
	}
}

// run serves until ctx ends, then lets requests finish.
func (d *doors) run(ctx context.Context) error {
	var group errgroup.Group
	failed := make(chan struct{}, len(d.listeners)) // one send a listener
	for _, l := range d.listeners {
		group.Go(func() error {
			var err error
			if d.http.TLSConfig != nil {
				err = d.http.ServeTLS(l, "", "")
			} else {
				err = d.http.Serve(l)
			}
			if errors.Is(err, http.ErrServerClosed) {
				return nil
			}
			failed <- struct{}{}
			return err
		})
	}
	select {
	case <-ctx.Done():
	case <-failed:
	}
	if d.onStop != nil {
		d.onStop()
	}
	if d.delay > 0 {
		select {
		case <-time.After(d.delay):
		case <-failed:
		}
	}
	grace, cancel := context.WithTimeout(context.WithoutCancel(ctx), d.grace)
	defer cancel()
	if d.http.Shutdown(grace) != nil {
		_ = d.http.Close() // cut what outlasts the grace period
	}
	return group.Wait()
}

func (d *doors) addresses() (all []string) {
	for _, l := range d.listeners {
		all = append(all, l.Addr().String())
	}
	return all
}

// isLoopback reports whether only this machine can reach address.
func isLoopback(address string) bool {
	host, _, err := net.SplitHostPort(address)
	if err != nil {
		return false
	}
	if host == "localhost" {
		return true
	}
	ip := net.ParseIP(host)
	return ip != nil && ip.IsLoopback()
}
