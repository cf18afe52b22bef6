package subscriber

import (
	"bufio"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"sync"
	"time"
)

// Facts of ZMTP 3.0 and 3.1 (rfc.zeromq.org/spec/23 and 37).
const (
	greetingSize = 64

	flagMore     = 0x01
	flagLong     = 0x02 // the length has 8 bytes, big-endian, instead of one
	flagCommand  = 0x04
	flagReserved = 0xf8

	shortHeader = 2 // flags and a 1-byte length
	longHeader  = 9 // flags and an 8-byte length

	pingTTLSize    = 2  // bytes between a PING's name and its context
	maxPingContext = 16 // bytes of context that a PONG echoes
)

const (
	readBuffer       = 64 << 10        // bytes; three unbuffered reads a frame cost 3/4 of the throughput
	maxCommand       = 8 << 10         // bytes of a command's body; a READY has about 60
	maxMessageFrames = 64              // frames a message; a live one has 3
	messageSlack     = 64 << 10        // bytes that topic and sequence may add to the largest frame
	maxOutgoing      = 64 << 10        // bytes of one outgoing frame: subscriptions and replay requests
	handshakeTimeout = 2 * time.Second // from the connect to the peer's READY
	writeTimeout     = 2 * time.Second // for one frame; a peer that does not read must not hold the reader
)

var (
	errFrameTooLarge   = errors.New("frame above the limit")
	errMessageTooLarge = errors.New("message above the limit")
	errMalformedFrame  = errors.New("malformed frame")
)

// guardedConn is the connection that the ZeroMQ library gets to see. It reads
// every frame header first and fails on one that announces more than limit,
// because the library allocates what a header says (2 GB if so announced, and
// a panic that nobody can recover for more). It also answers heartbeats, which
// the library would hand to its caller as messages, bounds the handshake,
// which the library lets hang for ever, and closes when its context ends.
//
// One goroutine reads and any number write, as net.Conn allows.
type guardedConn struct {
	net.Conn
	in    *bufio.Reader
	limit int64 // bytes of a frame's body
	once  sync.Once
	stop  func() bool // ends the watch on the context

	// Only the reading goroutine touches these.
	pass    int64 // bytes, already looked at, that the library may read
	ready   bool  // the peer's READY has been seen
	frames  int   // of the message being read
	message int64 // bytes of the message being read

	mu      sync.Mutex // over out and over whole frames on the wire, PONGs included
	out     []byte     // what the library wrote of a frame that is not complete yet
	greeted bool       // our greeting has gone out
}

// newGuardedConn takes over conn, which closes when ctx ends. limit is in
// bytes of a frame's body.
func newGuardedConn(ctx context.Context, conn net.Conn, limit int64) *guardedConn {
	c := &guardedConn{
		Conn:  conn,
		in:    bufio.NewReaderSize(conn, readBuffer),
		limit: limit,
		pass:  greetingSize,
	}
	// An error here shows up at the first read.
	_ = conn.SetReadDeadline(time.Now().Add(handshakeTimeout))
	c.stop = context.AfterFunc(ctx, func() { _ = c.Conn.Close() })
	return c
}

// Close closes the connection; further calls do nothing.
func (c *guardedConn) Close() (err error) {
	c.once.Do(func() {
		c.stop()
		err = c.Conn.Close()
	})
	return err
}

// Read gives the library the greeting and then frames that passed the checks,
// never a byte beyond.
func (c *guardedConn) Read(p []byte) (int, error) {
	if len(p) == 0 {
		return 0, nil
	}
	for c.pass == 0 {
		if err := c.admit(); err != nil {
			return 0, err
		}
	}
	if int64(len(p)) > c.pass {
		p = p[:c.pass]
	}
	n, err := c.in.Read(p)
	c.pass -= int64(n)
	return n, err
}

// admit looks at the next frame: it is passed on, answered and hidden, or
// refused.
func (c *guardedConn) admit() error {
	head, err := c.in.Peek(shortHeader)
	if err != nil {
		return err
	}
	flags, size, header := head[0], uint64(head[1]), shortHeader
	if flags&flagReserved != 0 {
		return fmt.Errorf("%w: flags %#02x", errMalformedFrame, flags)
	}
	if flags&flagLong != 0 {
		if head, err = c.in.Peek(longHeader); err != nil {
			return err
		}
		size, header = binary.BigEndian.Uint64(head[1:]), longHeader
	}
	if size > uint64(c.limit) {
		return fmt.Errorf("%w: %d bytes announced, %d allowed", errFrameTooLarge, size, c.limit)
	}
	if flags&flagCommand != 0 {
		return c.command(flags, header, size)
	}
	if !c.ready {
		return fmt.Errorf("%w: message before the handshake", errMalformedFrame)
	}
	c.frames++
	c.message += int64(size)
	if c.frames > maxMessageFrames || c.message > c.limit+messageSlack {
		return fmt.Errorf("%w: frame %d, %d bytes", errMessageTooLarge, c.frames, c.message)
	}
	if flags&flagMore == 0 {
		c.frames, c.message = 0, 0
	}
	c.pass = int64(header) + int64(size)
	return nil
}

