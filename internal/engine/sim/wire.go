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
	tierBlocksCleared // of a vLLM to come (PR 57296): nobody knows it yet
)

// event is one element of a batch.
type event struct {
	kind      eventKind
	hashes    []blockHash
	parent    blockHash // blockStored: the block before the first; see hasParent
	hasParent bool
	tokens    []uint32 // blockStored: len(hashes)*blockSize ids; none on the CPU
	blockSize int      // 0 on the CPU: a placeholder, which only says where a block is
	variant   variant  // blockStored on the GPU: what else went into the hashes
	cpu       bool     // the blocks are in the memory of the host, not of the GPU
}

// Constant values of a dense model's only group.
const (
	mediumGPU = "GPU"
	mediumCPU = "CPU"
	groupIdx  = 0
	specKind  = "full_attention"
)

func (e event) medium() string {
	if e.cpu {
		return mediumCPU
	}
	return mediumGPU
}

// appendBatch adds the envelope [ts, events, rank]: ts in wall-clock seconds,
// the data-parallel rank, which vLLM fills in even if there is but one.
func appendBatch(b []byte, encoding string, ts time.Time, rank int, events []event) []byte {
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
	return appendUint(b, uint64(rank))
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
		b = appendLoRAID(b, e.variant)
		b = appendString(b, e.medium())
		b = appendLoRAName(b, e.variant)
		b = appendExtraKeys(b, e)
		b = appendUint(b, groupIdx)
		b = appendSpecKind(b, e)
		return appendNil(b) // kv_cache_spec_sliding_window
	case blockRemoved:
		b = appendString(appendArray(b, 4), "BlockRemoved")
		b = appendHashes(b, e.hashes)
		b = appendString(b, e.medium())
		return appendUint(b, groupIdx)
	case allBlocksCleared:
		return appendString(appendArray(b, 1), "AllBlocksCleared")
	case tierBlocksCleared:
		return appendString(appendString(appendArray(b, 2), "TierBlocksCleared"), e.medium())
	}
	panic("bug: event without a kind")
}

// appendTagged is the map form of vLLM from 0.24 (PR 42892): optional fields
// at their default are left out, required ones are there even when nil.
func appendTagged(b []byte, e event) []byte {
	switch e.kind {
	case blockStored:
		return appendTaggedStore(b, e)
	case blockRemoved:
		b = appendString(appendString(appendMap(b, 4), "type"), "BlockRemoved")
		b = appendHashes(appendString(b, "block_hashes"), e.hashes)
		b = appendString(appendString(b, "medium"), e.medium())
		return appendUint(appendString(b, "group_idx"), groupIdx)
	case allBlocksCleared:
		return appendString(appendString(appendMap(b, 1), "type"), "AllBlocksCleared")
	case tierBlocksCleared:
		b = appendString(appendString(appendMap(b, 2), "type"), "TierBlocksCleared")
		return appendString(appendString(b, "medium"), e.medium())
	}
	panic("bug: event without a kind")
}

func appendTaggedStore(b []byte, e event) []byte {
	fields := 11
	if e.cpu {
		fields = 9 // extra_keys and the kind are nil, their default
	}
	b = appendString(appendString(appendMap(b, fields), "type"), "BlockStored")
	b = appendHashes(appendString(b, "block_hashes"), e.hashes)
	b = appendParent(appendString(b, "parent_block_hash"), e)
	b = appendTokens(appendString(b, "token_ids"), e.tokens)
	b = appendUint(appendString(b, "block_size"), uint64(e.blockSize))
	b = appendLoRAID(appendString(b, "lora_id"), e.variant)
	b = appendString(appendString(b, "medium"), e.medium())
	b = appendLoRAName(appendString(b, "lora_name"), e.variant)
	if !e.cpu {
		b = appendExtraKeys(appendString(b, "extra_keys"), e)
	}
	b = appendUint(appendString(b, "group_idx"), groupIdx)
	if !e.cpu {
		b = appendSpecKind(appendString(b, "kv_cache_spec_kind"), e)
	}
	return b
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

// appendLoRAID writes the number in which the engine loaded the adapter, from
// 1; appendLoRAName its name. Both are nil for the base model.
func appendLoRAID(b []byte, v variant) []byte {
	if v.adapterID == 0 {
		return appendNil(b)
	}
	return appendUint(b, uint64(v.adapterID))
}

func appendLoRAName(b []byte, v variant) []byte {
	if v.adapter == "" {
		return appendNil(b)
	}
	return appendString(b, v.adapter)
}

// appendExtraKeys writes a list of keys, or nil, for each block: vLLM sends the
// outer list even if no block has an adapter, a salt or an image. Placeholders
// have none.
func appendExtraKeys(b []byte, e event) []byte {
	if e.cpu {
		return appendNil(b)
	}
	b = appendArray(b, len(e.hashes))
	for i := range e.hashes {
		keys := e.variant.keys(i == 0 && !e.hasParent)
		if len(keys) == 0 {
			b = appendNil(b)
			continue
		}
		b = appendArray(b, len(keys))
		for _, key := range keys {
			b = appendString(b, key)
		}
	}
	return b
}

func appendSpecKind(b []byte, e event) []byte {
	if e.cpu {
		return appendNil(b)
	}
	return appendString(b, specKind)
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

// appendInt writes numbers as SGLang's signed hashes are.
func appendInt(b []byte, n int64) []byte {
	if n >= 0 {
		return appendUint(b, uint64(n))
	}
	return binary.BigEndian.AppendUint64(append(b, 0xd3), uint64(n))
}

func appendString(b []byte, s string) []byte {
	switch n := len(s); {
	case n < 1<<5:
		b = append(b, 0xa0|byte(n))
	case n < 1<<8:
		b = append(b, 0xd9, byte(n))
	case n < 1<<16:
		b = binary.BigEndian.AppendUint16(append(b, 0xda), uint16(n))
	default:
		b = binary.BigEndian.AppendUint32(append(b, 0xdb), uint32(n))
	}
	return append(b, s...)
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
