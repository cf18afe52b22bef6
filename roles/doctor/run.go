package doctor

import (
	"context"
	"slices"
	"time"
)

const (
	// again is the pause between two looks.
	again = 2 * time.Second
	// maxLooks bounds how often a system is looked at until two looks say the
	// same: what comes and goes on a busy machine is no fault.
	maxLooks = 5
)

// Run looks at the system and says what it found, the worst first. One that has
// just started is given time until it has run for settle: some faults show only
// once an engine has worked for a while. What needs attention is looked at until
// two looks in a row say the same. progress is told what it waits for; it
// may be nil.
func (l *Local) Run(ctx context.Context, settle time.Duration, progress func(left time.Duration)) ([]Finding, error) {
	return watch(ctx, settle, progress, func(ctx context.Context) (time.Duration, func() []Finding) {
		e := l.gather(ctx)
		return age(e.engines), func() []Finding { return judge(e, time.Now()) }
	})
}

// watch looks until what it sees is as old as settle, and then until two looks
// in a row say the same.
func watch(ctx context.Context, settle time.Duration, progress func(time.Duration), look func(context.Context) (time.Duration, func() []Finding)) ([]Finding, error) {
	var before []string // nothing, as in a sound system
	for looks := 0; ; {
		old, judge := look(ctx)
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		left := settle - old
		if left <= 0 {
			all := judge()
			now := troubles(all)
			if looks++; looks == maxLooks || slices.Equal(before, now) {
				return all, nil
			}
			before, left = now, again
		} else if progress != nil {
			progress(left)
		}
		select {
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-time.After(min(left, again)):
		}
	}
}

// troubles are what needs attention, in order and without how it shows.
func troubles(all []Finding) (names []string) {
	for _, f := range all {
		if f.Status >= Warn {
			names = append(names, f.ID+" "+f.Resource)
		}
	}
	slices.Sort(names)
	return names
}
