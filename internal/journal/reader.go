package journal

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math"
	"slices"

	"inferencecache.io/inferencecache/internal/kv"
)

// Reader reads one file of a journal. Whatever the file says, it holds 8 MiB for
// the keys of one record and a few times what it has read, 80 MiB at most.
type Reader struct {
	frames *frames
	known  *dictionary // nil before the first start
	entry  entry
	err    error
}

// NewReader fails if r is not a journal. An empty file is one.
func NewReader(r io.Reader) (*Reader, error) {
	f, err := openFrames(r)
	if err != nil && err != io.EOF && !errors.As(err, new(*Damage)) {
		return nil, err
	}
	return &Reader{frames: f, err: err}, nil
}

// Read returns the next record. Its keys are valid until the next call. The
// error is io.EOF behind the last record, *Damage where the file stops making
// sense, or one of the source; it stays.
func (r *Reader) Read() (Record, error) {
	for r.err == nil {
		offset := r.frames.end
		payload, err := r.frames.next()
		if err == nil {
			if err = r.decode(payload); err != nil {
				err = &Damage{Offset: offset, Reason: err.Error()}
			}
		}
		switch {
		case err != nil:
			r.err = err
		case r.entry.kind != start:
			return r.entry.record(), nil
		}
	}
	return nil, r.err
}

// decode reads a payload into r.entry. No error of it depends on anything but
// the file.
func (r *Reader) decode(payload []byte) error {
	p := &parser{rest: payload}
	e := &r.entry
	*e = entry{kind: kind(p.byte()), keys: e.keys[:0]}
	if e.kind == start {
		return r.start(p)
	}
	if e.kind == 0 || e.kind >= kinds {
		return fmt.Errorf("a record of unknown kind %d", e.kind)
	}
	d, has := r.known, shapes[e.kind]
	if d == nil {
		return errors.New("a record before the start")
	}
	d.last += p.varint()
	e.at = d.last
	if e.at < firstTime || e.at > lastTime {
		return errors.New("a time out of range")
	}
	if has.partition {
		e.partition = p.partition(d.partitions)
	}
	if has.request {
		e.request = p.word(d.requests)
	}
	if has.replica {
		e.replica = p.word(d.names)
	}
	if has.reason {
		e.reason = p.word(d.names)
	}
	for i := range has.numbers {
		e.numbers[i] = p.number()
	}
	if has.tier {
		e.tier = kv.Tier(p.byte())
	}
	if has.parent {
		e.hasParent = p.byte() == 1
	}
	if has.keys {
		e.keys = p.keys(e.keys, d.forest, e.kind != remove)
	}
	if e.hasParent && len(e.keys) == 0 {
		p.fail("a parent that is missing")
	}
	return p.end()
}

func (r *Reader) start(p *parser) error {
	at, bits := p.varint(), p.byte()
	if bits > maxWindow {
		p.fail("a window of 2^%d keys, more than 2^%d", bits, maxWindow)
	}
	if err := p.end(); err != nil {
		return err
	}
	r.known = newDictionary(int(bits), false)
	r.known.last = at
	return nil
}

// parser takes fields off a payload. After a mistake it returns zeros.
type parser struct {
	rest []byte
	err  error
}

func (p *parser) fail(format string, args ...any) {
	if p.err == nil {
		p.err = fmt.Errorf(format, args...)
	}
	p.rest = nil
}

func (p *parser) end() error {
	if p.err == nil && len(p.rest) > 0 {
		p.fail("%d bytes behind a record", len(p.rest))
	}
	return p.err
}

func (p *parser) take(n uint64) []byte {
	if n > uint64(len(p.rest)) {
		p.fail("a field of %d bytes where %d are left", n, len(p.rest))
		return nil
	}
	taken := p.rest[:n]
	p.rest = p.rest[n:]
	return taken
}

func (p *parser) byte() byte {
	if b := p.take(1); b != nil {
		return b[0]
	}
	return 0
}

func (p *parser) varint() int64 {
	n, length := binary.Varint(p.rest)
	p.took(length)
	return n
}

func (p *parser) uvarint() uint64 {
	n, length := binary.Uvarint(p.rest)
	p.took(length)
	return n
}

func (p *parser) took(length int) {
	if length <= 0 {
		p.fail("a bad number")
		return
	}
	p.rest = p.rest[length:]
}

func (p *parser) number() int32 {
	n := p.uvarint()
	if n > math.MaxUint32 {
		p.fail("a number of more than 32 bits")
		return 0
	}
	return int32(uint32(n))
}

func (p *parser) text() string {
	n := p.uvarint()
	if n > maxName {
		p.fail("a name of %d bytes, more than %d", n, maxName)
		return ""
	}
	return string(p.take(n))
}

func (p *parser) word(known *words[string]) string {
	return parseWord(p, known, p.text)
}

func (p *parser) partition(known *words[kv.Partition]) kv.Partition {
	return parseWord(p, known, func() kv.Partition {
		return kv.Partition{Scope: kv.Scope{Tenant: p.text(), Model: p.text(), Scheme: p.text()}, Adapter: p.text()}
	})
}

func parseWord[W comparable](p *parser, known *words[W], fresh func() W) (word W) {
	switch n := p.uvarint(); n {
	case 0:
	case 1:
		if word = fresh(); p.err == nil {
			known.add(word)
		}
	default:
		var ok bool
		if word, ok = known.get(n - 2); !ok {
			p.fail("a name that is not known")
		}
	}
	return word
}

// keys appends the keys of a record to dst.
func (p *parser) keys(dst []kv.Hash, f *forest, remember bool) []kv.Hash {
	total := p.uvarint()
	if total > MaxKeys {
		p.fail("%d keys, more than %d", total, MaxKeys)
	}
	before := uint32(0)
	for p.err == nil && uint64(len(dst)) < total {
		head := p.uvarint()
		length, how := head>>2, head&3
		if length == 0 || length > total-uint64(len(dst)) {
			p.fail("a run of %d keys in a record of %d", length, total)
			break
		}
		if how == raw {
			if length > uint64(math.MaxUint32-f.count) {
				p.fail("more than 2^32 keys since the start")
			}
			for b := p.take(length * kv.HashSize); len(b) > 0; b = b[kv.HashSize:] {
				key, _ := kv.ParseHash(b[:kv.HashSize])
				dst = append(dst, key)
				if remember {
					before = f.add(key, before)
				}
			}
			continue
		}
		dst, before = p.run(dst, f, int(length), how)
	}
	return dst
}

// run appends a node and its ancestors.
func (p *parser) run(dst []kv.Hash, f *forest, length int, how uint64) (keys []kv.Hash, last uint32) {
	ago := p.uvarint()
	if ago >= uint64(f.count) || how > up {
		p.fail("a run of keys that are not known")
		return dst, 0
	}
	node := f.count - uint32(ago)
	first := len(dst)
	n := node
	for i := range length {
		if i > 0 {
			n = f.parent(n)
		}
		if !f.live(n) {
			p.fail("a run of keys that are not known")
			return dst, 0
		}
		dst = append(dst, f.key(n))
	}
	if how == up {
		return dst, n
	}
	slices.Reverse(dst[first:])
	return dst, node
}
