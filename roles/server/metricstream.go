package server

import (
	"bufio"
	"bytes"
	"context"
	"slices"
	"strconv"
	"strings"
	"time"

	"connectrpc.com/connect"

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
		m, ok := parseSample(lines.Text())
		if !ok {
			continue
		}
		base := strings.TrimSuffix(strings.TrimSuffix(strings.TrimSuffix(m.Name, "_bucket"), "_sum"), "_count")
		if len(names) > 0 && !slices.Contains(names, m.Name) && !slices.Contains(names, base) {
			continue
		}
		m.TimestampUs = now.UnixMicro()
		out = append(out, m)
	}
	return out
}

// parseSample reads one line of our own page: name, optional labels, value.
// Label values hold no quotes, braces or backslashes (see obs.Labels).
func parseSample(line string) (*pb.Metric, bool) {
	series, number, ok := cutLast(line, " ")
	if !ok || strings.HasPrefix(line, "#") {
		return nil, false
	}
	value, err := strconv.ParseFloat(number, 64)
	if err != nil {
		return nil, false
	}
	name, labels, _ := strings.Cut(strings.TrimSuffix(series, "}"), "{")
	m := &pb.Metric{Name: name, Type: "gauge", Labels: map[string]string{}, Value: value}
	switch {
	case strings.HasSuffix(name, "_bucket"), strings.HasSuffix(name, "_sum"), strings.HasSuffix(name, "_count"):
		m.Type = "histogram"
	case strings.HasSuffix(name, "_total"):
		m.Type = "counter"
	}
	for labels != "" {
		var label, rest string
		var found bool
		if label, rest, found = strings.Cut(labels, `="`); !found {
			return nil, false
		}
		if m.Labels[label], labels, found = strings.Cut(rest, `"`); !found {
			return nil, false
		}
		labels = strings.TrimPrefix(labels, ",")
	}
	return m, true
}

func cutLast(s, sep string) (before, after string, found bool) {
	if i := strings.LastIndex(s, sep); i >= 0 {
		return s[:i], s[i+len(sep):], true
	}
	return s, "", false
}
