// Package memhttp serves a handler over an in-memory listener: the same HTTP/1
// and HTTP/2 as on a port, without one. --role=all uses it between its parts,
// tests use it instead of the network.
package memhttp

import (
	"context"
	"errors"
	"net"
	"net/http"
	"sync"
	"time"
)

// URL is where clients of a Server believe it to be.
const URL = "http://in-memory"

// Server is an HTTP server that only its own Client can reach.
type Server struct {
	http     *http.Server
	listener *listener
}

// New returns a server of handler; it serves once Run is called, and dials
// before that wait.
func New(handler http.Handler) *Server {
	protocols := new(http.Protocols)
	protocols.SetHTTP1(true)
	protocols.SetUnencryptedHTTP2(true)
	return &Server{
		http:     &http.Server{Handler: handler, Protocols: protocols, ReadHeaderTimeout: 5 * time.Second},
		listener: &listener{conns: make(chan net.Conn), closed: make(chan struct{})},
	}
}

// Run serves until ctx ends, then gives requests a second to finish.
func (s *Server) Run(ctx context.Context) error {
	done := make(chan error, 1)
	go func() { done <- s.http.Serve(s.listener) }()
	select {
	case err := <-done:
		return err
	case <-ctx.Done():
	}
	grace, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
	defer cancel()
	if err := s.http.Shutdown(grace); err != nil {
		_ = s.http.Close() // cut what outlasts the grace period
	}
	if err := <-done; !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return nil
}

// Client returns a client whose every request goes to this server; with http2,
// over HTTP/2 without TLS, as gRPC needs. The caller closes its idle
// connections.
func (s *Server) Client(http2 bool) *http.Client {
	protocols := new(http.Protocols)
	protocols.SetHTTP1(!http2)
	protocols.SetUnencryptedHTTP2(http2)
	return &http.Client{Transport: &http.Transport{
		Protocols:   protocols,
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) { return s.listener.dial(ctx) },
	}}
}

type listener struct {
	conns  chan net.Conn
	once   sync.Once
	closed chan struct{}
}

func (l *listener) dial(ctx context.Context) (net.Conn, error) {
	client, server := net.Pipe()
	select {
	case l.conns <- server:
		return client, nil
	case <-l.closed:
		return nil, net.ErrClosed
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

func (l *listener) Accept() (net.Conn, error) {
	select {
	case conn := <-l.conns:
		return conn, nil
	case <-l.closed:
		return nil, net.ErrClosed
	}
}

func (l *listener) Close() error {
	l.once.Do(func() { close(l.closed) })
	return nil
}

func (l *listener) Addr() net.Addr { return address{} }

type address struct{}

func (address) Network() string { return "memory" }
func (address) String() string  { return "in-memory" }
