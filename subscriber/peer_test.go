package subscriber

import (
	"bufio"
	"bytes"
	"context"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-zeromq/zmq4"
)

// libzmqPeer is a publisher on libzmq, the library that engines use, in a
// process of its own.
type libzmqPeer struct {
	endpoint   string
	stdin      io.WriteCloser
	command    *exec.Cmd
	subscribed chan string // topics, as they come
	replay     chan string // endpoint, of an engine
	sent       chan string // batches after each burst, of an engine
	stop       func()
}

const python = "/usr/bin/python3"

var pythonHasZMQ = sync.OnceValue(func() bool { return exec.Command(python, "-c", "import zmq").Run() == nil })

// newLibzmqPeer starts a publisher and waits until it is bound. It ends with
// the test.
func newLibzmqPeer(t *testing.T, args ...string) *libzmqPeer {
	t.Helper()
	return startPeer(t, "testdata/publisher.py", args...)
}

func startPeer(t *testing.T, script string, args ...string) *libzmqPeer {
	t.Helper()
	if !pythonHasZMQ() {
		const message = "no libzmq peer: needs " + python + " with pyzmq (Debian: python3-zmq)"
		if os.Getenv("CI") == "true" {
			t.Fatal(message)
		}
		t.Skip(message)
	}
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	p := &libzmqPeer{subscribed: make(chan string, 100), replay: make(chan string, 1), sent: make(chan string, 100)}
	p.command = exec.CommandContext(ctx, python, append([]string{script}, args...)...)
	p.command.Stderr = os.Stderr
	stdin, err := p.command.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	stdout, err := p.command.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := p.command.Start(); err != nil {
		t.Fatal(err)
	}
	p.stdin = stdin
	bound := make(chan string, 1)
	var reading sync.WaitGroup
	reading.Go(func() {
		for lines := bufio.NewScanner(stdout); lines.Scan(); {
			word, rest, _ := strings.Cut(lines.Text(), " ")
			switch word {
			case "endpoint":
				bound <- rest
			case "subscribed":
				p.subscribed <- rest
			case "replay":
				p.replay <- rest
			case "sent":
				p.sent <- rest
			}
		}
	})
	p.stop = sync.OnceFunc(func() {
		cancel()
		reading.Wait()
		_ = p.command.Wait() // killed
	})
	t.Cleanup(p.stop)
	select {
	case p.endpoint = <-bound:
	case <-time.After(patience):
		t.Fatal("libzmq peer does not start")
	}
	return p
}

// expectSubscription waits for the next subscription.
func (p *libzmqPeer) expectSubscription(t *testing.T) string {
	t.Helper()
	select {
	case topic := <-p.subscribed:
		return topic
	case <-time.After(patience):
		t.Fatal("nobody subscribes")
	}
	return ""
}

func (p *libzmqPeer) send(t *testing.T, frames ...[]byte) {
	t.Helper()
	words := []string{"send"}
	for _, f := range frames {
		if len(f) == 0 {
			words = append(words, "-")
			continue
		}
		words = append(words, hex.EncodeToString(f))
	}
	p.tell(t, strings.Join(words, " "))
}

func (p *libzmqPeer) tell(t *testing.T, line string) {
	t.Helper()
	if _, err := io.WriteString(p.stdin, line+"\n"); err != nil {
		t.Fatal(err)
	}
}

// publish sends a live message.
func (p *libzmqPeer) publish(t *testing.T, sequence uint64, payload []byte) {
	t.Helper()
	p.send(t, nil, sequenceFrame(sequence), payload)
}

func sequenceFrame(n uint64) []byte { return binary.BigEndian.AppendUint64(nil, n) }

// rawPeer is a publisher of our own that can write anything: it completes the
// handshake of each connection and hands it over.
type rawPeer struct {
	endpoint string
	listener net.Listener
	conns    chan net.Conn
}

