package server

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"log/slog"
	"math/big"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/VictoriaMetrics/metrics"
)

func TestAuthMustBeSaidOneWayOrTheOther(t *testing.T) {
	t.Parallel()
	const sa = "system:serviceaccount:ns:name"
	for name, v := range map[string]struct {
		change func(*Config)
		ok     bool
	}{
		"neither":             {func(c *Config) { c.InsecureDisableAuth = false }, false},
		"both":                {func(c *Config) { c.AllowedControllerSA = sa }, false},
		"an account":          {func(c *Config) { c.InsecureDisableAuth = false; c.AllowedControllerSA = sa }, true},
		"open":                {func(c *Config) {}, true},
		"open, odd audiences": {func(c *Config) { c.PolicyAudience = "" }, true},
		"spaces":              {func(c *Config) { c.InsecureDisableAuth = false; c.AllowedControllerSA = " " + sa }, false},
		"no audience":         {func(c *Config) { c.InsecureDisableAuth = false; c.AllowedControllerSA = sa; c.PolicyAudience = "" }, false},
		"blank audience":      {func(c *Config) { c.InsecureDisableAuth = false; c.AllowedControllerSA = sa; c.ControllerAudience = " " }, false},
	} {
		c := defaults(t)
		v.change(&c)
		if err := c.ValidateAuth(); (err == nil) != v.ok {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestValidateNamesEveryProblem(t *testing.T) {
	t.Parallel()
	c := defaults(t)
	c.EngineBlockSize, c.MemoryBytes, c.TLSCertFile, c.Policy.TTL = 0, -1, "x", 0
	err := c.Validate()
	for _, flag := range []string{"--engine-block-size", "--index-memory", "--tls-key-file", "--eviction-ttl"} {
		if err == nil || !strings.Contains(err.Error(), flag) {
			t.Errorf("%s is not named in: %v", flag, err)
		}
	}
}

// writePair writes a new self-signed pair and returns its serial number.
func writePair(t *testing.T, dir string, serial int64) (certFile, keyFile string) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(serial), NotAfter: time.Now().Add(time.Hour), DNSNames: []string{"localhost"}}
	cert, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	if err != nil {
		t.Fatal(err)
	}
	der, err := x509.MarshalECPrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	certFile, keyFile = filepath.Join(dir, "tls.crt"), filepath.Join(dir, "tls.key")
	write(t, certFile, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: cert}), serial)
	write(t, keyFile, pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: der}), serial)
	return certFile, keyFile
}

// write sets a modification time of its own, so that each write is a change.
func write(t *testing.T, file string, content []byte, version int64) {
	t.Helper()
	if err := os.WriteFile(file, content, 0o600); err != nil {
		t.Fatal(err)
	}
	when := time.Unix(1_700_000_000+version, 0)
	if err := os.Chtimes(file, when, when); err != nil {
		t.Fatal(err)
	}
}

func TestKeypairIsReadAgainWhenItChanges(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	certFile, keyFile := writePair(t, dir, 1)
	synctest.Test(t, func(t *testing.T) {
		var logged strings.Builder
		k, err := LoadKeypair(certFile, keyFile, slog.New(slog.NewTextHandler(&logged, nil)), metrics.NewSet())
		if err != nil {
			t.Fatal(err)
		}
		serial := func() int64 {
			time.Sleep(2 * recheck) // the bubble's clock
			pair, err := k.Config().GetCertificate(&tls.ClientHelloInfo{})
			if err != nil {
				t.Fatal(err)
			}
			return pair.Leaf.SerialNumber.Int64()
		}
		if got := serial(); got != 1 {
			t.Errorf("serving %d", got)
		}
		write(t, keyFile, []byte("garbage"), 2)
		for range 5 {
			if got := serial(); got != 1 {
				t.Errorf("with a broken key, serving %d", got)
			}
		}
		if n := strings.Count(logged.String(), "grpc_tls_reload"); n != 1 {
			t.Errorf("logged %d times: %s", n, logged.String())
		}
		writePair(t, dir, 3)
		if got := serial(); got != 3 {
			t.Errorf("after the rotation, serving %d", got)
		}
	})
	if _, err := LoadKeypair(certFile, filepath.Join(dir, "none"), slog.New(slog.DiscardHandler), metrics.NewSet()); err == nil {
		t.Error("an unreadable pair was accepted at start")
	}
}
