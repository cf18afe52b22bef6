package subscriber

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"sync"
	"time"

	pb "inferencecache.io/inferencecache/proto/inferencecache/v1alpha1"
)

const (
	scrapeTimeout = 5 * time.Second
	// staleAfter failures in a row, ranking at the server works with old load.
	staleAfter = 3
)

// httpDoer is the part of http.Client that a scrape uses.
type httpDoer interface {
	Do(*http.Request) (*http.Response, error)
}

// statsLoop reports the engine's load to every server, at start and then every
// interval. It shares nothing with the event stream but the servers, so that
// one works when the other does not.
type statsLoop struct {
	url      string
	interval time.Duration
	version  string // client_version of the stats
	http     httpDoer
	load     loadReader
	outboxes []*outbox
	meters   *meters
	log      *slog.Logger
	observed func(facts) // called after every good scrape, before its report; may be nil

	failures  int  // in a row
	delivered bool // a report has reached every server
}

// run scrapes and reports until ctx ends.
func (l *statsLoop) run(ctx context.Context) {
	tick := time.NewTicker(l.interval)
	defer tick.Stop()
	for {
		err := l.once(ctx)
		if ctx.Err() != nil {
			return
		}
		l.note(err)
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}

// once scrapes and delivers one report.
func (l *statsLoop) once(ctx context.Context) error {
	stats, seen, err := l.scrape(ctx)
	if err != nil {
		l.meters.scrapeErrors.Inc()
		return err
	}
	l.meters.scrapes.Inc()
	if l.observed != nil {
		l.observed(seen)
	}
	return l.deliver(ctx, stats, time.Now())
}

// deliver sends stats to all servers at once: one that is down costs the
// others nothing.
func (l *statsLoop) deliver(ctx context.Context, stats *pb.ReplicaStats, at time.Time) error {
	errs := make([]error, len(l.outboxes))
	var sending sync.WaitGroup
	for i, o := range l.outboxes {
		sending.Go(func() { errs[i] = o.sendStats(ctx, stats, at) })
	}
	sending.Wait()
	return errors.Join(errs...)
}

func (l *statsLoop) scrape(ctx context.Context) (*pb.ReplicaStats, facts, error) {
	ctx, cancel := context.WithTimeout(ctx, scrapeTimeout)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, l.url, nil)
	if err != nil {
		return nil, facts{}, fmt.Errorf("scrape engine: %w", err)
	}
	request.Header.Set("Accept", "text/plain;version=0.0.4")
	response, err := l.http.Do(request)
	if err != nil {
		return nil, facts{}, fmt.Errorf("scrape engine: %w", err)
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusOK {
		return nil, facts{}, fmt.Errorf("scrape engine: status %s", response.Status)
	}
	stats, seen, err := l.load.read(response.Body)
	if err != nil {
		return nil, facts{}, fmt.Errorf("scrape engine: %w", err)
	}
	stats.ClientVersion = l.version
	return stats, seen, nil
}

// note logs the load signal's changes: the first failure, staleness, recovery.
func (l *statsLoop) note(err error) {
	if err == nil {
		if l.failures > 0 {
			l.log.Info("load report works again", "event", "load_signal_recovered", "failures", l.failures)
		}
		l.failures, l.delivered = 0, true
		return
	}
	l.failures++
	switch l.failures {
	case 1:
		l.log.Warn("load report failed", "err", err)
	case staleAfter:
		l.log.Error("load of this replica is stale at the servers", "event", "load_signal_stale",
			"ever_delivered", l.delivered, "err", err)
	}
}
