package sim

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"sync"
	"sync/atomic"
	"time"
)

// Socket types, as READY names them.
const (
	socketPub    = "PUB"
	socketRouter = "ROUTER"
)

// socket is a bound PUB or ROUTER with any number of peers. Nothing a peer
// does, or fails to do, holds up the others or the sender.
type socket struct {
	kind      string
	bind      string   // endpoint
	accepts   []string // types of peers
	limit     int      // messages queued per peer
	onMessage func(ctx context.Context, p *peer, frames [][]byte)
	log       *slog.Logger
	listener  net.Listener
	dropped   atomic.Uint64 // messages that found a queue full

	mu     sync.Mutex
	peers  map[*peer]struct{}
	closed bool
}

// listen binds the socket, whose endpoint must be a valid one.
func (s *socket) listen() error {
	address, err := tcpAddress(s.bind)
	if err != nil {
		return err
	}
	s.peers = make(map[*peer]struct{})
	s.listener, err = net.Listen("tcp", address)
	if err != nil {
		return fmt.Errorf("bind %s to %s: %w", s.kind, s.bind, err)
	}
	return nil
}

// endpoint is where the socket is bound, in a form that can be dialled on
// this machine, or "" if there is no socket.
func (s *socket) endpoint() string {
	if s == nil {
		return ""
	}
	return "tcp://" + dialable(s.listener.Addr())
}

// address is the host and the port of endpoint.
func (s *socket) address() (host string, port int) {
	host, _, _ = net.SplitHostPort(dialable(s.listener.Addr())) // it is one
	return host, s.listener.Addr().(*net.TCPAddr).Port
}

// run accepts peers until ctx ends and returns when the last is gone.
func (s *socket) run(ctx context.Context) error {
	var group sync.WaitGroup
	accepted := make(chan error, 1)
	group.Go(func() { accepted <- s.accept(ctx, &group) })
	var err error
	select {
	case err = <-accepted:
	case <-ctx.Done():
	}
	_ = s.listener.Close()
	s.mu.Lock()
	s.closed = true
	s.mu.Unlock()
	s.disconnect()
	group.Wait()
	return err
}

func (s *socket) accept(ctx context.Context, group *sync.WaitGroup) error {
	for {
		conn, err := s.listener.Accept()
		if errors.Is(err, net.ErrClosed) {
			return nil
		}
		if err != nil {
			// Out of descriptors, most likely: give the others time to end.
			s.log.Warn("cannot accept a peer", "socket", s.kind, "err", err)
			select {
			case <-time.After(100 * time.Millisecond):
				continue
			case <-ctx.Done():
				return nil
			}
		}
		p := newPeer(s, conn)
		if !s.add(p) {
			p.close()
			return nil
		}
		group.Go(func() {
			err := p.serve(ctx)
			s.remove(p)
			s.log.Debug("peer left", "socket", s.kind, "peer", conn.RemoteAddr(), "err", err)
		})
	}
}

func (s *socket) add(p *peer) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return false
	}
	s.peers[p] = struct{}{}
	return true
}

func (s *socket) remove(p *peer) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.peers, p)
}

func (s *socket) snapshot() []*peer {
	s.mu.Lock()
	defer s.mu.Unlock()
	peers := make([]*peer, 0, len(s.peers))
	for p := range s.peers {
		peers = append(peers, p)
	}
	return peers
}

// disconnect closes every connection; the socket stays bound.
func (s *socket) disconnect() {
	for _, p := range s.snapshot() {
		p.close()
	}
}

// publish queues an encoded message with this topic for every peer that wants
// it and has room.
func (s *socket) publish(topic, message []byte) {
	for _, p := range s.snapshot() {
		if p.wants(topic) && !p.out.push(message) {
			s.dropped.Add(1)
		}
	}
}

// subscribers counts the peers that want something.
func (s *socket) subscribers() int {
	n := 0
	for _, p := range s.snapshot() {
		if p.subscribed() {
			n++
		}
	}
	return n
}
