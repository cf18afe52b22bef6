package server

import (
	"context"
	"errors"
	"io"
	"net/http"
	"sync"
	"time"

	"connectrpc.com/connect"

	pb "inferencecache.io/inferencecache/proto/inferencecache/v1alpha1"
	"inferencecache.io/inferencecache/proto/inferencecache/v1alpha1/inferencecachev1alpha1connect"
)

// SyncCacheState applies each update as it arrives and acknowledges it.
func (s *Server) SyncCacheState(_ context.Context, stream *connect.BidiStream[pb.CacheStateUpdate, pb.Ack]) error {
	for {
		if s.syncs.over() { // an update may have come with the stream, before it could be interrupted
			return errDraining
		}
		update, err := stream.Receive()
		switch {
		case errors.Is(err, io.EOF):
			return nil
		case err != nil && s.syncs.over():
			return errDraining
		case err != nil:
			return err
		}
		if err := stream.Send(s.ingest(time.Now(), update)); err != nil {
			return err
		}
	}
}

// syncs are the open SyncCacheState streams. Their clients do not end them, so
// a server that shuts down has to; a handler that waits for its next message is
// reached only through the response.
type syncs struct {
	mu     sync.Mutex
	open   map[*http.ResponseController]bool
	closed bool
}

// track notes the streams among the requests to next.
func (y *syncs) track(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == inferencecachev1alpha1connect.InferenceCacheSyncCacheStateProcedure {
			defer y.enter(http.NewResponseController(w))()
		}
		next.ServeHTTP(w, r)
	})
}

func (y *syncs) enter(stream *http.ResponseController) (leave func()) {
	y.mu.Lock()
	defer y.mu.Unlock()
	if y.open == nil {
		y.open = map[*http.ResponseController]bool{}
	}
	y.open[stream] = true
	return func() {
		y.mu.Lock()
		defer y.mu.Unlock()
		delete(y.open, stream)
	}
}

// close ends all streams, each behind the update that it is about.
func (y *syncs) close() {
	y.mu.Lock()
	defer y.mu.Unlock()
	y.closed = true
	for stream := range y.open {
		interrupt(stream)
	}
}

func (y *syncs) over() bool {
	y.mu.Lock()
	defer y.mu.Unlock()
	return y.closed
}

// interrupt makes the stream's next or pending read fail. Where a connection
// knows no deadlines, the stream ends with it.
func interrupt(stream *http.ResponseController) { _ = stream.SetReadDeadline(time.Unix(1, 0)) }
