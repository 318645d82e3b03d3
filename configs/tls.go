package configs

import (
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"os"
)

// TLSListener says where something is served over TLS, and as whom.
type TLSListener struct {
	Listen   string `yaml:"listen"`
	Cert     string `yaml:"cert"`
	Key      string `yaml:"key"`
	ClientCA string `yaml:"clientCA"`
}

// Config reads the certificates. Clients need none of their own: those that show
// one must have it signed by ClientCA.
func (t TLSListener) Config() (*tls.Config, error) {
	pair, err := tls.LoadX509KeyPair(t.Cert, t.Key)
	if err != nil {
		return nil, fmt.Errorf("certificate %s: %w", t.Cert, err)
	}
	c := &tls.Config{MinVersion: tls.VersionTLS12, Certificates: []tls.Certificate{pair}}
	if t.ClientCA != "" {
		if c.ClientCAs, err = readPool(t.ClientCA); err != nil {
			return nil, err
		}
		c.ClientAuth = tls.VerifyClientCertIfGiven
	}
	return c, nil
}

// TLSClient says whom to trust, and who to be.
type TLSClient struct {
	CA   string `yaml:"ca"`
	Cert string `yaml:"cert"`
	Key  string `yaml:"key"`
}

// Config reads the certificates.
func (t TLSClient) Config() (*tls.Config, error) {
	c := &tls.Config{MinVersion: tls.VersionTLS12}
	var err error
	if t.CA != "" {
		if c.RootCAs, err = readPool(t.CA); err != nil {
			return nil, err
		}
	}
	if t.Cert != "" {
		pair, err := tls.LoadX509KeyPair(t.Cert, t.Key)
		if err != nil {
			return nil, fmt.Errorf("certificate %s: %w", t.Cert, err)
		}
		c.Certificates = []tls.Certificate{pair}
	}
	return c, nil
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
