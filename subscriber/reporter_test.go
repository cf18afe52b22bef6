package subscriber

import (
	"context"
	"errors"
	"net"
	"net/http"
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

func TestReporterSpeaksGRPCOverPlainHTTP2(t *testing.T) {
	t.Parallel()
	server := newFakeServer()
	at, stop := serveOn(t, "127.0.0.1:0", server)
	client := newHTTPClient()
	t.Cleanup(client.CloseIdleConnections)
	r := newGRPCReporter(client, "http://"+at)
	clear := &pb.CacheOperation{Kind: pb.CacheOperation_CLEAR}
	updates := []*pb.CacheStateUpdate{
		{SourceEpoch: 5, Sequence: 1, Operations: []*pb.CacheOperation{clear}},
		{SourceEpoch: 5, Sequence: 2, Operations: []*pb.CacheOperation{clear}},
	}
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
	defer cancel()
	if _, err = r.report(hurry, updates); !errors.Is(err, context.DeadlineExceeded) && connect.CodeOf(err) != connect.CodeDeadlineExceeded {
		t.Errorf("server that does not answer: %v", err)
	}

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
}
