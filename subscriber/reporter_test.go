package subscriber

import (
	"context"
	"errors"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"connectrpc.com/connect"

	pb "inferencecache.io/inferencecache/proto/inferencecache/v1alpha1"
	"inferencecache.io/inferencecache/proto/inferencecache/v1alpha1/inferencecachev1alpha1connect"
)

// serveOn serves a fake server on a port, in the clear, until stop.
func serveOn(t *testing.T, address string, server *fakeServer) (at string, stop func()) {
	t.Helper()
	listener, err := net.Listen("tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	mux := http.NewServeMux()
	mux.Handle(inferencecachev1alpha1connect.NewInferenceCacheHandler(server))
	var protocols http.Protocols
	protocols.SetUnencryptedHTTP2(true)
	h := &http.Server{Handler: mux, Protocols: &protocols}
	stop = start(t, func(ctx context.Context) {
		ended := make(chan error, 1)
		go func() { ended <- h.Serve(listener) }()
		<-ctx.Done()
		_ = h.Close()
		<-ended
	})
	return listener.Addr().String(), stop
}

// newTestReporter reports to a server on a port of its own, and closes at the
// end of the test.
func newTestReporter(t *testing.T, at string) *grpcReporter {
	client := newHTTPClient("")
	r := newGRPCReporter(client, "http://"+at)
	t.Cleanup(func() {
		r.close()
		client.CloseIdleConnections()
	})
	return r
}

// clearing are updates from number from to number to.
func clearing(from, to uint64) (updates []*pb.CacheStateUpdate) {
	for n := from; n <= to; n++ {
		updates = append(updates, &pb.CacheStateUpdate{
			SourceEpoch: 5, Sequence: n, Operations: []*pb.CacheOperation{{Kind: pb.CacheOperation_CLEAR}},
		})
	}
	return updates
}

func TestReporterSpeaksGRPCOverPlainHTTP2(t *testing.T) {
	t.Parallel()
	server := newFakeServer()
	for _, old := range []bool{false, true} {
		server.old = old
		at, stop := serveOn(t, "127.0.0.1:0", server)
		r := newTestReporter(t, at)
		updates := clearing(1, 2)
		ack, err := r.report(t.Context(), updates)
		if err != nil || !ack.Accepted || ack.Sequence != 2 || ack.ServerEpoch != server.life {
			t.Fatalf("ack %v, err %v", ack, err)
		}

		server.set(func(s *fakeServer) { s.failing = errDown })
		_, err = r.report(t.Context(), updates)
		if connect.CodeOf(err) != connect.CodeUnavailable || !strings.Contains(err.Error(), "down") {
			t.Errorf("failing server: %v", err)
		}
		server.set(func(s *fakeServer) { s.failing, s.gate = nil, make(chan struct{}) })
		hurry, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
		if _, err = r.report(hurry, updates); !errors.Is(err, context.DeadlineExceeded) && connect.CodeOf(err) != connect.CodeDeadlineExceeded {
			t.Errorf("server that does not answer: %v", err)
		}
		cancel()

		stop()
		if ack, err = r.report(t.Context(), updates); err == nil {
			t.Errorf("no server: ack %v", ack)
		}
		again := newFakeServer()
		serveOn(t, at, again)
		until(t, "the server on the same port", func() bool {
			ack, err = r.report(t.Context(), updates)
			return err == nil && ack.ServerEpoch == again.life
		})
		server = newFakeServer()
	}
}

func TestReporterKeepsOneStream(t *testing.T) {
	t.Parallel()
	server := newFakeServer()
	at, _ := serveOn(t, "127.0.0.1:0", server)
	r := newTestReporter(t, at)
	syncs := func() int { return server.count(func(s *fakeServer) int { return s.syncs }) }
	for n := uint64(0); n < 50; n++ {
		ack, err := r.report(t.Context(), clearing(3*n+1, 3*n+3))
		if err != nil || ack.Sequence != 3*n+3 {
			t.Fatalf("ack %v, err %v", ack, err)
		}
	}
	if n := syncs(); n != 1 {
		t.Errorf("%d streams", n)
	}
	stats := &pb.CacheStateUpdate{Stats: &pb.ReplicaStats{}}
	if ack, err := r.tell(t.Context(), stats); err != nil || !ack.Accepted {
		t.Errorf("beside the order: %v, %v", ack, err)
	}

	// An ack that does not fit ends the stream.
	server.set(func(s *fakeServer) { s.refusing = true })
	if ack, err := r.report(t.Context(), clearing(151, 152)); err != nil || ack.Accepted {
		t.Errorf("refused: %v, %v", ack, err)
	}
	server.set(func(s *fakeServer) { s.refusing = false })
	if ack, err := r.report(t.Context(), clearing(151, 152)); err != nil || ack.Sequence != 152 {
		t.Errorf("again: %v, %v", ack, err)
	}
	if n := syncs(); n != 2 {
		t.Errorf("%d streams, want a new one", n)
	}
	server.set(func(s *fakeServer) {
		if len(s.faults) > 0 {
			t.Errorf("broken promises: %q", s.faults)
		}
	})
}

func TestReporterFallsBackForOldServers(t *testing.T) {
	t.Parallel()
	server := newFakeServer()
	server.old = true
	at, _ := serveOn(t, "127.0.0.1:0", server)
	r := newTestReporter(t, at)
	for n := uint64(1); n <= 5; n++ {
		if ack, err := r.report(t.Context(), clearing(n, n)); err != nil || ack.Sequence != n {
			t.Fatalf("ack %v, err %v", ack, err)
		}
	}
	if n := server.count(func(s *fakeServer) int { return s.syncs }); n != 1 {
		t.Errorf("asked %d times for what the server does not know", n)
	}
}

// Where a client is told the address, the name of the URL is only said.
func TestHTTPClientGoesToItsAddress(t *testing.T) {
	t.Parallel()
	hosts := make(chan string, 1)
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { hosts <- r.Host }))
	server.Config.Protocols = new(http.Protocols)
	server.Config.Protocols.SetUnencryptedHTTP2(true)
	server.Start()
	defer server.Close()
	client := newHTTPClient(server.Listener.Addr().String())
	defer client.CloseIdleConnections()
	response, err := client.Get("http://servers.example:9090/")
	if err != nil {
		t.Fatal(err)
	}
	response.Body.Close()
	if host := <-hosts; host != "servers.example:9090" {
		t.Errorf("the server was called %q", host)
	}
}
