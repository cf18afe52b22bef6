package subscriber

import (
	"context"
	"fmt"
	"io"
	"maps"
	"net"
	"os"
	"runtime"
	"strconv"
	"sync"
	"syscall"
	"testing"
	"time"

	"inferencecache.io/inferencecache/internal/fingerprint"
	"inferencecache.io/inferencecache/internal/kv"
)

// enginePeer is testdata/engine.py: an engine's publisher on libzmq, replay
// included.
type enginePeer struct {
	*libzmqPeer
	replayEndpoint string
	seed           uint32
}

func newEnginePeer(t *testing.T, seed uint32, args ...string) *enginePeer {
	t.Helper()
	p := &enginePeer{libzmqPeer: startPeer(t, "testdata/engine.py", append(args, "--seed", strconv.Itoa(int(seed)))...), seed: seed}
	select {
	case p.replayEndpoint = <-p.replay:
	case <-time.After(patience):
		t.Fatal("engine does not bind its replay")
	}
	return p
}

// burst sends batches and waits until the engine has sent all.
func (p *enginePeer) burst(t *testing.T, batches, blocks int) {
	t.Helper()
	p.tell(t, fmt.Sprintf("burst %d %d", batches, blocks))
	select {
	case <-p.sent:
	case <-time.After(2 * patience):
		t.Fatal("engine does not come to the end of its burst")
	}
}

// holds is what the engine holds after so many batches.
func (p *enginePeer) holds(batches, blocks int) heldBlocks {
	held := heldBlocks{}
	tokens := make([]uint32, 0, 16*blocks)
	for n := range batches {
		tokens = tokens[:0]
		for b := range blocks {
			for range 16 {
				tokens = append(tokens, uint32((n<<8|b)%1000003)+p.seed)
			}
		}
		for b, h := range fingerprint.Append(nil, tokens, 16) {
			if b%4 == 0 || n >= batches-8 {
				held[heldBlock{Hash: h}] = kv.T1
			}
		}
	}
	return held
}

// expectExact waits until the server holds exactly want. It is for sets that
// are too large to print.
func (r *rig) expectExact(t *testing.T, want heldBlocks) {
	t.Helper()
	missing, extra := 0, 0
	deadline := time.Now().Add(2 * patience)
	for tick := time.NewTicker(100 * time.Millisecond); ; <-tick.C {
		if got := r.server.now(); maps.Equal(got, want) {
			tick.Stop()
			break
		} else if missing, extra = difference(want, got); time.Now().After(deadline) {
			tick.Stop()
			t.Fatalf("server holds %d of %d blocks; %d are missing and %d too many", len(got), len(want), missing, extra)
		}
	}
	r.expectNoFaults(t)
}

func difference(want, got heldBlocks) (missing, extra int) {
	for b := range want {
		if _, ok := got[b]; !ok {
			missing++
		}
	}
	return missing, len(got) - (len(want) - missing)
}

// slowPath forwards connections to an endpoint at so many bytes a second, with
// little room on the way, and returns the endpoint to dial instead.
func slowPath(t *testing.T, to string, rate int) string {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var forwarding sync.WaitGroup
	start(t, func(ctx context.Context) {
		defer forwarding.Wait()
		defer context.AfterFunc(ctx, func() { listener.Close() })()
		for {
			client, err := listener.Accept()
			if err != nil {
				return
			}
			forwarding.Go(func() { forward(ctx, client, to[len("tcp://"):], rate) })
		}
	})
	return "tcp://" + listener.Addr().String()
}

func forward(ctx context.Context, client net.Conn, to string, rate int) {
	defer client.Close()
	server, err := net.Dial("tcp", to)
	if err != nil {
		return
	}
	defer server.Close()
	_ = server.(*net.TCPConn).SetReadBuffer(64 << 10)
	_ = client.(*net.TCPConn).SetWriteBuffer(64 << 10)
	stop := context.AfterFunc(ctx, func() { client.Close(); server.Close() })
	defer stop()
	var up sync.WaitGroup
	up.Go(func() {
		_, _ = io.Copy(server, client)
		server.Close()
	})
	const slice = 10 * time.Millisecond
	tick := time.NewTicker(slice)
	defer tick.Stop()
	for range tick.C {
		if _, err := io.CopyN(client, server, int64(rate)/int64(time.Second/slice)); err != nil {
			break
		}
	}
	client.Close()
	up.Wait()
}

