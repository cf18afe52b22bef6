package engine

// Limits bound what one payload may ask for. A payload over its size fails as
// a whole; an event over a limit is rejected alone. The zero value of a field
// allows nothing: start from DefaultLimits.
type Limits struct {
	Payload int // bytes a payload
	Events  int // events a batch; more fail the batch
	Hashes  int // block hashes an event, and all events of a batch together
	Tokens  int // token ids an event
	String  int // bytes a string or a binary hash
}

// DefaultLimits are far above what an engine sends and far below what hurts.
func DefaultLimits() Limits {
	return Limits{
		Payload: 64 << 20,
		Events:  100_000,
		Hashes:  1_000_000,
		Tokens:  4_000_000,
		String:  64 << 10,
	}
}

// maxDepth is how deep arrays and maps may nest, the envelope being the first.
// The deepest known value, a multimodal pair in extra_keys, is at seven.
const maxDepth = 16
