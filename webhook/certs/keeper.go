package certs

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"log/slog"
	"sync/atomic"
	"time"

	"github.com/VictoriaMetrics/metrics"
)

// Store is where the certificates are and who is to trust them.
type Store interface {
	// Load returns the Secret's data and the version it has.
	Load(ctx context.Context) (data map[string][]byte, version string, err error)
	// Save replaces the data of that version; errTaken if it has another one
	// by now.
	Save(ctx context.Context, data map[string][]byte, version string) error
	// Publish makes the API server trust bundle; changed: it did not before.
	Publish(ctx context.Context, bundle []byte) (changed bool, err error)
}

// errTaken is a version that somebody else replaced.
var errTaken = errors.New("another replica was faster")

const (
	// interval is how often everything is looked at again. Certificates last
	// months; this bounds how long a removed bundle goes unnoticed.
	interval = time.Minute
	// retry is the pause after a failure.
	retry = 2 * time.Second
	// settle is how long a bundle must have been published before a new
	// authority signs: API servers learn of it by watching.
	settle = 30 * time.Second
)

// Keeper keeps the certificate of one process. Its methods but Start may be
// called at any time by any number of goroutines.
type Keeper struct {
	store    Store
	names    []string
	interval time.Duration
	log      *slog.Logger

	current   atomic.Pointer[tls.Certificate]
	published atomic.Bool // the API server trusts current
	expiry    *metrics.Gauge
	failures  *metrics.Counter

	// Of the goroutine in Start alone.
	trusted []byte    // the bundle published last
	since   time.Time // when that was
	failing bool      // the last look failed
}

// New returns a keeper of a certificate for the DNS names.
func New(store Store, names []string, log *slog.Logger, set *metrics.Set) *Keeper {
	k := &Keeper{store: store, names: names, interval: interval, log: log, failures: set.NewCounter("inferencecache_webhook_certificate_failures_total")}
	k.expiry = set.NewGauge("inferencecache_webhook_certificate_expiry_seconds", func() float64 {
		c := k.current.Load()
		if c == nil {
			return 0
		}
		return time.Until(c.Leaf.NotAfter).Seconds()
	})
	return k
}

// Start keeps the certificate until ctx ends. The name is the manager's.
func (k *Keeper) Start(ctx context.Context) error {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-timer.C:
		}
		timer.Reset(k.look(ctx))
	}
}

// NeedLeaderElection is false: every replica serves.
func (k *Keeper) NeedLeaderElection() bool { return false }

// GetCertificate is for tls.Config.
func (k *Keeper) GetCertificate(*tls.ClientHelloInfo) (*tls.Certificate, error) {
	if c := k.current.Load(); c != nil {
		return c, nil
	}
	return nil, errors.New("there is no certificate yet")
}

// Ready says what is missing for the API server to call.
func (k *Keeper) Ready() error {
	switch {
	case k.current.Load() == nil:
		return errors.New("the webhooks have no certificate yet: see the log for why")
	case !k.published.Load():
		return errors.New("the API server does not trust the webhooks' certificate yet: see the log for why")
	}
	return nil
}

// look brings everything up to date and returns when to look again.
func (k *Keeper) look(ctx context.Context) time.Duration {
	err := k.keep(ctx)
	switch {
	case errors.Is(err, errTaken):
		return 0 // its work is ours
	case err != nil && ctx.Err() == nil:
		k.failures.Inc()
		if !k.failing {
			k.log.Error("webhook certificate cannot be kept", "err", err)
		}
		k.failing = true
		return retry
	case k.failing:
		k.log.Info("webhook certificate is kept again")
		k.failing = false
	}
	return k.interval
}

// keep is one look: read, decide, write.
func (k *Keeper) keep(ctx context.Context) error {
	data, version, err := k.store.Load(ctx)
	if err != nil {
		return err
	}
	m := parse(data)
	published := bytes.Equal(k.trusted, m.bundle()) && time.Since(k.since) >= settle
	next, why, err := plan(m, k.names, published, time.Now())
	if err != nil {
		return err
	}
	if next != nil {
		if err := k.store.Save(ctx, next, version); err != nil {
			return err
		}
		m = parse(next)
		k.log.Info("webhook certificate renewed", "because", why, "valid_until", m.serving.Leaf.NotAfter)
	}
	k.current.Store(m.serving)
	return k.publish(ctx, m.bundle())
}

func (k *Keeper) publish(ctx context.Context, bundle []byte) error {
	changed, err := k.store.Publish(ctx, bundle)
	if err != nil {
		return err
	}
	if changed || !bytes.Equal(k.trusted, bundle) {
		k.trusted, k.since = bundle, time.Now()
	}
	k.published.Store(true)
	return nil
}
