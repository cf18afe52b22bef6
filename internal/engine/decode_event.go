package engine

import "fmt"

// rejection is the error of one event; every other error ends the batch.
type rejection struct {
	reason Reason
	detail string
}

func (r *rejection) Error() string { return string(r.reason) + ": " + r.detail }

func reject(reason Reason, format string, args ...any) error {
	return &rejection{reason, fmt.Sprintf(format, args...)}
}

// event reads one event into e. If it must be rejected, it is passed over as a
// whole and keeps only its tag and its verdict.
func (d *decoder) event(e *Event) error {
	start := d.pos
	err := d.eventBody(e)
	if err == nil {
		return nil
	}
	r, ok := err.(*rejection) // never wrapped, made in this file's callees only
	if !ok {
		return err
	}
	*e = Event{
		Index:       e.Index,
		Kind:        e.Kind,
		Tag:         e.Tag,
		FirstString: -1,
		Verdict:     Verdict{Rejected, r.reason, r.detail},
	}
	d.pos = start
	return d.skip(eventDepth)
}

func (d *decoder) eventBody(e *Event) error {
	head, err := d.next()
	if err != nil {
		return err
	}
	switch head.kind {
	case kindArray:
		err = d.eventArray(e, head.n)
	case kindMap:
		err = d.eventMap(e, head.n)
	default:
		return reject(NotAnEvent, "it is %v", head.kind)
	}
	if err != nil || e.Verdict.Status != OK {
		return err
	}
	return e.check()
}

// eventArray reads [tag, field, ...]. Elements beyond the layout are those of a
// later engine and passed over.
func (d *decoder) eventArray(e *Event, elements uint64) error {
	if elements == 0 {
		return reject(NotAnEvent, "it is an empty array")
	}
	if err := d.tag(e); err != nil {
		return err
	}
	var layout []Field
	switch e.Kind {
	case Stored:
		layout = d.stored
	case Removed:
		layout = d.removed
	}
	for i := range elements - 1 {
		var err error
		if i < uint64(len(layout)) {
			err = d.field(e, layout[i])
		} else {
			err = d.skip(fieldDepth)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// eventMap reads {"type": tag, name: field, ...}. The order of keys is not part
// of the contract, so the tag is looked for first.
func (d *decoder) eventMap(e *Event, pairs uint64) error {
	start := d.pos
	if err := d.findTag(e, pairs); err != nil {
		return err
	}
	d.pos = start
	for range pairs {
		key, err := d.key(fieldDepth)
		if err != nil {
			return err
		}
		field, known := fieldByName(key)
		if known && (e.Kind == Stored || e.Kind == Removed) {
			err = d.field(e, field)
		} else {
			err = d.skip(fieldDepth)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

func (d *decoder) findTag(e *Event, pairs uint64) error {
	for range pairs {
		key, err := d.key(fieldDepth)
		if err != nil {
			return err
		}
		if string(key) == "type" {
			return d.tag(e)
		}
		if err := d.skip(fieldDepth); err != nil {
			return err
		}
	}
	return reject(NotAnEvent, "it is a map without a type")
}

func (d *decoder) tag(e *Event) error {
	head, err := d.next()
	if err != nil {
		return err
	}
	if head.kind != kindString {
		return reject(NotAnEvent, "its tag is %v", head.kind)
	}
	if err := d.checkLength(head, "tag"); err != nil {
		return err
	}
	e.Tag = intern(d.bytes(head))
	switch e.Tag {
	case TagStored:
		e.Kind = Stored
	case TagRemoved:
		e.Kind = Removed
	case TagCleared:
		e.Kind = Cleared
	case TagIgnored:
		e.Verdict = Verdict{Status: Skipped, Reason: IgnoredTag}
	default:
		e.Verdict = Verdict{Status: Skipped, Reason: UnknownTag}
	}
	return nil
}

// intern makes a string of b, without a copy if it is one of those that every
// event carries.
func intern(b []byte) string {
	switch string(b) {
	case TagStored:
		return TagStored
	case TagRemoved:
		return TagRemoved
	case TagCleared:
		return TagCleared
	case "GPU":
		return "GPU"
	case "CPU":
		return "CPU"
	case "CPU_PINNED":
		return "CPU_PINNED"
	case "full_attention":
		return "full_attention"
	case "mla_attention":
		return "mla_attention"
	case "sliding_window":
		return "sliding_window"
	case "LOCAL":
		return "LOCAL"
	case "REMOTE":
		return "REMOTE"
	}
	return string(b)
}

// check proves what no single field can show.
func (e *Event) check() error {
	switch e.Kind {
	case Stored:
		if f, ok := e.missing(BlockHashes, TokenIDs, BlockSize); ok {
			return reject(MissingField, "%v", f)
		}
		return e.checkChain()
	case Removed:
		if f, ok := e.missing(BlockHashes); ok {
			return reject(MissingField, "%v", f)
		}
		if e.Remaining != nil && len(e.Remaining) != len(e.Hashes) {
			return reject(LengthMismatch, "%d %v for %d hashes", len(e.Remaining), RemainingCopies, len(e.Hashes))
		}
	}
	return nil
}

// missing finds the first of fields that the engine did not send. Tokens may be
// nil: that is "none".
func (e *Event) missing(fields ...Field) (Field, bool) {
	for _, f := range fields {
		if !e.Has(f) && !(f == TokenIDs && e.Present(f)) {
			return f, true
		}
	}
	return 0, false
}

// smallEvent is the number of hashes up to which comparing all pairs is
// cheaper than a map.
const smallEvent = 32

// checkChain refuses a chain that runs into itself: no engine makes one, and
// following it would index blocks under prefixes they do not have. Dynamo
// refuses the same.
func (e *Event) checkChain() error {
	if e.Has(ParentHash) {
		for _, h := range e.Hashes {
			if h.ID == e.Parent.ID {
				return reject(SelfReference, "a block is its own parent")
			}
		}
	}
	if len(e.Hashes) <= smallEvent {
		for i, h := range e.Hashes {
			for _, earlier := range e.Hashes[:i] {
				if h.ID == earlier.ID {
					return reject(DuplicateHash, "block %d repeats an earlier one", i)
				}
			}
		}
		return nil
	}
	seen := make(map[uint64]struct{}, len(e.Hashes))
	for i, h := range e.Hashes {
		if _, ok := seen[h.ID]; ok {
			return reject(DuplicateHash, "block %d repeats an earlier one", i)
		}
		seen[h.ID] = struct{}{}
	}
	return nil
}
