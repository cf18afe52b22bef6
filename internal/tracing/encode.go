package tracing

import (
	"bytes"
	"io"

	"go.opentelemetry.io/otel/attribute"
	sdk "go.opentelemetry.io/otel/sdk/trace"
	collector "go.opentelemetry.io/proto/slim/otlp/collector/trace/v1"
	common "go.opentelemetry.io/proto/slim/otlp/common/v1"
	pbresource "go.opentelemetry.io/proto/slim/otlp/resource/v1"
	pbtrace "go.opentelemetry.io/proto/slim/otlp/trace/v1"
	"google.golang.org/protobuf/proto"
)

// Bits of a span's flags beyond W3C's: whether it is known that the parent is of
// another process, and that it is.
const (
	remoteKnown = 0x100
	remote      = 0x200
)

// encode makes the body of one export; batch is not empty, and its spans are of
// one tracer.
func encode(batch []sdk.ReadOnlySpan) (io.Reader, error) {
	spans := make([]*pbtrace.Span, len(batch))
	for i, s := range batch {
		spans[i] = encodeSpan(s)
	}
	first := batch[0]
	body, err := proto.Marshal(&collector.ExportTraceServiceRequest{ResourceSpans: []*pbtrace.ResourceSpans{{
		Resource: &pbresource.Resource{Attributes: encodeAttributes(first.Resource().Attributes())},
		ScopeSpans: []*pbtrace.ScopeSpans{{
			Scope: &common.InstrumentationScope{Name: first.InstrumentationScope().Name},
			Spans: spans,
		}},
	}}})
	return bytes.NewReader(body), err
}

func encodeSpan(s sdk.ReadOnlySpan) *pbtrace.Span {
	at, parent := s.SpanContext(), s.Parent()
	id, trace := at.SpanID(), at.TraceID()
	span := &pbtrace.Span{
		TraceId: trace[:], SpanId: id[:], TraceState: at.TraceState().String(),
		Flags:             uint32(at.TraceFlags()) | remoteKnown,
		Name:              s.Name(),
		Kind:              pbtrace.Span_SpanKind(s.SpanKind()), // the same numbers
		StartTimeUnixNano: uint64(s.StartTime().UnixNano()),
		EndTimeUnixNano:   uint64(s.EndTime().UnixNano()),
		Attributes:        encodeAttributes(s.Attributes()),

		DroppedAttributesCount: uint32(s.DroppedAttributes()),
	}
	if parent.HasSpanID() {
		id := parent.SpanID()
		span.ParentSpanId = id[:]
	}
	if parent.IsRemote() {
		span.Flags |= remote
	}
	return span
}

func encodeAttributes(all []attribute.KeyValue) []*common.KeyValue {
	out := make([]*common.KeyValue, len(all))
	for i, kv := range all {
		out[i] = &common.KeyValue{Key: string(kv.Key), Value: encodeValue(kv.Value)}
	}
	return out
}

// encodeValue knows the scalar types; others become text.
func encodeValue(v attribute.Value) *common.AnyValue {
	switch v.Type() {
	case attribute.BOOL:
		return &common.AnyValue{Value: &common.AnyValue_BoolValue{BoolValue: v.AsBool()}}
	case attribute.INT64:
		return &common.AnyValue{Value: &common.AnyValue_IntValue{IntValue: v.AsInt64()}}
	case attribute.FLOAT64:
		return &common.AnyValue{Value: &common.AnyValue_DoubleValue{DoubleValue: v.AsFloat64()}}
	}
	return &common.AnyValue{Value: &common.AnyValue_StringValue{StringValue: v.Emit()}}
}

// rejections reads how many spans a collector did not take although it answered
// well. An answer of another form rejects none.
func rejections(answer []byte) int {
	var said collector.ExportTraceServiceResponse
	if err := proto.Unmarshal(answer, &said); err != nil {
		return 0
	}
	return int(max(0, said.GetPartialSuccess().GetRejectedSpans()))
}
