package sim

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"time"
)

// ZMTP 3.1 with the NULL mechanism (rfc.zeromq.org/spec/37), the part that a
// PUB or ROUTER socket of libzmq speaks. It is written here because the PUB of
// go-zeromq/zmq4 v0.17.0 has one unbounded queue for all its subscribers: one
// that stalls starves the others.

const (
	flagMore    = 1
	flagLong    = 2 // the length is 8 bytes, not 1
	flagCommand = 4

	greetingSize = 64
	// maxInbound bounds a frame from a peer, in bytes; subscriptions, replay
	// requests and commands are far smaller.
	maxInbound = 64 << 10
	// maxFrames bounds a message from a peer; a replay request has two.
	maxFrames = 8
	// handshakeTimeout is from accept to READY.
	handshakeTimeout = 5 * time.Second
)

// frame is one ZMTP frame; body is only good until the next read.
type frame struct {
	flags byte
	body  []byte
}

// appendFrame adds a frame with the shortest header.
func appendFrame(b []byte, flags byte, body []byte) []byte {
	if len(body) > 255 {
		b = binary.BigEndian.AppendUint64(append(b, flags|flagLong), uint64(len(body)))
	} else {
		b = append(b, flags, byte(len(body)))
	}
	return append(b, body...)
}

// appendMessage adds the frames of one message.
func appendMessage(b []byte, frames ...[]byte) []byte {
	for i, body := range frames {
		flags := byte(flagMore)
		if i == len(frames)-1 {
			flags = 0
		}
		b = appendFrame(b, flags, body)
	}
	return b
}

// readFrame reads one frame into scratch, growing it up to maxInbound.
func readFrame(r *bufio.Reader, scratch *[]byte) (frame, error) {
	flags, err := r.ReadByte()
	if err != nil {
		return frame{}, err
	}
	if flags > flagMore|flagLong|flagCommand {
		return frame{}, fmt.Errorf("frame flags %#x are not ZMTP 3", flags)
	}
	header := make([]byte, 8)
	if flags&flagLong == 0 {
		header = header[:1]
	}
	if _, err := io.ReadFull(r, header); err != nil {
		return frame{}, err
	}
	var size uint64
	for _, b := range header {
		size = size<<8 | uint64(b)
	}
	if size > maxInbound {
		return frame{}, fmt.Errorf("frame of %d bytes is above the limit of %d", size, maxInbound)
	}
	*scratch = slices.Grow((*scratch)[:0], int(size))[:size]
	_, err = io.ReadFull(r, *scratch)
	return frame{flags: flags, body: *scratch}, err
}

// command splits the body of a command frame into its name and data.
func (f frame) command() (name string, data []byte, err error) {
	if len(f.body) == 0 || len(f.body) < 1+int(f.body[0]) {
		return "", nil, errors.New("command without a name")
	}
	end := 1 + int(f.body[0])
	return string(f.body[1:end]), f.body[end:], nil
}

func appendCommand(b []byte, name string, data []byte) []byte {
	body := append([]byte{byte(len(name))}, name...)
	return appendFrame(b, flagCommand, append(body, data...))
}

// greeting is what both sides send first: signature, version 3.1, mechanism,
// not a (security) server, filler.
func greeting() []byte {
	g := make([]byte, greetingSize)
	g[0], g[8], g[9] = 0xff, 1, 0x7f
	g[10], g[11] = 3, 1
	copy(g[12:32], "NULL")
	return g
}

// handshake greets the peer behind conn, tells it socketType and reads what
// it is; allowed are the types it may have. The deadline is lifted at the end.
func handshake(conn net.Conn, r *bufio.Reader, socketType string, allowed []string) error {
	if err := conn.SetDeadline(time.Now().Add(handshakeTimeout)); err != nil {
		return err
	}
	if _, err := conn.Write(greeting()); err != nil {
		return err
	}
	theirs := make([]byte, greetingSize)
	if _, err := io.ReadFull(r, theirs); err != nil {
		return fmt.Errorf("read greeting: %w", err)
	}
	mechanism, _, _ := bytes.Cut(theirs[12:32], []byte{0})
	if theirs[0] != 0xff || theirs[9]&1 == 0 || theirs[10] < 3 || string(mechanism) != "NULL" {
		return fmt.Errorf("peer is not ZMTP 3 with the NULL mechanism (version %d, mechanism %q)", theirs[10], mechanism)
	}
	ready := appendProperty(nil, "Socket-Type", socketType)
	if socketType == socketRouter {
		ready = appendProperty(ready, "Identity", "")
	}
	if _, err := conn.Write(appendCommand(nil, "READY", ready)); err != nil {
		return err
	}
	peerType, err := readReady(r)
	if err != nil {
		return err
	}
	if !slices.Contains(allowed, peerType) {
		return fmt.Errorf("a %s peer cannot talk to a %s socket", peerType, socketType)
	}
	return conn.SetDeadline(time.Time{})
}

// appendProperty adds a metadata property of a READY command.
func appendProperty(b []byte, name, value string) []byte {
	b = append(append(b, byte(len(name))), name...)
	return append(binary.BigEndian.AppendUint32(b, uint32(len(value))), value...)
}

// readReady returns the Socket-Type that a READY command announces.
func readReady(r *bufio.Reader) (string, error) {
	var scratch []byte
	f, err := readFrame(r, &scratch)
	if err != nil {
		return "", fmt.Errorf("read READY: %w", err)
	}
	name, data, err := f.command()
	if err != nil || f.flags&flagCommand == 0 || name != "READY" {
		return "", fmt.Errorf("peer sent %q instead of READY", name)
	}
	for len(data) > 0 {
		key, rest, ok := cutSized(data, int(data[0]), 1)
		if !ok || len(rest) < 4 {
			break
		}
		value, rest, ok := cutSized(rest, int(binary.BigEndian.Uint32(rest)), 4)
		if !ok {
			break
		}
		if string(bytes.ToLower(key)) == "socket-type" {
			return string(value), nil
		}
		data = rest
	}
	return "", errors.New("READY names no Socket-Type")
}

// cutSized splits size bytes off b, behind a header of skip bytes.
func cutSized(b []byte, size, skip int) (value, rest []byte, ok bool) {
	if size < 0 || size > len(b)-skip {
		return nil, nil, false
	}
	return b[skip : skip+size], b[skip+size:], true
}
