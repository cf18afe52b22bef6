package journal

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
)

// Files reads a journal: its older file, then its newer one. Where one is
// damaged it goes on with the next.
type Files struct {
	paths   []string
	open    []*os.File
	reader  *Reader // of paths[0]; nil: not begun
	damages []error
}

// OpenFiles opens the journal of a path as given to Open. A copy of a single
// file is a journal too. A server may be writing it.
func OpenFiles(path string) (*Files, error) {
	newer, err := os.Open(path)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	before, beforeErr := os.Open(older(path))
	if err == nil && beforeErr == nil && same(before, newer) { // it became the older one in between
		newer.Close()
		newer, err = os.Open(path)
	}
	f := &Files{}
	f.keep(before, beforeErr)
	f.keep(newer, err)
	if len(f.open) == 0 {
		return nil, err
	}
	return f, nil
}

// older is where the file goes that is full.
func older(path string) string { return path + ".1" }

func (f *Files) keep(file *os.File, err error) {
	if err == nil {
		f.open = append(f.open, file)
		f.paths = append(f.paths, file.Name())
	}
}

func same(a, b *os.File) bool {
	infoA, errA := a.Stat()
	infoB, errB := b.Stat()
	return errA == nil && errB == nil && os.SameFile(infoA, infoB)
}

// Read returns the next record, whose keys are valid until the next call. The
// error is io.EOF behind the last one, or why a file cannot be read at all.
func (f *Files) Read() (Record, error) {
	for len(f.open) > 0 {
		r, err := f.read()
		var damage *Damage
		switch {
		case err == nil:
			return r, nil
		case errors.As(err, &damage):
			f.damages = append(f.damages, fmt.Errorf("%s: %w", f.paths[0], err))
		case err != io.EOF:
			return nil, fmt.Errorf("read %s: %w", f.paths[0], err)
		}
		f.open[0].Close()
		f.open, f.paths, f.reader = f.open[1:], f.paths[1:], nil
	}
	return nil, io.EOF
}

func (f *Files) read() (r Record, err error) {
	if f.reader == nil {
		if f.reader, err = NewReader(f.open[0]); err != nil {
			return nil, err
		}
	}
	return f.reader.Read()
}

// Damages are the places, each a *Damage with the name of its file, from where
// on a file was not read.
func (f *Files) Damages() []error { return f.damages }

// Close closes the files that are still open.
func (f *Files) Close() {
	for _, file := range f.open {
		file.Close()
	}
	f.open, f.paths = nil, nil
}
