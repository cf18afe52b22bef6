package subscriber

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"os"
	"runtime"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
)

// greeting of a ZMTP 3.0 peer with the NULL mechanism.
func greeting() []byte {
	g := make([]byte, greetingSize)
	g[0], g[9], g[10] = 0xff, 0x7f, 3
	copy(g[12:], "NULL")
	return g
}

// frame in wire form.
func frame(flags byte, body []byte) []byte {
	if len(body) > 255 {
		return append(longFrame(flags, uint64(len(body))), body...)
	}
	return append([]byte{flags, byte(len(body))}, body...)
}

// longFrame is the header of a frame that announces size bytes.
func longFrame(flags byte, size uint64) []byte {
	return binary.BigEndian.AppendUint64([]byte{flags | flagLong}, size)
}

func command(name string, body []byte) []byte {
	return frame(flagCommand, append(append([]byte{byte(len(name))}, name...), body...))
}

func readyCommand() []byte {
	return command("READY", []byte("\x0bSocket-Type\x00\x00\x00\x03PUB"))
}

func ping(context string) []byte { return command("PING", append([]byte{0, 10}, context...)) }

// script is a net.Conn that reads from in and keeps what is written.
type script struct {
	net.Conn
	in  io.Reader
	out bytes.Buffer
}

func (s *script) Read(p []byte) (int, error)     { return s.in.Read(p) }
func (s *script) Write(p []byte) (int, error)    { return s.out.Write(p) }
func (*script) Close() error                     { return nil }
func (*script) SetReadDeadline(time.Time) error  { return nil }
func (*script) SetWriteDeadline(time.Time) error { return nil }

// guardOver reads everything that a guard lets through of wire.
func guardOver(t testing.TB, wire []byte, limit int64) (passed []byte, conn *script, err error) {
	conn = &script{in: bytes.NewReader(wire)}
	g := newGuardedConn(t.Context(), conn, limit)
	defer g.Close()
	passed, err = io.ReadAll(g)
	return passed, conn, err
}

func TestGuardPassesFramesUnchanged(t *testing.T) {
	t.Parallel()
	wire := bytes.Join([][]byte{
		greeting(), readyCommand(),
		frame(flagMore, []byte("topic")), frame(flagMore, make([]byte, 8)), frame(0, bytes.Repeat([]byte("x"), 100_000)),
		frame(0, nil),
	}, nil)
	passed, _, err := guardOver(t, wire, 100_000)
	if err != nil || !bytes.Equal(passed, wire) {
		t.Errorf("passed %d of %d bytes, err %v", len(passed), len(wire), err)
	}
}

func TestGuardAnswersAndHidesHeartbeats(t *testing.T) {
	t.Parallel()
	message := frame(0, []byte("event"))
	wire := bytes.Join([][]byte{greeting(), readyCommand(), ping("abc"), message, ping(""), command("PONG", nil), message}, nil)
	passed, conn, err := guardOver(t, wire, 1000)
	want := bytes.Join([][]byte{greeting(), readyCommand(), message, message}, nil)
	if err != nil || !bytes.Equal(passed, want) {
		t.Errorf("passed %q, err %v, want %q", passed, err, want)
	}
	if want := append(command("PONG", []byte("abc")), command("PONG", nil)...); !bytes.Equal(conn.out.Bytes(), want) {
		t.Errorf("answered %q, want %q", conn.out.Bytes(), want)
	}
}

func TestGuardRefuses(t *testing.T) {
	t.Parallel()
	const limit = 64 << 20
	many := bytes.Repeat(frame(flagMore, []byte("x")), maxMessageFrames+1)
	for _, tc := range []struct {
		name string
		wire []byte
		want error
	}{
		{"a byte above the limit", longFrame(0, limit+1), errFrameTooLarge},
		{"2^50 bytes", longFrame(0, 1<<50), errFrameTooLarge},
		{"2^64-1 bytes", longFrame(0, 1<<64-1), errFrameTooLarge},
		{"a long command", longFrame(flagCommand, maxCommand+1), errMalformedFrame},
		{"a command inside a message", append(frame(flagMore, []byte("x")), ping("")...), errMalformedFrame},
		{"a command with more", frame(flagCommand|flagMore, []byte("\x04PING\x00\x00")), errMalformedFrame},
		{"reserved flags", frame(0x80, nil), errMalformedFrame},
		{"a nameless command", frame(flagCommand, nil), errMalformedFrame},
		{"a name longer than its command", frame(flagCommand, []byte("\x09PING")), errMalformedFrame},
		{"a long heartbeat", ping("12345678901234567"), errMalformedFrame},
		{"too many frames", many, errMessageTooLarge},
	} {
		_, _, err := guardOver(t, bytes.Join([][]byte{greeting(), readyCommand(), tc.wire}, nil), limit)
		if !errors.Is(err, tc.want) {
			t.Errorf("%s: err %v, want %v", tc.name, err, tc.want)
		}
	}
	if _, _, err := guardOver(t, append(greeting(), frame(0, []byte("early"))...), limit); !errors.Is(err, errMalformedFrame) {
		t.Errorf("a message before the handshake: err %v", err)
	}
}

