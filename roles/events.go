package roles

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"connectrpc.com/connect"
	"github.com/spf13/cobra"
	"google.golang.org/protobuf/encoding/protojson"

	"inferencecache.io/inferencecache/internal/kv"
	pb "inferencecache.io/inferencecache/proto/inferencecache/v1alpha1"
)

// eventQuestion is what `inferencecache events` follows.
type eventQuestion struct {
	question
	types []string
	count int
	left  int // of count
}

// eventTypes are the words for what can happen, as on the command line.
var eventTypes = map[string]pb.CacheEvent_Type{
	"added":   pb.CacheEvent_PREFIX_ADDED,
	"evicted": pb.CacheEvent_PREFIX_EVICTED,
	"updated": pb.CacheEvent_REPLICA_UPDATED,
	"cleared": pb.CacheEvent_ALL_CLEARED,
}

// followAgain is the pause before a stream that ended is opened again.
const followAgain = time.Second

// errEnough ends a stream of which no more is wanted.
var errEnough = errors.New("enough")

// newEvents is `inferencecache events`.
func newEvents() *cobra.Command {
	var q eventQuestion
	cmd := &cobra.Command{
		Use:   "events",
		Short: "Follow what a server's index applies",
		Long: `events prints each change of what replicas hold as the server applies it, from now
until Ctrl-C: blocks added and evicted, everything cleared. A stream that ends is
opened again; what happened meanwhile is not shown, and standard error says so.`,
		Example: `  inferencecache events --model sim
  inferencecache events --type cleared,evicted -o json`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			request, err := q.request()
			if err != nil {
				return usage(err)
			}
			return q.follow(cmd.Context(), request, cmd.OutOrStdout(), cmd.ErrOrStderr())
		},
	}
	fs := cmd.Flags()
	q.connection(fs)
	fs.StringVar(&q.tenant, "tenant", "", "only this tenant")
	fs.StringVar(&q.model, "model", "", "only this model")
	fs.StringSliceVar(&q.types, "type", nil, "only these: added, evicted, updated, cleared (empty: all)")
	fs.IntVar(&q.count, "count", 0, "stop after so many events (0: never)")
	fs.Lookup("output").Usage = "text or json (an event a line, as protobuf JSON)"
	fs.Lookup("timeout").Usage = "longest wait for the stream to open"
	return cmd
}

func (q *eventQuestion) request() (*pb.StreamEventsRequest, error) {
	if err := q.check(); err != nil {
		return nil, err
	}
	request := &pb.StreamEventsRequest{TenantId: q.tenant, ModelId: q.model}
	for _, word := range q.types {
		kind, ok := eventTypes[word]
		if !ok {
			return nil, fmt.Errorf("--type %q: want added, evicted, updated or cleared", word)
		}
		request.Types = append(request.Types, kind)
	}
	q.left = q.count
	return request, nil
}

// follow prints events until ctx ends or there are enough. Only a server that
// has never let it in is an error.
func (q *eventQuestion) follow(ctx context.Context, request *pb.StreamEventsRequest, out, notes io.Writer) error {
	for opened := false; ; opened = true {
		in, err := q.stream(ctx, request, out)
		switch {
		case ctx.Err() != nil, errors.Is(err, errEnough):
			return nil
		case !in && !opened:
			return fmt.Errorf("follow %s: %w", q.server, explainCall(err))
		}
		fmt.Fprintf(notes, "the stream ended, events may be missing: %v\n", err)
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(followAgain):
		}
	}
}

// stream prints the events of one stream, and says whether it was let in.
func (q *eventQuestion) stream(ctx context.Context, request *pb.StreamEventsRequest, out io.Writer) (in bool, err error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	late := time.AfterFunc(q.timeout, cancel)
	defer late.Stop()
	stream, err := q.client().StreamCacheEvents(ctx, request)
	if err != nil {
		return false, err
	}
	defer stream.Close()
	in = len(stream.ResponseHeader()) > 0 // waits for them: a server sends them when it lets us in
	late.Stop()
	for stream.Receive() {
		if err := q.write(out, stream.Msg()); err != nil {
			return true, err
		}
	}
	if err = stream.Err(); err == nil {
		err = errors.New("the server ended it")
	}
	return in && connect.CodeOf(err) != connect.CodeUnimplemented, err
}

func (q *eventQuestion) write(out io.Writer, e *pb.CacheEvent) (err error) {
	if q.output == "json" {
		var line []byte
		if line, err = protojson.Marshal(e); err == nil {
			_, err = fmt.Fprintf(out, "%s\n", line)
		}
	} else {
		_, err = fmt.Fprintln(out, eventText(e))
	}
	if err != nil {
		return err
	}
	if q.left--; q.left == 0 {
		return errEnough
	}
	return nil
}

// eventText is an event in a line.
func eventText(e *pb.CacheEvent) string {
	name := "unknown"
	for word, kind := range eventTypes {
		if kind == e.GetType() {
			name = word
		}
	}
	words := []string{
		time.UnixMicro(e.GetTimestampUs()).Format("15:04:05.000"), fmt.Sprintf("%-7s", name), printable(e.GetReplicaId()),
		printable(e.GetTenantId() + "/" + e.GetModelId()),
	}
	if e.GetHashScheme() != "" {
		words = append(words, printable(e.GetHashScheme()))
	}
	if e.GetAdapterId() != "" {
		words = append(words, "adapter "+printable(e.GetAdapterId()))
	}
	keys := e.GetPackedHashes()
	if len(keys) == 0 {
		keys = e.GetPrefixHash()
	}
	if n := len(keys) / kv.HashSize; n > 0 {
		first, _ := kv.ParseHash(keys[:kv.HashSize])
		words = append(words, fmt.Sprintf("%d blocks from %s", n, first))
	}
	return strings.Join(slices.DeleteFunc(words, func(w string) bool { return w == "" }), "  ")
}
