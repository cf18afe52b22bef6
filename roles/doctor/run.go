package doctor

import (
	"context"
	"time"
)

// again is the pause between two looks while a system settles.
const again = 2 * time.Second

// Run looks at the system and says what it found, the worst first. One that has
// just started is given time until it has run for settle: some faults show only
// once an engine has worked for a while. progress is told what it waits for; it
// may be nil.
func (l *Local) Run(ctx context.Context, settle time.Duration, progress func(left time.Duration)) ([]Finding, error) {
	return watch(ctx, settle, progress, func(ctx context.Context) (time.Duration, func() []Finding) {
		e := l.gather(ctx)
		return age(e.engines), func() []Finding { return judge(e, time.Now()) }
	})
}

// watch looks until what it sees is as old as settle.
func watch(ctx context.Context, settle time.Duration, progress func(time.Duration), look func(context.Context) (time.Duration, func() []Finding)) ([]Finding, error) {
	for {
		old, judge := look(ctx)
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		left := settle - old
		if left <= 0 {
			return judge(), nil
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
