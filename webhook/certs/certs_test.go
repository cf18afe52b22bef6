package certs

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"log/slog"
	"maps"
	"net"
	"slices"
	"strconv"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/VictoriaMetrics/metrics"
)

var names = Options{Namespace: "ns", Service: "webhook-service"}.Names()

// store is a Store in memory. An API server, which trusts what was published
// a while ago, looks in through shake.
type store struct {
	mu        sync.Mutex
	data      map[string][]byte
	version   int
	bundle    []byte
	published time.Time
	trusted   []byte // the bundle before, in force until the new one is known
	saves     int
	broken    error
}

func (s *store) Load(context.Context) (map[string][]byte, string, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return maps.Clone(s.data), strconv.Itoa(s.version), s.broken
}

func (s *store) Save(_ context.Context, data map[string][]byte, version string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if version != strconv.Itoa(s.version) {
		return errTaken
	}
	s.data, s.version, s.saves = data, s.version+1, s.saves+1
	return nil
}

func (s *store) Publish(_ context.Context, bundle []byte) (bool, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if slices.Equal(s.bundle, bundle) {
		return false, nil
	}
	s.trusted, s.bundle, s.published = s.bundle, bundle, time.Now()
	return true, nil
}

// now is what the store holds, and how often that was replaced.
func (s *store) now() (material, int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return parse(s.data), s.saves
}

// shake does what an API server does before it asks a webhook: it needs
// seconds to learn of a new bundle.
func (s *store) shake(t *testing.T, k *Keeper) {
	t.Helper()
	s.mu.Lock()
	trusted := s.bundle
	if s.trusted != nil && time.Since(s.published) < settle/2 {
		trusted = s.trusted
	}
	s.mu.Unlock()
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(trusted)
	here, there := net.Pipe()
	server := tls.Server(there, &tls.Config{GetCertificate: k.GetCertificate})
	done := make(chan error, 1)
	go func() { done <- server.Handshake() }()
	client := tls.Client(here, &tls.Config{RootCAs: roots, ServerName: names[0], Time: time.Now})
	if err := client.Handshake(); err != nil {
		t.Fatalf("at %s the API server refuses the certificate: %v", time.Now(), err)
	}
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	_, _ = here.Close(), there.Close()
}

func start(t *testing.T, ctx context.Context, s Store, every time.Duration) *Keeper {
	t.Helper()
	k := New(s, names, slog.New(slog.DiscardHandler), metrics.NewSet())
	k.interval = every
	var wait sync.WaitGroup
	wait.Go(func() {
		if err := k.Start(ctx); err != nil {
			t.Error(err)
		}
	})
	t.Cleanup(wait.Wait)
	return k
}

func TestReplicasAgreeOnOneCertificate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		s := &store{}
		a, b := start(t, ctx, s, interval), start(t, ctx, s, interval)
		synctest.Wait()
		for _, k := range []*Keeper{a, b} {
			if err := k.Ready(); err != nil {
				t.Error(err)
			}
			s.shake(t, k)
		}
		if _, saves := s.now(); saves != 1 || !a.current.Load().Leaf.Equal(b.current.Load().Leaf) {
			t.Errorf("%d saves; certificates %s and %s", saves, a.current.Load().Leaf.SerialNumber, b.current.Load().Leaf.SerialNumber)
		}
		time.Sleep(5 * time.Minute)
		if _, saves := s.now(); saves != 1 {
			t.Errorf("%d saves in five quiet minutes, want the first", saves)
		}
		cancel()
	})
}

// TestAPIServerTrustsEveryCertificateForThreeYears goes through renewals of
// certificate and authority.
func TestAPIServerTrustsEveryCertificateForThreeYears(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		const every = 10 * 24 * time.Hour // three years of minutes take too long
		s := &store{}
		a, b := start(t, ctx, s, every), start(t, ctx, s, every)
		synctest.Wait()
		serials, authorities := map[string]bool{}, map[string]bool{}
		for end := time.Now().Add(3 * 365 * 24 * time.Hour); time.Now().Before(end); time.Sleep(every + 7*time.Second) {
			s.shake(t, a)
			s.shake(t, b)
			m, _ := s.now()
			serials[m.serving.Leaf.SerialNumber.String()] = true
			authorities[m.authorities[0].SerialNumber.String()] = true
			if left := time.Until(m.serving.Leaf.NotAfter); left < renewServing-2*every {
				t.Fatalf("%s left of the serving certificate", left)
			}
		}
		if len(authorities) != 2 {
			t.Errorf("%d authorities in three years, want 2", len(authorities))
		}
		if n := len(serials); n < 13 || n > 21 {
			t.Errorf("%d certificates in three years, want one in two months", n)
		}
		cancel()
	})
}

