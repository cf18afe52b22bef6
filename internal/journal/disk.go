package journal

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math/bits"
	"os"
	"time"

	"inferencecache.io/inferencecache/internal/kv"
)

const (
	flushAt = 64 << 10         // bytes of records that are written at once
	pause   = 10 * time.Second // from a failed write to the next attempt

	overhead = 64 // bytes of a file before its first record
)

// disk writes records to the current file of a journal. One goroutine uses it.
type disk struct {
	path    string
	limit   int64 // bytes of one file
	create  func(path string) (io.WriteCloser, error)
	file    io.WriteCloser // nil: none could be made
	encoder encoder

	size    int64  // of the file
	kept    bool   // the file has records, so it is worth becoming the older one
	buffer  []byte // frames that are not written yet
	pending int64  // records in it

	// What became of records, and how often a file failed, since Journal last
	// took these to account.
	written, lost, failed int64

	failing error // since then nothing was written
	retry   time.Time
}

func createFile(path string) (io.WriteCloser, error) {
	return os.OpenFile(path, os.O_CREATE|os.O_TRUNC|os.O_WRONLY, 0o600)
}

// openDisk goes on in the file at path, or makes one.
func openDisk(path string, limit int64) (*disk, error) {
	d := &disk{path: path, limit: limit, create: createFile}
	file, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, err
	}
	end, usable, err := scan(file)
	if err == nil && usable && end+overhead <= limit {
		err = d.resume(file, end)
	} else if err == nil {
		file.Close()
		d.kept = end > 0
		err = d.renew()
	}
	if err == nil {
		d.begin(time.Now())
		err = d.failing
	}
	if err != nil {
		file.Close()
		return nil, err
	}
	return d, nil
}

// scan finds the end of the last whole frame; usable is false if nothing can be
// added there. A file that is no journal is an error: it is somebody's.
func scan(file io.Reader) (end int64, usable bool, err error) {
	f, err := openFrames(file)
	var damage *Damage
	switch {
	case err == io.EOF, errors.As(err, &damage):
		return 0, false, nil // new, or cut off within the head
	case errors.Is(err, errVersion):
		return 1, false, nil
	case err != nil:
		return 0, false, fmt.Errorf("will not overwrite: %w", err)
	}
	for err == nil {
		_, err = f.next()
	}
	if err == io.EOF || errors.As(err, &damage) {
		err = nil
	}
	return f.end, true, err
}

// resume cuts off what is behind end and goes on there.
func (d *disk) resume(file *os.File, end int64) error {
	if err := file.Truncate(end); err != nil {
		return err
	}
	if _, err := file.Seek(end, io.SeekStart); err != nil {
		return err
	}
	d.file, d.size, d.kept = file, end, true
	return nil
}

// renew makes a new file; the one before becomes the older one if it is worth
// keeping.
func (d *disk) renew() error {
	d.close()
	if d.kept {
		if err := os.Rename(d.path, older(d.path)); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		d.kept = false
	}
	file, err := d.create(d.path)
	if err != nil {
		return err
	}
	d.file, d.size = file, 0
	d.buffer = append(append(d.buffer, magic...), version)
	return nil
}

// begin starts a dictionary. No file holds more nodes than the window unless it
// is larger than 8 MiB.
func (d *disk) begin(now time.Time) (ok bool) {
	window := min(maxWindow, bits.Len64(uint64(d.limit/kv.HashSize)))
	d.buffer = d.encoder.start(d.buffer, window, micros(now))
	d.flush(now) // readers know the file by its head
	return d.file != nil
}

// put takes a record; flush writes it.
func (d *disk) put(now time.Time, r *entry) {
	if d.failing != nil && now.Before(d.retry) || r.room() > d.limit-overhead {
		d.lost++
		return
	}
	if d.file == nil || d.size+int64(len(d.buffer))+r.room() > d.limit {
		if !d.turn(now) {
			d.lost++
			return
		}
	}
	d.buffer = d.encoder.record(d.buffer, r)
	d.pending++
	if len(d.buffer) >= flushAt {
		d.flush(now)
	}
}

// turn goes on in a new file.
func (d *disk) turn(now time.Time) (ok bool) {
	if d.flush(now); d.failing != nil && now.Before(d.retry) {
		return false
	}
	if err := d.renew(); err != nil {
		d.fail(now, err)
		return false
	}
	return d.begin(now)
}

// flush writes what was put.
func (d *disk) flush(now time.Time) {
	if len(d.buffer) == 0 || d.file == nil {
		return
	}
	if _, err := d.file.Write(d.buffer); err != nil {
		d.fail(now, fmt.Errorf("write %s: %w", d.path, err))
		return
	}
	d.size += int64(len(d.buffer))
	d.written += d.pending
	d.kept = d.kept || d.pending > 0
	if d.pending > 0 {
		d.failing = nil
	}
	d.buffer, d.pending = d.buffer[:0], 0
}

// fail gives up the file: its end may be torn.
func (d *disk) fail(now time.Time, err error) {
	d.failed++
	d.failing, d.retry = err, now.Add(pause)
	d.lost += d.pending
	d.buffer, d.pending = d.buffer[:0], 0
	d.close()
}

func (d *disk) close() {
	if d.file != nil {
		d.file.Close() // its writes were checked
		d.file = nil
	}
}
