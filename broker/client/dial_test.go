// SPDX-License-Identifier: Apache-2.0

package client

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"io"
	"math/big"
	"net"
	"net/http"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

// testAuthority signs certificates for a test.
type testAuthority struct {
	t    *testing.T
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
}

func newTestAuthority(t *testing.T) testAuthority {
	a := testAuthority{t: t}
	var err error
	a.key, err = ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	require.NoError(t, err)
	der, err := x509.CreateCertificate(rand.Reader, a.template("authority", time.Hour), a.template("authority", time.Hour), &a.key.PublicKey, a.key)
	require.NoError(t, err)
	a.cert, err = x509.ParseCertificate(der)
	require.NoError(t, err)
	return a
}

func (a testAuthority) template(name string, left time.Duration) *x509.Certificate {
	return &x509.Certificate{
		SerialNumber: big.NewInt(time.Now().UnixNano()), Subject: pkix.Name{CommonName: name},
		NotBefore: time.Now().Add(-2 * time.Hour), NotAfter: time.Now().Add(left),
		IsCA: name == "authority", BasicConstraintsValid: true, KeyUsage: x509.KeyUsageDigitalSignature | x509.KeyUsageCertSign,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
	}
}

// issue makes a certificate for hosts that is valid for so long.
func (a testAuthority) issue(name string, left time.Duration, hosts ...string) tls.Certificate {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	require.NoError(a.t, err)
	template := a.template(name, left)
	for _, h := range hosts {
		if ip := net.ParseIP(h); ip != nil {
			template.IPAddresses = append(template.IPAddresses, ip)
		} else {
			template.DNSNames = append(template.DNSNames, h)
		}
	}
	der, err := x509.CreateCertificate(rand.Reader, template, a.cert, &key.PublicKey, a.key)
	require.NoError(a.t, err)
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}
}

func (a testAuthority) pool() *x509.CertPool {
	pool := x509.NewCertPool()
	pool.AddCert(a.cert)
	return pool
}

// serveTLS answers connections as a TLS server does, and speaks no word of MQTT; without a configuration it hangs up
// after the first bytes.
func serveTLS(t *testing.T, cfg *tls.Config) (address string) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	t.Cleanup(func() { _ = l.Close() })
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				defer func() { _ = conn.Close() }()
				_ = conn.SetDeadline(time.Now().Add(10 * time.Second))
				if cfg != nil {
					conn = tls.Server(conn, cfg)
				}
				_, _ = conn.Read(make([]byte, 1024))
			}()
		}
	}()
	return l.Addr().String()
}

func TestWhyTLSFailsIsSaidInPlainWords(t *testing.T) {
	ours, theirs := newTestAuthority(t), newTestAuthority(t)
	server := func(cert tls.Certificate) *tls.Config {
		return &tls.Config{
			Certificates: []tls.Certificate{cert}, MinVersion: tls.VersionTLS12, ClientCAs: ours.pool(), ClientAuth: tls.RequireAndVerifyClientCert,
		}
	}
	good := server(ours.issue("hub", time.Hour, "127.0.0.1"))
	client := func(certs ...tls.Certificate) *tls.Config {
		return &tls.Config{RootCAs: ours.pool(), Certificates: certs, MinVersion: tls.VersionTLS12}
	}
	node := ours.issue("n1", time.Hour)
	for name, tt := range map[string]struct {
		scheme string
		server *tls.Config
		client *tls.Config
		says   string
	}{
		"unknown authority": {"mqtts", server(theirs.issue("hub", time.Hour, "127.0.0.1")), client(node), "an authority that isn't trusted here: give that authority's certificate as ca"},
		"another name":      {"mqtts", server(ours.issue("hub", time.Hour, "hub.example.org")), client(node), "the server's certificate is for another name"},
		"server expired":    {"mqtts", server(ours.issue("hub", -time.Hour, "127.0.0.1")), client(node), "the server's certificate is not valid now, but from"},
		"client expired":    {"mqtts", good, client(ours.issue("n1", -time.Hour)), "our certificate is not valid now, but from"},
		"client unknown":    {"mqtts", good, client(theirs.issue("n1", time.Hour)), "our certificate"},
		"no certificate":    {"mqtts", good, client(), "certificate"},
		"TLS to plain":      {"mqtts", nil, client(node), "does it speak TLS there"},
		"plain to TLS":      {"mqtt", good, nil, "With TLS the address begins with mqtts://"},
	} {
		t.Run(name, func(t *testing.T) {
			var said error
			c, err := New(Options{
				Servers: []string{tt.scheme + "://" + serveTLS(t, tt.server)}, ClientID: "c", TLS: tt.client, Attempts: 1,
				ConnectTimeout: 20 * time.Second, OnConnectError: func(err error) { said = err },
			})
			require.NoError(t, err)
			require.Error(t, c.Run(context.Background()))
			require.ErrorContains(t, said, tt.says)
		})
	}
}