// command deals with a command frame, which may only stand between messages.
// The handshake's READY and ERROR are the library's; PING is answered; what
// else there is means nothing to a receiver and is skipped.
func (c *guardedConn) command(flags byte, header int, size uint64) error {
	if flags&flagMore != 0 || c.frames != 0 || size > maxCommand {
		return fmt.Errorf("%w: command of %d bytes, flags %#02x", errMalformedFrame, size, flags)
	}
	whole := header + int(size)
	frame, err := c.in.Peek(whole)
	if err != nil {
		return err
	}
	name, body, ok := cutCommand(frame[header:])
	if !ok {
		return fmt.Errorf("%w: command without a name", errMalformedFrame)
	}
	if !c.ready {
		if name == "READY" {
			c.ready = true
			if err := c.Conn.SetReadDeadline(time.Time{}); err != nil {
				return err
			}
		}
		c.pass = int64(whole)
		return nil
	}
	switch name {
	case "PING":
		if err := c.pong(body); err != nil {
			return err
		}
	case "ERROR":
		return errors.New("peer ended the connection with an ERROR command")
	}
	_, err = c.in.Discard(whole)
	return err
}

// cutCommand splits the body of a command frame: a length byte, the name, the
// rest.
func cutCommand(b []byte) (name string, body []byte, ok bool) {
	if len(b) == 0 || int(b[0]) > len(b)-1 {
		return "", nil, false
	}
	return string(b[1 : 1+b[0]]), b[1+b[0]:], true
}

// pong answers a PING with the same context.
func (c *guardedConn) pong(ping []byte) error {
	if len(ping) < pingTTLSize || len(ping) > pingTTLSize+maxPingContext {
		return fmt.Errorf("%w: PING of %d bytes", errMalformedFrame, len(ping))
	}
	echo := ping[pingTTLSize:]
	frame := make([]byte, 0, shortHeader+len("\x04PONG")+maxPingContext)
	frame = append(frame, flagCommand, byte(len("\x04PONG")+len(echo)))
	frame = append(frame, "\x04PONG"...)
	frame = append(frame, echo...)

	c.mu.Lock()
	defer c.mu.Unlock()
	return c.send(frame)
}

// Write collects what the library writes, which is a frame's header and body
// apart, until the frame is whole, so that a PONG cannot fall between them. A
// write of nothing is (0, nil): the library writes the bodies of empty frames.
func (c *guardedConn) Write(p []byte) (int, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.out)+len(p) > maxOutgoing {
		return 0, fmt.Errorf("outgoing %w", errFrameTooLarge)
	}
	c.out = append(c.out, p...)
	for {
		n := c.completeLocked()
		if n == 0 {
			return len(p), nil
		}
		if err := c.send(c.out[:n]); err != nil {
			return 0, err
		}
		c.greeted = true
		c.out = append(c.out[:0], c.out[n:]...)
	}
}

// completeLocked is the length of the greeting or frame that out starts with;
// 0 if it is not all there yet.
func (c *guardedConn) completeLocked() int {
	need := greetingSize
	if c.greeted {
		if len(c.out) < shortHeader {
			return 0
		}
		need = shortHeader + int(c.out[1])
		if c.out[0]&flagLong != 0 {
			if len(c.out) < longHeader {
				return 0
			}
			need = longHeader + int(min(binary.BigEndian.Uint64(c.out[1:]), maxOutgoing))
		}
	}
	if len(c.out) < need {
		return 0
	}
	return need
}

// send puts one whole frame on the wire. The caller holds mu, which is there
// to order these writes, over the I/O; writeTimeout bounds it.
func (c *guardedConn) send(frame []byte) error {
	if err := c.Conn.SetWriteDeadline(time.Now().Add(writeTimeout)); err != nil {
		return err
	}
	_, err := c.Conn.Write(frame)
	return err
}
