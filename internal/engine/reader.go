package engine

import (
	"encoding/binary"
	"errors"
	"math"
)

// These end a payload as a whole: what follows cannot be found any more.
var (
	errShort   = errors.New("unexpected end of input")
	errDepth   = errors.New("nested too deep")
	errInvalid = errors.New("byte 0xc1 is not msgpack")
)

// kind is the family of a msgpack value.
type kind uint8

const (
	kindNil kind = iota
	kindBool
	kindUint
	kindInt // below zero
	kindFloat
	kindString
	kindBin
	kindExt
	kindArray
	kindMap
)

var kindNames = [...]string{
	"nil", "bool", "integer", "integer", "float", "string", "bytes", "extension", "array", "map",
}

func (k kind) String() string { return kindNames[k] }

// value is a msgpack value up to its contents. n is the integer (in two's
// complement), the float's bits, the bool, or the number of bytes, elements or
// pairs that follow.
type value struct {
	kind kind
	n    uint64
}

// reader reads msgpack from a slice it never copies. It trusts no length: what
// is announced is compared with what is left before anyone allocates for it.
type reader struct {
	buf []byte
	pos int
}

func (r *reader) left() int { return len(r.buf) - r.pos }

// next reads the head of a value and leaves the reader at its contents. The
// contents of strings, bytes and extensions are known to be there; those of an
// array or map are known to be at least possible, at one byte a value.
func (r *reader) next() (value, error) {
	if r.pos >= len(r.buf) {
		return value{}, errShort
	}
	b := r.buf[r.pos]
	r.pos++
	switch {
	case b <= 0x7f:
		return value{kindUint, uint64(b)}, nil
	case b <= 0x8f:
		return r.counted(kindMap, uint64(b&0x0f))
	case b <= 0x9f:
		return r.counted(kindArray, uint64(b&0x0f))
	case b <= 0xbf:
		return r.counted(kindString, uint64(b&0x1f))
	case b >= 0xe0:
		return value{kindInt, uint64(int64(int8(b)))}, nil
	}
	switch b {
	case 0xc0:
		return value{kind: kindNil}, nil
	case 0xc2, 0xc3:
		return value{kindBool, uint64(b & 1)}, nil
	case 0xc4, 0xc5, 0xc6:
		return r.sized(kindBin, 1<<(b-0xc4))
	case 0xc7, 0xc8, 0xc9:
		return r.sized(kindExt, 1<<(b-0xc7))
	case 0xca, 0xcb:
		return r.float(4 << (b - 0xca))
	case 0xcc, 0xcd, 0xce, 0xcf:
		n, err := r.uint(1 << (b - 0xcc))
		return value{kindUint, n}, err
	case 0xd0, 0xd1, 0xd2, 0xd3:
		return r.int(1 << (b - 0xd0))
	case 0xd4, 0xd5, 0xd6, 0xd7, 0xd8:
		return r.counted(kindExt, 1<<(b-0xd4))
	case 0xd9, 0xda, 0xdb:
		return r.sized(kindString, 1<<(b-0xd9))
	case 0xdc, 0xdd:
		return r.sized(kindArray, 2<<(b-0xdc))
	case 0xde, 0xdf:
		return r.sized(kindMap, 2<<(b-0xde))
	}
	return value{}, errInvalid
}

// uint reads a big-endian integer of 1, 2, 4 or 8 bytes.
func (r *reader) uint(width int) (uint64, error) {
	if r.left() < width {
		return 0, errShort
	}
	b := r.buf[r.pos:]
	r.pos += width
	switch width {
	case 1:
		return uint64(b[0]), nil
	case 2:
		return uint64(binary.BigEndian.Uint16(b)), nil
	case 4:
		return uint64(binary.BigEndian.Uint32(b)), nil
	}
	return binary.BigEndian.Uint64(b), nil
}

// ids reads integers of up to 32 bits into to, as far as there are any in a row,
// and returns how many. It is for token ids, which are most of what engines send.
func (r *reader) ids(to []uint32) int {
	b, n := r.buf[r.pos:], 0
	for n < len(to) {
		switch {
		case len(b) >= 1 && b[0] <= 0x7f:
			to[n], b = uint32(b[0]), b[1:]
		case len(b) >= 2 && b[0] == 0xcc:
			to[n], b = uint32(b[1]), b[2:]
		case len(b) >= 3 && b[0] == 0xcd:
			to[n], b = uint32(binary.BigEndian.Uint16(b[1:])), b[3:]
		case len(b) >= 5 && b[0] == 0xce:
			to[n], b = binary.BigEndian.Uint32(b[1:]), b[5:]
		default:
			r.pos = len(r.buf) - len(b)
			return n
		}
		n++
	}
	r.pos = len(r.buf) - len(b)
	return n
}

func (r *reader) int(width int) (value, error) {
	n, err := r.uint(width)
	shift := 64 - 8*width
	signed := int64(n<<shift) >> shift
	if signed < 0 {
		return value{kindInt, uint64(signed)}, err
	}
	return value{kindUint, uint64(signed)}, err
}

func (r *reader) float(width int) (value, error) {
	n, err := r.uint(width)
	if width == 4 {
		n = math.Float64bits(float64(math.Float32frombits(uint32(n))))
	}
	return value{kindFloat, n}, err
}

// sized reads a length of the given width, then checks it.
func (r *reader) sized(k kind, width int) (value, error) {
	n, err := r.uint(width)
	if err != nil {
		return value{}, err
	}
	return r.counted(k, n)
}

// counted checks an announced length against the bytes that are left.
func (r *reader) counted(k kind, n uint64) (value, error) {
	need := n
	switch k {
	case kindMap:
		need = 2 * n // n has at most 32 bits
	case kindExt:
		need = n + 1 // its type
	}
	if need > uint64(r.left()) {
		return value{}, errShort
	}
	return value{k, n}, nil
}

// bytes takes the contents of a string or binary value.
func (r *reader) bytes(v value) []byte {
	b := r.buf[r.pos : r.pos+int(v.n) : r.pos+int(v.n)]
	r.pos += int(v.n)
	return b
}

// skip passes over one value that stands at depth, the envelope's being 1.
func (r *reader) skip(depth int) error {
	v, err := r.next()
	if err != nil {
		return err
	}
	return r.skipRest(v, depth)
}

// skipRest passes over the contents of v, whose head was just read.
func (r *reader) skipRest(v value, depth int) error {
	elements := v.n
	switch v.kind {
	case kindString, kindBin:
		r.pos += int(v.n)
		return nil
	case kindExt:
		r.pos += int(v.n) + 1
		return nil
	case kindArray:
	case kindMap:
		elements *= 2
	default:
		return nil
	}
	if depth > maxDepth {
		return errDepth
	}
	for ; elements > 0; elements-- {
		if err := r.skip(depth + 1); err != nil {
			return err
		}
	}
	return nil
}
