package subscriber

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"time"

	"connectrpc.com/connect"

	pb "inferencecache.io/inferencecache/proto/inferencecache/v1alpha1"
	"inferencecache.io/inferencecache/proto/inferencecache/v1alpha1/inferencecachev1alpha1connect"
)

// maxAckBytes bounds what is read of a server's answer.
const maxAckBytes = 64 << 10

// grpcReporter reports to one server over gRPC: on one stream that stays open,
// or on a short one for each call if the server knows no other. One goroutine
// at a time may call report and close; tell is for any.
type grpcReporter struct {
	client inferencecachev1alpha1connect.InferenceCacheClient
	open   *ackStream // nil: none
	old    bool       // the server does not know SyncCacheState
}

func newGRPCReporter(http connect.HTTPClient, url string) *grpcReporter {
	return &grpcReporter{client: inferencecachev1alpha1connect.NewInferenceCacheClient(http, url,
		connect.WithGRPC(), connect.WithReadMaxBytes(maxAckBytes))}
}

// report sends updates in order and waits for the ack of the last one. It opens
// the stream if there is none; one that has failed is not used again.
func (r *grpcReporter) report(ctx context.Context, updates []*pb.CacheStateUpdate) (*pb.Ack, error) {
	if r.old {
		return r.reportOnce(ctx, updates)
	}
	if r.open == nil {
		var err error
		if r.open, err = openAckStream(ctx, r.client); err != nil {
			return nil, err
		}
	}
	ack, err := r.open.exchange(ctx, updates)
	if err != nil && ctx.Err() != nil {
		err = ctx.Err() // the stream's own end came of it
	}
	if err == nil && fits(ack, updates[len(updates)-1]) {
		return ack, nil
	}
	r.close()
	if connect.CodeOf(err) == connect.CodeUnimplemented {
		r.old = true
		return r.reportOnce(ctx, updates)
	}
	return ack, err
}

// close ends the stream, if one is open.
func (r *grpcReporter) close() {
	if r.open != nil {
		r.open.close()
		r.open = nil
	}
}

// tell sends one update that has no place in the order.
func (r *grpcReporter) tell(ctx context.Context, update *pb.CacheStateUpdate) (*pb.Ack, error) {
	return r.reportOnce(ctx, []*pb.CacheStateUpdate{update})
}

// reportOnce sends updates in order on a stream of its own and waits for the
// answer.
func (r *grpcReporter) reportOnce(ctx context.Context, updates []*pb.CacheStateUpdate) (*pb.Ack, error) {
	stream, err := r.client.ReportCacheState(ctx)
	if err != nil {
		return nil, err
	}
	for _, update := range updates {
		err := stream.Send(update)
		if errors.Is(err, io.EOF) {
			break // the server ended the stream; its reason comes with the answer
		}
		if err != nil {
			return nil, err
		}
	}
	return stream.CloseAndReceive()
}

// fits says whether an ack is one of update, and a good one.
func fits(ack *pb.Ack, update *pb.CacheStateUpdate) bool {
	return ack.GetAccepted() && ack.GetSequence() >= update.GetSequence()
}

// ackStream is an open SyncCacheState stream. It outlives the calls that use it
// and ends with the first error.
type ackStream struct {
	stream *connect.BidiStreamForClientSimple[pb.CacheStateUpdate, pb.Ack]
	cancel context.CancelFunc
}

func openAckStream(ctx context.Context, client inferencecachev1alpha1connect.InferenceCacheClient) (*ackStream, error) {
	ctx, cancel := context.WithCancel(context.WithoutCancel(ctx))
	stream, err := client.SyncCacheState(ctx)
	if err != nil {
		cancel()
		return nil, err
	}
	return &ackStream{stream: stream, cancel: cancel}, nil
}

// exchange sends updates and takes their acks, one each and in order, up to the
// first that does not fit. After an error, or such an ack, the stream is of no
// use any more; the end of ctx is an error too.
func (s *ackStream) exchange(ctx context.Context, updates []*pb.CacheStateUpdate) (ack *pb.Ack, err error) {
	stop := context.AfterFunc(ctx, s.cancel)
	defer stop()
	for _, update := range updates {
		if err := s.stream.Send(update); errors.Is(err, io.EOF) {
			break // the server ended the stream; its reason comes instead of an ack
		} else if err != nil {
			return nil, err
		}
	}
	for _, update := range updates {
		ack, err = s.stream.Receive()
		switch {
		case errors.Is(err, io.EOF):
			return nil, connect.NewError(connect.CodeUnavailable, errors.New("the server ended the stream"))
		case err != nil:
			return nil, err
		case !fits(ack, update):
			return ack, nil
		}
	}
	return ack, nil
}

// close ends the stream in good order if nothing is under way on it.
func (s *ackStream) close() {
	_ = s.stream.CloseRequest()
	s.cancel()
	_ = s.stream.CloseResponse()
}

// newHTTPClient talks HTTP/2, in the clear to http:// servers. It notices a
// server that is gone without a word by pings. With an address, host:port, it
// goes there whatever host a URL names: the name is for TLS and :authority.
func newHTTPClient(address string) *http.Client {
	var protocols http.Protocols
	protocols.SetHTTP2(true)
	protocols.SetUnencryptedHTTP2(true)
	transport := &http.Transport{
		Protocols: &protocols,
		// Only for connections that a report opened while its server was removed:
		// a stream keeps the others busy.
		IdleConnTimeout: 2 * time.Minute,
		HTTP2:           &http.HTTP2Config{SendPingTimeout: 10 * time.Second, PingTimeout: 5 * time.Second},
	}
	if address != "" {
		transport.DialContext = func(ctx context.Context, network, _ string) (net.Conn, error) {
			var dialer net.Dialer
			return dialer.DialContext(ctx, network, address)
		}
	}
	return &http.Client{Transport: transport}
}
