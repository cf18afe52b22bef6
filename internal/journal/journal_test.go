package journal

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"reflect"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"

	"inferencecache.io/inferencecache/internal/kv"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var (
	noon  = time.Date(2026, 11, 30, 12, 0, 0, 0, time.UTC)
	scope = kv.Scope{Tenant: "acme", Model: "llama", Scheme: "vllm"}
)

func give(j *Journal, r Record) {
	switch r := r.(type) {
	case Lookup:
		j.Lookup(r)
	case Outcome:
		j.Outcome(r)
	case Store:
		j.Store(r)
	case Remove:
		j.Remove(r)
	case Clear:
		j.Clear(r)
	}
}

// own returns r with keys of its own, nil if there are none.
func own(r Record) Record {
	switch r := r.(type) {
	case Lookup:
		r.Keys = append([]kv.Hash(nil), r.Keys...)
		return r
	case Store:
		r.Keys = append([]kv.Hash(nil), r.Keys...)
		return r
	case Remove:
		r.Keys = append([]kv.Hash(nil), r.Keys...)
		return r
	}
	return r
}

func readAll(t *testing.T, read func() (Record, error)) (all []Record, err error) {
	t.Helper()
	for {
		r, err := read()
		if err == io.EOF {
			return all, nil
		}
		if err != nil {
			return all, err
		}
		all = append(all, own(r))
	}
}

// differ is cmp.Diff, at once if there is no difference.
func differ(want, got []Record) string {
	if len(want) == len(got) && (len(want) == 0 || reflect.DeepEqual(want, got)) {
		return ""
	}
	return cmp.Diff(want, got)
}

func readFiles(t *testing.T, path string) []Record {
	t.Helper()
	files, err := OpenFiles(path)
	if err != nil {
		t.Fatal(err)
	}
	defer files.Close()
	all, err := readAll(t, files.Read)
	if err != nil || len(files.Damages()) > 0 {
		t.Fatal(err, files.Damages())
	}
	return all
}

// running runs j for the time of a test and returns what stops it.
func running(t *testing.T, j *Journal) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- j.Run(ctx) }()
	return func() {
		t.Helper()
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	}
}

// record writes records through a journal and returns those that had room.
func record(t *testing.T, path string, maxBytes int64, records []Record) {
	t.Helper()
	j, err := Open(path, maxBytes)
	if err != nil {
		t.Fatal(err)
	}
	stop := running(t, j)
	for i, r := range records {
		give(j, r)
		for i%100 == 0 && j.Written() <= int64(i-queueRecords/2) {
			runtime.Gosched() // the disk is slower than the test
		}
	}
	stop()
	if j.Written() != int64(len(records)) || j.Dropped() != 0 || j.Failures() != 0 {
		t.Fatalf("%d of %d records written, %d dropped, %d failures", j.Written(), len(records), j.Dropped(), j.Failures())
	}
}

func size(t *testing.T, path string) int64 {
	t.Helper()
	info, err := os.Stat(path)
	if errors.Is(err, os.ErrNotExist) {
		return 0
	}
	if err != nil {
		t.Fatal(err)
	}
	if info.Mode().Perm() != 0o600 {
		t.Errorf("%s has mode %v", path, info.Mode())
	}
	return info.Size()
}

func TestRecordsAreReadBackInOrder(t *testing.T) {
	t.Parallel()
	for seed := range uint64(4) {
		path := filepath.Join(t.TempDir(), "journal")
		maxBytes := int64(MinBytes)
		if seed%2 == 1 {
			maxBytes = 8 << 20 // room for all
		}
		from := newSome(seed)
		var want []Record
		for round := range 4 { // a process is started again
			var records []Record
			for range 1 + from.rng.IntN(1200) {
				records = append(records, from.next())
			}
			record(t, path, maxBytes, records)
			for _, r := range records {
				want = append(want, own(r))
			}
			got := readFiles(t, path)
			if len(got) > len(want) || maxBytes > MinBytes && len(got) != len(want) || len(got) == 0 {
				t.Fatalf("seed %d, round %d: %d records, want at most %d", seed, round, len(got), len(want))
			}
			if diff := differ(want[len(want)-len(got):], got); diff != "" {
				t.Fatalf("seed %d, round %d (-want +got):\n%s", seed, round, diff)
			}
			if newer, older := size(t, path), size(t, older(path)); newer > maxBytes/2 || older > maxBytes/2 {
				t.Errorf("seed %d: files of %d and %d bytes, bound %d together", seed, older, newer, maxBytes)
			}
		}
		if maxBytes == MinBytes && size(t, older(path)) < maxBytes/2-8192 {
			t.Errorf("seed %d: the older file has %d bytes", seed, size(t, older(path)))
		}
	}
}

// encode makes a file of records, without disk, and says where frames end.
func encode(window int, records []Record) (file []byte, ends []int) {
	j := &Journal{queue: make(chan *entry, 1)}
	var e encoder
	file = append(file, magic...)
	file = e.start(append(file, version), window, noon.UnixMicro())
	ends = append(ends, len(file))
	for _, r := range records {
		give(j, r)
		file = e.record(file, <-j.queue)
		ends = append(ends, len(file))
		j.keys.Store(0)
	}
	return file, ends
}

