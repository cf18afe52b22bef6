package subscriber

import (
	"bytes"
	"io"
	"net"
	"testing"
	"time"

	"inferencecache.io/inferencecache/internal/engine"
	"inferencecache.io/inferencecache/internal/engine/vllm"
	pb "inferencecache.io/inferencecache/proto/inferencecache/v1alpha1"
)

// BenchmarkReceive is the way from a loopback connection through the guard,
// the library and the shape check into the queue, per message of 1 KiB.
func BenchmarkReceive(b *testing.B) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		b.Fatal(err)
	}
	defer listener.Close()
	endpoint, err := guardedEndpoint("tcp://" + listener.Addr().String())
	if err != nil {
		b.Fatal(err)
	}
	const burst = 256
	wire := bytes.Repeat(liveWire(1, make([]byte, 1024)), burst)
	go func() {
		conn, err := listener.Accept()
		if err != nil {
			return
		}
		defer conn.Close()
		if shakeHands(conn) != nil {
			return
		}
		_ = conn.SetDeadline(time.Time{})
		for {
			if _, err := conn.Write(wire); err != nil {
				return
			}
		}
	}()
	s, err := openSub(b.Context(), endpoint, "", 64<<20)
	if err != nil {
		b.Fatal(err)
	}
	defer s.close()
	r := receiver{queue: newQueue(1024, 1<<20), metrics: testSourceMeters()}
	b.ReportAllocs()
	for b.Loop() {
		message, err := s.Recv()
		if err != nil {
			b.Fatal(err)
		}
		r.take(message, 1)
	}
}

// BenchmarkGuard is the guard alone, per message of 1 KiB.
func BenchmarkGuard(b *testing.B) {
	const burst = 256
	wire := bytes.Repeat(liveWire(1, make([]byte, 1024)), burst)
	hello := append(greeting(), readyCommand()...)
	var buffer [4096]byte
	b.SetBytes(int64(len(wire) / burst))
	b.ReportAllocs()
	for n := 0; b.Loop(); n++ {
		if n%burst != 0 {
			continue
		}
		g := newGuardedConn(b.Context(), &script{in: io.MultiReader(bytes.NewReader(hello), bytes.NewReader(wire))}, 64<<20)
		for {
			if _, err := g.Read(buffer[:]); err != nil {
				break
			}
		}
		g.Close()
	}
}

// BenchmarkStream is the worker, per batch that stores a chain of 8 blocks and
// of one that removes it: decode, residency, outbox.
func BenchmarkStream(b *testing.B) {
	o := newOutbox(outboxConfig{
		server: "none", identity: &pb.CacheStateUpdate{}, window: time.Hour, maxBytes: 1 << 30,
		log: quiet,
	}, testMeters())
	o.phase = phaseFollowing
	meters := testSourceMeters()
	s := stream{
		dialect: vllm.Dialect, limits: engine.DefaultLimits(), state: &machine{}, account: newAccount(), meters: meters, log: quiet,
		replica: &replica{meters: meters.meters, residency: NewResidency(ResidencyConfig{}), outboxes: []*outbox{o}},
		at:      newPosition(), logged: map[string]bool{},
	}
	hashes, tokens := chainOf(1, 8)
	payloads := [][]byte{storedBatch(0, hashes, tokens), removedBatch(8, 7, 6, 5, 4, 3, 2, 1)}
	b.ReportAllocs()
	sequence := uint64(0)
	for b.Loop() {
		s.take(b.Context(), batch{connection: 1, sequence: sequence, payload: payloads[sequence%2], arrived: time.Now()})
		if sequence++; o.pending.bytes > 1<<20 {
			o.pending.reset()
		}
	}
}

// BenchmarkEvents is the worker alone, per event of one block: chains of stores
// and then their removal, as vLLM sends them. The goal is 150,000 a second.
func BenchmarkEvents(b *testing.B) {
	const chain = 64
	meters := testSourceMeters()
	s := stream{
		dialect: vllm.Dialect, limits: engine.DefaultLimits(), state: &machine{}, account: newAccount(), meters: meters, log: quiet,
		replica: &replica{meters: meters.meters, residency: NewResidency(ResidencyConfig{})},
		at:      newPosition(), logged: map[string]bool{},
	}
	var payloads [][]byte
	for n := range 128 {
		stores := pack{}.array(2).uint(uint64(time.Now().Unix())).array(chain)
		removes := pack{}.array(2).uint(uint64(time.Now().Unix())).array(chain)
		for i := range chain {
			hash := uint64(n*chain + i + 1)
			stores = stores.array(7).text("BlockStored").hashes([]uint64{hash})
			if i == 0 {
				stores = stores.none()
			} else {
				stores = stores.uint(hash - 1)
			}
			stores = stores.array(16)
			for range 16 {
				stores = stores.uint(hash)
			}
			stores = stores.uint(16).none().text("GPU")
			removes = removes.array(3).text("BlockRemoved").hashes([]uint64{uint64(n*chain + chain - i)}).text("GPU")
		}
		payloads = append(payloads, stores, removes)
	}
	b.ReportAllocs()
	events, sequence := 0, uint64(0)
	for b.Loop() {
		s.take(b.Context(), batch{sequence: sequence, payload: payloads[sequence%uint64(len(payloads))], arrived: time.Now()})
		sequence++
		events += chain
	}
	b.ReportMetric(float64(events)/b.Elapsed().Seconds(), "events/s")
	if held := s.replica.residency.Len(); held > chain {
		b.Errorf("%d blocks held", held)
	}
}
