// SPDX-License-Identifier: Apache-2.0

package configs

import (
	"crypto/tls"
	"net"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/edgebus/edgebus/test/selfsigned"
)

// issueCertificate writes a certificate that signs itself, and its key.
func issueCertificate(t *testing.T, cert, key, name string) {
	text, secret := selfsigned.NewPEM(t, name, "127.0.0.1")
	require.NoError(t, os.WriteFile(key, secret, 0o600))
	require.NoError(t, os.WriteFile(cert, text, 0o600))
}

// A renewed certificate is used in the next handshake; one half of it, a damaged one or none at all changes nothing.
func TestARenewedCertificateIsFound(t *testing.T) {
	dir := t.TempDir()
	cert, key := filepath.Join(dir, "c.pem"), filepath.Join(dir, "c.key")
	issueCertificate(t, cert, key, "first")
	server, err := TLSListener{Cert: cert, Key: key, ClientCA: cert}.Config()
	require.NoError(t, err)
	client, err := TLSClient{Cert: cert, Key: key}.Config()
	require.NoError(t, err)
	server.ClientAuth = tls.RequireAnyClientCert // whoever signed it: names are what is looked at
	client.InsecureSkipVerify = true             // the same
	shown := func() (names [2]string) {
		t.Helper()
		here, there := net.Pipe()
		defer func() { _, _ = here.Close(), there.Close() }()
		s, c := tls.Server(here, server), tls.Client(there, client)
		ended := make(chan error, 1)
		go func() { ended <- s.Handshake() }()
		require.NoError(t, c.Handshake())
		require.NoError(t, <-ended)
		return [2]string{c.ConnectionState().PeerCertificates[0].Subject.CommonName, s.ConnectionState().PeerCertificates[0].Subject.CommonName}
	}
	require.Equal(t, [2]string{"first", "first"}, shown())
	other := filepath.Join(dir, "other.key")
	issueCertificate(t, cert, other, "second")
	require.Equal(t, [2]string{"first", "first"}, shown(), "its key is missing")
	require.NoError(t, os.Rename(other, key))
	require.Equal(t, [2]string{"second", "second"}, shown())
	require.NoError(t, os.WriteFile(cert, []byte("damaged"), 0o600))
	require.Equal(t, [2]string{"second", "second"}, shown())
	require.NoError(t, os.Remove(cert))
	require.Equal(t, [2]string{"second", "second"}, shown())
	issueCertificate(t, cert, key, "third")
	require.Equal(t, [2]string{"third", "third"}, shown())
	_, err = TLSClient{Cert: cert, Key: other}.Config()
	require.ErrorContains(t, err, "certificate "+cert)
}
