package subscriber

// verdict is what a batch's sequence number says about the stream.
type verdict uint8

const (
	verdictFirst     verdict = iota // nothing was seen before
	verdictNext                     // follows the one before
	verdictGap                      // batches in between are missing
	verdictDuplicate                // the one before, again
	verdictRestart                  // the publisher counts from the start again
)

func (v verdict) String() string {
	switch v {
	case verdictFirst:
		return "first"
	case verdictNext:
		return "next"
	case verdictGap:
		return "gap"
	case verdictDuplicate:
		return "duplicate"
	case verdictRestart:
		return "restart"
	}
	panic("bug: unknown verdict")
}

// tracker follows the sequence numbers of one publisher: from 0 for each
// process, one up for each batch. It is owned by the stream's goroutine.
type tracker struct {
	seen       bool
	connection uint64
	last       uint64
}

// observe takes the next batch's place; missing is how many batches a gap
// hides. A number that came once already is a duplicate on the same
// connection; on another one it is a new process, since a publisher sends
// nothing twice to a new subscriber. A gap mark of the queue is a gap even
// where the numbers meet: a restart may be among what was dropped.
func (t *tracker) observe(connection, sequence, lost uint64) (v verdict, missing uint64) {
	was := *t
	*t = tracker{seen: true, connection: connection, last: sequence}
	switch {
	case was.seen && sequence > was.last+1:
		return verdictGap, sequence - was.last - 1
	case was.seen && sequence < was.last, was.seen && sequence == was.last && connection != was.connection:
		return verdictRestart, 0
	case lost > 0:
		return verdictGap, lost
	case !was.seen:
		return verdictFirst, 0
	case sequence == was.last:
		return verdictDuplicate, 0
	}
	return verdictNext, 0
}
