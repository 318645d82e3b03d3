// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"io"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/eclipse/paho.golang/packets"
	"github.com/rs/zerolog"
	"github.com/stretchr/testify/require"

	"github.com/edgebus/edgebus/broker/daemon"
	"github.com/edgebus/edgebus/configs"
	"github.com/edgebus/edgebus/edge"
	"github.com/edgebus/edgebus/topics/resource"
)

// testAuthority is an authority, or somebody who would like to be one.
type testAuthority struct {
	t    *testing.T
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
}

func newPKI(t *testing.T, name string) *testAuthority {
	t.Helper()
	p := &testAuthority{t: t}
	cert, key := p.make(&x509.Certificate{
		Subject: pkix.Name{CommonName: name}, IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign,
	})
	p.cert, p.key = cert, key
	return p
}

func (p *testAuthority) make(template *x509.Certificate) (*x509.Certificate, *ecdsa.PrivateKey) {
	p.t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	require.NoError(p.t, err)
	template.SerialNumber, template.NotBefore, template.NotAfter = big.NewInt(time.Now().UnixNano()), time.Now().Add(-time.Hour), time.Now().Add(time.Hour)
	issuer, signer := p.cert, p.key
	if issuer == nil {
		issuer, signer = template, key
	}
	der, err := x509.CreateCertificate(rand.Reader, template, issuer, key.Public(), signer)
	require.NoError(p.t, err)
	cert, err := x509.ParseCertificate(der)
	require.NoError(p.t, err)
	return cert, key
}

// server is a certificate for a server that calls itself so.
func (p *testAuthority) server(name string) tls.Certificate {
	template := &x509.Certificate{ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}, DNSNames: []string{name}}
	if ip := net.ParseIP(name); ip != nil {
		template.DNSNames, template.IPAddresses = nil, []net.IP{ip}
	}
	cert, key := p.make(template)
	return tls.Certificate{Certificate: [][]byte{cert.Raw}, PrivateKey: key}
}

func (p *testAuthority) notice(node string, cert *x509.Certificate) string {
	text, err := resource.Decommissioning{Node: node, Certificate: resource.Fingerprint(cert.Raw)}.Sign(p.key)
	require.NoError(p.t, err)
	return text
}

// Who is on the path between a node and its hub can cut the link, and nothing else: the node keeps its identity whatever it is told,
// unless the authority has signed that this node was decommissioned, with this certificate.
func TestNobodyOnThePathEndsAnIdentity(t *testing.T) {
	t.Parallel()
	const words = "this node was decommissioned"
	authority, stranger := newPKI(t, "authority"), newPKI(t, words)
	own, key := authority.make(&x509.Certificate{Subject: pkix.Name{CommonName: "n1"}, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}})
	older, _ := authority.make(&x509.Certificate{Subject: pkix.Name{CommonName: "n1"}})
	for name, c := range map[string]struct {
		server tls.Certificate
		notice string
		ends   bool
	}{
		"a name in a certificate":             {server: stranger.server(words)},
		"a stranger's own word":               {server: stranger.server("127.0.0.1"), notice: authority.notice("n1", own)},
		"a reason":                            {server: authority.server("127.0.0.1")},
		"a notice that nobody signed":         {server: authority.server("127.0.0.1"), notice: words},
		"a notice that a stranger signed":     {server: authority.server("127.0.0.1"), notice: stranger.notice("n1", own)},
		"a notice for another node":           {server: authority.server("127.0.0.1"), notice: authority.notice("n2", own)},
		"a notice for an earlier certificate": {server: authority.server("127.0.0.1"), notice: authority.notice("n1", older)},
		"the authority's notice":              {server: authority.server("127.0.0.1"), notice: authority.notice("n1", own), ends: true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			identity := filepath.Join(dir, "identity", "a")
			require.NoError(t, os.MkdirAll(identity, 0o700))
			der, err := x509.MarshalPKCS8PrivateKey(key)
			require.NoError(t, err)
			roots, pair := filepath.Join(identity, "ca.pem"), filepath.Join(identity, "node.pem")
			require.NoError(t, os.WriteFile(roots, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: authority.cert.Raw}), 0o600))
			require.NoError(t, os.WriteFile(pair, append(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: own.Raw}),
				pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der})...), 0o600))
			at, tried := newRefusingHub(t, c.server, words, c.notice)
			cfg, _, err := configs.Parse[configs.Core]("edgecore", "dev", []string{
				"--node-name", "n1", "--data-dir", dir, "--mqtt-listen", "127.0.0.1:0", "--mqtt-socket", "", "--http-listen", "",
				"--link-server", "mqtts://" + at, "--link-tls-ca", roots, "--link-tls-cert", pair, "--link-tls-key", pair,
				"--link-retry-backoff-min", "10ms", "--link-retry-backoff-max", "20ms",
			}, io.Discard)
			require.NoError(t, err)
			ctx, cancel := context.WithCancel(t.Context())
			ended := make(chan error, 1)
			go func() { ended <- edge.Run(ctx, edge.Options{Config: cfg, Version: "test", Log: zerolog.Nop()}) }()
			t.Cleanup(func() { cancel(); require.NoError(t, <-ended) })
			if c.ends {
				require.Eventually(t, func() bool {
					_, err := os.Stat(filepath.Join(dir, "identity"))
					return os.IsNotExist(err)
				}, time.Minute, 10*time.Millisecond)
				require.FileExists(t, filepath.Join(dir, "identity.decommissioned", "a", "node.pem"), "moved aside, not deleted")
				return
			}
			for range 3 { // what it does after one answer, it has done by the third
				<-tried
			}
			require.FileExists(t, pair)
			require.NoFileExists(t, filepath.Join(dir, "decommissioned"))
		})
	}
}