func TestSmallWindowForgetsAlikeOnBothSides(t *testing.T) {
	t.Parallel()
	for window := range 6 {
		from := newSome(uint64(window))
		var want []Record
		for range 400 {
			want = append(want, own(from.next()))
		}
		file, _ := encode(window, want)
		got, err := decode(t, file)
		if diff := differ(want, got); diff != "" || err != nil {
			t.Fatalf("window 2^%d: %v (-want +got):\n%s", window, err, diff)
		}
	}
}

func TestTornTailLosesOnlyWhatIsBehind(t *testing.T) {
	t.Parallel()
	from := newSome(3)
	var want []Record
	for range 16 {
		want = append(want, own(from.next()))
	}
	file, ends := encode(6, want)
	path := filepath.Join(t.TempDir(), "journal")
	for end := range len(file) {
		whole := -1 // the start is not one of ours
		for _, at := range ends {
			if at <= end {
				whole++
			}
		}
		got, err := decode(t, file[:end])
		var damage *Damage
		clean := end == 0 || end == len(magic)+1 || slices.Contains(ends, end)
		if !clean && (!errors.As(err, &damage) || !damage.Torn) || clean && err != nil {
			t.Fatalf("cut at %d: %v", end, err)
		}
		if len(got) != max(0, whole) || differ(want[:len(got)], got) != "" {
			t.Fatalf("cut at %d: %d records, want %d", end, len(got), whole)
		}
		if end%29 != 0 {
			continue
		}
		// A writer goes on behind what is whole.
		if err := os.WriteFile(path, file[:end], 0o600); err != nil {
			t.Fatal(err)
		}
		more := Clear{At: noon, Scope: scope, Replica: "a"}
		record(t, path, MinBytes, []Record{more})
		if diff := differ(append(slices.Clone(got), more), readFiles(t, path)); diff != "" {
			t.Fatalf("cut at %d and gone on (-want +got):\n%s", end, diff)
		}
	}
}

// gate is a disk that lets writes through when it is told to.
type gate struct {
	open    chan struct{} // closed: writes go through
	written int
}

func (g *gate) Write(b []byte) (int, error) {
	<-g.open
	g.written += len(b)
	return len(b), nil
}

func (g *gate) Close() error { return nil }

func TestSlowDiskDropsAndCounts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		j, err := Open(filepath.Join(t.TempDir(), "journal"), 8<<20)
		if err != nil {
			t.Fatal(err)
		}
		j.disk.file.Close()
		disk := &gate{open: make(chan struct{})}
		j.disk.file = disk
		stop := running(t, j)
		const each = 3 * queueRecords
		for i := range each {
			if i == 1 {
				synctest.Wait() // for Run to wait for the disk with the first
			}
			j.Lookup(Lookup{At: noon, Partition: kv.Partition{Scope: scope}, Keys: []kv.Hash{kv.Hash(i)}})
		}
		if len(j.queue) != queueRecords || j.Dropped() != each-queueRecords-1 || j.Written() != 0 {
			t.Errorf("%d wait, %d are dropped, %d written", len(j.queue), j.Dropped(), j.Written())
		}
		close(disk.open)
		synctest.Wait()
		if j.Written() != queueRecords+1 || j.Dropped() != each-queueRecords-1 || disk.written < 8*queueRecords {
			t.Errorf("%d written and %d dropped of %d", j.Written(), j.Dropped(), each)
		}
		stop()
		j.Clear(Clear{At: noon})
		if j.Written()+j.Dropped() != each+1 {
			t.Errorf("what came after the end is not counted: %d, %d", j.Written(), j.Dropped())
		}
	})
}

func TestManyGoroutinesHandOver(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "journal")
	j, err := Open(path, 64<<20)
	if err != nil {
		t.Fatal(err)
	}
	stop := running(t, j)
	const hands, each = 8, 400 // fit into the queue
	var wg sync.WaitGroup
	for hand := range hands {
		wg.Go(func() {
			keys := make([]kv.Hash, 16)
			for i := range each {
				for k := range keys {
					keys[k] = kv.Hash(hand<<32 | i/16<<8 | k)
				}
				j.Lookup(Lookup{At: noon, Partition: kv.Partition{Scope: scope}, Keys: keys, Tokens: int32(i), Chosen: fmt.Sprint(hand)})
			}
		})
	}
	wg.Wait()
	stop()
	next := map[string]int{}
	for _, r := range readFiles(t, path) {
		l := r.(Lookup)
		hand, _ := strconv.Atoi(l.Chosen)
		i := next[l.Chosen]
		next[l.Chosen]++
		if int(l.Tokens) != i || len(l.Keys) != 16 || l.Keys[15] != kv.Hash(hand<<32|i/16<<8|15) {
			t.Fatalf("%+v, want the %d-th of hand %d", l, i, hand)
		}
	}
	if len(next) != hands || j.Written() != hands*each || j.Dropped() != 0 {
		t.Errorf("%v, %d written, %d dropped", next, j.Written(), j.Dropped())
	}
}

