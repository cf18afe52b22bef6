package server

import (
	"bufio"
	"bytes"
	"context"
	"slices"
	"strings"
	"time"

	"connectrpc.com/connect"

	"inferencecache.io/inferencecache/internal/obs"
	pb "inferencecache.io/inferencecache/proto/inferencecache/v1alpha1"
)

// metricInterval is the pause between two rounds of StreamMetrics.
const metricInterval = 10 * time.Second

// StreamMetrics sends the samples of the metrics page, now and every 10 s.
func (s *Server) StreamMetrics(ctx context.Context, request *pb.StreamMetricsRequest, stream *connect.ServerStream[pb.Metric]) error {
	release, err := s.admitReader()
	if err != nil {
		return err
	}
	defer release()
	// Joined with a filter that takes nothing: it tells when to end.
	r, err := s.events.join(func(*pb.CacheEvent) bool { return false })
	if err != nil {
		return err
	}
	defer s.events.leave(r)
	ticker := time.NewTicker(metricInterval)
	defer ticker.Stop()
	for {
		for _, m := range s.samples(time.Now(), request.GetNames()) {
			if err := stream.Send(m); err != nil {
				return err
			}
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-r.events:
			return r.why
		case <-ticker.C:
		}
	}
}

// samples reads the metrics page back; names selects by metric name, where a
// histogram's name takes its _bucket, _sum and _count along.
func (s *Server) samples(now time.Time, names []string) []*pb.Metric {
	var page bytes.Buffer
	s.meters.set.WritePrometheus(&page)
	var out []*pb.Metric
	for lines := bufio.NewScanner(&page); lines.Scan(); {
		m, ok := obs.ParseSample(lines.Text())
		if !ok {
			continue
		}
		base := strings.TrimSuffix(strings.TrimSuffix(strings.TrimSuffix(m.Name, "_bucket"), "_sum"), "_count")
		if len(names) > 0 && !slices.Contains(names, m.Name) && !slices.Contains(names, base) {
			continue
		}
		out = append(out, &pb.Metric{Name: m.Name, Type: kindOf(m.Name), Labels: m.Labels, Value: m.Value, TimestampUs: now.UnixMicro()})
	}
	return out
}

// kindOf is a metric's type by its name, as it is on the page.
func kindOf(name string) string {
	switch {
	case strings.HasSuffix(name, "_bucket"), strings.HasSuffix(name, "_sum"), strings.HasSuffix(name, "_count"):
		return "histogram"
	case strings.HasSuffix(name, "_total"):
		return "counter"
	}
	return "gauge"
}
