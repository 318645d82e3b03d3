// SPDX-License-Identifier: Apache-2.0

// Package clusterca is the authority by which the hubs of a cluster, and the servers that replicate their log, know each other.
//
// It is derived from the key that seals the log: each hub has it without another file, and makes its own certificate, which is in no file either. It is
// not the authority that signs nodes: whoever has a certificate of that one could act as a server of the log.
package clusterca

import (
	"crypto/ed25519"
	"crypto/hkdf"
	"crypto/rand"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"math/big"
	"net"
	"strings"
	"sync"
	"time"

	"github.com/edgebus/edgebus/broker/sealed"
)

const (
	// HubName is the DNS name in the certificate of each hub. No server of the log has it.
	HubName = "edgebus-hub"
	// ServerValidity is for how long a server's certificate is valid.
	ServerValidity = 365 * 24 * time.Hour
	// hubValidity is short: the certificate is in the hub's memory alone, and made anew when it is half over.
	hubValidity = 48 * time.Hour
	clockSkew   = time.Hour
)

// Authority signs certificates of hubs and of the log's servers.
type Authority struct {
	cert *x509.Certificate
	key  ed25519.PrivateKey

	mu  sync.Mutex
	own *tls.Certificate // this hub's
}

// New is the authority that belongs to a log's key. It is the same each time, its certificate as well.
func New(k sealed.Key) (*Authority, error) {
	seed, err := hkdf.Key(sha256.New, k[:], nil, "edgebus cluster authority 1", ed25519.SeedSize)
	if err != nil {
		return nil, err
	}
	key := ed25519.NewKeyFromSeed(seed)
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "Edgebus cluster"},
		NotBefore: time.Date(2020, 1, 1, 0, 0, 0, 0, time.UTC), NotAfter: time.Date(9999, 12, 31, 23, 59, 59, 0, time.UTC), // RFC 5280: it has no end
		IsCA: true, BasicConstraintsValid: true, MaxPathLenZero: true, KeyUsage: x509.KeyUsageCertSign,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		return nil, err
	}
	cert, err := x509.ParseCertificate(der)
	return &Authority{cert: cert, key: key}, err
}

// PEM is the authority's certificate.
func (a *Authority) PEM() []byte {
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: a.cert.Raw})
}

// Roots adds the authority to those of a pool; nil: to none.
func (a *Authority) Roots(others *x509.CertPool) *x509.CertPool {
	if others == nil {
		others = x509.NewCertPool()
	}
	others.AddCert(a.cert)
	return others
}

func (a *Authority) sign(names []string, valid time.Duration) ([]byte, ed25519.PrivateKey, error) {
	public, private, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		return nil, nil, err
	}
	serial, err := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 120))
	if err != nil {
		return nil, nil, err
	}
	now := time.Now()
	template := &x509.Certificate{
		SerialNumber: serial, Subject: pkix.Name{CommonName: names[0]}, NotBefore: now.Add(-clockSkew), NotAfter: now.Add(valid),
		KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth}, BasicConstraintsValid: true,
	}
	for _, name := range names {
		if ip := net.ParseIP(name); ip != nil {
			template.IPAddresses = append(template.IPAddresses, ip)
		} else {
			template.DNSNames = append(template.DNSNames, name)
		}
	}
	der, err := x509.CreateCertificate(rand.Reader, template, a.cert, public, a.key)
	return der, private, err
}

// Server makes the certificate of a server of the log and its key, in PEM. Names are DNS names and IP addresses by which hubs and the other servers reach it.
func (a *Authority) Server(names []string, valid time.Duration) (cert, key []byte, err error) {
	if len(names) == 0 {
		return nil, nil, errors.New("a server needs a name")
	}
	der, private, err := a.sign(names, valid)
	if err != nil {
		return nil, nil, err
	}
	leaf, err := x509.ParseCertificate(der)
	if err != nil {
		return nil, nil, err
	}
	if leaf.VerifyHostname(HubName) == nil {
		return nil, nil, fmt.Errorf("%s: a server needs names that aren't %s, which is that of hubs", strings.Join(names, ", "), HubName)
	}
	secret, err := x509.MarshalPKCS8PrivateKey(private)
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: secret}), err
}

// Own is this hub's certificate.
func (a *Authority) Own() (*tls.Certificate, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.own != nil && time.Until(a.own.Leaf.NotAfter) > hubValidity/2 {
		return a.own, nil
	}
	der, private, err := a.sign([]string{HubName}, hubValidity)
	if err != nil {
		return nil, err
	}
	leaf, err := x509.ParseCertificate(der)
	if err == nil {
		a.own = &tls.Certificate{Certificate: [][]byte{der}, PrivateKey: private, Leaf: leaf}
	}
	return a.own, err
}

// Config is for connections between hubs, at both ends. Whoever isn't one has no connection, a server of the log as well.
func (a *Authority) Config() *tls.Config {
	pool := a.Roots(nil)
	return &tls.Config{
		MinVersion: tls.VersionTLS13, RootCAs: pool, ClientCAs: pool, ClientAuth: tls.RequireAndVerifyClientCert, ServerName: HubName,
		GetCertificate:       func(*tls.ClientHelloInfo) (*tls.Certificate, error) { return a.Own() },
		GetClientCertificate: func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return a.Own() },
		VerifyConnection: func(s tls.ConnectionState) error {
			if len(s.PeerCertificates) == 0 || s.PeerCertificates[0].VerifyHostname(HubName) != nil {
				return errors.New("the peer's certificate is not a hub's")
			}
			return nil
		},
	}
}

// Client is for connections to the log's servers: c, with the hub's own certificate where c has none, and the authority beside those that c trusts.
func (a *Authority) Client(c *tls.Config) *tls.Config {
	c = c.Clone()
	if c.RootCAs != nil {
		c.RootCAs = c.RootCAs.Clone()
	} else if system, err := x509.SystemCertPool(); err == nil {
		c.RootCAs = system
	}
	c.RootCAs = a.Roots(c.RootCAs)
	if c.GetClientCertificate == nil {
		c.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return a.Own() }
	}
	return c
}

// WarnServer is how long before a server's certificate ends that is said.
const WarnServer = 30 * 24 * time.Hour
