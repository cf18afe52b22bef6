package trace

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
)

// Bounds on one line; more is a mistake or an attack.
const (
	MaxLine   = 16 << 20 // bytes
	MaxBlocks = 1 << 20
)

// Format reads one line of a trace file into r, which is empty.
type Format func(line []byte, r *Request) error

// Reader reads a trace line by line. Blank lines are skipped.
type Reader struct {
	lines  *bufio.Scanner
	format Format
	line   int
	last   Request
	err    error
}

// NewReader reads lines of one format from r.
func NewReader(r io.Reader, format Format) *Reader {
	lines := bufio.NewScanner(r)
	lines.Buffer(nil, MaxLine+1) // and the end of the line
	return &Reader{lines: lines, format: format}
}

// Read returns the next request, io.EOF behind the last one, or an error that
// names the line. After an error it goes on returning that error.
func (r *Reader) Read() (Request, error) {
	if r.err != nil {
		return Request{}, r.err
	}
	next, err := r.read()
	if err != nil {
		if err != io.EOF {
			err = fmt.Errorf("line %d: %w", r.line, err)
		}
		r.err = err
		return Request{}, err
	}
	r.last = next
	return next, nil
}

// ReadAll returns all requests that are left.
func (r *Reader) ReadAll() (all []Request, err error) {
	for {
		next, err := r.Read()
		if err == io.EOF {
			return all, nil
		}
		if err != nil {
			return nil, err
		}
		all = append(all, next)
	}
}

func (r *Reader) read() (next Request, err error) {
	for {
		r.line++
		if !r.lines.Scan() {
			break
		}
		line := bytes.TrimSpace(r.lines.Bytes())
		if len(line) == 0 {
			continue
		}
		if err := r.format(line, &next); err != nil {
			return next, err
		}
		return next, r.check(&next)
	}
	switch err := r.lines.Err(); {
	case errors.Is(err, bufio.ErrTooLong):
		return next, fmt.Errorf("longer than %d bytes", MaxLine)
	case err != nil:
		return next, err
	}
	return next, io.EOF
}

// check holds what must be true of a request whatever the format.
func (r *Reader) check(next *Request) error {
	switch {
	case next.At < 0:
		return fmt.Errorf("timestamp %v is negative", next.At)
	case next.At < r.last.At:
		return fmt.Errorf("timestamp %v is before %v of the request before it", next.At, r.last.At)
	case next.Input < 0 || next.Output < 0:
		return errors.New("a length in tokens is negative")
	case len(next.Blocks) > MaxBlocks:
		return fmt.Errorf("%d blocks, more than %d", len(next.Blocks), MaxBlocks)
	}
	return nil
}
