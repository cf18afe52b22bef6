package subscriber

import (
	"context"
	"fmt"
	"sync"

	"inferencecache.io/inferencecache/internal/engine"
)

// source is one event publisher of the engine, that of a data-parallel rank,
// with what reads it: one stream, one sequence of numbers.
type source struct {
	endpoint
	receiver receiver
	stream   stream
	queue    *queue
	state    *machine
	drift    drift
}

func newSource(e endpoint, config *Config, dialect engine.Dialect, s *Subscriber) (*source, error) {
	events, err := guardedEndpoint(e.Events)
	if err != nil {
		return nil, fmt.Errorf("events of rank %d: %w", e.Rank, err)
	}
	one := &source{endpoint: e, queue: newQueue(queueBatches, config.QueueBytes), state: &machine{}}
	meters := s.meters.source(e.Rank, one.queue, one.state)
	log := s.log.With("rank", e.Rank)
	one.receiver = receiver{
		endpoint: e.Events, guarded: events, topic: e.Topic, frameLimit: config.MaxFrameBytes,
		queue: one.queue, state: one.state, metrics: meters, log: log,
	}
	limits := engine.DefaultLimits()
	limits.Payload = int(config.MaxFrameBytes)
	one.stream = stream{
		source: e.Rank, queue: one.queue, dialect: dialect, limits: limits, replica: s.replica,
		state: one.state, account: newAccount(), meters: meters, log: log, at: newPosition(), logged: make(map[string]bool),
	}
	if e.Replay != "" {
		replay, err := guardedEndpoint(e.Replay)
		if err != nil {
			return nil, fmt.Errorf("replay of rank %d: %w", e.Rank, err)
		}
		one.stream.history = &dealer{guarded: replay, frameLimit: config.MaxFrameBytes}
	}
	if e.Snapshot != "" {
		guarded, err := guardedEndpoint(e.Snapshot)
		if err != nil {
			return nil, fmt.Errorf("snapshots of rank %d: %w", e.Rank, err)
		}
		one.stream.auditor = &auditor{
			take:  func(ctx context.Context) *snapshot { return takeSnapshot(ctx, guarded, config.MaxFrameBytes) },
			every: config.SnapshotInterval,
			taken: make(chan *snapshot, 1),
		}
	}
	return one, nil
}

// run follows the source until ctx ends, and works off what has been received
// until late ends.
func (s *source) run(ctx, late context.Context) {
	var work sync.WaitGroup
	work.Go(func() { s.stream.run(late) })
	s.receiver.run(ctx)
	s.queue.close()
	work.Wait()
}
