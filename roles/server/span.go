package server

import (
	"context"
	"time"

	"connectrpc.com/connect"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/trace"

	pb "inferencecache.io/inferencecache/proto/inferencecache/v1alpha1"
)

// Trace makes a span of each lookup with t from now on. Call it before the
// server serves.
func (s *Server) Trace(t trace.Tracer) { s.tracer = t }

// startSpan begins the span of a lookup below the one that the caller's
// traceparent names, if there is one.
func (s *Server) startSpan(ctx context.Context, start time.Time) (context.Context, trace.Span) {
	if call, ok := connect.CallInfoForHandlerContext(ctx); ok {
		ctx = propagation.TraceContext{}.Extract(ctx, propagation.HeaderCarrier(call.RequestHeader()))
	}
	return s.tracer.Start(ctx, "LookupRoute", trace.WithTimestamp(start), trace.WithSpanKind(trace.SpanKindServer))
}

// describe says in a span what was asked and why it was answered so: names,
// counts and times, nothing of the prompt. Times are those that the ranking
// expects of the first replica.
func (l *lookup) describe(span trace.Span, answer *pb.LookupRouteResponse) {
	if !span.IsRecording() {
		return
	}
	span.SetAttributes(
		attribute.String("inferencecache.tenant", l.at.Tenant),
		attribute.String("inferencecache.model", l.at.Model),
		attribute.String("inferencecache.hash_scheme", l.at.Scheme),
		attribute.String("inferencecache.adapter", l.at.Adapter),
		attribute.String("inferencecache.request_id", answer.GetRequestId()),
		attribute.String("inferencecache.input", l.inputKind()),
		attribute.Int64("inferencecache.prompt_tokens", l.input.tokens),
		attribute.String("inferencecache.profile", l.policy.Profile.String()),
		attribute.String("inferencecache.reason_code", answer.GetReasonCode()),
		attribute.Bool("inferencecache.hint_used", len(answer.GetReplicaScores()) > 0),
		attribute.Int("inferencecache.candidates", len(l.candidates)),
	)
	if len(l.scored) > 0 {
		first := &l.scored[0]
		span.SetAttributes(
			attribute.String("inferencecache.replica", first.Replica),
			attribute.Int("inferencecache.matched_tokens", int(first.Tokens)),
			attribute.Float64("inferencecache.hit_probability", float64(first.Prob)),
		)
	}
	if len(l.ranked) > 0 {
		first := &l.ranked[0]
		span.SetAttributes(
			attribute.Float64("inferencecache.waiting_ms", 1000*first.Terms.Backlog),
			attribute.Float64("inferencecache.prefill_ms", 1000*first.Prefill),
			attribute.Float64("inferencecache.finish_ms", 1000*first.Finish),
		)
	}
}

// inputKind is the field of the request that was looked up.
func (l *lookup) inputKind() string {
	r := l.request
	chained := carriesChain(r)
	switch {
	case len(r.GetPrefixHash()) > 0 && (!chained || !l.policy.ChainMatching):
		return "prefix_hash"
	case chained && l.policy.ChainMatching && len(r.GetPackedHashes()) > 0:
		return "packed_hashes"
	case chained && l.policy.ChainMatching:
		return "block_hashes"
	case len(r.GetTokenIds()) > 0:
		return "token_ids"
	case r.GetPromptText() != "":
		return "prompt_text"
	}
	return "none"
}
