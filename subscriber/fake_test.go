package subscriber

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"sync"

	"connectrpc.com/connect"

	"inferencecache.io/inferencecache/internal/kv"
	pb "inferencecache.io/inferencecache/proto/inferencecache/v1alpha1"
	"inferencecache.io/inferencecache/proto/inferencecache/v1alpha1/inferencecachev1alpha1connect"
)

// heldBlock is one block at a server: its partition and key.
type heldBlock struct {
	Adapter string
	Hash    kv.Hash
}

type heldBlocks map[heldBlock]kv.Tier

// fakeServer is a server that believes what it is told and notes what it
// should not have been told. It can be down, slow, forgetful of its answers,
// and start again.
type fakeServer struct {
	inferencecachev1alpha1connect.UnimplementedInferenceCacheHandler

	mu       sync.Mutex
	life     uint64
	held     heldBlocks
	applied  map[uint64]uint64 // last sequence by source epoch
	ignored  int               // updates that came again
	updates  []*pb.CacheStateUpdate
	stats    []*pb.CacheStateUpdate
	lost     map[uint64]bool // by source epoch: everything must come again
	told     heldBlocks      // what was held when the last goodbye came; nil: none did
	syncs    int             // SyncCacheState streams that began
	faults   []string        // broken promises of the sender
	failing  error           // answer without applying
	deaf     bool            // apply and answer with an error
	refusing bool            // answer without accepting
	old      bool            // know no SyncCacheState
	gate     chan struct{}   // not nil: hold each call until it is closed
	entered  int             // calls that arrived
}

func newFakeServer() *fakeServer {
	s := &fakeServer{}
	s.restart()
	return s
}

// restart makes it a new process: empty, and with another epoch.
func (s *fakeServer) restart() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.life, s.held, s.applied, s.lost = rand.Uint64()|1, heldBlocks{}, map[uint64]uint64{}, map[uint64]bool{}
}

// forget makes it lose what it knows, as a server does of a replica that it
// takes for dead.
func (s *fakeServer) forget() {
	s.mu.Lock()
	defer s.mu.Unlock()
	clear(s.held)
	for source := range s.applied {
		s.lost[source] = true
	}
}

// set changes the server's behaviour.
func (s *fakeServer) set(change func(*fakeServer)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	change(s)
}

// now is a copy of what is held.
func (s *fakeServer) now() heldBlocks {
	s.mu.Lock()
	defer s.mu.Unlock()
	return maps.Clone(s.held)
}

// count reads numbers off the server.
func (s *fakeServer) count(of func(*fakeServer) int) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return of(s)
}

var errDown = errors.New("down")

// report makes the fake a reporter for outboxes without a network.
func (s *fakeServer) report(ctx context.Context, updates []*pb.CacheStateUpdate) (*pb.Ack, error) {
	if err := s.enter(ctx); err != nil {
		return nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, update := range updates {
		s.applyLocked(update)
	}
	return s.ackLocked(updates[len(updates)-1].SourceEpoch)
}

// tell and close make the fake a whole reporter.
func (s *fakeServer) tell(ctx context.Context, update *pb.CacheStateUpdate) (*pb.Ack, error) {
	return s.report(ctx, []*pb.CacheStateUpdate{update})
}

func (s *fakeServer) close() {}

func (s *fakeServer) enter(ctx context.Context) error {
	s.mu.Lock()
	s.entered++
	gate, failing := s.gate, s.failing
	s.mu.Unlock()
	if gate != nil {
		select {
		case <-gate:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return failing
}

func (s *fakeServer) ackLocked(source uint64) (*pb.Ack, error) {
	if s.deaf {
		return nil, errDown
	}
	return &pb.Ack{Accepted: !s.refusing, ServerEpoch: s.life, Sequence: s.applied[source], Resync: s.lost[source]}, nil
}

// SyncCacheState acknowledges each update over RPC.
func (s *fakeServer) SyncCacheState(ctx context.Context, stream *connect.BidiStream[pb.CacheStateUpdate, pb.Ack]) error {
	if s.beginSync() {
		return s.UnimplementedInferenceCacheHandler.SyncCacheState(ctx, stream)
	}
	for {
		update, err := stream.Receive()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		ack, err := s.report(ctx, []*pb.CacheStateUpdate{update})
		if err != nil {
			return connect.NewError(connect.CodeUnavailable, err)
		}
		if err := stream.Send(ack); err != nil {
			return err
		}
	}
}

func (s *fakeServer) beginSync() (old bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.syncs++
	return s.old
}

// ReportCacheState is the same over RPC.
func (s *fakeServer) ReportCacheState(ctx context.Context, stream *connect.ClientStream[pb.CacheStateUpdate]) (*pb.Ack, error) {
	if err := s.enter(ctx); err != nil {
		return nil, connect.NewError(connect.CodeUnavailable, err)
	}
	var source uint64
	for stream.Receive() {
		source = stream.Msg().SourceEpoch
		s.mu.Lock()
		s.applyLocked(stream.Msg())
		s.mu.Unlock()
	}
	if err := stream.Err(); err != nil {
		return nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.ackLocked(source)
}

func (s *fakeServer) applyLocked(update *pb.CacheStateUpdate) {
	if update.Stats != nil {
		s.stats = append(s.stats, update)
		if update.Sequence != 0 || len(update.Operations) > 0 {
			s.faultLocked("stats with a sequence or operations")
		}
		return
	}
	if update.SourceEpoch == 0 || update.Sequence == 0 || len(update.Operations) == 0 && update.HeartbeatMs == 0 {
		s.faultLocked("update without source, sequence, operations or promise")
		return
	}
	last, known := s.applied[update.SourceEpoch]
	if update.Sequence <= last {
		s.ignored++
		return
	}
	clears := len(update.Operations) > 0 && update.Operations[0].Kind == pb.CacheOperation_CLEAR
	if known && update.Sequence != last+1 && !clears {
		s.faultLocked(fmt.Sprintf("hole between %d and %d", last, update.Sequence))
	}
	s.lost[update.SourceEpoch] = !clears && (s.lost[update.SourceEpoch] || !known && update.Sequence != 1)
	s.applied[update.SourceEpoch] = update.Sequence
	s.updates = append(s.updates, update)
	for _, op := range update.Operations {
		s.operateLocked(op)
	}
	if update.Goodbye {
		s.told = maps.Clone(s.held)
		clear(s.held)
	}
}

func (s *fakeServer) operateLocked(op *pb.CacheOperation) {
	hashes, ok := kv.Unpack(nil, op.PackedHashes)
	if !ok || (len(hashes) == 0) != (op.Kind == pb.CacheOperation_CLEAR) {
		s.faultLocked(fmt.Sprintf("%s of %d bytes of hashes", op.Kind, len(op.PackedHashes)))
	}
	switch op.Kind {
	case pb.CacheOperation_CLEAR:
		clear(s.held)
	case pb.CacheOperation_STORE:
		for _, h := range hashes {
			s.held[heldBlock{op.AdapterId, h}] = kv.Tier(op.Tier)
		}
	case pb.CacheOperation_REMOVE:
		for _, h := range hashes {
			delete(s.held, heldBlock{op.AdapterId, h})
		}
	default:
		s.faultLocked("operation of no kind")
	}
}

func (s *fakeServer) faultLocked(what string) { s.faults = append(s.faults, what) }
