package sim

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"net"
	"sync"
)

const (
	peerBuffer = 64 << 10 // bytes, per direction
	writeChunk = 16       // messages taken from the outbox at once
)

// peer is one connection to a socket. Its reader follows subscriptions and
// assembles requests; its writer empties the outbox.
type peer struct {
	socket *socket
	conn   net.Conn
	out    *outbox

	mu     sync.Mutex
	topics map[string]int // subscribed prefixes and how often
}

func newPeer(s *socket, conn net.Conn) *peer {
	return &peer{socket: s, conn: conn, out: newOutbox(s.limit), topics: make(map[string]int)}
}

// serve runs the connection until it ends, which close brings about at any
// moment. It returns why; nothing of the peer runs on.
func (p *peer) serve(ctx context.Context) error {
	defer p.close()
	r := bufio.NewReaderSize(p.conn, 4<<10)
	if err := handshake(p.conn, r, p.socket.kind, p.socket.accepts); err != nil {
		return fmt.Errorf("handshake: %w", err)
	}
	var writer sync.WaitGroup
	writer.Go(p.write)
	err := p.read(ctx, r)
	p.close()
	writer.Wait()
	return err
}

// close ends the connection; whatever waits for it returns.
func (p *peer) close() {
	_ = p.conn.Close() // nothing is to be saved of a connection given up
	p.out.close()
}

func (p *peer) write() {
	defer p.close()
	w := bufio.NewWriterSize(p.conn, peerBuffer)
	var chunk [][]byte
	for {
		var open bool
		if chunk, open = p.out.take(chunk[:0], writeChunk); !open {
			return
		}
		for _, message := range chunk {
			if _, err := w.Write(message); err != nil {
				return
			}
		}
		if len(chunk) > 0 {
			continue
		}
		if err := w.Flush(); err != nil {
			return
		}
		<-p.out.ready
	}
}

func (p *peer) read(ctx context.Context, r *bufio.Reader) error {
	var scratch []byte
	var message [][]byte
	for {
		f, err := readFrame(r, &scratch)
		if err != nil {
			return err
		}
		if f.flags&flagCommand != 0 {
			if err := p.command(f); err != nil {
				return err
			}
			continue
		}
		if len(message) == maxFrames {
			return fmt.Errorf("message of more than %d frames", maxFrames)
		}
		message = append(message, bytes.Clone(f.body))
		if f.flags&flagMore != 0 {
			continue
		}
		p.message(ctx, message)
		message = nil
	}
}

// command handles what a peer of ZMTP 3.1 sends besides messages. Unknown
// commands are ignored, as the specification asks.
func (p *peer) command(f frame) error {
	name, data, err := f.command()
	if err != nil {
		return err
	}
	switch name {
	case "SUBSCRIBE":
		p.subscribe(string(data), 1)
	case "CANCEL":
		p.subscribe(string(data), -1)
	case "PING": // two bytes of time to live, then a context to send back
		if len(data) < 2 {
			return fmt.Errorf("PING of %d bytes", len(data))
		}
		p.out.hurry(appendCommand(nil, "PONG", data[2:]))
	case "ERROR":
		return fmt.Errorf("peer reports an error: %q", data)
	}
	return nil
}

// message handles a complete message: a subscription in the form of ZMTP 3.0
// (1 or 0, then the topic) on a PUB socket, a request on a ROUTER.
func (p *peer) message(ctx context.Context, frames [][]byte) {
	if p.socket.onMessage != nil {
		p.socket.onMessage(ctx, p, frames)
		return
	}
	if len(frames) != 1 || len(frames[0]) == 0 {
		return
	}
	switch topic := string(frames[0][1:]); frames[0][0] {
	case 1:
		p.subscribe(topic, 1)
	case 0:
		p.subscribe(topic, -1)
	}
}

func (p *peer) subscribe(topic string, by int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.topics[topic] += by; p.topics[topic] <= 0 {
		delete(p.topics, topic)
	}
}

func (p *peer) subscribed() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.topics) > 0
}

// wants reports whether a subscribed prefix matches topic.
func (p *peer) wants(topic []byte) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	for prefix := range p.topics {
		if bytes.HasPrefix(topic, []byte(prefix)) {
			return true
		}
	}
	return false
}
