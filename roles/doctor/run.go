package doctor

import (
	"context"
	"math"
	"time"
)

// again is the pause between two looks while a system settles.
const again = 2 * time.Second

// Run looks at the system and says what it found, the worst first. One that has
// just started is given time until it has run for settle: some faults show only
// once an engine has worked for a while. progress is told what it waits for; it
// may be nil.
func (l *Local) Run(ctx context.Context, settle time.Duration, progress func(left time.Duration)) ([]Finding, error) {
	for {
		e := l.gather(ctx)
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		left := settle - e.age()
		if left <= 0 {
			return judge(e, time.Now()), nil
		}
		if progress != nil {
			progress(left)
		}
		select {
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-time.After(min(left, again)):
		}
	}
}

// age is how long the youngest of the subscribers has run; without any, long
// enough.
func (e *evidence) age() time.Duration {
	youngest := math.Inf(1)
	for i := range e.engines {
		youngest = min(youngest, e.engines[i].Uptime)
	}
	if math.IsInf(youngest, 1) {
		return time.Duration(math.MaxInt64)
	}
	return time.Duration(youngest * float64(time.Second))
}
