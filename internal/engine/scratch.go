package engine

const (
	// keptEvents is the largest batch whose memory is used again, at about half
	// a kilobyte an event. Engines send tens of events at a time.
	keptEvents = 1024
	// poolMost is how many elements a pool makes room for at once, at most.
	poolMost = 4096
)

// Scratch is memory for batches that are decoded one after the other. The zero
// value is ready for use. It must not be used by two goroutines at once.
type Scratch struct {
	batch  Batch
	hashes pool[BlockHash]
	tokens pool[uint32]
}

// Release ends the use of the last batch. What it referred to, its payload above
// all, is free, and so is memory of an unusual size.
func (s *Scratch) Release() {
	events := s.batch.Events
	clear(events)
	if cap(events) > keptEvents {
		events = nil
	}
	s.batch = Batch{Events: events[:0]}
	s.hashes.release()
	s.tokens.release()
}

// pool hands out slices of one array, or of fresh ones when it is used up.
type pool[T any] struct {
	array []T // what is in use of it
}

// take is a slice of n elements, whatever they are.
func (p *pool[T]) take(n int) []T {
	if n > cap(p.array)-len(p.array) || p.array == nil {
		if n > poolMost {
			return make([]T, n)
		}
		p.array = make([]T, 0, max(n, min(2*cap(p.array), poolMost)))
	}
	from := len(p.array)
	p.array = p.array[:from+n]
	return p.array[from : from+n : from+n]
}

// release takes back what was handed out of the present array.
func (p *pool[T]) release() {
	clear(p.array)
	p.array = p.array[:0]
}
