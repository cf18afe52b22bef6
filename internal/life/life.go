// Package life starts the services of a process by stage and stops them in
// reverse: what is watched first and last (obs), then state, then the doors
// that requests come through, then the hands that reach out. It knows nothing
// of what a service does.
package life

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"
)

// Stage orders services: lower starts earlier and stops later.
type Stage int

const (
	Obs   Stage = iota // metrics and health pages
	State              // the index and what keeps it
	Doors              // listeners
	Hands              // what calls others: subscribers, pushers
	stages
)

// Service is one long-running part of the process.
type Service struct {
	Name  string
	Stage Stage
	// Run blocks until ctx ends and has then stopped everything it started.
	// Returning earlier, with an error or not, ends the whole process.
	Run func(ctx context.Context) error
}

// Run runs services until ctx ends or one of them does, then stops stage by
// stage within grace. It returns what made the process end early, joined with
// the names of services that did not stop in time; nil after a clean stop.
func Run(ctx context.Context, grace time.Duration, log *slog.Logger, services ...Service) error {
	ended := make(chan outcome, len(services)) // one send a service: never blocks
	var cancels [stages]context.CancelFunc
	running := make(map[string]Stage, len(services))
	for stage := range stages {
		// Not ctx's child: a stage ends when its turn comes.
		stageCtx, cancel := context.WithCancel(context.WithoutCancel(ctx))
		defer cancel()
		cancels[stage] = cancel
		for _, s := range services {
			if s.Stage != stage {
				continue
			}
			running[s.Name] = stage
			go func() { ended <- outcome{s.Name, s.Run(stageCtx)} }() // waited for by stop
		}
	}

	var failure error
	select {
	case <-ctx.Done():
	case o := <-ended:
		delete(running, o.service)
		failure = fmt.Errorf("%s: %w", o.service, cmp.Or(o.err, errEnded))
	}
	log.Info("graceful_shutdown_started", "grace", grace.String())
	late := stop(cancels[:], running, ended, grace)
	log.Info("graceful_shutdown_done")
	return errors.Join(failure, late)
}

var errEnded = errors.New("ended by itself")

type outcome struct {
	service string
	err     error
}

// stop ends the stages in reverse, each after the ones above it, all within
// grace.
func stop(cancels []context.CancelFunc, running map[string]Stage, ended <-chan outcome, grace time.Duration) error {
	deadline := time.NewTimer(grace)
	defer deadline.Stop()
	var errs []error
	for stage := len(cancels) - 1; stage >= 0; stage-- {
		cancels[stage]()
		for left(running, Stage(stage)) {
			select {
			case o := <-ended:
				delete(running, o.service)
				if o.err != nil && !errors.Is(o.err, context.Canceled) {
					errs = append(errs, fmt.Errorf("%s: %w", o.service, o.err))
				}
			case <-deadline.C:
				for name := range running {
					errs = append(errs, fmt.Errorf("%s did not stop within %s", name, grace))
				}
				return errors.Join(errs...)
			}
		}
	}
	return errors.Join(errs...)
}

func left(running map[string]Stage, stage Stage) bool {
	for _, s := range running {
		if s == stage {
			return true
		}
	}
	return false
}
