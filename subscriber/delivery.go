package subscriber

import (
	"context"
	"fmt"
	"time"

	pb "inferencecache.io/inferencecache/proto/inferencecache/v1alpha1"
)

const (
	reportTimeout = 5 * time.Second // for one call, answer included
	resendFirst   = 50 * time.Millisecond
	resendMost    = 2 * time.Second // so that a server that is back is whole again within seconds
)

// deliver sends j until it is acknowledged. It is false if j was given up,
// because the copy it belongs to is gone or ctx ended.
func (o *outbox) deliver(ctx context.Context, j job) bool {
	retry := backoff{first: resendFirst, most: resendMost}
	for {
		err := o.send(ctx, j)
		o.noteHealth(ctx, err)
		if err == nil {
			return true
		}
		if !sleep(ctx, retry.next()) || o.current() != j.generation {
			return false
		}
	}
}

// send is one try to deliver j.
func (o *outbox) send(ctx context.Context, j job) error {
	started := time.Now()
	ack, err := o.call(ctx, func(ctx context.Context) (*pb.Ack, error) { return o.reporter.report(ctx, j.updates) })
	o.meters.seconds.UpdateDuration(started)
	if err != nil {
		return err
	}
	last := j.updates[len(j.updates)-1].Sequence
	if ack.GetServerEpoch() != 0 && ack.GetSequence() < last {
		return fmt.Errorf("server applied updates up to %d of %d", ack.GetSequence(), last)
	}
	operations := 0
	for _, update := range j.updates {
		operations += len(update.Operations)
	}
	o.meters.operations.Add(operations)
	if operations == 0 {
		o.meters.heartbeats.Inc()
	} else {
		o.meters.delay.Update(max(0, time.Since(j.stamp).Seconds()))
	}
	return nil
}

// sendStats delivers one load report, which has no place in the order, once.
func (o *outbox) sendStats(ctx context.Context, stats *pb.ReplicaStats, at time.Time) error {
	update := o.update(at, o.state())
	update.Stats = stats
	_, err := o.call(ctx, func(ctx context.Context) (*pb.Ack, error) { return o.reporter.tell(ctx, update) })
	return err
}

// call reports within the time limit and takes note of who answered.
func (o *outbox) call(ctx context.Context, report func(context.Context) (*pb.Ack, error)) (*pb.Ack, error) {
	ctx, cancel := context.WithTimeout(ctx, reportTimeout)
	defer cancel()
	ack, err := report(ctx)
	if err == nil && !ack.GetAccepted() {
		err = fmt.Errorf("not accepted: %q", ack.GetReasonCode())
	}
	if err != nil {
		o.meters.errors.Inc()
		return nil, fmt.Errorf("report to %s: %w", o.server, err)
	}
	o.heed(ack)
	return ack, nil
}

// noteHealth logs when reports begin to fail and when they get through again.
func (o *outbox) noteHealth(ctx context.Context, err error) {
	if ctx.Err() != nil {
		return
	}
	first, over, lasting := o.trouble.note(time.Now(), err)
	switch {
	case over:
		o.log.Info("server reachable again", "server", o.server)
	case first:
		o.log.Warn("server unreachable, reports are kept", "server", o.server, "err", err)
	case lasting && o.troubled != nil:
		o.troubled()
	}
}
