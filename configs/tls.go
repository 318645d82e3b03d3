// SPDX-License-Identifier: Apache-2.0

package configs

import (
	"bytes"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"os"
	"sync"
)

// TLSListener says where TLS is served, with which certificate.
type TLSListener struct {
	Listen   string `yaml:"listen"`
	Cert     string `yaml:"cert" file:"true"`
	Key      string `yaml:"key" file:"true"`
	ClientCA string `yaml:"clientCA" file:"true"`
	// Own serves with a certificate of the program's own, where none is configured. nil: it has none.
	Own func(clientCA []byte) *tls.Config `yaml:"-"`
}

// Config reads the certificates. A client needs no certificate; if it presents one, ClientCA must have signed it. A renewed
// certificate is used without a restart.
func (t TLSListener) Config() (*tls.Config, error) {
	if t.Cert == "" && t.Own != nil {
		if t.ClientCA == "" {
			return t.Own(nil), nil
		}
		if _, err := readPool(t.ClientCA); err != nil {
			return nil, err
		}
		text, err := os.ReadFile(t.ClientCA)
		return t.Own(text), err
	}
	pair, err := openPair(t.Cert, t.Key)
	if err != nil {
		return nil, err
	}
	c := &tls.Config{MinVersion: tls.VersionTLS12}
	c.GetCertificate = func(*tls.ClientHelloInfo) (*tls.Certificate, error) { return pair.latest(), nil }
	if t.ClientCA != "" {
		if c.ClientCAs, err = readPool(t.ClientCA); err != nil {
			return nil, err
		}
		c.ClientAuth = tls.VerifyClientCertIfGiven
	}
	return c, nil
}

// TLSClient says which servers to trust, and which certificate to present.
type TLSClient struct {
	CA   string `yaml:"ca" file:"true"`
	Cert string `yaml:"cert" file:"true"`
	Key  string `yaml:"key" file:"true"`
}

// Config reads the certificates. A renewed certificate is used without a restart.
func (t TLSClient) Config() (*tls.Config, error) {
	c := &tls.Config{MinVersion: tls.VersionTLS12}
	var err error
	if t.CA != "" {
		if c.RootCAs, err = readPool(t.CA); err != nil {
			return nil, err
		}
	}
	if t.Cert != "" {
		pair, err := openPair(t.Cert, t.Key)
		if err != nil {
			return nil, err
		}
		c.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return pair.latest(), nil }
	}
	return c, nil
}

// Roots reads the certificates of CA anew at each call. While they can't be read, it is those that could be.
func (t TLSClient) Roots() func() *x509.CertPool {
	var mu sync.Mutex
	last := x509.NewCertPool()
	return func() *x509.CertPool {
		mu.Lock()
		defer mu.Unlock()
		if pool, err := readPool(t.CA); err == nil {
			last = pool
		}
		return last
	}
}

// Roots reads the authorities that are trusted for the provider; nil: the system's.
func (o OIDC) Roots() (*x509.CertPool, error) {
	if o.CA == "" {
		return nil, nil
	}
	pool, err := readPool(o.CA)
	if err != nil {
		return nil, fmt.Errorf("auth.oidc.ca: %w", err)
	}
	return pool, nil
}

// certificatePair is a certificate and its key, whose files are read at each handshake, so that a renewed certificate needs no
// notification; reading them is cheap compared to the handshake. While the files can't be read, or don't match, the
// last ones that did are used.
type certificatePair struct {
	cert, key string

	mu          sync.Mutex
	lastRead    [2][]byte
	certificate *tls.Certificate
}

func openPair(cert, key string) (*certificatePair, error) {
	p := &certificatePair{cert: cert, key: key}
	if err := p.refresh(); err != nil {
		return nil, fmt.Errorf("certificate %s: %w", cert, err)
	}
	return p, nil
}

func (p *certificatePair) refresh() error {
	cert, err := os.ReadFile(p.cert)
	if err != nil {
		return err
	}
	key, err := os.ReadFile(p.key)
	if err != nil {
		return err
	}
	if p.certificate != nil && bytes.Equal(cert, p.lastRead[0]) && bytes.Equal(key, p.lastRead[1]) {
		return nil
	}
	together, err := tls.X509KeyPair(cert, key)
	if err != nil {
		return err
	}
	p.lastRead, p.certificate = [2][]byte{cert, key}, &together
	return nil
}

func (p *certificatePair) latest() *tls.Certificate {
	p.mu.Lock()
	defer p.mu.Unlock()
	_ = p.refresh() // the old ones stay; /links and edgebus doctor say when they expire
	return p.certificate
}

func readPool(file string) (*x509.CertPool, error) {
	text, err := os.ReadFile(file)
	if err != nil {
		return nil, fmt.Errorf("certificates: %w", err)
	}
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(text) {
		return nil, fmt.Errorf("certificates: %s holds none in PEM", file)
	}
	return pool, nil
}
