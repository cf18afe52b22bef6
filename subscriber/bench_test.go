package subscriber

import (
	"bytes"
	"encoding/binary"
	"io"
	"net"
	"syscall"
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

// worker is a stream without sockets or servers.
func worker() *stream {
	meters := testSourceMeters()
	return &stream{
		dialect: vllm.Dialect, limits: engine.DefaultLimits(), state: &machine{}, account: newAccount(), meters: meters, log: quiet,
		replica: &replica{meters: meters.meters, residency: NewResidency(ResidencyConfig{})},
		at:      newPosition(), logged: map[string]bool{},
	}
}

// storesOf is a batch of stores of one block of 16 tokens each, a chain that
// begins with the block named first, as vLLM sends them.
func storesOf(first uint64, chain int) []byte {
	stores := pack{}.array(2).uint(uint64(time.Now().Unix())).array(chain)
	for i := range uint64(chain) {
		stores = stores.array(7).text("BlockStored").hashes([]uint64{first + i})
		if i == 0 {
			stores = stores.none()
		} else {
			stores = stores.uint(first + i - 1)
		}
		stores = stores.array(16)
		for k := range uint32(16) { // ids of up to 128k, as a tokenizer has them
			token := (uint32(first+i)*2654435761 + k*40503) >> 15
			stores = binary.BigEndian.AppendUint32(append(stores, 0xce), token)
		}
		stores = stores.uint(16).none().text("GPU")
	}
	return stores
}

// removesOf is a batch that takes those blocks away, the last one first.
func removesOf(first uint64, chain int) []byte {
	removes := pack{}.array(2).uint(uint64(time.Now().Unix())).array(chain)
	for i := range uint64(chain) {
		removes = removes.array(3).text("BlockRemoved").hashes([]uint64{first + uint64(chain) - 1 - i}).text("GPU")
	}
	return removes
}

// perCore says how many events a second there were, and how many in a second of
// one core, which other work on the machine does not change.
func perCore(b *testing.B, events int, before time.Duration) {
	b.ReportMetric(float64(events)/b.Elapsed().Seconds(), "events/s")
	b.ReportMetric(float64(events)/(coreTime(b)-before).Seconds(), "events/core-s")
}

// coreTime is what all cores together have worked for this process.
func coreTime(b *testing.B) time.Duration {
	var used syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &used); err != nil {
		b.Fatal(err)
	}
	return time.Duration(used.Utime.Nano() + used.Stime.Nano())
}

// BenchmarkEvents is the worker alone, per batch of 64 events of one block:
// chains of stores and then their removal. The goal is 150,000 a second.
func BenchmarkEvents(b *testing.B) {
	const chain = 64
	s := worker()
	var payloads [][]byte
	for n := range uint64(128) {
		payloads = append(payloads, storesOf(n*chain+1, chain), removesOf(n*chain+1, chain))
	}
	b.ReportAllocs()
	events, sequence, before := 0, uint64(0), coreTime(b)
	for b.Loop() {
		s.take(b.Context(), batch{sequence: sequence, payload: payloads[sequence%uint64(len(payloads))], arrived: time.Now()})
		sequence++
		events += chain
	}
	perCore(b, events, before)
	if held := s.replica.residency.Len(); held > chain {
		b.Errorf("%d blocks held", held)
	}
}

// BenchmarkStores is the worker alone, per batch of 64 stores of one block, while
// what is held grows from nothing to 400,000 blocks, over and over.
func BenchmarkStores(b *testing.B) {
	const chain, batches = 64, 6250
	s := worker()
	payloads := make([][]byte, 0, batches)
	for n := range uint64(batches) {
		payloads = append(payloads, storesOf(n*chain+1, chain))
	}
	cleared := pack{}.array(2).uint(uint64(time.Now().Unix())).array(1).array(1).text("AllBlocksCleared")
	b.ReportAllocs()
	events, sequence, before := 0, uint64(0), coreTime(b)
	send := func(payload []byte) {
		s.take(b.Context(), batch{sequence: sequence, payload: payload, arrived: time.Now()})
		sequence++
	}
	for b.Loop() {
		if events > 0 && events%(batches*chain) == 0 {
			send(cleared)
		}
		send(payloads[events/chain%batches])
		events += chain
	}
	perCore(b, events, before)
	if held := s.replica.residency.Len(); held != (events-1)%(batches*chain)+1 {
		b.Errorf("%d blocks held after %d stores", held, events)
	}
}
