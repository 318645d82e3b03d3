// SPDX-License-Identifier: Apache-2.0

package discovery

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"

	"github.com/edgebus/edgebus/configs"
	"github.com/edgebus/edgebus/edge/discovery/wire"
)

// newAuthority signs certificates for 127.0.0.1.
func newAuthority(t *testing.T, dir string) (issue func(name string) configs.TLSClient) {
	t.Helper()
	caKey, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	require.NoError(t, err)
	ca := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "plant " + filepath.Base(dir)}, NotAfter: time.Now().Add(time.Hour), IsCA: true, BasicConstraintsValid: true,
		KeyUsage: x509.KeyUsageCertSign,
	}
	file := func(name, kind string, der []byte) string {
		path := filepath.Join(dir, name)
		require.NoError(t, os.WriteFile(path, pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}), 0o600))
		return path
	}
	der, err := x509.CreateCertificate(rand.Reader, ca, ca, &caKey.PublicKey, caKey)
	require.NoError(t, err)
	pool := file("ca.crt", "CERTIFICATE", der)
	return func(name string) configs.TLSClient {
		key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
		require.NoError(t, err)
		der, err := x509.CreateCertificate(rand.Reader, &x509.Certificate{
			SerialNumber: big.NewInt(2), Subject: pkix.Name{CommonName: name}, NotAfter: time.Now().Add(time.Hour), IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
			ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth, x509.ExtKeyUsageServerAuth},
		}, ca, &key.PublicKey, caKey)
		require.NoError(t, err)
		private, err := x509.MarshalECPrivateKey(key)
		require.NoError(t, err)
		return configs.TLSClient{CA: pool, Cert: file(name+".crt", "CERTIFICATE", der), Key: file(name+".key", "EC PRIVATE KEY", private)}
	}
}

func TestHandlersOverTCPShowCertificates(t *testing.T) {
	issue, otherIssue := newAuthority(t, t.TempDir()), newAuthority(t, t.TempDir())
	probe, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	server := probe.Addr().String()
	require.NoError(t, probe.Close())
	r := newTestDiscovery(t, func(o *Options) {
		o.Config.TCP = configs.DiscoveryTCP{Listen: server, TLS: issue("edgediscovery")}
	})
	r.set("discovery/cams", discoveryRequest("onvif", "1", ""))

	// handler serves over TCP with a certificate, and registers with it.
	handler := func(tls configs.TLSClient, as wire.Registration) error {
		serving, dialling, err := wire.MutualTLS(tls)
		require.NoError(t, err)
		l, err := net.Listen("tcp", "127.0.0.1:0")
		require.NoError(t, err)
		r.newFake("", "a").serve(l, grpc.Creds(serving))
		if as.Endpoint == "" {
			as.Endpoint = l.Addr().String()
		}
		return registerAt(t, server, dialling, as)
	}
	require.Error(t, handler(otherIssue("stranger"), wire.Registration{Contract: wire.ContractV0, Name: "onvif", Network: true}))
	require.Error(t, registerAt(t, server, nil, wire.Registration{Contract: wire.ContractV0, Name: "onvif", Network: true, Endpoint: "127.0.0.1:1"}))
	require.ErrorContains(t, handler(issue("socket"), wire.Registration{Contract: wire.ContractV0, Name: "onvif", Endpoint: "/x.sock"}), "has a network address")
	require.Empty(t, r.below("discovery/cams/"))
	require.NoError(t, handler(issue("onvif"), wire.Registration{Contract: wire.ContractV0, Name: "onvif", Network: true}))
	r.awaitFound("cams", "a")
}

func registerAt(t *testing.T, server string, creds credentials.TransportCredentials, as wire.Registration) error {
	conn, err := wire.Dial(server, creds)
	require.NoError(t, err)
	defer func() { _ = conn.Close() }()
	return wire.Register(t.Context(), conn, as)
}
