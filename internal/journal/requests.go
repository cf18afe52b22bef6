package journal

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"math"
	"slices"
	"time"

	"inferencecache.io/inferencecache/internal/kv"
	"inferencecache.io/inferencecache/internal/trace"
)

// maxTraceKeys bounds a trace in memory to 2 GiB: a few bytes of a journal can
// stand for a long chain.
const maxTraceKeys = 1 << 28

// Trace is the lookups of a journal as the requests of a trace.
type Trace struct {
	Requests    []trace.Request
	BlockTokens int // of a block, the same for all
	Partitions  int

	Otherwise int // lookups left out: their blocks have other sizes
	Unknown   int // requests without an outcome: answers of no length
	Beyond    int // requests that are longer than their blocks by more than one
}

// asked is a lookup until all is known of it.
type asked struct {
	at     time.Time
	step   int32
	input  int32
	id     string
	keys   []kv.Hash
	salted int // number of the partition
}

// NewTrace reads records until io.EOF and makes a trace of the lookups that
// keep wants. Where their blocks differ in size, only those of the size that
// covers most tokens are taken. Keys of different partitions become different
// blocks; those of the first stay as they are. The last, partial block of a
// prompt is nobody else's.
func NewTrace(read func() (Record, error), keep func(kv.Partition) bool) (*Trace, error) {
	lookups, outcomes, partitions, err := gather(read, keep)
	if err != nil {
		return nil, err
	}
	t := &Trace{Partitions: partitions, BlockTokens: int(commonStep(lookups))}
	switch {
	case len(lookups) == 0:
		return nil, errors.New("no lookups")
	case t.BlockTokens == 0:
		return nil, errors.New("no lookup says how many tokens its blocks have")
	}
	// Many goroutines hand records over, not quite in the order of their times.
	slices.SortStableFunc(lookups, func(a, b asked) int { return a.at.Compare(b.at) })
	first := lookups[0].at
	for i := range lookups {
		l := &lookups[i]
		if len(l.keys) > 0 && int(l.step) != t.BlockTokens {
			t.Otherwise++
			continue
		}
		done, ok := outcomes[l.id]
		if !ok {
			t.Unknown++
		}
		t.Requests = append(t.Requests, t.request(l, done, l.at.Sub(first), i))
	}
	return t, nil
}

// gather reads what a trace is made of.
func gather(read func() (Record, error), keep func(kv.Partition) bool) (lookups []asked, outcomes map[string]Outcome, partitions int, err error) {
	numbers := map[kv.Partition]int{}
	outcomes = map[string]Outcome{}
	total := 0
	for {
		record, err := read()
		if err == io.EOF {
			return lookups, outcomes, len(numbers), nil
		}
		if err != nil {
			return nil, nil, 0, err
		}
		switch r := record.(type) {
		case Lookup:
			if !keep(r.Partition) {
				continue
			}
			if total += len(r.Keys); total > maxTraceKeys {
				return nil, nil, 0, fmt.Errorf("more than %d blocks: choose a part of the journal", maxTraceKeys)
			}
			number, ok := numbers[r.Partition]
			if !ok {
				number = len(numbers)
				numbers[r.Partition] = number
			}
			lookups = append(lookups, asked{r.At, r.BlockTokens, r.Tokens, r.RequestID, slices.Clone(r.Keys), number})
		case Outcome:
			if r.RequestID != "" {
				outcomes[r.RequestID] = r
			}
		}
	}
}

// commonStep is the size of block that covers most tokens; 0: none has a size.
func commonStep(lookups []asked) int32 {
	covered := map[int32]int64{}
	for i := range lookups {
		if l := &lookups[i]; l.step > 0 {
			covered[l.step] += int64(len(l.keys)) * int64(l.step)
		}
	}
	best := int32(0)
	for step, tokens := range covered {
		if c := cmp.Compare(tokens, covered[best]); c > 0 || c == 0 && step > best {
			best = step
		}
	}
	return best
}

func (t *Trace) request(l *asked, done Outcome, at time.Duration, number int) trace.Request {
	r := trace.Request{At: at, Input: int(max(0, l.input)), Output: int(max(0, done.OutputTokens)), Blocks: make([]uint64, len(l.keys), len(l.keys)+1)}
	if done.PromptTokens > 0 {
		r.Input = int(done.PromptTokens)
	}
	for i, key := range l.keys {
		r.Blocks[i] = uint64(key)
		if l.salted > 0 {
			r.Blocks[i] ^= trace.Spread(uint64(l.salted))
		}
	}
	if rest := r.Input - len(l.keys)*t.BlockTokens; rest > 0 {
		r.Blocks = append(r.Blocks, trace.Spread(math.MaxUint64-uint64(number)))
		if rest > t.BlockTokens {
			t.Beyond++
		}
	}
	return r
}
