package sim

import (
	"bufio"
	"bytes"
	"context"
	"encoding/binary"
	"fmt"
	"net"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/go-zeromq/zmq4"
)

// client is a bare ZMTP peer, for what no library lets one do.
type client struct {
	t    *testing.T
	conn net.Conn
	r    *bufio.Reader
}

func dial(t *testing.T, endpoint string) *client {
	t.Helper()
	conn, err := net.Dial("tcp", strings.TrimPrefix(endpoint, "tcp://"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	if err := conn.SetDeadline(time.Now().Add(time.Minute)); err != nil {
		t.Fatal(err)
	}
	return &client{t: t, conn: conn, r: bufio.NewReader(conn)}
}

// join is dial and the handshake of a socket of this type.
func join(t *testing.T, endpoint, socketType string) *client {
	t.Helper()
	c := dial(t, endpoint)
	c.send(appendCommand(greeting(), "READY", appendProperty(nil, "Socket-Type", socketType)))
	if _, err := c.r.Discard(greetingSize); err != nil {
		t.Fatal(err)
	}
	if f := c.frame(); f.flags != flagCommand || !bytes.HasPrefix(f.body, []byte("\x05READY")) {
		t.Fatalf("got %x instead of READY", f.body)
	}
	return c
}

func (c *client) send(b []byte) {
	c.t.Helper()
	if _, err := c.conn.Write(b); err != nil {
		c.t.Fatal(err)
	}
}

func (c *client) frame() frame {
	c.t.Helper()
	var scratch []byte
	f, err := readFrame(c.r, &scratch)
	if err != nil {
		c.t.Fatal(err)
	}
	return f
}

func (c *client) message() (frames [][]byte) {
	c.t.Helper()
	for {
		f := c.frame()
		frames = append(frames, f.body)
		if f.flags&flagMore == 0 {
			return frames
		}
	}
}

// sequence of the next live message or reply.
func (c *client) sequence() uint64 {
	c.t.Helper()
	return sequenceOf(c.message())
}

func sequenceOf(frames [][]byte) uint64 { return binary.BigEndian.Uint64(frames[len(frames)-2]) }

// ended waits for the engine to close the connection.
func (c *client) ended() {
	c.t.Helper()
	for {
		if _, err := c.r.ReadByte(); err != nil {
			if timeout, ok := err.(net.Error); ok && timeout.Timeout() {
				c.t.Error("the connection stays open")
			}
			return
		}
	}
}

func (c *client) ask(start uint64) { c.send(appendMessage(nil, nil, seqFrame(start))) }

func subscribe(t *testing.T, e *Engine, topic string) *client {
	t.Helper()
	before := e.State().Subscribers
	c := join(t, e.EventsEndpoint(), "SUB")
	c.send(appendMessage(nil, append([]byte{1}, topic...)))
	eventually(t, "subscribed", func() bool { return e.State().Subscribers == before+1 })
	return c
}

func TestZmq4SubscriberHearsThePrompt(t *testing.T) {
	cfg := quick()
	cfg.Topic = "kv@sim"
	e := start(t, cfg)
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	sub := zmq4.NewSub(ctx)
	defer func() { _ = sub.Close() }()
	if err := sub.Dial(e.EventsEndpoint()); err != nil {
		t.Fatal(err)
	}
	if err := sub.SetOption(zmq4.OptionSubscribe, "kv@"); err != nil {
		t.Fatal(err)
	}
	eventually(t, "subscribed", func() bool { return e.State().Subscribers == 1 })
	for want := range 3 {
		if _, err := e.Complete(t.Context(), text(byte('a'+want), 40), 1); err != nil {
			t.Fatal(err)
		}
		message, err := sub.Recv()
		if err != nil {
			t.Fatal(err)
		}
		f := message.Frames
		if len(f) != 3 || string(f[0]) != cfg.Topic || binary.BigEndian.Uint64(f[1]) != uint64(want) || f[2][0] != 0x93 {
			t.Errorf("message %d: %q", want, f)
		}
	}
}

func TestStalledSubscriberLosesOnlyItsOwnMessages(t *testing.T) {
	cfg := quick()
	cfg.HWM = 10
	e := start(t, cfg)
	healthy := subscribe(t, e, "")
	subscribe(t, e, "") // never read
	filler := event{kind: blockStored, hashes: []blockHash{1}, tokens: text('z', 60_000), blockSize: 60_000}
	sent := uint64(0)
	// One at a time, so that the healthy queue never fills: socket buffers take
	// some megabytes, then the stalled queue, then messages are dropped.
	for e.State().LostMessages < 20 {
		e.current().feed.put([]event{filler})
		if got := healthy.sequence(); got != sent {
			t.Fatalf("healthy subscriber got %d instead of %d", got, sent)
		}
		if sent++; sent > 5000 {
			t.Fatal("nothing was dropped for a subscriber that never reads")
		}
	}
}

func TestSubscriptionsAreFollowed(t *testing.T) {
	cfg := quick()
	cfg.Topic = "kv-events"
	e := start(t, cfg)
	other := subscribe(t, e, "other")
	c := subscribe(t, e, "kv")
	e.Clear()
	if got := c.sequence(); got != 0 {
		t.Errorf("got %d", got)
	}
	c.send(appendMessage(nil, []byte("\x00kv"))) // ZMTP 3.0
	c.send(appendCommand(nil, "SUBSCRIBE", []byte("k")))
	c.send(appendCommand(nil, "SUBSCRIBE", []byte("kv-events")))
	c.send(appendCommand(nil, "CANCEL", []byte("k")))
	c.send(appendCommand(nil, "PING", []byte("\x00\x0ahello")))
	if pong := c.frame(); pong.flags != flagCommand || string(pong.body) != "\x04PONGhello" {
		t.Errorf("PING answered by %d %q", pong.flags, pong.body)
	}
	e.Clear()
	if got := c.sequence(); got != 1 {
		t.Errorf("got %d", got)
	}
	c.send(appendCommand(nil, "CANCEL", []byte("kv-events")))
	eventually(t, "one subscriber left", func() bool { return e.State().Subscribers == 1 })
	other.send(appendMessage(nil, []byte("\x01")))
	other.send(appendCommand(nil, "PING", []byte("\x00\x0a")))
	other.frame()
	e.Clear()
	if got := other.sequence(); got != 2 {
		t.Errorf("a filter for another topic let through up to %d", got)
	}
}

func TestDroppedBatchesAreAGapThatReplayFills(t *testing.T) {
	e := start(t, quick())
	c := subscribe(t, e, "")
	e.Clear()
	e.Drop(2)
	for range 3 {
		e.Clear()
	}
	if first, second := c.sequence(), c.sequence(); first != 0 || second != 3 {
		t.Errorf("live: %d, %d", first, second)
	}
	r := join(t, e.ReplayEndpoint(), "DEALER")
	r.send(appendMessage(nil, seqFrame(1)))                   // no empty frame: ignored
	r.send(appendMessage(nil, nil, seqFrame(1), []byte("x"))) // a frame too many: ignored
	r.send(appendMessage(nil, nil, []byte("1")))              // not a number: ignored
	for _, start := range []uint64{1, 4} {
		r.ask(start)
		for want := start; want < 4; want++ {
			if got := r.sequence(); got != want {
				t.Errorf("replayed %d, want %d", got, want)
			}
		}
		if got := r.sequence(); got != endMarker {
			t.Errorf("replayed %d instead of the end", got)
		}
	}
	e.Truncate(1)
	r.ask(0)
	r.ask(3)
	if a, b, c := r.sequence(), r.sequence(), r.sequence(); a != 0 || b != 3 || c != endMarker {
		t.Errorf("a truncated replay and a whole one gave %d, %d, %d", a, b, c)
	}
}

func TestReplayReachesBackBufferSteps(t *testing.T) {
	cfg := quick()
	cfg.BufferSteps = 4
	e := start(t, cfg)
	for range 10 {
		e.Clear()
	}
	eventually(t, "all sent", func() bool { return e.State().QueuedBatches == 0 })
	r := join(t, e.ReplayEndpoint(), "REQ")
	r.ask(0)
	var got []uint64
	for range 5 {
		got = append(got, r.sequence())
	}
	if !slices.Equal(got, []uint64{6, 7, 8, 9, endMarker}) {
		t.Errorf("replayed %d", got)
	}
}

func TestStallHoldsBackLiveAndReplay(t *testing.T) {
	e := start(t, quick())
	c := subscribe(t, e, "")
	r := join(t, e.ReplayEndpoint(), "DEALER")
	e.Stall(time.Hour)
	eventually(t, "stands still", func() bool { return len(e.current().feed.stalls) == 0 })
	e.Clear()
	r.ask(0)
	if s := e.State(); s.NextSequence != 1 || s.QueuedBatches != 1 || s.BufferedBatches != 0 {
		t.Errorf("while stalled: %+v", s)
	}
	e.Restart() // ends the stall with the process
	c.ended()
	r.ended()
}

func TestStallPasses(t *testing.T) {
	e := start(t, quick())
	c := subscribe(t, e, "")
	began := time.Now()
	e.Stall(50 * time.Millisecond)
	eventually(t, "stands still", func() bool { return len(e.current().feed.stalls) == 0 })
	e.Clear()
	if got, took := c.sequence(), time.Since(began); got != 0 || took < 50*time.Millisecond {
		t.Errorf("got %d after %v", got, took)
	}
}

func TestRestartBeginsAnewForSubscribers(t *testing.T) {
	e := start(t, quick())
	c := subscribe(t, e, "")
	r := join(t, e.ReplayEndpoint(), "DEALER")
	for want := range uint64(3) {
		e.Clear()
		if got := c.sequence(); got != want {
			t.Errorf("got %d, want %d", got, want)
		}
	}
	e.Restart()
	c.ended()
	r.ended()
	eventually(t, "nobody is connected", func() bool { return e.State().Subscribers == 0 })
	c = subscribe(t, e, "")
	r = join(t, e.ReplayEndpoint(), "DEALER")
	r.ask(0)
	if got := r.sequence(); got != endMarker {
		t.Errorf("the replay buffer survived: %d", got)
	}
	e.Clear()
	if got := c.sequence(); got != 0 {
		t.Errorf("got %d", got)
	}
}

func TestWrongPeersAreTurnedAway(t *testing.T) {
	e := start(t, quick())
	ready := func(body string) []byte { return appendFrame(greeting(), flagCommand, []byte(body)) }
	plain := greeting()
	copy(plain[12:], "PLAIN")
	for name, hello := range map[string][]byte{
		"http":       []byte("GET / HTTP/1.1\r\nHost: engine\r\nUser-Agent: a browser with a long name, 64 bytes\r\n\r\n"),
		"plain":      plain,
		"wrong type": ready("\x05READY\x0bSocket-Type\x00\x00\x00\x04PUSH"),
		"no type":    ready("\x05READY"),
		"cut type":   ready("\x05READY\x0bSocket-Type\x00\x00\x00\xffSUB"),
		"huge size":  ready("\x05READY\x0bSocket-Type\xff\xff\xff\xffSUB"),
		"not ready":  ready("\x05HELLO"),
		"no name":    ready(""),
		"bomb":       append(greeting(), flagCommand|flagLong, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff),
		"flags":      append(greeting(), 0x80, 0),
		"frames":     append(ready("\x05READY\x0bSocket-Type\x00\x00\x00\x03SUB"), bytes.Repeat([]byte{flagMore, 0}, maxFrames+1)...),
	} {
		c := dial(t, e.EventsEndpoint())
		c.send(hello)
		c.ended()
		if t.Failed() {
			t.Fatal(name)
		}
	}
}

func TestRunEndsWithSilentPeersConnected(t *testing.T) {
	e := start(t, quick()) // its cleanup, which comes last, checks the time
	dial(t, e.EventsEndpoint())
	dial(t, e.ReplayEndpoint())
	dial(t, e.URL()[len("http://"):])
	subscribe(t, e, "")
	stalled := subscribe(t, e, "")
	fill(e, 2000)
	slow := dial(t, e.URL()[len("http://"):])
	slow.send([]byte("POST /v1/completions HTTP/1.1\r\nHost: sim\r\nContent-Length: 100\r\n\r\n{"))
	if got := stalled.sequence(); got != 0 {
		t.Errorf("got %d", got)
	}
}

func TestListenNamesWhatIsTaken(t *testing.T) {
	e := start(t, quick())
	for _, cfg := range []Config{{Listen: e.HTTPAddr()}, {Events: e.EventsEndpoint()}, {Replay: e.ReplayEndpoint()}} {
		if cfg.Listen == "" {
			cfg.Listen = "127.0.0.1:0"
		}
		if err := newTestEngine(cfg).Listen(); err == nil || !strings.Contains(err.Error(), "address already in use") {
			t.Errorf("error %v", err)
		}
	}
}

func FuzzReadFrame(f *testing.F) {
	f.Add(appendMessage(nil, []byte("\x01kv"), nil))
	f.Add(appendCommand(nil, "READY", appendProperty(nil, "Socket-Type", "SUB")))
	f.Add(appendFrame(nil, flagMore, make([]byte, 300)))
	f.Add([]byte{flagLong, 0, 0, 0, 0, 0xff, 0xff, 0xff, 0xff})
	f.Fuzz(func(t *testing.T, data []byte) {
		_, _ = readReady(bufio.NewReader(bytes.NewReader(data)))
		var scratch []byte
		r := bufio.NewReader(bytes.NewReader(data))
		for {
			frame, err := readFrame(r, &scratch)
			if err != nil {
				return
			}
			if len(frame.body) > min(len(data), maxInbound) {
				t.Fatalf("a body of %d bytes out of %d", len(frame.body), len(data))
			}
			_, _, _ = frame.command()
		}
	})
}

func TestOutboxRefusesBeyondItsLimit(t *testing.T) {
	o := newOutbox(100)
	next, pushed := 0, 0
	var chunk [][]byte
	for round := range 200 {
		for range 1 + round%150 {
			if !o.push(fmt.Append(nil, pushed)) {
				break
			}
			pushed++
		}
		if pushed-next > 100 {
			t.Fatalf("holds %d", pushed-next)
		}
		chunk, _ = o.take(chunk[:0], 1+round%64)
		for _, message := range chunk {
			if string(message) != fmt.Sprint(next) {
				t.Fatalf("took %s instead of %d", message, next)
			}
			next++
		}
	}
	o.close()
	if chunk, open := o.take(nil, 1); open || len(chunk) > 0 || !o.push(nil) {
		t.Error("a closed outbox is not empty and deaf")
	}
}
