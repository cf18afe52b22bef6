package server

import (
	"context"
	"errors"
	"slices"
	"sync"
	"sync/atomic"

	"connectrpc.com/connect"

	"inferencecache.io/inferencecache/index"
	"inferencecache.io/inferencecache/internal/kv"
	pb "inferencecache.io/inferencecache/proto/inferencecache/v1alpha1"
)

// hub hands applied changes to StreamCacheEvents readers. Publishing never
// waits: a reader whose buffer is full is cut off.
type hub struct {
	buffer  int
	meters  *meters
	readers atomic.Int64 // so that publishing to nobody costs one load

	mu     sync.Mutex // guards what follows
	open   map[*reader]struct{}
	closed bool
}

// reader is one open stream. Its channel is closed by the hub alone, after
// why is set.
type reader struct {
	wants  func(*pb.CacheEvent) bool
	events chan *pb.CacheEvent
	why    error
}

var (
	errSlow     = connect.NewError(connect.CodeResourceExhausted, errors.New("this reader fell behind and lost events: open the stream again"))
	errDraining = connect.NewError(connect.CodeUnavailable, errors.New("the server is shutting down"))
	errFull     = connect.NewError(connect.CodeResourceExhausted, errors.New("too many open streams: try again later or raise --max-event-streams"))
)

func newHub(buffer int, m *meters) *hub {
	return &hub{buffer: buffer, meters: m, open: map[*reader]struct{}{}}
}

func (h *hub) join(wants func(*pb.CacheEvent) bool) (*reader, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.closed {
		return nil, errDraining
	}
	r := &reader{wants: wants, events: make(chan *pb.CacheEvent, h.buffer)}
	h.open[r] = struct{}{}
	h.readers.Add(1)
	return r, nil
}

func (h *hub) leave(r *reader) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.removeLocked(r, nil)
}

func (h *hub) removeLocked(r *reader, why error) {
	if _, ok := h.open[r]; !ok {
		return
	}
	delete(h.open, r)
	h.readers.Add(-1)
	r.why = why
	close(r.events)
}

// close ends every stream and refuses new ones.
func (h *hub) close() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.closed = true
	for r := range h.open {
		h.removeLocked(r, errDraining)
	}
}

func (h *hub) publish(e *pb.CacheEvent) {
	if h.readers.Load() == 0 {
		return
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	for r := range h.open {
		if !r.wants(e) {
			continue
		}
		select {
		case r.events <- e:
		default:
			h.removeLocked(r, errSlow)
			h.meters.slowReaders.Inc()
		}
	}
}

// publishBatch tells what an ingested batch changed, one event an operation.
func (h *hub) publishBatch(b *index.Batch) {
	if h.readers.Load() == 0 {
		return
	}
	for i := range b.Ops {
		op := &b.Ops[i]
		e := &pb.CacheEvent{
			ReplicaId: b.Replica, ModelId: b.Scope.Model, TenantId: b.Scope.Tenant, HashScheme: b.Scope.Scheme,
			AdapterId: op.Adapter, TimestampUs: b.Seen.UnixMicro(),
		}
		switch op.Kind {
		case index.Store:
			e.Type = pb.CacheEvent_PREFIX_ADDED
		case index.Remove:
			e.Type = pb.CacheEvent_PREFIX_EVICTED
		case index.Clear:
			e.Type = pb.CacheEvent_ALL_CLEARED
		}
		if len(op.Keys) == 1 {
			e.PrefixHash = op.Keys[0].Bytes()
		} else if len(op.Keys) > 1 {
			e.PackedHashes = kv.Pack(op.Keys)
		}
		h.publish(e)
	}
}

// admitReader takes one of the bounded places for open streams.
func (s *Server) admitReader() (leave func(), err error) {
	select {
	case s.readers <- struct{}{}:
		return func() { <-s.readers }, nil
	default:
		return nil, errFull
	}
}

// StreamCacheEvents follows what the index applies, from now on.
func (s *Server) StreamCacheEvents(ctx context.Context, request *pb.StreamEventsRequest, stream *connect.ServerStream[pb.CacheEvent]) error {
	release, err := s.admitReader()
	if err != nil {
		return err
	}
	defer release()
	r, err := s.events.join(func(e *pb.CacheEvent) bool {
		return (request.GetTenantId() == "" || request.GetTenantId() == e.GetTenantId()) &&
			(request.GetModelId() == "" || request.GetModelId() == e.GetModelId()) &&
			(len(request.GetTypes()) == 0 || slices.Contains(request.GetTypes(), e.GetType()))
	})
	if err != nil {
		return err
	}
	defer s.events.leave(r)
	if err := stream.Send(nil); err != nil { // headers now: the reader knows it is in
		return err
	}
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case e, ok := <-r.events:
			if !ok {
				return r.why
			}
			if err := stream.Send(e); err != nil {
				return err
			}
		}
	}
}
