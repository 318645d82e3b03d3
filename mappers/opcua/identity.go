// SPDX-License-Identifier: Apache-2.0

package opcua

import (
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"io/fs"
	"math/big"
	"net/url"
	"os"
	"path/filepath"
	"time"

	"github.com/edgebus/edgebus/mappers/opcua/wire"
)

const (
	certFile = "mapper-opcua.crt"
	keyFile  = "mapper-opcua.key"
	// certLife is long, because each server's people have to trust a new certificate by hand.
	certLife = 20 * 365 * 24 * time.Hour
)

// loadIdentity reads this mapper's key and certificate, which are made at the first time.
func loadIdentity(dir string) (wire.Identity, error) {
	if dir == "" {
		return wire.Identity{}, errors.New("without a directory for it, this mapper has no certificate: set driver.dataDir")
	}
	certPEM, err := os.ReadFile(filepath.Join(dir, certFile))
	if errors.Is(err, fs.ErrNotExist) {
		if err := makeIdentity(dir); err != nil {
			return wire.Identity{}, fmt.Errorf("make this mapper's certificate: %w", err)
		}
		certPEM, err = os.ReadFile(filepath.Join(dir, certFile))
	}
	if err != nil {
		return wire.Identity{}, err
	}
	keyPEM, err := os.ReadFile(filepath.Join(dir, keyFile))
	if err != nil {
		return wire.Identity{}, err
	}
	certBlock, _ := pem.Decode(certPEM)
	keyBlock, _ := pem.Decode(keyPEM)
	if certBlock == nil || keyBlock == nil {
		return wire.Identity{}, fmt.Errorf("%s or %s in %s is not PEM", certFile, keyFile, dir)
	}
	cert, err := x509.ParseCertificate(certBlock.Bytes)
	if err != nil {
		return wire.Identity{}, fmt.Errorf("%s: %w", certFile, err)
	}
	key, err := x509.ParsePKCS8PrivateKey(keyBlock.Bytes)
	if err != nil {
		return wire.Identity{}, fmt.Errorf("%s: %w", keyFile, err)
	}
	rsaKey, ok := key.(*rsa.PrivateKey)
	if !ok || !rsaKey.PublicKey.Equal(cert.PublicKey) {
		return wire.Identity{}, fmt.Errorf("%s is not the RSA key of %s", keyFile, certFile)
	}
	id := wire.Identity{Key: rsaKey, Cert: cert.Raw}
	if len(cert.URIs) > 0 {
		id.URI = cert.URIs[0].String()
	}
	return id, nil
}

// makeIdentity makes a certificate that signs itself, as OPC UA's applications have them.
func makeIdentity(dir string) error {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	key, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		return err
	}
	host, err := os.Hostname()
	if err != nil {
		return err
	}
	serial, err := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 127))
	if err != nil {
		return err
	}
	now := time.Now().Add(-24 * time.Hour) // servers' clocks differ
	template := &x509.Certificate{
		SerialNumber: serial, Subject: pkix.Name{CommonName: "mapper-opcua on " + host, Organization: []string{"Edgebus"}},
		NotBefore: now, NotAfter: now.Add(certLife), BasicConstraintsValid: true,
		KeyUsage:    x509.KeyUsageDigitalSignature | x509.KeyUsageKeyEncipherment | x509.KeyUsageDataEncipherment | x509.KeyUsageContentCommitment | x509.KeyUsageCertSign,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth, x509.ExtKeyUsageServerAuth},
		DNSNames:    []string{host}, URIs: []*url.URL{{Scheme: "urn", Opaque: host + ":edgebus:mapper-opcua"}},
	}
	cert, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	if err != nil {
		return err
	}
	der, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(dir, keyFile), pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der}), 0o600); err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(dir, certFile), pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: cert}), 0o644) //nolint:gosec // G306: it is public
}
