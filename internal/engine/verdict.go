package engine

// Status is what became of an event.
type Status uint8

const (
	OK       Status = iota // decoded; residency has not judged it yet
	Skipped                // understood, and of no consequence here
	Rejected               // not to be trusted; Reason says why
	Applied                // given by residency: it changed or confirmed what is held
	Orphaned               // given by residency: it waits for its parent
)

func (s Status) String() string {
	switch s {
	case OK:
		return "ok"
	case Skipped:
		return "skipped"
	case Rejected:
		return "rejected"
	case Applied:
		return "applied"
	case Orphaned:
		return "orphan"
	}
	return "unknown"
}

// Reason names why an event was not applied. The set is closed, so it can be a
// metric label.
type Reason string

// Reasons given by Decode.
const (
	UnknownTag     Reason = "unknown_tag"     // skipped; it may mean an invalidation we miss
	IgnoredTag     Reason = "ignored_tag"     // skipped; the tag "Ignored" of Dynamo
	NotAnEvent     Reason = "not_an_event"    // neither a tagged array nor a tagged map
	MissingField   Reason = "missing_field"   // a required field is absent or nil
	WrongType      Reason = "wrong_type"      // a field of a type it cannot have
	OutOfRange     Reason = "out_of_range"    // a number outside the range of its field
	OverLimit      Reason = "over_limit"      // more than Limits allow
	DuplicateHash  Reason = "duplicate_hash"  // a store names one block twice
	SelfReference  Reason = "self_reference"  // a store names its parent as a child
	BrokenBigram   Reason = "broken_bigram"   // pairs that do not overlap
	LengthMismatch Reason = "length_mismatch" // per-hash list of another length than the hashes
)

// Verdict is what was decided about one event. Detail is for people: field
// names and numbers, never token ids, salts or names of the wire.
type Verdict struct {
	Status Status
	Reason Reason
	Detail string
}
