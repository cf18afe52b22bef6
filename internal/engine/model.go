package engine

import (
	"math"
	"time"
)

// Tags of the known events, as engines write them.
const (
	TagStored  = "BlockStored"
	TagRemoved = "BlockRemoved"
	TagCleared = "AllBlocksCleared"
	TagIgnored = "Ignored"
)

// Kind is the meaning of an event's tag.
type Kind uint8

const (
	Unknown Kind = iota // a tag this build does not know, or no tag at all
	Stored
	Removed
	Cleared
)

// Batch is one decoded payload.
type Batch struct {
	TS      float64 // seconds since 1970, as sent; see Time
	Rank    int     // data-parallel rank, if HasRank
	HasRank bool    // old engines send none
	Events  []Event // in wire order, unknown and rejected ones included
}

// Time is the wall-clock time the engine gave; ok is false for a value that
// means "use the time of arrival": zero, negative, not finite, or out of range.
func (b *Batch) Time() (t time.Time, ok bool) {
	if !(b.TS > 0) || b.TS > math.MaxInt64/1e9 {
		return time.Time{}, false
	}
	whole, part := math.Modf(b.TS)
	return time.Unix(int64(whole), int64(part*1e9)), true
}

// UnknownTags lists the tags of the batch that this build does not know, in
// wire order. Such a tag may be an invalidation, so the stream that carried it
// is less certain than before. The names come from the wire: bound their
// number before counting by name.
func (b *Batch) UnknownTags() []string {
	var tags []string
	for i := range b.Events {
		if b.Events[i].Verdict.Reason == UnknownTag {
			tags = append(tags, b.Events[i].Tag)
		}
	}
	return tags
}

// Event is one entry of a batch. Has tells which fields the engine sent; a
// field it did not send, or sent as nil, is zero.
type Event struct {
	Index   int // position in the batch, from 0
	Kind    Kind
	Tag     string
	Verdict Verdict

	Hashes []BlockHash
	Parent BlockHash // of the block before Hashes[0], if Has(ParentHash); 0 is a hash like any other
	// Tokens of the blocks, end to end. For a bigram event they are the first
	// elements of its pairs; a token sent as a string is 0 here.
	Tokens      []uint32
	Bigram      bool   // sent as overlapping pairs (EAGLE-family speculation)
	BigramTail  uint32 // second element of the last pair
	FirstString int    // position of the first string token, or -1
	BlockSize   int    // tokens a block; 0 on a placeholder that only moves a block to a tier

	LoraID        int64
	LoraName      string
	Medium        string // "" is GPU
	ExtraKeys     []Keys // one for each hash
	MMKeys        []Keys // one for each hash; TensorRT-LLM
	GroupIdx      int    // KV-cache group; 0 if not sent
	SpecKind      string
	SlidingWindow int
	Locality      string // LOCAL or REMOTE, relative to the publisher
	Ownership     string
	SessionID     string // tenant-sensitive
	CacheSalt     string // tenant-sensitive
	Origin        string // NEW or REUSED
	Remaining     []int  // removal: copies left of each hash in its tier

	present, null uint32 // sets of Field
	rawTokens     []byte // token_ids as sent, if some are strings
}

// Has reports whether the engine sent f with a value other than nil.
func (e *Event) Has(f Field) bool { return (e.present&^e.null)>>f&1 == 1 }

// Present reports whether the engine sent f at all.
func (e *Event) Present(f Field) bool { return e.present>>f&1 == 1 }

// Mark records that the engine sent fields, for events that are made rather than
// decoded.
func (e *Event) Mark(fields ...Field) {
	for _, f := range fields {
		e.present |= 1 << f
	}
}

// BlockHash is an engine's name for a block and everything before it.
type BlockHash struct {
	// ID is its identity: the integer's 64 bits, or the last 8 bytes of a
	// digest, big-endian. vLLM's integer is the low end of its digest, so both
	// spellings of a block meet here.
	ID       uint64
	Bin      []byte // the digest as sent, a view of the payload; nil for an integer
	Negative bool   // the integer was below zero: ID is its two's complement
}

// Field is a field of an event, whatever form the event has.
type Field uint8

const (
	BlockHashes Field = iota
	ParentHash
	TokenIDs
	BlockSize
	LoraID
	Medium
	// NameOrMetadata is a position, not a name: vLLM writes lora_name there,
	// SGLang a map of cache_salt and session_id.
	NameOrMetadata
	LoraName
	ExtraKeys
	GroupIdx
	SpecKind
	SlidingWindow
	Locality
	Ownership
	SessionID
	CacheSalt
	MMKeys
	Origin
	RemainingCopies
	numFields
)

var fieldNames = [numFields]string{
	BlockHashes:     "block_hashes",
	ParentHash:      "parent_block_hash",
	TokenIDs:        "token_ids",
	BlockSize:       "block_size",
	LoraID:          "lora_id",
	Medium:          "medium",
	NameOrMetadata:  "lora_name",
	LoraName:        "lora_name",
	ExtraKeys:       "extra_keys",
	GroupIdx:        "group_idx",
	SpecKind:        "kv_cache_spec_kind",
	SlidingWindow:   "kv_cache_spec_sliding_window",
	Locality:        "locality",
	Ownership:       "ownership",
	SessionID:       "session_id",
	CacheSalt:       "cache_salt",
	MMKeys:          "mm_keys",
	Origin:          "origin",
	RemainingCopies: "remaining_copy_counts",
}

// String is the field's name in a map event.
func (f Field) String() string {
	if f < numFields {
		return fieldNames[f]
	}
	return "unknown"
}

// fieldByName finds the field of a map event's key.
func fieldByName(name []byte) (f Field, ok bool) {
	switch string(name) {
	case "block_hashes":
		return BlockHashes, true
	case "parent_block_hash":
		return ParentHash, true
	case "token_ids":
		return TokenIDs, true
	case "block_size":
		return BlockSize, true
	case "lora_id":
		return LoraID, true
	case "medium":
		return Medium, true
	case "lora_name":
		return LoraName, true
	case "extra_keys":
		return ExtraKeys, true
	case "group_idx":
		return GroupIdx, true
	case "kv_cache_spec_kind":
		return SpecKind, true
	case "kv_cache_spec_sliding_window":
		return SlidingWindow, true
	case "locality":
		return Locality, true
	case "ownership":
		return Ownership, true
	case "session_id":
		return SessionID, true
	case "cache_salt":
		return CacheSalt, true
	case "mm_keys":
		return MMKeys, true
	case "origin":
		return Origin, true
	case "remaining_copy_counts":
		return RemainingCopies, true
	}
	return 0, false
}
