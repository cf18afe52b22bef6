package certs

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"math/big"
	"slices"
	"time"
)

// Keys of the Secret. tls.crt and tls.key are what others expect there too.
const (
	keyBundle      = "ca.crt" // every authority that is trusted; the first one signs
	keySigner      = "ca.key"
	keyServing     = "tls.crt"
	keyServingPriv = "tls.key"
)

const (
	authorityLife = 2 * 365 * 24 * time.Hour
	servingLife   = 90 * 24 * time.Hour
	// An authority is replaced while whatever it signs still ends before it.
	renewAuthority = 180 * 24 * time.Hour
	renewServing   = 30 * 24 * time.Hour
	// skew is how far the API server's clock may be behind.
	skew = time.Hour
	// maxAuthorities bounds the bundle whatever happens to the Secret.
	maxAuthorities = 3
)

// material is what the Secret holds, as far as it can be used.
type material struct {
	authorities []*x509.Certificate // trusted; the first one signs
	signer      *ecdsa.PrivateKey   // nil: none that fits the first authority
	serving     *tls.Certificate    // nil: none
}

// parse reads the data of the Secret; what is missing or broken is left out.
func parse(data map[string][]byte) (m material) {
	for rest := data[keyBundle]; ; {
		var block *pem.Block
		if block, rest = pem.Decode(rest); block == nil {
			break
		}
		if c, err := x509.ParseCertificate(block.Bytes); err == nil && c.IsCA {
			m.authorities = append(m.authorities, c)
		}
	}
	if block, _ := pem.Decode(data[keySigner]); block != nil && len(m.authorities) > 0 {
		key, err := x509.ParseECPrivateKey(block.Bytes)
		if err == nil && key.PublicKey.Equal(m.authorities[0].PublicKey) {
			m.signer = key
		}
	}
	// X509KeyPair checks that the two belong together, and sets Leaf.
	if pair, err := tls.X509KeyPair(data[keyServing], data[keyServingPriv]); err == nil && pair.Leaf != nil {
		m.serving = &pair
	}
	return m
}

// plan returns the data that should replace what m was parsed from, and why;
// nil: it is good as it is. published says that the API server has been told
// to trust every authority of m.
func plan(m material, names []string, published bool, now time.Time) (data map[string][]byte, why string, err error) {
	switch {
	case m.signer == nil:
		why = "there was no usable authority"
	case now.After(m.authorities[0].NotAfter.Add(-renewAuthority)), now.Before(m.authorities[0].NotBefore):
		why = "the authority ends soon"
	}
	if why != "" {
		if err := m.addAuthority(now); err != nil {
			return nil, "", err
		}
		if m.serves(names, now) {
			data, err := m.encode() // signed by the new authority once that is trusted
			return data, why, err
		}
	}
	switch {
	case why != "":
	case !m.serves(names, now):
		why = "the serving certificate is missing, ends soon, or is for another name"
	case published && m.serving.Leaf.CheckSignatureFrom(m.authorities[0]) != nil:
		why = "the newest authority is trusted now"
	default:
		return nil, "", nil
	}
	if err := m.sign(names, now); err != nil {
		return nil, "", err
	}
	data, err = m.encode()
	return data, why, err
}

// serves reports whether the serving certificate is good for a while.
func (m *material) serves(names []string, now time.Time) bool {
	if m.serving == nil || now.After(m.serving.Leaf.NotAfter.Add(-renewServing)) {
		return false
	}
	roots := x509.NewCertPool()
	for _, a := range m.authorities {
		roots.AddCert(a)
	}
	for _, name := range names {
		if _, err := m.serving.Leaf.Verify(x509.VerifyOptions{Roots: roots, DNSName: name, CurrentTime: now}); err != nil {
			return false
		}
	}
	return true
}

// addAuthority puts a new authority before those that still live.
func (m *material) addAuthority(now time.Time) error {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return fmt.Errorf("make the authority's key: %w", err)
	}
	template, err := newTemplate("inference-cache webhook authority", now, authorityLife)
	if err != nil {
		return err
	}
	template.IsCA, template.BasicConstraintsValid, template.MaxPathLenZero = true, true, true
	template.KeyUsage = x509.KeyUsageCertSign
	encoded, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		return fmt.Errorf("sign the authority: %w", err)
	}
	certificate, err := x509.ParseCertificate(encoded)
	if err != nil {
		return fmt.Errorf("read back the authority: %w", err)
	}
	old := slices.DeleteFunc(slices.Clone(m.authorities), func(a *x509.Certificate) bool { return now.After(a.NotAfter) })
	m.authorities = append([]*x509.Certificate{certificate}, old...)
	m.authorities = m.authorities[:min(len(m.authorities), maxAuthorities)]
	m.signer = key
	return nil
}

// sign makes a serving certificate by the first authority.
func (m *material) sign(names []string, now time.Time) error {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return fmt.Errorf("make the serving key: %w", err)
	}
	template, err := newTemplate(names[0], now, servingLife)
	if err != nil {
		return err
	}
	template.DNSNames = names
	template.KeyUsage = x509.KeyUsageDigitalSignature
	template.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}
	encoded, err := x509.CreateCertificate(rand.Reader, template, m.authorities[0], key.Public(), m.signer)
	if err != nil {
		return fmt.Errorf("sign the serving certificate: %w", err)
	}
	leaf, err := x509.ParseCertificate(encoded)
	if err != nil {
		return fmt.Errorf("read back the serving certificate: %w", err)
	}
	m.serving = &tls.Certificate{Certificate: [][]byte{encoded}, PrivateKey: key, Leaf: leaf}
	return nil
}

// newTemplate is a certificate of name that is valid from now on. A common
// name has room for 64 characters; API servers read only the DNS names.
func newTemplate(name string, now time.Time, life time.Duration) (*x509.Certificate, error) {
	serial, err := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 120))
	if err != nil {
		return nil, fmt.Errorf("draw a serial number: %w", err)
	}
	return &x509.Certificate{
		SerialNumber: serial, Subject: pkix.Name{CommonName: name[:min(len(name), 64)]},
		NotBefore: now.Add(-skew), NotAfter: now.Add(life),
	}, nil
}

// encode is m as the data of the Secret.
func (m *material) encode() (map[string][]byte, error) {
	signer, err := x509.MarshalECPrivateKey(m.signer)
	if err != nil {
		return nil, fmt.Errorf("encode the authority's key: %w", err)
	}
	private, err := x509.MarshalPKCS8PrivateKey(m.serving.PrivateKey)
	if err != nil {
		return nil, fmt.Errorf("encode the serving key: %w", err)
	}
	return map[string][]byte{
		keyBundle:      m.bundle(),
		keySigner:      pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: signer}),
		keyServing:     pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: m.serving.Certificate[0]}),
		keyServingPriv: pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: private}),
	}, nil
}

// bundle is whom the API server should trust.
func (m *material) bundle() []byte {
	var b bytes.Buffer
	for _, a := range m.authorities {
		b.Write(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: a.Raw}))
	}
	return b.Bytes()
}