// newRefusingHub is a server that refuses every CONNECT with a reason and perhaps a notice; tried has a value for each connection.
func newRefusingHub(t *testing.T, cert tls.Certificate, reason, notice string) (address string, tried <-chan struct{}) {
	t.Helper()
	l, err := tls.Listen("tcp", "127.0.0.1:0", &tls.Config{Certificates: []tls.Certificate{cert}, MinVersion: tls.VersionTLS12})
	require.NoError(t, err)
	t.Cleanup(func() { _ = l.Close() })
	seen := make(chan struct{}, 100)
	answer := packets.NewControlPacket(packets.CONNACK)
	p := answer.Content.(*packets.Connack)
	p.ReasonCode, p.Properties = packets.ConnackNotAuthorized, &packets.Properties{ReasonString: reason}
	if notice != "" {
		p.Properties.User = []packets.User{{Key: resource.DecommissionProperty, Value: notice}}
	}
	var text bytes.Buffer
	_, err = answer.WriteTo(&text)
	require.NoError(t, err)
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			if _, err := packets.ReadPacket(c); err == nil {
				_, _ = c.Write(text.Bytes())
			}
			_ = c.Close()
			select {
			case seen <- struct{}{}:
			default:
			}
		}
	}()
	return l.Addr().String(), seen
}

// Whatever is wrong with the files of the link, the core starts and serves its devices; the link comes when they are mended.
func TestADamagedIdentityKeepsTheLinkAloneFromStarting(t *testing.T) {
	t.Parallel()
	authority := newPKI(t, "authority")
	own, key := authority.make(&x509.Certificate{Subject: pkix.Name{CommonName: "n1"}})
	der, err := x509.MarshalPKCS8PrivateKey(key)
	require.NoError(t, err)
	whole := map[string][]byte{
		"ca.pem": pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: authority.cert.Raw}),
		"node.pem": append(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: own.Raw}),
			pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der})...),
	}
	for _, damaged := range []string{"ca.pem", "node.pem"} {
		for how, content := range map[string][]byte{"missing": nil, "empty": {}, "half": whole[damaged][:len(whole[damaged])/2]} {
			t.Run(damaged+" "+how, func(t *testing.T) {
				t.Parallel()
				dir := t.TempDir()
				for name, text := range whole {
					if name == damaged {
						text = content
					}
					if text != nil {
						require.NoError(t, os.WriteFile(filepath.Join(dir, name), text, 0o600))
					}
				}
				at, tried := newRefusingHub(t, authority.server("127.0.0.1"), "not now", "")
				cfg, _, err := configs.Parse[configs.Core]("edgecore", "dev", []string{
					"--node-name", "n1", "--data-dir", filepath.Join(dir, "data"), "--mqtt-listen", "127.0.0.1:0", "--mqtt-socket", "", "--http-listen", "",
					"--link-server", "mqtts://" + at, "--link-tls-ca", filepath.Join(dir, "ca.pem"),
					"--link-tls-cert", filepath.Join(dir, "node.pem"), "--link-tls-key", filepath.Join(dir, "node.pem"),
				}, io.Discard)
				require.NoError(t, err)
				ctx, cancel := context.WithCancel(t.Context())
				ended, ready := make(chan error, 1), make(chan struct{})
				go func() {
					ended <- edge.Run(ctx, edge.Options{Config: cfg, Version: "test", Log: zerolog.Nop(), Ready: func(daemon.Addresses) { close(ready) }})
				}()
				<-ready
				require.NoError(t, os.WriteFile(filepath.Join(dir, damaged), whole[damaged], 0o600))
				select {
				case <-tried:
				case err := <-ended:
					require.FailNow(t, "the core has ended", "%v", err)
				}
				cancel()
				require.NoError(t, <-ended)
			})
		}
	}
}
