// SPDX-License-Identifier: Apache-2.0

package clusterca

import (
	"crypto/tls"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/edgebus/edgebus/broker/sealed"
	"github.com/edgebus/edgebus/test/selfsigned"
)

func newAuthority(t *testing.T, k sealed.Key) *Authority {
	t.Helper()
	a, err := New(k)
	require.NoError(t, err)
	return a
}

// handshake connects two ends, and says what came of it at each.
func handshake(t *testing.T, client, server *tls.Config) (atClient, atServer error) {
	l, err := tls.Listen("tcp", "127.0.0.1:0", server)
	require.NoError(t, err)
	defer l.Close()
	ended := make(chan error, 1)
	go func() {
		conn, err := l.Accept()
		if err == nil {
			defer conn.Close()
			_, err = conn.Write([]byte("x"))
		}
		ended <- err
	}()
	conn, err := tls.Dial("tcp", l.Addr().String(), client)
	if err == nil {
		defer conn.Close()
		_, err = conn.Read(make([]byte, 1)) // with TLS 1.3 a client learns here that it is refused
	}
	return err, <-ended
}

func TestHubsWithOneKeyKnowEachOther(t *testing.T) {
	k := sealed.NewKey()
	one, other := newAuthority(t, k), newAuthority(t, k)
	require.Equal(t, one.PEM(), other.PEM(), "each hub has the same authority, without a file")
	atClient, atServer := handshake(t, one.Config(), other.Config())
	require.NoError(t, atClient)
	require.NoError(t, atServer)
}

func TestNobodyElseIsTakenForAHub(t *testing.T) {
	k := sealed.NewKey()
	hub := newAuthority(t, k)
	pair := func(cert, key []byte, err error) *tls.Certificate {
		require.NoError(t, err)
		p, err := tls.X509KeyPair(cert, key)
		require.NoError(t, err)
		return &p
	}
	cert, key := selfsigned.NewPEM(t, HubName, HubName)
	past, private, err := newAuthority(t, k).sign([]string{HubName}, -time.Minute)
	require.NoError(t, err)
	for who, shown := range map[string]*tls.Certificate{
		"a server of the log":             pair(hub.Server([]string{"n1"}, time.Hour)),
		"who signs his own":               pair(cert, key, nil),
		"who has no certificate":          {},
		"a hub whose certificate is over": {Certificate: [][]byte{past}, PrivateKey: private},
	} {
		c := hub.Config()
		c.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return shown, nil }
		c.VerifyConnection = nil
		_, atServer := handshake(t, c, hub.Config())
		require.Error(t, atServer, who)
		if len(shown.Certificate) == 0 {
			continue
		}
		s := hub.Config()
		s.GetCertificate = func(*tls.ClientHelloInfo) (*tls.Certificate, error) { return shown, nil }
		atClient, _ := handshake(t, hub.Config(), s)
		require.Error(t, atClient, who)
	}
	other := newAuthority(t, sealed.NewKey())
	atClient, _ := handshake(t, hub.Config(), other.Config())
	require.ErrorContains(t, atClient, "certificate", "a hub of another cluster")
	for _, name := range []string{HubName, "Edgebus-Hub"} {
		_, _, err := hub.Server([]string{"n1", name}, time.Hour)
		require.ErrorContains(t, err, HubName, name)
	}
}

// A hub runs for longer than its certificate is valid.
func TestAHubsCertificateIsMadeAnewBeforeItEnds(t *testing.T) {
	a := newAuthority(t, sealed.NewKey())
	first, err := a.Own()
	require.NoError(t, err)
	same, err := a.Own()
	require.NoError(t, err)
	require.Same(t, first, same)
	a.own.Leaf.NotAfter = time.Now().Add(hubValidity/2 - time.Minute)
	next, err := a.Own()
	require.NoError(t, err)
	require.True(t, next.Leaf.NotAfter.After(time.Now().Add(hubValidity-time.Minute)))
}