func TestQueueIsBoundedByKeys(t *testing.T) {
	t.Parallel()
	j := &Journal{queue: make(chan *entry, queueRecords)} // nobody takes
	keys := make([]kv.Hash, queueKeys/4)
	for range 10 {
		j.Remove(Remove{At: noon, Scope: scope, Keys: keys})
	}
	j.Lookup(Lookup{At: noon, Keys: make([]kv.Hash, MaxKeys+1)})
	if len(j.queue) != 4 || j.Dropped() != 7 {
		t.Errorf("%d in the queue, %d dropped", len(j.queue), j.Dropped())
	}
}

func TestNoJournalTakesNothing(t *testing.T) {
	t.Parallel()
	var j *Journal
	for _, r := range []Record{Lookup{}, Outcome{}, Store{}, Remove{}, Clear{}} {
		give(j, r)
	}
}

// full is a disk without room.
type full struct{ io.WriteCloser }

func (f full) Write(b []byte) (int, error) {
	n, _ := f.WriteCloser.Write(b[:len(b)/2])
	return n, errors.New("no space left on device")
}

func TestFailureIsToldOnceAndTriedAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		path := filepath.Join(t.TempDir(), "journal")
		j, err := Open(path, MinBytes)
		if err != nil {
			t.Fatal(err)
		}
		var told []error
		j.Changed = func(err error) { told = append(told, err) }
		put := func(replica string) {
			j.Clear(Clear{At: noon, Scope: scope, Replica: replica})
			synctest.Wait()
		}
		stop := running(t, j)
		put("first")
		fails := true
		j.disk.file = full{j.disk.file}
		j.disk.create = func(path string) (io.WriteCloser, error) {
			file, err := createFile(path)
			if err == nil && fails {
				file = full{file}
			}
			return file, err
		}
		for range 50 {
			put("lost")
			time.Sleep(time.Second)
		}
		if len(told) != 1 || told[0] == nil || !strings.Contains(told[0].Error(), path+": no space left") {
			t.Errorf("told %v", told)
		}
		if j.Failures() != 5 || j.Dropped() != 50 || j.Written() != 1 {
			t.Errorf("%d failures, %d dropped, %d written", j.Failures(), j.Dropped(), j.Written())
		}
		fails = false
		time.Sleep(pause)
		put("second")
		put("third")
		stop()
		if len(told) != 2 || told[1] != nil {
			t.Errorf("told %v", told)
		}
		files, err := OpenFiles(path)
		if err != nil {
			t.Fatal(err)
		}
		got, err := readAll(t, files.Read)
		want := []Record{
			Clear{At: noon, Scope: scope, Replica: "first"},
			Clear{At: noon, Scope: scope, Replica: "second"}, Clear{At: noon, Scope: scope, Replica: "third"},
		}
		if diff := differ(want, got); diff != "" || err != nil {
			t.Errorf("%v (-want +got):\n%s", err, diff)
		}
		if d := files.Damages(); len(d) != 1 || !strings.HasPrefix(d[0].Error(), older(path)+": byte ") {
			t.Errorf("damages %v", d)
		}
	})
}

func TestOpenKeepsOffWhatIsNotItsOwn(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "journal")
	if err := os.WriteFile(path, []byte("dear diary"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := Open(path, MinBytes); err == nil || !strings.Contains(err.Error(), "open journal "+path+": will not overwrite: not a journal") {
		t.Error(err)
	}
	if _, err := Open(path, MinBytes-1); err == nil || !strings.Contains(err.Error(), "--journal-max-bytes 65535: want 65536 to") {
		t.Error(err)
	}
	if _, err := OpenFiles(path + ".none"); !errors.Is(err, os.ErrNotExist) {
		t.Error(err)
	}
	another := magic + "\x02what a later version wrote"
	if err := os.WriteFile(path, []byte(another), 0o600); err != nil {
		t.Fatal(err)
	}
	record(t, path, MinBytes, []Record{Clear{At: noon}})
	if kept, err := os.ReadFile(older(path)); err != nil || string(kept) != another {
		t.Errorf("%q, %v", kept, err)
	}
	files, err := OpenFiles(path)
	if err != nil {
		t.Fatal(err)
	}
	defer files.Close()
	if _, err := files.Read(); err == nil || !strings.Contains(err.Error(), "a journal of version 2: this program reads version 1") {
		t.Error(err)
	}
}

func TestLookupAllocatesNothing(t *testing.T) {
	j, err := Open(filepath.Join(t.TempDir(), "journal"), 64<<20)
	if err != nil {
		t.Fatal(err)
	}
	keys := make([]kv.Hash, 512)
	for i := range keys {
		keys[i] = kv.Hash(i)
	}
	r := Lookup{At: noon, Partition: kv.Partition{Scope: scope}, Keys: keys, BlockTokens: 16, Chosen: "a", Reason: "PREFIX_MATCH"}
	once := func() {
		j.Lookup(r)
		j.write(<-j.queue) // as Run does
	}
	once()
	if n := testing.AllocsPerRun(200, once); n != 0 {
		t.Errorf("%v allocations", n)
	}
	j.disk.close()
}