// The hub's HTTPS port instead of its MQTT one: its server waits for a request, or hangs up.
func TestAWebServerAtABrokersAddressIsNamed(t *testing.T) {
	t.Parallel()
	hub := newTestAuthority(t)
	web := &http.Server{Handler: http.NotFoundHandler(), ReadHeaderTimeout: time.Minute}
	defer web.Close()
	for _, scheme := range []string{"mqtt", "mqtts"} {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		require.NoError(t, err)
		address := l.Addr().String()
		if scheme == "mqtts" {
			l = tls.NewListener(l, &tls.Config{Certificates: []tls.Certificate{hub.issue("hub", time.Hour, "127.0.0.1")}, NextProtos: []string{"h2", "http/1.1"}, MinVersion: tls.VersionTLS12})
		}
		go func() { _ = web.Serve(l) }()
		var said error
		c, err := New(Options{
			Servers: []string{scheme + "://" + address}, ClientID: "c", TLS: &tls.Config{RootCAs: hub.pool(), MinVersion: tls.VersionTLS12}, Attempts: 1,
			ConnectTimeout: time.Second, OnConnectError: func(err error) { said = err },
		})
		require.NoError(t, err)
		require.Error(t, c.Run(t.Context()))
		require.ErrorContains(t, said, "an HTTP server answers there, not an MQTT broker", scheme)
	}
}

func TestNothingIsSaidTwice(t *testing.T) {
	for want, r := range map[string]Refused{
		"mqtt: connect refused: bad user name or password (0x86)":               {Op: "connect", Code: 0x86, Reason: "bad user name or password"},
		"mqtt: connect refused: bad user name or password (0x86): not n2's":     {Op: "connect", Code: 0x86, Reason: "not n2's"},
		"mqtt: publish to a/b refused: topic name invalid (0x90): no such node": {Op: "publish to", Topic: "a/b", Code: 0x90, Reason: "a/b: no such node"},
		"mqtt: publish to a/b/c refused: topic name invalid (0x90): no b/c":     {Op: "publish to", Topic: "a/b/c", Code: 0x90, Reason: "b/c: no b/c"},
		"mqtt: publish to a refused: quota exceeded by far (0x97)":              {Op: "publish to", Topic: "a", Code: 0x97, Reason: "quota exceeded by far"},
	} {
		require.EqualError(t, &r, want)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	require.NoError(t, l.Close())
	for _, scheme := range []string{"mqtt", "ws"} {
		url := scheme + "://" + l.Addr().String()
		c, err := New(Options{Servers: []string{url}, ClientID: "c", Attempts: 1})
		require.NoError(t, err)
		err = c.Run(t.Context())
		require.ErrorIs(t, err, syscall.ECONNREFUSED)
		require.Equal(t, 1, strings.Count(err.Error(), l.Addr().String()), err)
		require.NotContains(t, err.Error(), "connect:")
		require.NotContains(t, err.Error(), "dial")
	}
}

// While a long packet goes out over a slow line, the broker's silence is no end: what it would answer comes behind that packet.
func TestALongPacketOverASlowLineIsNoSilence(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ours, theirs := net.Pipe()
		c := &timeoutConn{Conn: ours}
		c.timeout.Store(int64(15 * time.Second))
		heard := make(chan error, 1)
		go func() {
			_, err := c.Read(make([]byte, 10))
			heard <- err
		}()
		go func() {
			part := make([]byte, 1000)
			for left := 100_000; left > 0; left -= len(part) {
				_, _ = io.ReadFull(theirs, part)
				time.Sleep(time.Second) // the test's own clock
			}
			_, _ = theirs.Write([]byte("taken"))
		}()
		_, err := c.Write(make([]byte, 100_000))
		require.NoError(t, err)
		require.NoError(t, <-heard)
	})
}