func TestGuardBoundsMessageOfManyLargeFrames(t *testing.T) {
	t.Parallel()
	const limit = 1 << 20
	half := frame(flagMore, make([]byte, limit/2+messageSlack))
	_, _, err := guardOver(t, bytes.Join([][]byte{greeting(), readyCommand(), half, half}, nil), limit)
	if !errors.Is(err, errMessageTooLarge) {
		t.Errorf("err %v, want %v", err, errMessageTooLarge)
	}
}

// A PONG must not fall between the header and the body of an outgoing frame,
// which the library writes apart.
func TestGuardWritesWholeFrames(t *testing.T) {
	t.Parallel()
	conn := &script{in: bytes.NewReader(nil)}
	g := newGuardedConn(t.Context(), conn, 1000)
	defer g.Close()
	write := func(b []byte) {
		t.Helper()
		if n, err := g.Write(b); n != len(b) || err != nil {
			t.Fatalf("write of %d bytes: %d, %v", len(b), n, err)
		}
	}
	subscribe := frame(0, []byte("\x01topic"))
	write(greeting()[:10])
	write(greeting()[10:])
	write(readyCommand())
	write(subscribe[:2])
	if err := g.pong([]byte{0, 10, 'c'}); err != nil {
		t.Fatal(err)
	}
	write(subscribe[2:])
	write([]byte{0, 0}) // an empty frame
	write(nil)
	long := frame(0, make([]byte, 300))
	write(long[:9])
	write(long[9:])
	want := bytes.Join([][]byte{greeting(), readyCommand(), command("PONG", []byte("c")), subscribe, {0, 0}, long}, nil)
	if diff := cmp.Diff(want, conn.out.Bytes()); diff != "" {
		t.Errorf("on the wire (-want +got):\n%s", diff)
	}
	if n, err := g.Write(make([]byte, maxOutgoing+1)); n != 0 || err == nil {
		t.Errorf("write above the limit: %d, %v", n, err)
	}
}

func TestGuardBoundsHandshake(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		ours, theirs := net.Pipe()
		defer theirs.Close()
		started := time.Now()
		g := newGuardedConn(t.Context(), ours, 1000)
		defer g.Close()
		_, err := g.Read(make([]byte, 1))
		if !errors.Is(err, os.ErrDeadlineExceeded) || time.Since(started) != handshakeTimeout {
			t.Errorf("silent peer: %v after %s", err, time.Since(started))
		}
	})
}

func TestGuardWaitsForEverAfterHandshake(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		ours, theirs := net.Pipe()
		defer theirs.Close()
		ctx, cancel := context.WithCancel(t.Context())
		g := newGuardedConn(ctx, ours, 1000)
		defer g.Close()
		go func() {
			_, _ = theirs.Write(append(greeting(), readyCommand()...))
			time.Sleep(time.Hour)
			cancel()
		}()
		started := time.Now()
		_, err := io.ReadAll(g)
		if err == nil || time.Since(started) != time.Hour {
			t.Errorf("idle peer: %v after %s, want an hour until the context ends", err, time.Since(started))
		}
	})
}

func FuzzGuard(f *testing.F) {
	hello := append(greeting(), readyCommand()...)
	f.Add(hello)
	f.Add(append(hello, frame(flagMore, []byte("topic"))...))
	f.Add(append(hello, longFrame(0, 1<<50)...))
	f.Add(append(hello, ping("abc")...))
	f.Add(append(hello, frame(0, nil)...))
	f.Fuzz(func(t *testing.T, wire []byte) {
		const limit = 4096
		passed, _, _ := guardOver(t, wire, limit)
		checkPassed(t, passed, limit)
	})
}

// checkPassed reads what a guard let through as the library would: every
// length is within the limit.
func checkPassed(t *testing.T, passed []byte, limit uint64) {
	t.Helper()
	if len(passed) <= greetingSize {
		return
	}
	message := uint64(0)
	for b := passed[greetingSize:]; len(b) >= shortHeader; {
		size, header := uint64(b[1]), shortHeader
		if b[0]&flagLong != 0 {
			if len(b) < longHeader {
				return
			}
			size, header = binary.BigEndian.Uint64(b[1:]), longHeader
		}
		message += size
		if size > limit || message > limit+messageSlack {
			t.Fatalf("passed a frame of %d bytes in a message of %d", size, message)
		}
		if b[0]&flagMore == 0 {
			message = 0
		}
		b = b[min(len(b), header+int(size)):]
	}
}

// The header alone must cost nothing.
func TestGuardDoesNotAllocateWhatIsAnnounced(t *testing.T) {
	wire := bytes.Join([][]byte{greeting(), readyCommand(), longFrame(0, 1<<50)}, nil)
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	_, _, err := guardOver(t, wire, 64<<20)
	runtime.ReadMemStats(&after)
	if !errors.Is(err, errFrameTooLarge) {
		t.Fatalf("err %v", err)
	}
	if grew := after.TotalAlloc - before.TotalAlloc; grew > 2*readBuffer {
		t.Errorf("allocated %d bytes", grew)
	}
}