func TestNewAuthoritySignsOnlyWhenTrusted(t *testing.T) {
	now := time.Now()
	data, _, err := plan(material{}, names, false, now)
	if err != nil {
		t.Fatal(err)
	}
	later := now.Add(authorityLife - renewAuthority + time.Hour)
	// Its serving certificate was renewed meanwhile.
	m := parse(data)
	if err := m.sign(names, later.Add(-time.Hour)); err != nil {
		t.Fatal(err)
	}
	if data, _, err = plan(m, names, true, later); err != nil || data == nil {
		t.Fatalf("the authority stays: %v", err)
	}
	next := parse(data)
	if len(next.authorities) != 2 || !next.authorities[1].Equal(m.authorities[0]) {
		t.Fatalf("trusted are %d, want the new one and the old one", len(next.authorities))
	}
	if !next.serving.Leaf.Equal(m.serving.Leaf) {
		t.Error("it signed before anybody could trust it")
	}
	if again, why, err := plan(next, names, false, later); again != nil || err != nil {
		t.Errorf("not yet trusted: changed because %s, error %v", why, err)
	}
	data, _, err = plan(next, names, true, later)
	if err != nil || data == nil {
		t.Fatalf("trusted, and it does not sign: %v", err)
	}
	if err := parse(data).serving.Leaf.CheckSignatureFrom(next.authorities[0]); err != nil {
		t.Error(err)
	}
}

func TestBrokenSecretIsReplaced(t *testing.T) {
	t.Parallel()
	now := time.Now()
	good, _, err := plan(material{}, names, false, now)
	if err != nil {
		t.Fatal(err)
	}
	other, _, err := plan(material{}, names, false, now)
	if err != nil {
		t.Fatal(err)
	}
	elsewhere, _, err := plan(material{}, []string{"webhook-service.elsewhere.svc"}, false, now)
	if err != nil {
		t.Fatal(err)
	}
	if data, why, err := plan(parse(good), names, true, now); data != nil || err != nil {
		t.Errorf("nothing is wrong, and yet: %s, %v", why, err)
	}
	with := func(key string, value []byte) map[string][]byte {
		data := maps.Clone(good)
		data[key] = value
		return data
	}
	for name, data := range map[string]map[string][]byte{
		"no data":                   nil,
		"no authority":              with(keyBundle, nil),
		"text for an authority":     with(keyBundle, []byte("authority")),
		"another authority":         with(keyBundle, other[keyBundle]),
		"a certificate of no CA":    with(keyBundle, good[keyServing]),
		"no key of the authority":   with(keySigner, nil),
		"another authority's key":   with(keySigner, other[keySigner]),
		"no serving certificate":    with(keyServing, nil),
		"text for a certificate":    with(keyServing, []byte("certificate")),
		"another certificate's key": with(keyServingPriv, other[keyServingPriv]),
		"another Service's":         elsewhere,
	} {
		next, why, err := plan(parse(data), names, true, now)
		if err != nil || next == nil || why == "" {
			t.Errorf("%s: kept, %v", name, err)
			continue
		}
		if m := parse(next); m.signer == nil || !m.serves(names, now) {
			t.Errorf("%s: made what does not serve", name)
		}
	}
}

func TestFailureIsNotReadyAndMends(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		s := &store{broken: errors.New("no such Secret")}
		k := start(t, ctx, s, interval)
		time.Sleep(time.Minute)
		if k.Ready() == nil {
			t.Error("ready without a certificate")
		}
		if _, err := k.GetCertificate(nil); err == nil {
			t.Error("serves without a certificate")
		}
		if n := k.failures.Get(); n < 10 {
			t.Errorf("%d failures in a minute", n)
		}
		s.mu.Lock()
		s.broken = nil
		s.mu.Unlock()
		time.Sleep(retry)
		synctest.Wait()
		if err := k.Ready(); err != nil {
			t.Error(err)
		}
		cancel()
	})
}
