package subscriber

import (
	"context"
	"math/rand/v2"
	"time"
)

// backoff spaces retries: each wait is twice the one before, from first up to
// most, and a random half of it is left out so that many subscribers that lost
// one peer do not come back together.
type backoff struct {
	first, most time.Duration
	wait        time.Duration // of the next retry; zero: first
}

func (b *backoff) reset() { b.wait = 0 }

// next is how long to wait now.
func (b *backoff) next() time.Duration {
	wait := max(b.wait, b.first)
	b.wait = min(2*wait, b.most)
	return wait/2 + rand.N(wait/2+1)
}

// sleep waits for d; it is false if ctx ended first.
func sleep(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-timer.C:
		return true
	}
}
