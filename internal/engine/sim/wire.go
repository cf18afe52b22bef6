package sim

import (
	"encoding/binary"
	"math"
	"time"
)

// The KV events of vLLM as msgpack, written the way its msgspec encoder does:
// shortest headers, floats always 64 bit. Field order and defaults follow
// vllm/distributed/kv_events.py, class by class.

type eventKind uint8

const (
	blockStored eventKind = iota + 1
	blockRemoved
	allBlocksCleared
)

// event is one element of a batch.
type event struct {
	kind      eventKind
	hashes    []blockHash
	parent    blockHash // blockStored: the block before the first; see hasParent
	hasParent bool
	tokens    []uint32 // blockStored: len(hashes)*blockSize ids
	blockSize int
}

// Constant values of a dense model's only group on the GPU.
const (
	medium   = "GPU"
	groupIdx = 0
	specKind = "full_attention"
)

// appendBatch adds the envelope [ts, events, rank]: ts in wall-clock seconds,
// rank 0, which vLLM fills in even without data parallelism.
func appendBatch(b []byte, encoding string, ts time.Time, events []event) []byte {
	b = appendArray(b, 3)
	b = appendFloat(b, float64(ts.UnixNano())/1e9)
	b = appendArray(b, len(events))
	for _, e := range events {
		if encoding == EncodingArray {
			b = appendPositional(b, e)
		} else {
			b = appendTagged(b, e)
		}
	}
	return appendUint(b, 0)
}

// appendPositional is the array form of vLLM up to 0.23. It never drops
// trailing defaults (msgspec issue 720).
func appendPositional(b []byte, e event) []byte {
	switch e.kind {
	case blockStored:
		b = appendString(appendArray(b, 12), "BlockStored")
		b = appendHashes(b, e.hashes)
		b = appendParent(b, e)
		b = appendTokens(b, e.tokens)
		b = appendUint(b, uint64(e.blockSize))
		b = appendNil(b) // lora_id
		b = appendString(b, medium)
		b = appendNil(b) // lora_name
		b = appendExtraKeys(b, len(e.hashes))
		b = appendUint(b, groupIdx)
		b = appendString(b, specKind)
		return appendNil(b) // kv_cache_spec_sliding_window
	case blockRemoved:
		b = appendString(appendArray(b, 4), "BlockRemoved")
		b = appendHashes(b, e.hashes)
		b = appendString(b, medium)
		return appendUint(b, groupIdx)
	case allBlocksCleared:
		return appendString(appendArray(b, 1), "AllBlocksCleared")
	}
	panic("bug: event without a kind")
}

// appendTagged is the map form of vLLM from 0.24 (PR 42892): optional fields
// at their default are left out, required ones are there even when nil.
func appendTagged(b []byte, e event) []byte {
	switch e.kind {
	case blockStored:
		b = appendString(appendString(appendMap(b, 11), "type"), "BlockStored")
		b = appendHashes(appendString(b, "block_hashes"), e.hashes)
		b = appendParent(appendString(b, "parent_block_hash"), e)
		b = appendTokens(appendString(b, "token_ids"), e.tokens)
		b = appendUint(appendString(b, "block_size"), uint64(e.blockSize))
		b = appendNil(appendString(b, "lora_id"))
		b = appendString(appendString(b, "medium"), medium)
		b = appendNil(appendString(b, "lora_name"))
		b = appendExtraKeys(appendString(b, "extra_keys"), len(e.hashes))
		b = appendUint(appendString(b, "group_idx"), groupIdx)
		return appendString(appendString(b, "kv_cache_spec_kind"), specKind)
	case blockRemoved:
		b = appendString(appendString(appendMap(b, 4), "type"), "BlockRemoved")
		b = appendHashes(appendString(b, "block_hashes"), e.hashes)
		b = appendString(appendString(b, "medium"), medium)
		return appendUint(appendString(b, "group_idx"), groupIdx)
	case allBlocksCleared:
		return appendString(appendString(appendMap(b, 1), "type"), "AllBlocksCleared")
	}
	panic("bug: event without a kind")
}

// appendHashes writes integers: vLLM's default since 0.10.2 is the low 64 bits
// of the digest as an unsigned number.
func appendHashes(b []byte, hashes []blockHash) []byte {
	b = appendArray(b, len(hashes))
	for _, hash := range hashes {
		b = appendUint(b, uint64(hash))
	}
	return b
}

func appendParent(b []byte, e event) []byte {
	if !e.hasParent {
		return appendNil(b)
	}
	return appendUint(b, uint64(e.parent))
}

func appendTokens(b []byte, tokens []uint32) []byte {
	b = appendArray(b, len(tokens))
	for _, token := range tokens {
		b = appendUint(b, uint64(token))
	}
	return b
}

// appendExtraKeys writes one nil per block: vLLM sends the list even if no
// block has an adapter, a salt or an image.
func appendExtraKeys(b []byte, blocks int) []byte {
	b = appendArray(b, blocks)
	for range blocks {
		b = appendNil(b)
	}
	return b
}

func appendNil(b []byte) []byte { return append(b, 0xc0) }

func appendFloat(b []byte, f float64) []byte {
	return binary.BigEndian.AppendUint64(append(b, 0xcb), math.Float64bits(f))
}

func appendUint(b []byte, n uint64) []byte {
	switch {
	case n < 1<<7:
		return append(b, byte(n))
	case n < 1<<8:
		return append(b, 0xcc, byte(n))
	case n < 1<<16:
		return binary.BigEndian.AppendUint16(append(b, 0xcd), uint16(n))
	case n < 1<<32:
		return binary.BigEndian.AppendUint32(append(b, 0xce), uint32(n))
	}
	return binary.BigEndian.AppendUint64(append(b, 0xcf), n)
}

// appendString is for this file's own names, all shorter than 256 bytes.
func appendString(b []byte, s string) []byte {
	if len(s) < 32 {
		return append(append(b, 0xa0|byte(len(s))), s...)
	}
	return append(append(b, 0xd9, byte(len(s))), s...)
}

func appendArray(b []byte, n int) []byte { return appendHeader(b, 0x90, 0xdc, n) }
func appendMap(b []byte, n int) []byte   { return appendHeader(b, 0x80, 0xde, n) }

// appendHeader: fix is the form for n < 16, wide the one with a 16-bit length,
// wide+1 the one with 32 bits.
func appendHeader(b []byte, fix, wide byte, n int) []byte {
	switch {
	case n < 16:
		return append(b, fix|byte(n))
	case n < 1<<16:
		return binary.BigEndian.AppendUint16(append(b, wide), uint16(n))
	}
	return binary.BigEndian.AppendUint32(append(b, wide+1), uint32(n))
}
