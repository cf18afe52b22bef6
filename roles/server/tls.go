package server

import (
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"log/slog"
	"os"
	"sync"
	"time"

	"github.com/VictoriaMetrics/metrics"
)

// Keypair serves a certificate from two files and re-reads them when either
// changes, so that a rotation needs no restart. A pair that cannot be read is
// logged once and the last good one stays. Safe for concurrent use.
type Keypair struct {
	certFile, keyFile string
	log               *slog.Logger

	mu      sync.Mutex // guards what follows
	current *tls.Certificate
	read    [2]time.Time // mtimes of the files last looked at
	checked time.Time
	broken  bool
}

// recheck is how often the files are looked at, at most.
const recheck = time.Second

// LoadKeypair reads the pair once; an unreadable one is an error.
func LoadKeypair(certFile, keyFile string, log *slog.Logger, set *metrics.Set) (*Keypair, error) {
	k := &Keypair{certFile: certFile, keyFile: keyFile, log: log}
	k.read = k.mtimes()
	pair, err := load(certFile, keyFile)
	if err != nil {
		return nil, err
	}
	k.current, k.checked = pair, time.Now()
	set.NewGauge("inferencecache_server_tls_expiry_seconds", func() float64 {
		k.mu.Lock()
		defer k.mu.Unlock()
		return time.Until(k.current.Leaf.NotAfter).Seconds()
	})
	return k, nil
}

func load(certFile, keyFile string) (*tls.Certificate, error) {
	pair, err := tls.LoadX509KeyPair(certFile, keyFile)
	if err != nil {
		return nil, fmt.Errorf("load TLS pair %s, %s: %w", certFile, keyFile, err)
	}
	if pair.Leaf == nil {
		if pair.Leaf, err = x509.ParseCertificate(pair.Certificate[0]); err != nil {
			return nil, fmt.Errorf("read certificate %s: %w", certFile, err)
		}
	}
	return &pair, nil
}

// Config returns a server configuration: TLS 1.2 or newer, HTTP/2 and 1.1.
func (k *Keypair) Config() *tls.Config {
	return &tls.Config{
		MinVersion:     tls.VersionTLS12,
		NextProtos:     []string{"h2", "http/1.1"},
		GetCertificate: func(*tls.ClientHelloInfo) (*tls.Certificate, error) { return k.pair(time.Now()), nil },
	}
}

func (k *Keypair) pair(now time.Time) *tls.Certificate {
	k.mu.Lock()
	defer k.mu.Unlock()
	if now.Sub(k.checked) < recheck {
		return k.current
	}
	k.checked = now
	mtimes := k.mtimes()
	if mtimes == k.read && !k.broken {
		return k.current
	}
	k.read = mtimes
	pair, err := load(k.certFile, k.keyFile)
	if err == nil {
		k.current = pair
	}
	if broken := err != nil; broken != k.broken {
		k.broken = broken
		if broken {
			k.log.Error("grpc_tls_reload", "err", err)
		} else {
			k.log.Info("grpc_tls_reload_recovered")
		}
	}
	return k.current
}

func (k *Keypair) mtimes() (t [2]time.Time) {
	for i, name := range []string{k.certFile, k.keyFile} {
		if info, err := os.Stat(name); err == nil {
			t[i] = info.ModTime()
		}
	}
	return t
}
