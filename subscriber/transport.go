package subscriber

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"strings"
	"sync"
	"time"

	"github.com/go-zeromq/zmq4"
	"github.com/go-zeromq/zmq4/transport"
)

// Names under which the guarded transports are registered with the library.
// The library keeps one list a process, so the names are this package's own.
const (
	guardedTCP = "guarded-tcp"
	guardedIPC = "guarded-ipc"
)

const (
	dialTimeout = 2 * time.Second // for the connect; the handshake has its own
	// maxDrain frees a reader of the library that is blocked on its full
	// channel of 10 messages. After the context's end a Recv takes a message
	// or gives up with equal chance, so 64 of them are certain enough.
	maxDrain = 64
)

// register adds the guarded transports to the library, once a process.
var register = sync.OnceValue(func() error {
	return errors.Join(
		zmq4.RegisterTransport(guardedTCP, guardedTransport{network: "tcp", plain: transport.New("tcp")}),
		zmq4.RegisterTransport(guardedIPC, guardedTransport{network: "unix", plain: transport.New("unix")}),
	)
})

// guardedTransport dials connections that are guarded. The frame limit comes
// with the socket's context, the only thing the library hands through.
type guardedTransport struct {
	network string
	plain   transport.Transport
}

type frameLimitKey struct{}

func (t guardedTransport) Dial(ctx context.Context, dialer transport.Dialer, addr string) (net.Conn, error) {
	limit, ok := ctx.Value(frameLimitKey{}).(int64)
	if !ok {
		panic("bug: guarded transport dialled without a frame limit")
	}
	conn, err := dialer.DialContext(ctx, t.network, addr)
	if err != nil {
		return nil, err
	}
	return newGuardedConn(ctx, conn, limit), nil
}

func (t guardedTransport) Listen(context.Context, string) (net.Listener, error) {
	return nil, errors.New("guarded transports only dial")
}

func (t guardedTransport) Addr(endpoint string) (string, error) { return t.plain.Addr(endpoint) }

// guardedEndpoint is endpoint (tcp://host:port or ipc://path) under the name
// of its guarded transport.
func guardedEndpoint(endpoint string) (string, error) {
	if addr, ok := strings.CutPrefix(endpoint, "tcp://"); ok {
		host, port, err := net.SplitHostPort(addr)
		if err != nil {
			return "", fmt.Errorf("endpoint %q: %w", endpoint, err)
		}
		if host == "" || host == "*" || port == "" || port == "*" || port == "0" {
			return "", fmt.Errorf("endpoint %q is one to bind, not one to dial", endpoint)
		}
		return guardedTCP + "://" + addr, nil
	}
	if path, ok := strings.CutPrefix(endpoint, "ipc://"); ok && path != "" && path != "*" {
		return guardedIPC + "://" + path, nil
	}
	return "", fmt.Errorf("endpoint %q: want tcp://host:port or ipc://path", endpoint)
}

// socket is a library socket with its one connection. It is used until its
// first error and never again: a socket of the library with no connection
// left blocks for ever, and its automatic reconnect races and gives up.
type socket struct {
	zmq4.Socket
	cancel context.CancelFunc
}

// openSub connects a SUB socket to endpoint, a guarded one, for all messages
// whose topic starts with topic. The socket ends with ctx.
func openSub(ctx context.Context, endpoint, topic string, frameLimit int64) (*socket, error) {
	return open(ctx, endpoint, frameLimit, func(ctx context.Context, options ...zmq4.Option) (zmq4.Socket, error) {
		s := zmq4.NewSub(ctx, options...)
		// Before the dial: the library sends it with the new connection.
		return s, s.SetOption(zmq4.OptionSubscribe, topic)
	})
}

// openDealer connects a DEALER socket, with an identity of its own.
func openDealer(ctx context.Context, endpoint string, frameLimit int64) (*socket, error) {
	return open(ctx, endpoint, frameLimit, func(ctx context.Context, options ...zmq4.Option) (zmq4.Socket, error) {
		return zmq4.NewDealer(ctx, options...), nil
	})
}

func open(ctx context.Context, endpoint string, frameLimit int64,
	make func(context.Context, ...zmq4.Option) (zmq4.Socket, error)) (*socket, error) {
	if err := register(); err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(context.WithValue(ctx, frameLimitKey{}, frameLimit))
	inner, err := make(ctx,
		zmq4.WithDialerMaxRetries(0),
		zmq4.WithDialerTimeout(dialTimeout),
		zmq4.WithLogger(log.New(io.Discard, "", 0)),
	)
	s := &socket{cancel: cancel, Socket: inner}
	if err == nil {
		err = dialSafely(s.Socket, endpoint)
	}
	if err != nil {
		s.close()
		return nil, err
	}
	return s, nil
}

// dialSafely is Dial without its panics: malformed metadata in a peer's READY
// makes the library slice out of range.
func dialSafely(s zmq4.Socket, endpoint string) (err error) {
	defer func() {
		if r := recover(); r != nil {
			err = fmt.Errorf("handshake with %s: %v", endpoint, r)
		}
	}()
	return s.Dial(endpoint)
}

// close ends the socket and every goroutine that the library keeps for it.
func (s *socket) close() {
	_ = s.Close()
	s.cancel()
	for range maxDrain {
		_, _ = s.Recv()
	}
}
