package journal

import (
	"bytes"
	"encoding/binary"
	"errors"
	"hash/crc32"
	"os"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"inferencecache.io/inferencecache/internal/kv"
)

func decode(t *testing.T, file []byte) ([]Record, error) {
	t.Helper()
	r, err := NewReader(bytes.NewReader(file))
	if err != nil {
		return nil, err
	}
	return readAll(t, r.Read)
}

// framed puts payloads into a file.
func framed(payloads ...string) []byte {
	file := append([]byte(magic), version)
	for _, p := range payloads {
		file = binary.AppendUvarint(file, uint64(len(p)))
		file = append(file, p...)
		file = binary.LittleEndian.AppendUint32(file, crc32.Checksum([]byte(p), castagnoli))
	}
	return file
}

const began = "\x01\x00\x04" // in 1970, with a window of 16

func TestReaderNamesOffsetAndMistake(t *testing.T) {
	t.Parallel()
	const (
		remove1 = "\x05\x00\x00\x00" // of nobody
		node    = "\x04\x00\x00\x00\x00\x00\x00\x01\x04\x00\x00\x00\x00\x00\x00\x00\x07"
	)
	long := binary.AppendUvarint(nil, maxPayload+1)
	many := string(binary.AppendUvarint(nil, MaxKeys+1))
	for _, c := range []struct {
		name string
		file []byte
		want string
	}{
		{"a zero-filled tail", append(framed(began), make([]byte, 100)...), "byte 16: an empty record"},
		{"a long record", append(framed(began), long...), "byte 16: a record longer than any can be"},
		{"an endless length", append(framed(began), bytes.Repeat([]byte{0x80}, 20)...), "byte 16: a record longer than any can be"},
		{"a flipped bit", append(framed(began)[:10], 99, 4, 0, 0, 0, 0), "byte 8: wrong checksum"},
		{"no start", framed("\x06\x00\x00\x00"), "byte 8: a record before the start"},
		{"a window of 2^21", framed("\x01\x00\x15"), "byte 8: a window of 2^21 keys, more than 2^20"},
		{"more in a start", framed(began + "\x00"), "byte 8: 1 bytes behind a record"},
		{"kind 0", framed(began, "\x00"), "byte 16: a record of unknown kind 0"},
		{"kind 7", framed(began, "\x07\x00"), "byte 16: a record of unknown kind 7"},
		{"nothing but a kind", framed(began, "\x06"), "byte 16: a bad number"},
		{"a long number", framed(began, "\x06"+strings.Repeat("\xff", 11)), "byte 16: a bad number"},
		{"a time out of range", framed(began, "\x06\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01\x00\x00"), "byte 16: a time out of range"},
		{"a name of two bytes, one there", framed(began, "\x06\x00\x00\x01\x02a"), "byte 16: a field of 2 bytes where 1 are left"},
		{"a long name", framed(began, "\x06\x00\x00\x01\x81\x08"), "byte 16: a name of 1025 bytes, more than 1024"},
		{"a name nobody said", framed(began, "\x06\x00\x00\x02"), "byte 16: a name that is not known"},
		{"a partition nobody said", framed(began, "\x06\x00\x03\x00"), "byte 16: a name that is not known"},
		{"a name of before a start", framed(began, "\x06\x00\x00\x01\x01a", began, "\x06\x00\x00\x02"), "byte 35: a name that is not known"},
		{"a large number", framed(began, "\x03\x00\x00\x00\x80\x80\x80\x80\x10\x00\x00"), "byte 16: a number of more than 32 bits"},
		{"more than a record", framed(began, remove1+"\x00\x00"), "byte 16: 1 bytes behind a record"},
		{"many keys", framed(began, remove1+many), "byte 16: 1048577 keys, more than 1048576"},
		{"keys that are not there", framed(began, remove1+"\x02\x08"+"12345678"), "byte 16: a field of 16 bytes where 8 are left"},
		{"keys without a run", framed(began, remove1+"\x02"), "byte 16: a bad number"},
		{"an empty run", framed(began, remove1+"\x02\x00\x00"), "byte 16: a run of 0 keys in a record of 2"},
		{"a run too long", framed(began, remove1+"\x02\x0c"), "byte 16: a run of 3 keys in a record of 2"},
		{"a node nobody made", framed(began, remove1+"\x01\x05\x00"), "byte 16: a run of keys that are not known"},
		{"an ancestor nobody made", framed(began, node, remove1+"\x02\x09\x00"), "byte 38: a run of keys that are not known"},
		{"a run of another kind", framed(began, node, remove1+"\x01\x07\x00"), "byte 38: a run of keys that are not known"},
		{"no parent", framed(began, "\x04\x00\x00\x00\x00\x01\x01\x00"), "byte 16: a parent that is missing"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			_, err := decode(t, c.file)
			var damage *Damage
			if !errors.As(err, &damage) || damage.Torn || damage.Error() != c.want {
				t.Errorf("%v, want %s", err, c.want)
			}
		})
	}
}

