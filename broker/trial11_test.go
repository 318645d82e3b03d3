package broker

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/asn1"
	"math/big"
	"net/http"
	"net/http/httptest"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/edgebus/edgebus/topics/resource"
)

// refusedBoth expects a certificate to be refused over MQTT and over HTTP, for the same reason.
func refusedBoth(t *testing.T, b *Broker, config *tls.Config, says string) {
	t.Helper()
	c := dialTLS(t, b.Addrs()[0], config)
	require.Equal(t, byte(0x86), c.connect("c"))
	require.Contains(t, c.connack.Properties.ReasonString, says)
	_, err := b.SignIn(requestWith(t, config))
	require.Equal(t, resource.Unauthorized, resource.KindOf(err))
	require.ErrorContains(t, err, says)
}

func TestTrial11ANameThatNobodyRegisteredIsNoNodes(t *testing.T) {
	a := newAuthority(t)
	b := start(t, func(o *Options) {
		withUsers(o)
		o.Auth.Node = func(name string) bool { return name == "n1" }
		o.Listeners = []Listener{{Name: "tls", Address: "127.0.0.1:0", TLS: a.server()}}
	})
	refusedBoth(t, b, a.client("ann"), "the certificate is for ann, which is neither a user of auth.users nor a Node that there is")
	for _, name := range []string{"n1", "n9", "op"} {
		require.Equal(t, byte(0), dialTLS(t, b.Addrs()[0], a.client(name)).connect(name))
	}
}

func TestTrial11WhoIsDenied(t *testing.T) {
	a := newAuthority(t)
	serial, print, good := a.client("n2"), a.client("n2"), a.client("n2")
	sum := sha256.Sum256(leafOf(t, print).Raw)
	b := start(t, func(o *Options) {
		withUsers(o)
		o.Auth.Deny = []Denied{
			{Name: "n1"}, {Name: "op"}, {Serial: leafOf(t, serial).SerialNumber.Text(16)}, {Fingerprint: new(big.Int).SetBytes(sum[:]).Text(16)},
		}
		o.Listeners = append([]Listener{{Name: "tls", Address: "127.0.0.1:0", TLS: a.server()}}, o.Listeners...)
	})
	refusedBoth(t, b, a.client("n1"), "n1 is denied (auth.deny)")
	refusedBoth(t, b, serial, "this certificate is denied (auth.deny)")
	refusedBoth(t, b, print, "this certificate is denied (auth.deny)")
	require.Equal(t, byte(0), dialTLS(t, b.Addrs()[0], good).connect("good"), "another certificate of that name")
	c := dialTLS(t, b.Addrs()[0], serial)
	require.Equal(t, byte(0x86), c.connect("c", credentialsOf("view", "secret")), "whatever else is shown")
	for user, password := range map[string]string{"op": "secret", "node/n1": ""} {
		c := &tc{}
		func() {
			conn, err := (&tls.Dialer{Config: a.client("")}).Dial("tcp", b.Addrs()[0].String())
			require.NoError(t, err)
			c = wrap(t, conn)
		}()
		require.Equal(t, byte(0x86), c.connect("c", credentialsOf(user, password)))
		require.Contains(t, c.connack.Properties.ReasonString, "is denied")
	}
}

// A connection ends when the certificate does that it was let in for; one that a password let in goes on.
func TestTrial11AConnectionEndsWithItsCertificate(t *testing.T) {
	a := newAuthority(t)
	var clock atomic.Int64
	b := start(t, func(o *Options) {
		withUsers(o)
		o.Now = func() time.Time { return time.UnixMilli(clock.Load()) }
		o.Listeners = []Listener{{Name: "tls", Address: "127.0.0.1:0", TLS: a.server()}}
	})
	config := a.client("n9")
	clock.Store(leafOf(t, config).NotAfter.Add(-time.Second).UnixMilli())
	c, person := dialTLS(t, b.Addrs()[0], config), dialTLS(t, b.Addrs()[0], config)
	require.Equal(t, byte(0), c.connect("c"))
	require.Equal(t, byte(0), person.connect("person", credentialsOf("op", "secret")))
	clock.Store(leafOf(t, config).NotAfter.UnixMilli())
	code, _ := c.ended()
	require.Equal(t, byte(0x87), code)
	require.Zero(t, person.publish1("a", "still here").ReasonCode)
	require.Equal(t, int64(1), b.Stats().Closed["certificate expired"])
}

func TestTrial11SeveralCommonNamesAreRefused(t *testing.T) {
	a := newAuthority(t)
	b := start(t, func(o *Options) { o.Listeners = []Listener{{Name: "tls", Address: "127.0.0.1:0", TLS: a.server()}} })
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	require.NoError(t, err)
	commonName := func(name string) pkix.AttributeTypeAndValue {
		return pkix.AttributeTypeAndValue{Type: asn1.ObjectIdentifier{2, 5, 4, 3}, Value: name}
	}
	der, err := x509.CreateCertificate(rand.Reader, &x509.Certificate{
		SerialNumber: big.NewInt(7), NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		Subject:     pkix.Name{ExtraNames: []pkix.AttributeTypeAndValue{commonName("n1"), commonName("n2")}},
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
	}, a.cert, &key.PublicKey, a.key)
	require.NoError(t, err)
	config := a.client("")
	config.Certificates = []tls.Certificate{{Certificate: [][]byte{der}, PrivateKey: key}}
	refusedBoth(t, b, config, "the certificate has several common names")
}

func leafOf(t *testing.T, config *tls.Config) *x509.Certificate {
	t.Helper()
	leaf, err := x509.ParseCertificate(config.Certificates[0].Certificate[0])
	require.NoError(t, err)
	return leaf
}

func requestWith(t *testing.T, config *tls.Config) *http.Request {
	r := httptest.NewRequest("GET", "/", nil)
	leaf := leafOf(t, config)
	r.TLS = &tls.ConnectionState{PeerCertificates: []*x509.Certificate{leaf}, VerifiedChains: [][]*x509.Certificate{{leaf}}}
	return r
}
