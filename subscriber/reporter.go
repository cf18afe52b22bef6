package subscriber

import (
	"context"
	"errors"
	"io"
	"net/http"
	"time"

	"connectrpc.com/connect"

	pb "inferencecache.io/inferencecache/proto/inferencecache/v1alpha1"
	"inferencecache.io/inferencecache/proto/inferencecache/v1alpha1/inferencecachev1alpha1connect"
)

// maxAckBytes bounds what is read of a server's answer.
const maxAckBytes = 64 << 10

// grpcReporter reports to one server over gRPC, one stream a call.
type grpcReporter struct {
	client inferencecachev1alpha1connect.InferenceCacheClient
}

func newGRPCReporter(http connect.HTTPClient, url string) *grpcReporter {
	return &grpcReporter{client: inferencecachev1alpha1connect.NewInferenceCacheClient(http, url,
		connect.WithGRPC(), connect.WithReadMaxBytes(maxAckBytes))}
}

// report sends updates in order on a stream of its own and waits for the
// answer.
func (r *grpcReporter) report(ctx context.Context, updates []*pb.CacheStateUpdate) (*pb.Ack, error) {
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

// newHTTPClient talks HTTP/2, in the clear to http:// servers. It notices a
// server that is gone without a word by pings.
func newHTTPClient() *http.Client {
	var protocols http.Protocols
	protocols.SetHTTP2(true)
	protocols.SetUnencryptedHTTP2(true)
	return &http.Client{Transport: &http.Transport{
		Protocols: &protocols,
		HTTP2:     &http.HTTP2Config{SendPingTimeout: 10 * time.Second, PingTimeout: 5 * time.Second},
	}}
}