func TestReaderRefusesWhatIsNoJournal(t *testing.T) {
	t.Parallel()
	for file, want := range map[string]string{
		"{\"timestamp\": 0}": "not a journal",
		"icy":                "not a journal",
		magic + "\x02":       "a journal of version 2: this program reads version 1",
	} {
		if _, err := NewReader(strings.NewReader(file)); err == nil || err.Error() != want {
			t.Errorf("%q: %v, want %s", file, err, want)
		}
		if got := Is([]byte(file)); got != strings.HasPrefix(file, magic) {
			t.Errorf("%q is a journal: %v", file, got)
		}
	}
}

// A few bytes may not make the reader take memory that the file does not have.
func TestReaderTakesNoMemoryOnAnnouncement(t *testing.T) {
	file := framed(began)
	file = append(binary.AppendUvarint(file, maxPayload), make([]byte, 100)...)
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	if _, err := decode(t, file); !errors.As(err, new(*Damage)) {
		t.Error(err)
	}
	runtime.ReadMemStats(&after)
	if took := after.TotalAlloc - before.TotalAlloc; took > 1<<18 {
		t.Errorf("%d bytes for a file of %d", took, len(file))
	}
}

func TestNamesAreCutAndTimesKeptInRange(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("n", maxName+1)
	file, _ := encode(4, []Record{
		Outcome{At: time.Time{}, RequestID: long},
		Clear{At: time.Unix(1<<55, 0), Scope: kv.Scope{Model: long}},
	})
	got, err := decode(t, file)
	want := []Record{
		Outcome{At: time.Time{}, RequestID: long[1:]},
		Clear{At: time.Date(9999, 12, 31, 23, 59, 59, 999999000, time.UTC), Scope: kv.Scope{Model: long[1:]}},
	}
	if diff := cmp.Diff(want, got); diff != "" || err != nil {
		t.Errorf("%v (-want +got):\n%s", err, diff)
	}
}

func FuzzReader(f *testing.F) {
	from := newSome(1)
	for n := range 12 {
		var records []Record
		for range 3 * n {
			records = append(records, from.next())
		}
		file, _ := encode(n, records)
		f.Add(file)
	}
	f.Add(framed(began, "\x05\x00\x00\x00\x01\x05\x00"))
	f.Fuzz(func(t *testing.T, file []byte) {
		file = resummed(file)
		r, err := NewReader(bytes.NewReader(file))
		if err != nil {
			return
		}
		var records []Record
		for keys := 0; keys < 1<<14; keys += len(r.entry.keys) {
			next, err := r.Read()
			if err != nil {
				break
			}
			records = append(records, own(next))
		}
		// What was read is written and read alike.
		again, _ := encode(3, records)
		got, err := decode(t, again)
		if diff := differ(records, got); diff != "" || err != nil {
			t.Fatalf("%v (-want +got):\n%s", err, diff)
		}
	})
}

// resummed corrects the checksums of a file, so that fuzzing comes behind them.
func resummed(file []byte) []byte {
	file = bytes.Clone(file)
	for at := len(magic) + 1; at < len(file); {
		size, n := binary.Uvarint(file[at:])
		at += n
		if n <= 0 || size > uint64(len(file)-at) || len(file)-at-int(size) < crc32.Size {
			break
		}
		sum := crc32.Checksum(file[at:at+int(size)], castagnoli)
		at += int(size)
		binary.LittleEndian.PutUint32(file[at:], sum)
		at += crc32.Size
	}
	return file
}

func TestFilesOfALiveJournalAreReadOnce(t *testing.T) {
	t.Parallel()
	path := t.TempDir() + "/journal"
	record(t, path, MinBytes, []Record{Clear{At: noon, Replica: "a"}})
	if err := os.Rename(path, older(path)); err != nil { // a new one is about to be made
		t.Fatal(err)
	}
	if got := readFiles(t, path); len(got) != 1 {
		t.Errorf("%v", got)
	}
	if got := readFiles(t, older(path)); len(got) != 1 {
		t.Errorf("%v", got)
	}
}
