package journal

import (
	"encoding/binary"
	"hash/crc32"

	"inferencecache.io/inferencecache/internal/kv"
)

const (
	magic   = "icjrnl\n"
	version = 1

	// Words that are remembered: a request id until its outcome.
	lastPartitions = 1 << 8
	lastNames      = 1 << 12
	lastRequests   = 1 << 15
)

// How a run of keys is written.
const (
	raw = iota
	down
	up
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// dictionary is what a file has said so far, the same for writer and reader.
type dictionary struct {
	last       int64 // time of the last record
	partitions *words[kv.Partition]
	names      *words[string]
	requests   *words[string]
	forest     *forest
}

func newDictionary(bits int, writing bool) *dictionary {
	return &dictionary{
		partitions: newWords[kv.Partition](lastPartitions, writing),
		names:      newWords[string](lastNames, writing),
		requests:   newWords[string](lastRequests, writing),
		forest:     newForest(bits, writing),
	}
}

// encoder writes the records of one file.
type encoder struct {
	*dictionary
	payload []byte // scratch
}

// start appends the frame that forgets everything before it.
func (e *encoder) start(b []byte, bits int, at int64) []byte {
	e.dictionary = newDictionary(bits, true)
	e.last = at
	p := append(e.payload[:0], byte(start))
	p = binary.AppendVarint(p, at)
	return e.frame(b, append(p, byte(bits)))
}

// record appends the frame of r.
func (e *encoder) record(b []byte, r *entry) []byte {
	has := shapes[r.kind]
	p := append(e.payload[:0], byte(r.kind))
	p = binary.AppendVarint(p, r.at-e.last)
	e.last = r.at
	if has.partition {
		p = e.partition(p, r.partition)
	}
	if has.request {
		p = word(p, e.requests, r.request)
	}
	if has.replica {
		p = word(p, e.names, r.replica)
	}
	if has.reason {
		p = word(p, e.names, r.reason)
	}
	for _, n := range r.numbers[:has.numbers] {
		p = binary.AppendUvarint(p, uint64(uint32(n)))
	}
	if has.tier {
		p = append(p, byte(r.tier))
	}
	if has.parent {
		p = append(p, 0)
		if r.hasParent {
			p[len(p)-1] = 1
		}
	}
	if has.keys {
		p = e.keys(p, r.keys, r.kind != remove)
	}
	return e.frame(b, p)
}

func (e *encoder) frame(b, payload []byte) []byte {
	e.payload = payload
	b = binary.AppendUvarint(b, uint64(len(payload)))
	b = append(b, payload...)
	return binary.LittleEndian.AppendUint32(b, crc32.Checksum(payload, castagnoli))
}

func text(b []byte, s string) []byte {
	return append(binary.AppendUvarint(b, uint64(len(s))), s...)
}

func (e *encoder) partition(b []byte, p kv.Partition) []byte {
	if p == (kv.Partition{}) {
		return append(b, 0)
	}
	if ago, ok := e.partitions.find(p); ok {
		return binary.AppendUvarint(b, 2+ago)
	}
	e.partitions.add(p)
	b = append(b, 1)
	return text(text(text(text(b, p.Tenant), p.Model), p.Scheme), p.Adapter)
}

func word(b []byte, known *words[string], s string) []byte {
	if s == "" {
		return append(b, 0)
	}
	if ago, ok := known.find(s); ok {
		return binary.AppendUvarint(b, 2+ago)
	}
	known.add(s)
	return text(append(b, 1), s)
}

// keys appends keys as runs. It goes by what each key is, not by where chains
// should end: a wrong guess costs bytes, never a key.
func (e *encoder) keys(b []byte, keys []kv.Hash, remember bool) []byte {
	b = binary.AppendUvarint(b, uint64(len(keys)))
	f := e.forest
	before := uint32(0) // node of the key before
	for len(keys) > 0 {
		n := f.find(keys[0])
		if n == 0 {
			length := 1
			for length < len(keys) && f.find(keys[length]) == 0 {
				length++
			}
			b = binary.AppendUvarint(b, uint64(length)<<2|raw)
			for _, key := range keys[:length] {
				b = key.Append(b)
				if remember {
					before = f.add(key, before)
				}
			}
			keys = keys[length:]
			continue
		}
		how, node := uint64(down), uint32(0)
		length, last := f.descend(n, keys)
		node, before = last, last
		if higher, last := f.ascend(n, keys); higher > length {
			how, length, node, before = up, higher, n, last
		}
		b = binary.AppendUvarint(b, uint64(length)<<2|how)
		b = binary.AppendUvarint(b, uint64(f.count-node))
		keys = keys[length:]
	}
	return b
}
