package engine

import (
	"bytes"
	"encoding/hex"
	"encoding/json"
	"math"
	"strconv"
)

// Object is a JSON object that keeps the order of its members.
type Object []Member

// Member is one name and value of an Object.
type Member struct {
	Name  string
	Value any
}

// MarshalJSON writes the members in order.
func (o Object) MarshalJSON() ([]byte, error) {
	var buf bytes.Buffer
	buf.WriteByte('{')
	for i, m := range o {
		if i > 0 {
			buf.WriteByte(',')
		}
		name, err := json.Marshal(m.Name)
		if err != nil {
			return nil, err
		}
		value, err := json.Marshal(m.Value)
		if err != nil {
			return nil, err
		}
		buf.Write(name)
		buf.WriteByte(':')
		buf.Write(value)
	}
	buf.WriteByte('}')
	return buf.Bytes(), nil
}

// Document shows the batch to a person debugging: the envelope and every event
// in wire order, each with index and verdict. It contains salts, token ids and
// multimodal ids: never log it.
func (b *Batch) Document() Object {
	events := make([]Object, len(b.Events))
	for i := range b.Events {
		events[i] = append(b.Events[i].Document(), Member{"verdict", b.Events[i].Verdict})
	}
	return append(b.EnvelopeDocument(), Member{"events", events})
}

// EnvelopeDocument is the part of Document that is not about events: ts and
// dp_rank, null where the engine sent none.
func (b *Batch) EnvelopeDocument() Object {
	o := Object{{"ts", nil}, {"dp_rank", nil}}
	if !math.IsNaN(b.TS) && !math.IsInf(b.TS, 0) {
		o[0].Value = b.TS
	}
	if b.HasRank {
		o[1].Value = b.Rank
	}
	return o
}

// MarshalJSON writes status, reason and detail, the last two if there are any.
func (v Verdict) MarshalJSON() ([]byte, error) {
	return json.Marshal(struct {
		Status string `json:"status"`
		Reason Reason `json:"reason,omitempty"`
		Detail string `json:"detail,omitempty"`
	}{v.Status.String(), v.Reason, v.Detail})
}

// documentFields is the order in which a document shows fields: that of the
// positional form.
var documentFields = [...]Field{
	BlockHashes, ParentHash, TokenIDs, BlockSize, LoraID, Medium, LoraName, ExtraKeys, GroupIdx, SpecKind,
	SlidingWindow, Locality, Ownership, SessionID, CacheSalt, MMKeys, Origin, RemainingCopies,
}

// Document shows the event's index, tag and decoded fields under their wire
// names. A field sent as nil is null, one that was not sent is absent.
func (e *Event) Document() Object {
	o := Object{{"index", e.Index}, {"type", nil}}
	if e.Tag != "" {
		o[1].Value = e.Tag
	}
	for _, f := range documentFields {
		present := e.Present(f)
		if f == LoraName && !present {
			present = e.Present(NameOrMetadata) && !e.Has(NameOrMetadata) // nil, so it is neither
		}
		if !present {
			continue
		}
		var value any
		if e.Has(f) {
			value = e.fieldDocument(f)
		}
		o = append(o, Member{f.String(), value})
		if f == TokenIDs && e.Bigram {
			o = append(o, Member{"bigram", true}, Member{"bigram_tail", e.BigramTail})
		}
	}
	return o
}

func (e *Event) fieldDocument(f Field) any {
	switch f {
	case BlockHashes:
		hashes := make([]Object, len(e.Hashes))
		for i, h := range e.Hashes {
			hashes[i] = h.Document()
		}
		return hashes
	case ParentHash:
		return e.Parent.Document()
	case TokenIDs:
		if e.rawTokens != nil {
			return documentOf(e.rawTokens)
		}
		return e.Tokens
	case BlockSize:
		return e.BlockSize
	case LoraID:
		return e.LoraID
	case Medium:
		return e.Medium
	case LoraName:
		return e.LoraName
	case ExtraKeys:
		return keysDocument(e.ExtraKeys)
	case GroupIdx:
		return e.GroupIdx
	case SpecKind:
		return e.SpecKind
	case SlidingWindow:
		return e.SlidingWindow
	case Locality:
		return e.Locality
	case Ownership:
		return e.Ownership
	case SessionID:
		return e.SessionID
	case CacheSalt:
		return e.CacheSalt
	case MMKeys:
		return keysDocument(e.MMKeys)
	case Origin:
		return e.Origin
	case RemainingCopies:
		return e.Remaining
	}
	panic("bug: field without a document")
}

// Document shows the hash: {"wire":"int","value","key_hex"} with the decimal
// number as a string, or {"wire":"bin","key_hex","low64_hex"}.
func (h BlockHash) Document() Object {
	low := hex64(h.ID)
	if h.Bin != nil {
		return Object{{"wire", "bin"}, {"key_hex", hex.EncodeToString(h.Bin)}, {"low64_hex", low}}
	}
	number := strconv.FormatUint(h.ID, 10)
	if h.Negative {
		number = strconv.FormatInt(int64(h.ID), 10)
	}
	return Object{{"wire", "int"}, {"value", number}, {"key_hex", low}}
}

func hex64(n uint64) string {
	digits := strconv.FormatUint(n, 16)
	return "0000000000000000"[len(digits):] + digits
}

func keysDocument(keys []Keys) []any {
	list := make([]any, len(keys))
	for i, k := range keys {
		if k != nil {
			list[i] = documentOf(k)
		}
	}
	return list
}

// documentOf turns any msgpack value that was skipped successfully once, and so
// is whole and not too deep, into one that encoding/json can write. Bytes and
// extensions become {"hex"}, a map key that is not a string its JSON text.
func documentOf(raw []byte) any {
	r := reader{buf: raw}
	v, err := r.document()
	if err != nil {
		panic("bug: value read twice, failed once: " + err.Error())
	}
	return v
}

func (r *reader) document() (any, error) {
	start := r.pos
	head, err := r.next()
	if err != nil {
		return nil, err
	}
	switch head.kind {
	case kindBool:
		return head.n == 1, nil
	case kindUint:
		return head.n, nil
	case kindInt:
		return int64(head.n), nil
	case kindFloat:
		if f := math.Float64frombits(head.n); !math.IsNaN(f) && !math.IsInf(f, 0) {
			return f, nil
		}
		return nil, nil
	case kindString:
		return string(r.bytes(head)), nil
	case kindBin:
		return Object{{"hex", hex.EncodeToString(r.bytes(head))}}, nil
	case kindExt:
		if err := r.skipRest(head, 1); err != nil {
			return nil, err
		}
		return Object{{"hex", hex.EncodeToString(r.buf[start:r.pos])}}, nil
	case kindArray:
		return r.documentArray(head.n)
	case kindMap:
		return r.documentMap(head.n)
	}
	return nil, nil
}

func (r *reader) documentArray(elements uint64) (any, error) {
	list := []any{}
	for range elements {
		v, err := r.document()
		if err != nil {
			return nil, err
		}
		list = append(list, v)
	}
	return list, nil
}

func (r *reader) documentMap(pairs uint64) (any, error) {
	object := Object{}
	for range pairs {
		key, err := r.document()
		if err != nil {
			return nil, err
		}
		name, ok := key.(string)
		if !ok {
			text, err := json.Marshal(key)
			if err != nil {
				return nil, err
			}
			name = string(text)
		}
		v, err := r.document()
		if err != nil {
			return nil, err
		}
		object = append(object, Member{name, v})
	}
	return object, nil
}