// burstBatches is how many batches of 100 blocks the test with bursts sends:
// CI asks for a million blocks.
func burstBatches(t *testing.T) int {
	blocks := os.Getenv("INFERENCECACHE_BURST_BLOCKS")
	if blocks == "" {
		return 1000
	}
	n, err := strconv.Atoi(blocks)
	if err != nil || n < 10_000 {
		t.Fatalf("INFERENCECACHE_BURST_BLOCKS=%q: want a number of blocks from 10000 on", blocks)
	}
	return n / 100
}

// Blocks in bursts through a path that is slower than the engine: its
// publisher has room for 1,000 messages and drops what comes after, also at the
// end of a burst, and so does its replay.
func TestBurstsThroughSlowPathEndExact(t *testing.T) {
	batches := burstBatches(t)
	for _, tc := range [][]string{
		{"--encoding", "map", "--layout", "new"},
		{"--encoding", "array", "--layout", "old"},
	} {
		t.Run(tc[1]+" "+tc[3], func(t *testing.T) {
			peer := newEnginePeer(t, 1, append(tc, "--hwm", strconv.Itoa(min(1000, batches/20)), "--buffer", strconv.Itoa(batches))...)
			r := newRig(t, slowPath(t, peer.endpoint, 2<<20), func(c *Config) {
				c.ReplayEndpoint = slowPath(t, peer.replayEndpoint, 16<<20)
			})
			r.waitState(t, Exact)
			for range 5 {
				peer.burst(t, batches/5, 100)
			}
			r.expectExact(t, peer.holds(batches, 100))
			m := r.one.stream.meters
			t.Logf("missing when a gap was seen %d, found by probes %d, replayed %d, lost %d; rounds complete %d, truncated %d, hole %d",
				m.missing.Get(), m.tail.Get(), m.replayed.Get(), m.lost.Get(),
				m.replays[replayComplete].Get(), m.replays[replayTruncated].Get(), m.replays[replayHole].Get())
			if m.replayed.Get() == 0 {
				t.Error("nothing was lost on the way, so the test shows nothing")
			}
			if m.lost.Get() != 0 || r.State() != Exact {
				t.Errorf("%d batches lost for good, state %s", m.lost.Get(), r.State())
			}
		})
	}
}

// An engine killed and started again twenty times leaves nothing behind that it
// does not hold, and nothing that runs.
func TestTwentyRestartsLeaveNothing(t *testing.T) {
	peer := newEnginePeer(t, 1)
	endpoint, replay := peer.endpoint, peer.replayEndpoint
	r := newRig(t, endpoint, func(c *Config) { c.ReplayEndpoint = replay })
	var goroutines int
	for life := range uint32(21) {
		if life > 0 {
			peer.stop() // SIGKILL
			peer = newEnginePeer(t, 1+life*2_000_000, "--bind", endpoint, "--replay", replay)
		}
		peer.burst(t, 20+int(life), 10)
		r.expectExact(t, peer.holds(20+int(life), 10))
		if life == 2 {
			goroutines = runtime.NumGoroutine()
		}
	}
	if now := runtime.NumGoroutine(); now > goroutines+10 {
		t.Errorf("%d goroutines after 20 restarts, %d after two", now, goroutines)
	}
}

// A publisher that is stopped keeps its connections. The silence is noticed.
func TestStalledPublisherIsReported(t *testing.T) {
	peer := newEnginePeer(t, 1)
	r := newRig(t, peer.endpoint, func(c *Config) { c.ReplayEndpoint = peer.replayEndpoint })
	peer.burst(t, 10, 10)
	r.expectExact(t, peer.holds(10, 10))
	r.waitState(t, Exact)
	if err := peer.command.Process.Signal(syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	stopped := time.Now()
	r.waitState(t, Stale)
	t.Logf("reported after %s", time.Since(stopped))
	if took := time.Since(stopped); took > 5*time.Second {
		t.Errorf("reported after %s", took)
	}
	if err := peer.command.Process.Signal(syscall.SIGCONT); err != nil {
		t.Fatal(err)
	}
	r.waitState(t, Exact)
	peer.burst(t, 10, 10)
	r.expectExact(t, peer.holds(20, 10))
	if n := r.one.stream.meters.lost.Get(); n != 0 {
		t.Errorf("%d batches lost", n)
	}
}