func newRawPeer(t *testing.T) *rawPeer {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	p := &rawPeer{endpoint: "tcp://" + l.Addr().String(), listener: l, conns: make(chan net.Conn, 100)}
	var accepting sync.WaitGroup
	accepting.Go(func() {
		defer close(p.conns)
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			p.conns <- conn
		}
	})
	t.Cleanup(func() {
		_ = l.Close()
		accepting.Wait()
		for conn := range p.conns {
			_ = conn.Close()
		}
	})
	return p
}

// accept waits for the next connection and shakes hands up to the
// subscription.
func (p *rawPeer) accept(t *testing.T) net.Conn {
	t.Helper()
	select {
	case conn := <-p.conns:
		t.Cleanup(func() { _ = conn.Close() })
		if err := shakeHands(conn); err != nil {
			t.Fatal(err)
		}
		return conn
	case <-time.After(patience):
		t.Fatal("nobody connects")
	}
	return nil
}

func shakeHands(conn net.Conn) error {
	_ = conn.SetDeadline(time.Now().Add(patience))
	if _, err := conn.Write(append(greeting(), readyCommand()...)); err != nil {
		return err
	}
	in := bufio.NewReader(conn)
	if _, err := in.Discard(greetingSize); err != nil {
		return err
	}
	for _, what := range []string{"READY", "\x01"} {
		header := make([]byte, shortHeader)
		if _, err := io.ReadFull(in, header); err != nil {
			return err
		}
		body := make([]byte, header[1])
		if _, err := io.ReadFull(in, body); err != nil {
			return err
		}
		if !bytes.Contains(body, []byte(what)) {
			return fmt.Errorf("handshake: got %q, want %q", body, what)
		}
	}
	return nil
}

// liveWire is a live message in wire form.
func liveWire(sequence uint64, payload []byte) []byte {
	return bytes.Join([][]byte{frame(flagMore, nil), frame(flagMore, sequenceFrame(sequence)), frame(0, payload)}, nil)
}

// newZMQ4Peer is a PUB socket of the Go library on an endpoint of its choice.
func newZMQ4Peer(t *testing.T, endpoint string) zmq4.Socket {
	t.Helper()
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	pub := zmq4.NewPub(ctx)
	if err := pub.Listen(endpoint); err != nil {
		cancel()
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = pub.Close()
		cancel()
	})
	return pub
}

// pack is a writer of the little msgpack that the tests' own events need.
type pack []byte

func (p pack) array(n int) pack   { return binary.BigEndian.AppendUint16(append(p, 0xdc), uint16(n)) }
func (p pack) uint(v uint64) pack { return binary.BigEndian.AppendUint64(append(p, 0xcf), v) }
func (p pack) text(s string) pack { return append(append(p, 0xd9, byte(len(s))), s...) }
func (p pack) none() pack         { return append(p, 0xc0) }
func (p pack) hashes(h []uint64) pack {
	p = p.array(len(h))
	for _, v := range h {
		p = p.uint(v)
	}
	return p
}

// storedBatch is a vLLM batch (layout of 0.9.0) that stores a chain of blocks
// of 16 tokens: block i has the engine hash hashes[i] and 16 times the token
// tokens[i].
func storedBatch(parent uint64, hashes []uint64, tokens []uint32) []byte {
	p := pack{}.array(2).uint(uint64(time.Now().Unix())).array(1).array(6).text("BlockStored").hashes(hashes)
	if parent == 0 {
		p = p.none()
	} else {
		p = p.uint(parent)
	}
	p = p.array(16 * len(tokens))
	for _, token := range tokens {
		for range 16 {
			p = p.uint(uint64(token))
		}
	}
	return p.uint(16).none()
}

// removedBatch removes blocks.
func removedBatch(hashes ...uint64) []byte {
	return pack{}.array(2).uint(uint64(time.Now().Unix())).array(1).array(2).text("BlockRemoved").hashes(hashes)
}
