package engine

import (
	"errors"
	"fmt"
	"math"
)

// Depths at which the parts of a payload stand.
const (
	envelopeDepth = 1
	eventDepth    = 3
	fieldDepth    = 4
)

// eventsAtOnce is how many events are made room for on the word of a header.
const eventsAtOnce = 1024

// Decode reads one payload. It fails only when the envelope cannot be read:
// the payload is empty, too large, not msgpack to its end, nested deeper than
// 16, not an array or map with a list of events, or followed by further bytes.
// Everything else is the verdict of one event, and a bad event never costs its
// batch.
//
// Trailing bytes fail the payload because engines write exactly one value into
// a frame: whatever follows shows that this is not one, and half a message may
// be missing. The stream then takes the batch for lost and replays it.
//
// Decode keeps no reference to the dialect; the batch views the payload. It is
// safe for concurrent use.
func Decode(dialect Dialect, payload []byte, limits Limits) (*Batch, error) {
	return new(Scratch).Decode(dialect, payload, limits)
}

// Decode is the function Decode into the memory of s: the batch is good until s
// is used again.
func (s *Scratch) Decode(dialect Dialect, payload []byte, limits Limits) (*Batch, error) {
	if len(payload) == 0 {
		return nil, errors.New("empty payload")
	}
	if len(payload) > limits.Payload {
		return nil, fmt.Errorf("payload of %d bytes is over the limit of %d", len(payload), limits.Payload)
	}
	s.Release()
	d := decoder{
		reader:      reader{buf: payload},
		stored:      dialect.Stored,
		removed:     dialect.Removed,
		rankKeys:    dialect.RankKeys,
		batch:       &s.batch,
		scratch:     s,
		limits:      limits,
		hashesLeft:  limits.Hashes,
		perHashLeft: 2 * limits.Hashes,
	}
	if err := d.envelope(); err != nil {
		return nil, err
	}
	if d.left() > 0 {
		return nil, fmt.Errorf("%d trailing bytes after the batch", d.left())
	}
	return d.batch, nil
}

// decoder is the state of one Decode.
type decoder struct {
	reader
	stored      []Field // of the dialect
	removed     []Field
	rankKeys    []string
	limits      Limits
	hashesLeft  int // hashes the batch may still have
	perHashLeft int // entries of lists that go with hashes: two lists at most do
	batch       *Batch
	scratch     *Scratch
}

func (d *decoder) envelope() error {
	head, err := d.next()
	if err != nil {
		return err
	}
	switch head.kind {
	case kindArray:
		return d.envelopeArray(head.n)
	case kindMap:
		return d.envelopeMap(head.n)
	}
	return fmt.Errorf("envelope is not an array or map but %v", head.kind)
}

// envelopeArray reads [ts, events, rank?, ...].
func (d *decoder) envelopeArray(elements uint64) error {
	if elements < 2 {
		return fmt.Errorf("no event list: envelope has %d elements", elements)
	}
	if err := d.timestamp(); err != nil {
		return err
	}
	if err := d.events(); err != nil {
		return err
	}
	if elements > 2 {
		if err := d.rank(); err != nil {
			return err
		}
	}
	for ; elements > 3; elements-- {
		if err := d.skip(envelopeDepth + 1); err != nil {
			return err
		}
	}
	return nil
}

// envelopeMap reads {ts, events, rank?, ...} in any order.
func (d *decoder) envelopeMap(pairs uint64) error {
	listed := false
	for ; pairs > 0; pairs-- {
		key, err := d.key(envelopeDepth + 1)
		if err != nil {
			return err
		}
		switch {
		case string(key) == "ts":
			err = d.timestamp()
		case string(key) == "events":
			if listed {
				return errors.New("envelope has two event lists")
			}
			listed = true
			err = d.events()
		case d.isRank(key):
			err = d.rank()
		default:
			err = d.skip(envelopeDepth + 1)
		}
		if err != nil {
			return err
		}
	}
	if !listed {
		return errors.New("no event list: envelope has no key \"events\"")
	}
	return nil
}

// key reads a map key; one that is not a string is passed over and nil.
func (d *decoder) key(depth int) ([]byte, error) {
	head, err := d.next()
	if err != nil {
		return nil, err
	}
	if head.kind == kindString {
		return d.bytes(head), nil
	}
	return nil, d.skipRest(head, depth)
}

func (d *decoder) isRank(key []byte) bool {
	for _, name := range d.rankKeys {
		if string(key) == name {
			return true
		}
	}
	return false
}

func (d *decoder) timestamp() error {
	head, err := d.next()
	if err != nil {
		return err
	}
	switch head.kind {
	case kindNil:
	case kindFloat:
		d.batch.TS = math.Float64frombits(head.n)
	case kindUint:
		d.batch.TS = float64(head.n)
	case kindInt:
		d.batch.TS = float64(int64(head.n))
	default:
		return fmt.Errorf("timestamp is not a number but %v", head.kind)
	}
	return nil
}

// rank fails on anything but a rank or nil: the events of a batch must not be
// credited to a rank that did not send them.
func (d *decoder) rank() error {
	head, err := d.next()
	if err != nil {
		return err
	}
	switch head.kind {
	case kindNil:
		return nil
	case kindUint:
		if head.n > math.MaxInt32 {
			return fmt.Errorf("rank %d is out of range", head.n)
		}
		d.batch.Rank, d.batch.HasRank = int(head.n), true
		return nil
	case kindInt:
		return fmt.Errorf("rank %d is below zero", int64(head.n))
	}
	return fmt.Errorf("rank is not an integer but %v", head.kind)
}

func (d *decoder) events() error {
	head, err := d.next()
	if err != nil {
		return err
	}
	if head.kind != kindArray {
		return fmt.Errorf("no event list: it is not an array but %v", head.kind)
	}
	if head.n > uint64(max(d.limits.Events, 0)) {
		return fmt.Errorf("batch of %d events is over the limit of %d", head.n, d.limits.Events)
	}
	if d.batch.Events == nil {
		d.batch.Events = make([]Event, 0, min(head.n, eventsAtOnce))
	}
	for i := range int(head.n) {
		d.batch.Events = append(d.batch.Events, Event{Index: i, FirstString: -1})
		if err := d.event(&d.batch.Events[i]); err != nil {
			return fmt.Errorf("event %d: %w", i, err)
		}
	}
	return nil
}
