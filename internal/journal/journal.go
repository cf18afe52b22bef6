package journal

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"time"
)

// Bounds on what waits for the disk. What comes on top is dropped.
const (
	queueRecords = 4096
	queueKeys    = 1 << 20 // 8 MiB
	keepKeys     = 1 << 12 // a longer buffer is not kept for the next record
)

// Journal takes records from any goroutine and never makes it wait. A nil
// *Journal takes nothing.
type Journal struct {
	// Changed, if set before Run, is called by Run when writing starts to fail,
	// with the reason, and with nil when it works again.
	Changed func(err error)

	disk  *disk // Run's
	queue chan *entry
	keys  atomic.Int64 // in the queue

	written, dropped, failures atomic.Int64

	mu     sync.Mutex
	closed bool
	free   []*entry // last used first
}

// Open makes the file at path, or goes on in it. Together with the older one,
// path.1, it stays below maxBytes. Only one process may write a path.
func Open(path string, maxBytes int64) (*Journal, error) {
	if err := checkSize(maxBytes); err != nil {
		return nil, err
	}
	d, err := openDisk(path, maxBytes/2)
	if err != nil {
		return nil, fmt.Errorf("open journal %s: %w", path, err)
	}
	return &Journal{disk: d, queue: make(chan *entry, queueRecords)}, nil
}

// Written counts records that are in a file.
func (j *Journal) Written() int64 { return j.written.Load() }

// Dropped counts records that were not written: the disk was slower or failed,
// they were too long, or Run had ended.
func (j *Journal) Dropped() int64 { return j.dropped.Load() }

// Failures counts how often a file could not be made or written.
func (j *Journal) Failures() int64 { return j.failures.Load() }

// Lookup records a question. Keys are copied, here as in all records.
func (j *Journal) Lookup(r Lookup) {
	if e := j.entry(lookup, r.At, len(r.Keys)); e != nil {
		e.partition = cutScope(r.Partition.Scope, r.Partition.Adapter)
		e.request, e.replica, e.reason = cut(r.RequestID), cut(r.Chosen), cut(r.Reason)
		e.numbers = [3]int32{r.Tokens, r.BlockTokens}
		e.keys = append(e.keys, r.Keys...)
		j.hand(e)
	}
}

// Outcome records what became of a request.
func (j *Journal) Outcome(r Outcome) {
	if e := j.entry(outcome, r.At, 0); e != nil {
		e.request, e.replica = cut(r.RequestID), cut(r.Replica)
		e.numbers = [3]int32{r.CachedTokens, r.PromptTokens, r.OutputTokens}
		j.hand(e)
	}
}

// Store records blocks that a replica got.
func (j *Journal) Store(r Store) {
	if e := j.entry(store, r.At, len(r.Keys)+1); e != nil {
		e.partition, e.replica = cutScope(r.Scope, r.Adapter), cut(r.Replica)
		e.numbers, e.tier, e.hasParent = [3]int32{r.Step}, r.Tier, r.HasParent
		if r.HasParent {
			e.keys = append(e.keys, r.Parent)
		}
		e.keys = append(e.keys, r.Keys...)
		j.hand(e)
	}
}

// Remove records blocks that a replica lost.
func (j *Journal) Remove(r Remove) {
	if e := j.entry(remove, r.At, len(r.Keys)); e != nil {
		e.partition, e.replica = cutScope(r.Scope, r.Adapter), cut(r.Replica)
		e.keys = append(e.keys, r.Keys...)
		j.hand(e)
	}
}

// Clear records that a replica lost all blocks of a scope.
func (j *Journal) Clear(r Clear) {
	if e := j.entry(clearing, r.At, 0); e != nil {
		e.partition, e.replica = cutScope(r.Scope, ""), cut(r.Replica)
		j.hand(e)
	}
}

// entry returns an empty entry with room for so many keys in the queue, or nil
// if the record is dropped.
func (j *Journal) entry(k kind, at time.Time, keys int) *entry {
	if j == nil {
		return nil
	}
	if keys > MaxKeys || len(j.queue) == cap(j.queue) || j.keys.Load()+int64(keys) > queueKeys {
		j.dropped.Add(1)
		return nil
	}
	e := j.reuse()
	*e = entry{kind: k, at: micros(at), keys: e.keys[:0]}
	return e
}

func (j *Journal) reuse() *entry {
	j.mu.Lock()
	defer j.mu.Unlock()
	last := len(j.free) - 1
	if last < 0 {
		return &entry{}
	}
	e := j.free[last]
	j.free = j.free[:last]
	return e
}

// hand gives e to Run.
func (j *Journal) hand(e *entry) {
	keys := int64(len(e.keys)) // not ours once it is sent
	j.keys.Add(keys)
	if !j.send(e) {
		j.keys.Add(-keys)
		j.dropped.Add(1)
		j.release(e)
	}
}

func (j *Journal) send(e *entry) bool {
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.closed {
		return false
	}
	select {
	case j.queue <- e:
		return true
	default:
		return false
	}
}

func (j *Journal) release(e *entry) {
	keys := e.keys
	if cap(keys) > keepKeys {
		keys = nil
	}
	*e = entry{keys: keys} // keeps no names alive
	j.mu.Lock()
	defer j.mu.Unlock()
	j.free = append(j.free, e)
}

// Run writes records until ctx ends, then those that wait, and closes the file.
// Failures are counted and told to Changed; writing is tried again after a
// while, so it always returns nil.
func (j *Journal) Run(ctx context.Context) error {
	for {
		select {
		case e := <-j.queue:
			j.write(e)
			continue
		default:
		}
		j.settle((*disk).flush) // nobody waits: what is known is on its way to the disk
		select {
		case e := <-j.queue:
			j.write(e)
		case <-ctx.Done():
			j.finish()
			return nil
		}
	}
}

// finish writes what waits. Nothing is handed over afterwards.
func (j *Journal) finish() {
	j.mu.Lock()
	j.closed = true
	j.mu.Unlock()
	for len(j.queue) > 0 {
		j.write(<-j.queue)
	}
	j.settle((*disk).flush)
	j.disk.close()
}

func (j *Journal) write(e *entry) {
	j.settle(func(d *disk, now time.Time) { d.put(now, e) })
	j.keys.Add(-int64(len(e.keys)))
	j.release(e)
}

// settle lets the disk do something and takes account of it.
func (j *Journal) settle(do func(*disk, time.Time)) {
	d := j.disk
	before := d.failing
	do(d, time.Now())
	j.written.Add(d.written)
	j.dropped.Add(d.lost)
	j.failures.Add(d.failed)
	d.written, d.lost, d.failed = 0, 0, 0
	if (before == nil) != (d.failing == nil) && j.Changed != nil {
		j.Changed(d.failing)
	}
}
