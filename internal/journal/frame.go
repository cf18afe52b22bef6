package journal

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"strings"
)

// maxPayload is that of a record of MaxKeys keys.
const maxPayload = 9*MaxKeys + 16*maxName

// Is reports whether a file that begins with these bytes is a journal, of
// whatever version. Seven bytes are enough.
func Is(beginning []byte) bool { return bytes.HasPrefix(beginning, []byte(magic)) }

// Damage is where a file stops making sense. What is before can be used.
type Damage struct {
	Offset int64 // of the frame
	Torn   bool  // the file ends within the frame, as when a writer was killed
	Reason string
}

func (d *Damage) Error() string { return fmt.Sprintf("byte %d: %s", d.Offset, d.Reason) }

// frames reads the payloads of a file.
type frames struct {
	in      *bufio.Reader
	end     int64 // of the last whole frame
	payload bytes.Buffer
}

var errVersion = errors.New("a journal of version")

// openFrames reads the head of a file. It fails with io.EOF if the file is empty
// and *Damage if it is cut off within its head; with another error it is no
// journal that can be read here.
func openFrames(r io.Reader) (*frames, error) {
	f := &frames{in: bufio.NewReaderSize(r, 1<<14)}
	var head [len(magic) + 1]byte
	n, err := io.ReadFull(f.in, head[:])
	switch cut := err == io.ErrUnexpectedEOF; {
	case err != nil && !cut:
		return nil, err
	case !strings.HasPrefix(magic, string(head[:min(n, len(magic))])):
		return nil, errors.New("not a journal")
	case cut:
		return nil, f.torn()
	case head[len(magic)] != version:
		return nil, fmt.Errorf("%w %d: this program reads version %d", errVersion, head[len(magic)], version)
	}
	f.end = int64(n)
	return f, nil
}

func (f *frames) torn() *Damage { return &Damage{f.end, true, "the file ends within a record"} }

// next returns the next payload, which is valid until the next call, io.EOF, or
// *Damage.
func (f *frames) next() ([]byte, error) {
	size, length, err := f.length()
	if err != nil {
		return nil, err
	}
	f.payload.Reset()
	// Grows by what the file really has, whatever it says.
	n, err := io.CopyN(&f.payload, f.in, int64(size)+crc32.Size)
	switch {
	case err == io.EOF:
		return nil, f.torn()
	case err != nil:
		return nil, err
	}
	payload, sum := f.payload.Bytes()[:size], f.payload.Bytes()[size:]
	if crc32.Checksum(payload, castagnoli) != binary.LittleEndian.Uint32(sum) {
		return nil, &Damage{Offset: f.end, Reason: "wrong checksum"}
	}
	f.end += int64(length) + n
	return payload, nil
}

// length reads how long the next payload is, and how many bytes say so.
func (f *frames) length() (size uint64, length int, err error) {
	for shift := 0; ; shift += 7 {
		c, err := f.in.ReadByte()
		switch {
		case err == io.EOF && shift == 0:
			return 0, 0, io.EOF
		case err == io.EOF:
			return 0, 0, f.torn()
		case err != nil:
			return 0, 0, err
		}
		size |= uint64(c&0x7f) << shift
		length++
		if size > maxPayload || shift > 21 {
			return 0, 0, &Damage{Offset: f.end, Reason: "a record longer than any can be"}
		}
		if c < 0x80 {
			break
		}
	}
	if size == 0 {
		return 0, 0, &Damage{Offset: f.end, Reason: "an empty record"}
	}
	return size, length, nil
}
