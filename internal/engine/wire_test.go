package engine_test

import (
	"encoding/binary"
	"math"
	"slices"
)

// wire is a msgpack value under construction, in the narrowest form.
type wire = []byte

func num(n int64) wire {
	switch {
	case n >= 0:
		return unum(uint64(n))
	case n >= -32:
		return wire{byte(n)}
	}
	return binary.BigEndian.AppendUint64(wire{0xd3}, uint64(n))
}

func unum(n uint64) wire {
	switch {
	case n <= 0x7f:
		return wire{byte(n)}
	case n <= math.MaxUint8:
		return wire{0xcc, byte(n)}
	case n <= math.MaxUint16:
		return binary.BigEndian.AppendUint16(wire{0xcd}, uint16(n))
	case n <= math.MaxUint32:
		return binary.BigEndian.AppendUint32(wire{0xce}, uint32(n))
	}
	return binary.BigEndian.AppendUint64(wire{0xcf}, n)
}

func real64(f float64) wire {
	return binary.BigEndian.AppendUint64(wire{0xcb}, math.Float64bits(f))
}

func null() wire { return wire{0xc0} }

func text(s string) wire { return append(head(0xa0, 31, 0xd9, len(s)), s...) }

func bin(b ...byte) wire { return append(wire{0xc4, byte(len(b))}, b...) }

func array(elements ...wire) wire {
	return append(head(0x90, 15, 0, len(elements)), slices.Concat(elements...)...)
}

// object takes keys and values in turn.
func object(members ...wire) wire {
	return append(head(0x80, 15, 0, len(members)/2), slices.Concat(members...)...)
}

// head writes a length: into the first byte up to small, else in 8 bits after
// wide8 (if there is one) or in 32 bits.
func head(fix byte, small int, wide8 byte, n int) wire {
	switch {
	case n <= small:
		return wire{fix | byte(n)}
	case wide8 != 0 && n <= math.MaxUint8:
		return wire{wide8, byte(n)}
	}
	wide32 := map[byte]byte{0x80: 0xdf, 0x90: 0xdd, 0xa0: 0xdb}[fix]
	return binary.BigEndian.AppendUint32(wire{wide32}, uint32(n))
}

// nums is an array of numbers.
func nums(from, n int) wire {
	list := make([]wire, n)
	for i := range list {
		list[i] = num(int64(from + i))
	}
	return array(list...)
}

// envelope is a batch of events.
func envelope(events ...wire) wire { return array(real64(1), array(events...), num(0)) }

// stored is a positional BlockStored: hashes, no parent, as many blocks of 2
// tokens, and more fields from lora_id on.
func stored(hashes wire, tokens wire, more ...wire) wire {
	return array(append([]wire{text("BlockStored"), hashes, null(), tokens, num(2)}, more...)...)
}

// storedMap is the same as a map, with more keys and values.
func storedMap(hashes wire, tokens wire, more ...wire) wire {
	return object(append([]wire{
		text("type"), text("BlockStored"), text("block_hashes"), hashes,
		text("token_ids"), tokens, text("block_size"), num(2),
	}, more...)...)
}
