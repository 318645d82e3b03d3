// SPDX-License-Identifier: Apache-2.0

package broker

import (
	"cmp"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/asn1"
	"math/big"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/mochi-mqtt/server/v2/packets"
	"github.com/rs/zerolog"
	"github.com/stretchr/testify/require"

	"github.com/edgebus/edgebus/broker/daemon"
	"github.com/edgebus/edgebus/topics"
	"github.com/edgebus/edgebus/topics/resource"
)

// A listed name makes a certificate that user's; any other is a node's.
func TestACertificateOfAUser(t *testing.T) {
	a := newTestAuthority(t)
	b := startBroker(t, func(o *Options) {
		withUsers(o)
		o.Auth.Users = append(o.Auth.Users, User{Name: "Carl C.", Role: topics.RoleOperator, Nodes: []string{"a*"}})
		o.Listeners = []Listener{{Name: "tls", Address: "127.0.0.1:0", TLS: a.server()}}
	})
	at := b.Addrs()[0]
	c := dialTLS(t, at, a.client("Carl C."))
	require.Equal(t, byte(0), c.connect("carl"))
	require.Equal(t, []byte{1}, c.subscribe("v1/nodes/a1/#", 1).ReasonCodes)
	require.Equal(t, []byte{0x87}, c.subscribe("v1/nodes/b1/#", 1).ReasonCodes)
	require.Equal(t, byte(0x87), c.publish1("v1/nodes/a1/sync/up", "x").ReasonCode, "no node")
	c = dialTLS(t, at, a.client("view"))
	require.Equal(t, byte(0), c.connect("same name", credentialsOf("view", "")))
	require.Equal(t, byte(0x87), c.publish1("v1/nodes/a1/devices/lamp/desired/power", "ON").ReasonCode)
	c = dialTLS(t, at, a.client("n9"))
	require.Equal(t, byte(0), c.connect("node/n9/listed", credentialsOf("node/n9", "")))

	for _, user := range []struct{ cert, name, why string }{
		{"op", "view", "the certificate is for op, but the user name is view"},
		{"op", "node/op", "op is a user with the role operator (auth.users), and so can't be a node"},
		{"n1", "node/n2", "the certificate is for n1, but this node is n2"},
	} {
		c = dialTLS(t, at, a.client(user.cert))
		require.Equal(t, byte(0x86), c.connect("other", credentialsOf(user.name, "")))
		require.Equal(t, user.why, c.connack.Properties.ReasonString)
	}
	c = dialTLS(t, at, a.client(""))
	require.Equal(t, byte(0x86), c.connect("no hash", credentialsOf("Carl C.", "secret")))
	c = dialTLS(t, at, a.client(""))
	require.Equal(t, byte(0x86), c.connect("no hash", credentialsOf("Carl C.", "")))
}

// A request is its sender's by the rules of MQTT.
func TestSignIn(t *testing.T) {
	a := newTestAuthority(t)
	b := startBroker(t, withUsers)
	closed := startBroker(t, func(o *Options) { withUsers(o); o.Auth.Anonymous, o.Auth.LoopbackNodes = nil, false })
	from := func(remote, local string, change ...func(*http.Request)) *http.Request {
		r := httptest.NewRequest("GET", "/", nil)
		at, err := net.ResolveTCPAddr("tcp", local)
		require.NoError(t, err)
		r.RemoteAddr, r.Host = remote, "localhost:8080"
		r = r.WithContext(context.WithValue(r.Context(), http.LocalAddrContextKey, net.Addr(at)))
		for _, c := range change {
			c(r)
		}
		return r
	}
	basic := func(user, password string) func(*http.Request) {
		return func(r *http.Request) { r.SetBasicAuth(user, password) }
	}
	host := func(name string) func(*http.Request) {
		return func(r *http.Request) { r.Host = name }
	}
	cert := func(name string) func(*http.Request) {
		leaf := a.issue(name).Leaf
		return func(r *http.Request) {
			r.TLS = new(tls.ConnectionState)
			if name != "" {
				r.TLS.PeerCertificates, r.TLS.VerifiedChains = append(r.TLS.PeerCertificates, leaf), append(r.TLS.VerifiedChains, nil)
			}
		}
	}
	const here, there = "127.0.0.1:4000", "192.0.2.1:4000"
	for _, c := range []struct {
		b    *Broker
		r    *http.Request
		user string
		role topics.Role
		kind resource.ErrorKind
	}{
		{b, from(here, here), "", topics.RoleOperator, ""},
		{b, from("[::1]:4000", "[::1]:80"), "", topics.RoleOperator, ""},
		{b, from(here, here, host("127.0.0.1")), "", topics.RoleOperator, ""},
		{b, from(here, here, host("[::1]:8080")), "", topics.RoleOperator, ""},
		{b, from(here, here, host("evil.example:8080")), "", "", resource.Unauthorized},
		{b, from(here, here, host("localhost.evil.example")), "", "", resource.Unauthorized},
		{b, from(here, here, host("")), "", topics.RoleOperator, ""},
		{b, from(here, here, host("evil.example"), basic("view", "secret")), "view", topics.RoleViewer, ""},
		{b, from(here, here, basic("view", "secret")), "view", topics.RoleViewer, ""},
		{b, from(here, here, basic("view", "wrong")), "", "", resource.Unauthorized},
		{b, from(here, here, basic("", "")), "", "", resource.Unauthorized},
		{b, from(here, here, cert("")), "", "", resource.Unauthorized},
		{b, from(there, "192.0.2.2:80"), "", "", resource.Unauthorized},
		{b, from(there, "192.0.2.2:80", basic("op", "secret")), "op", topics.RoleOperator, ""},
		{b, from(there, here), "", "", resource.Unauthorized},
		{b, from("", here), "", "", resource.Unauthorized},
		{b, from(there, there, cert("n1")), "node/n1", topics.RoleNode, ""},
		{b, from(there, there, cert("op")), "op", topics.RoleOperator, ""},
		{b, from(there, there, cert("n1"), basic("op", "secret")), "op", topics.RoleOperator, ""},
		{b, from(there, there, cert("Not A Name")), "", "", resource.Unauthorized},
		{closed, from(here, here), "", "", resource.Unauthorized},
		{closed, from(here, here, basic("op", "secret")), "op", topics.RoleOperator, ""},
	} {
		id, err := c.b.SignIn(c.r)
		require.Equal(t, c.kind != "", err != nil, "%v", err)
		require.Equal(t, c.user, id.User)
		_, _, byPassword := c.r.BasicAuth()
		require.Equal(t, c.kind == "" && c.r.TLS != nil && !byPassword, !id.CertExpires.IsZero(), "only of who is signed in by it")
		if c.kind == "" {
			require.True(t, id.Has(c.role), "%v", id.Roles)
		} else {
			require.Equal(t, c.kind, resource.KindOf(err), "%v", err)
		}
	}
}

func TestWhoIsNotLetInOverHTTPIsLogged(t *testing.T) {
	path := filepath.Join(t.TempDir(), "log")
	log, err := os.Create(path)
	require.NoError(t, err)
	defer log.Close()
	b := startBroker(t, func(o *Options) { withUsers(o); o.Log = zerolog.New(log); o.Limits.WrongPasswords = 1000 })
	refused := func(user string) {
		r := httptest.NewRequest("GET", "/api/v1/secrets", nil)
		r.RemoteAddr = "192.0.2.1:4000"
		if user != "" {
			r.SetBasicAuth(user, "my wrong guess")
		}
		_, err := b.SignIn(r)
		require.Error(t, err)
	}
	said := func(what string) int {
		text, err := os.ReadFile(path)
		require.NoError(t, err)
		return strings.Count(string(text), what)
	}
	refused("view")
	refused("")
	refused(strings.Repeat("x", 10_000))
	require.Equal(t, 1, said(`"user":"view","remote":"192.0.2.1:4000","method":"GET","path":"/api/v1/secrets"`))
	require.Equal(t, 1, said(`"level":"info","error":"not signed in`))
	require.Equal(t, 3, said("HTTP request refused"))
	for range 100 {
		refused("op")
	}
	require.Less(t, said("HTTP request refused"), 60, "of a flood not each")
	require.Zero(t, said("guess"))
	require.Zero(t, said(strings.Repeat("x", 200)))
}

func TestAnExpiredCertificateSignsNobodyIn(t *testing.T) {
	a := newTestAuthority(t)
	b := startBroker(t, func(o *Options) {
		o.Now = func() time.Time { return time.Now().Add(2 * time.Hour) } // it was good when the connection was made
	})
	r := httptest.NewRequest("GET", "/", nil)
	leaf := a.issue("n1").Leaf
	r.TLS = &tls.ConnectionState{}
	r.TLS.PeerCertificates, r.TLS.VerifiedChains = append(r.TLS.PeerCertificates, leaf), append(r.TLS.VerifiedChains, nil)
	_, err := b.SignIn(r)
	require.ErrorContains(t, err, "the certificate of n1 has expired")
}

func TestWrongPasswordsOfBothCountTogether(t *testing.T) {
	b := startBroker(t, func(o *Options) { withUsers(o); o.Limits.WrongPasswords = 2 })
	c := dialBroker(t, b)
	require.Equal(t, byte(0x86), c.connect("c", credentialsOf("op", "wrong")))
	r := httptest.NewRequest("GET", "/", nil)
	r.RemoteAddr = "127.0.0.1:4000"
	r.SetBasicAuth("op", "wrong")
	_, err := b.SignIn(r)
	require.Equal(t, resource.Unauthorized, resource.KindOf(err))
	r.SetBasicAuth("op", "secret")
	_, err = b.SignIn(r)
	require.Equal(t, resource.Quota, resource.KindOf(err))
	require.ErrorContains(t, err, "limits.wrongPasswords")
	c = dialBroker(t, b)
	require.Equal(t, byte(0x9F), c.connect("c", credentialsOf("op", "secret")))
}

// With the defaults on loopback a name and a password are accepted, and say nothing: many clients can't do without.
// Names of nodes are nobody else's, and once users are listed each name is one of theirs.
func TestCredentialsThatNobodyNeeds(t *testing.T) {
	b := startBroker(t, nil)
	for _, version := range []connectOption{version311, func(*packets.Packet) {}} {
		c := openClient(t, b, "c", credentialsOf("homeassistant", "whatever"), version)
		c.publish1("a", "x")
		require.Empty(t, b.clients.connected("c").ident.User)
		openClient(t, b, "d", credentialsOf("name", ""), version)
		openClient(t, b, "node/n1", credentialsOf("node/n1", "password"), version)
		require.Equal(t, "n1", b.clients.connected("node/n1").ident.Node)
	}
	require.Equal(t, byte(0x86), dialBroker(t, b).connect("x", credentialsOf("node/+", "")))
	listed := startBroker(t, withUsers)
	require.Equal(t, byte(0x86), dialBroker(t, listed).connect("x", credentialsOf("somebody", "else")))
	nobody := startBroker(t, func(o *Options) { o.Auth.Anonymous = nil })
	require.Equal(t, byte(0x86), dialBroker(t, nobody).connect("x", credentialsOf("somebody", "else")))
}

// Hashes of "secret".
const (
	hashPBKDF2 = "$7$101$MDEyMzQ1Njc4OWFi$EO/lLlkeUgIiBaS8G8UK0ZMP1u508TA7Tl+AdJ1cEsmlbGyEPAERErpfq84j1kepISs0UzmcdL4ucgZ2uodxfQ=="
	hashSHA512 = "$6$MDEyMzQ1Njc4OWFi$qEXipeLbgxRlwd06QHfY5WITkUZg0jLg9SZbXzq3ifXjfj+v3GbJGrSfC5PAg3UNCS+UFfbhUIZX4bmIAs330w=="
)

func testUsers() []User {
	return []User{
		{Name: "op", PasswordHash: hashPBKDF2, Role: topics.RoleOperator, Nodes: []string{"a*"}},
		{Name: "boss", PasswordHash: hashPBKDF2, Role: topics.RoleOperator, Nodes: []string{"*"}},
		{Name: "view", PasswordHash: hashSHA512, Role: topics.RoleViewer, Nodes: []string{"a1"}},
		{Name: "map", PasswordHash: hashSHA512, Role: topics.RoleMapper, Devices: []string{"lamp*"}},
		{Name: "modbus", PasswordHash: hashSHA512, Role: topics.RoleMapper, Protocols: []string{"modbus"}},
		{Name: "any", PasswordHash: hashSHA512, Role: topics.RoleMapper},
		{Name: "n9", PasswordHash: hashPBKDF2, Role: topics.RoleNode},
	}
}

func withUsers(o *Options) { o.Auth.Users = testUsers() }

// threeID is a client identifier that the user may have.
func threeID(user string) string {
	if name, listed := strings.CutPrefix(user, "node/"); listed || name == "n9" {
		return "node/" + name
	}
	return cmp.Or(user, "three")
}

func TestWhoMayConnect(t *testing.T) {
	hub := startBroker(t, withUsers)
	closed := startBroker(t, func(o *Options) { withUsers(o); o.Auth.Anonymous, o.Auth.LoopbackNodes = nil, false })
	for _, c := range []struct {
		b              *Broker
		user, password string
		code           byte
	}{
		{hub, "", "", 0},
		{hub, "op", "secret", 0},
		{hub, "view", "secret", 0},
		{hub, "op", "wrong", 0x86},
		{hub, "op", "", 0x86},
		{hub, "nobody", "secret", 0x86},
		{hub, "nobody", "", 0x86},
		{hub, "node/n1", "", 0},
		{hub, "node/n1", "x", 0x86},
		{hub, "n9", "secret", 0},
		{hub, "node/n9", "secret", 0},
		{hub, "node/n9", "wrong", 0x86},
		{hub, "node/op", "secret", 0x86},
		{hub, "node/node/n9", "secret", 0x86},
		{hub, "node/N1", "", 0x86},
		{hub, "node/+", "", 0x86},
		{closed, "", "", 0x86},
		{closed, "node/n1", "", 0x86},
		{closed, "op", "secret", 0},
	} {
		five, three := dialBroker(t, c.b), dialBroker(t, c.b)
		var opts []connectOption
		if c.user != "" {
			opts = append(opts, credentialsOf(c.user, c.password))
		}
		require.Equal(t, c.code, five.connect("", opts...), "%q %q", c.user, c.password)
		want := byte(0)
		if c.code != 0 {
			want = 5
			five.ended()
		} else {
			require.NotEmpty(t, five.connack.Properties.AssignedClientID)
		}
		require.Equal(t, want, three.connect(threeID(c.user), append(opts, version311)...))
	}
	require.Equal(t, int64(20), hub.Stats().Rejected[daemon.Label("bad user name or password")])
}

func TestUnusualConnects(t *testing.T) {
	b := startBroker(t, nil)
	c := dialBroker(t, b)
	require.Equal(t, byte(0x8C), c.connect("c", func(pk *packets.Packet) { pk.Properties.AuthenticationMethod = "SCRAM" }))
	c = dialBroker(t, b)
	require.Equal(t, byte(2), c.connect("", version311, persistentSession), "no id, and a session to keep")
	c = dialBroker(t, b)
	require.Equal(t, byte(0), c.connect("", version311))
	c = dialBroker(t, b)
	require.Equal(t, byte(0), c.connect("old", version31))
	c = dialBroker(t, b)
	c.raw([]byte{0x10, 0})
	c.ended()
	c = dialBroker(t, b)
	c.send(packets.Packet{FixedHeader: packets.FixedHeader{Type: packets.Pingreq}})
	c.ended()
	c = openClient(t, b, "twice")
	c.send(connectPacket("twice"))
	code, _ := c.ended()
	require.Equal(t, byte(0x82), code)
}

// A core calls itself node/{name} whatever it signs in with, and may change that.
func TestANodeWithAPassword(t *testing.T) {
	b := startBroker(t, withUsers)
	c := openClient(t, b, "node/n9", credentialsOf("node/n9", "secret"), persistentSession)
	require.Equal(t, byte(0x87), c.publish1("v1/nodes/n1/sync/up", "x").ReasonCode)
	require.Equal(t, []byte{1}, c.subscribe("v1/nodes/n9/sync/down", 1).ReasonCodes)
	c.leave(b, "node/n9")
	for _, as := range []connectOption{credentialsOf("n9", "secret"), credentialsOf("node/n9", "")} {
		c = openClient(t, b, "node/n9", as, persistentSession)
		require.True(t, c.connack.SessionPresent)
		c.leave(b, "node/n9")
	}
}

func TestNobodyElseIsCalledLikeACore(t *testing.T) {
	for _, role := range []topics.Role{topics.RoleNode, topics.RoleOperator} {
		_, err := New(Options{Auth: Auth{Users: []User{{Name: "node/n1", PasswordHash: hashPBKDF2, Role: role, Nodes: []string{"*"}}}}})
		require.ErrorContains(t, err, "the node's name alone")
	}
}

// A session belongs to its user: nobody else may have its messages, or end it.
func TestASessionIsItsUsersOwn(t *testing.T) {
	b := startBroker(t, withUsers)
	op := openClient(t, b, "id", credentialsOf("op", "secret"), persistentSession)
	op.sub("a", 1)
	thief := dialBroker(t, b)
	require.Equal(t, byte(0x87), thief.connect("id", credentialsOf("view", "secret"), persistentSession))
	op.nothing()
	op.leave(b, "id")
	thief = dialBroker(t, b)
	require.Equal(t, byte(0x87), thief.connect("id", credentialsOf("view", "secret")))
	op = openClient(t, b, "id", credentialsOf("op", "secret"), persistentSession)
	require.True(t, op.connack.SessionPresent)
}

// testAuthority makes certificates for 127.0.0.1 and for clients.
type testAuthority struct {
	t    *testing.T
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
	pool *x509.CertPool
}

func newTestAuthority(t *testing.T) *testAuthority {
	a := &testAuthority{t: t, pool: x509.NewCertPool()}
	pair := a.issue("authority")
	a.cert, a.key = pair.Leaf, pair.PrivateKey.(*ecdsa.PrivateKey)
	a.pool.AddCert(a.cert)
	return a
}

func (a *testAuthority) issue(name string) tls.Certificate {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	require.NoError(a.t, err)
	template := &x509.Certificate{
		SerialNumber: big.NewInt(time.Now().UnixNano()), Subject: pkix.Name{CommonName: name},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, BasicConstraintsValid: true, IsCA: a.cert == nil,
		KeyUsage:    x509.KeyUsageDigitalSignature | x509.KeyUsageCertSign,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
	}
	parent, signer := a.cert, a.key
	if parent == nil {
		parent, signer = template, key
	}
	der, err := x509.CreateCertificate(rand.Reader, template, parent, &key.PublicKey, signer)
	require.NoError(a.t, err)
	leaf, err := x509.ParseCertificate(der)
	require.NoError(a.t, err)
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key, Leaf: leaf}
}

func (a *testAuthority) server() *tls.Config {
	return &tls.Config{
		Certificates: []tls.Certificate{a.issue("server")}, ClientCAs: a.pool,
		ClientAuth: tls.VerifyClientCertIfGiven, MinVersion: tls.VersionTLS12,
	}
}

func (a *testAuthority) client(name string) *tls.Config {
	c := &tls.Config{RootCAs: a.pool, MinVersion: tls.VersionTLS12}
	if name != "" {
		c.Certificates = []tls.Certificate{a.issue(name)}
	}
	return c
}

func TestCertificateIsANode(t *testing.T) {
	a := newTestAuthority(t)
	told := &recordedPresence{}
	b := startBroker(t, func(o *Options) {
		withUsers(o)
		o.Presence = told
		o.Listeners = []Listener{
			{Name: "tls", Address: "127.0.0.1:0", TLS: a.server()},
			{Name: "wss", Address: "127.0.0.1:0", TLS: a.server(), WebSocket: true},
		}
	})
	c := dialTLS(t, b.Addrs()[0], a.client("n1"))
	require.Equal(t, byte(0), c.connect("node/n1"))
	require.Equal(t, byte(0x87), c.publish1("v1/nodes/n2/sync/up", "x").ReasonCode)
	id := told.last(t, "+node/n1")
	require.Equal(t, "n1", id.Node)
	require.Equal(t, "tls", id.Listener)
	require.Equal(t, byte(5), id.Version)

	c = dialTLS(t, b.Addrs()[0], a.client("n1"))
	require.Equal(t, byte(0x86), c.connect("core2", credentialsOf("node/n2", "")))
	require.Equal(t, "the certificate is for n1, but this node is n2", c.connack.Properties.ReasonString)
	c = dialTLS(t, b.Addrs()[0], a.client("n1"))
	require.Equal(t, byte(0), c.connect("person", credentialsOf("op", "secret")))
	c = dialTLS(t, b.Addrs()[0], a.client("Not A Name"))
	require.Equal(t, byte(0x86), c.connect("x"))
	stranger := newTestAuthority(t).client("n1")
	stranger.RootCAs = a.pool
	conn, err := tls.Dial("tcp", b.Addrs()[0].String(), stranger)
	if err == nil { // TLS 1.3 tells a client only when it reads
		_, err = conn.Read(make([]byte, 1))
	}
	require.Error(t, err)

	ws := dialWS(t, "wss://"+b.Addrs()[1].String()+"/mqtt", a.client("n3"))
	require.Equal(t, byte(0), ws.connect("node/n3"))
	require.Equal(t, "n3", told.last(t, "+node/n3").Node)
}

// The session is the user's, and what it brings what the user may read now.
func TestAUserGetsAnotherRole(t *testing.T) {
	dir := t.TempDir()
	as := func(role topics.Role) func(*Options) {
		return func(o *Options) {
			o.Auth.Users = []User{{Name: "ann", PasswordHash: hashPBKDF2, Role: role, Nodes: []string{"*"}, Devices: []string{"lamp"}}}
		}
	}
	ann := credentialsOf("ann", "secret")
	b, stop := startKept(t, dir, as(topics.RoleOperator))
	c := openClient(t, b, "ann-app", persistentSession, ann)
	c.sub("#", 1)
	c.disconnect()
	stop()
	b, _ = startKept(t, dir, as(topics.RoleMapper))
	c = openClient(t, b, "ann-app", persistentSession, ann)
	require.True(t, c.connack.SessionPresent)
	b.Publish(Message{Topic: "v1/nodes/n1/devices/other/desired/power", Payload: []byte("not for you"), QoS: 1})
	b.Publish(Message{Topic: "own", Payload: []byte("for you"), QoS: 1})
	require.Equal(t, "for you", string(c.expect(packets.Publish).Payload))
	require.Equal(t, byte(codeNotAuthorized), dialBroker(t, b).connect("ann-app"), "another user has nothing of it")
}

func TestNobodyIsTheBrokerItself(t *testing.T) {
	for _, b := range []*Broker{startBroker(t, linkQueueOf([]string{"kept/#"}, nil)), startBroker(t, nil)} {
		for _, id := range []string{linkQueueID, "$", "$another"} {
			c := dialBroker(t, b)
			require.Equal(t, byte(codeBadClientID), c.connect(id))
			require.Contains(t, c.connack.Properties.ReasonString, "begin with $")
			require.Equal(t, byte(connackBadIdentifier), dialBroker(t, b).connect(id, version311))
		}
	}
	require.Zero(t, dialBroker(t, startBroker(t, nil)).connect("a$"))
}

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

func TestANameThatNobodyRegisteredIsNoNodes(t *testing.T) {
	a := newTestAuthority(t)
	b := startBroker(t, func(o *Options) {
		withUsers(o)
		o.Auth.Node = func(name string) bool { return name == "n1" }
		o.Listeners = []Listener{{Name: "tls", Address: "127.0.0.1:0", TLS: a.server()}}
	})
	refusedBoth(t, b, a.client("ann"), "the certificate is for ann, which is neither a user of auth.users nor a Node that there is")
	for name, id := range map[string]string{"n1": "node/n1", "n9": "node/n9", "op": "op"} {
		require.Equal(t, byte(0), dialTLS(t, b.Addrs()[0], a.client(name)).connect(id))
	}
}

func TestDeniedUsersAreRefused(t *testing.T) {
	a := newTestAuthority(t)
	serial, print, good := a.client("n2"), a.client("n2"), a.client("n2")
	sum := sha256.Sum256(leafOf(t, print).Raw)
	b := startBroker(t, func(o *Options) {
		withUsers(o)
		o.Auth.Deny = []DeniedIdentity{
			{Name: "n1"}, {Name: "op"}, {Serial: leafOf(t, serial).SerialNumber.Text(16)}, {Fingerprint: new(big.Int).SetBytes(sum[:]).Text(16)},
		}
		o.Listeners = append([]Listener{{Name: "tls", Address: "127.0.0.1:0", TLS: a.server()}}, o.Listeners...)
	})
	refusedBoth(t, b, a.client("n1"), "n1 is denied (auth.deny)")
	refusedBoth(t, b, serial, "this certificate is denied (auth.deny)")
	refusedBoth(t, b, print, "this certificate is denied (auth.deny)")
	require.Equal(t, byte(0), dialTLS(t, b.Addrs()[0], good).connect("node/n2"), "another certificate of that name")
	c := dialTLS(t, b.Addrs()[0], serial)
	require.Equal(t, byte(0x86), c.connect("c", credentialsOf("view", "secret")), "whatever else is shown")
	for user, password := range map[string]string{"op": "secret", "node/n1": ""} {
		c := &testClient{}
		func() {
			conn, err := (&tls.Dialer{Config: a.client("")}).Dial("tcp", b.Addrs()[0].String())
			require.NoError(t, err)
			c = wrapConn(t, conn)
		}()
		require.Equal(t, byte(0x86), c.connect("c", credentialsOf(user, password)))
		require.Contains(t, c.connack.Properties.ReasonString, "is denied")
	}
}

// A connection ends when the certificate does that it was let in for; one that a password let in goes on.
func TestAConnectionEndsWithItsCertificate(t *testing.T) {
	a := newTestAuthority(t)
	var clock atomic.Int64
	b := startBroker(t, func(o *Options) {
		withUsers(o)
		o.Now = func() time.Time { return time.UnixMilli(clock.Load()) }
		o.Listeners = []Listener{{Name: "tls", Address: "127.0.0.1:0", TLS: a.server()}}
	})
	config := a.client("n9")
	clock.Store(leafOf(t, config).NotAfter.Add(-time.Second).UnixMilli())
	c, person := dialTLS(t, b.Addrs()[0], config), dialTLS(t, b.Addrs()[0], config)
	require.Equal(t, byte(0), c.connect("node/n9"))
	require.Equal(t, byte(0), person.connect("person", credentialsOf("op", "secret")))
	clock.Store(leafOf(t, config).NotAfter.UnixMilli())
	code, _ := c.ended()
	require.Equal(t, byte(0x87), code)
	require.Zero(t, person.publish1("a", "still here").ReasonCode)
	require.Equal(t, int64(1), b.Stats().Closed[daemon.Label("certificate or token ended")])
}

func TestSeveralCommonNamesAreRefused(t *testing.T) {
	a := newTestAuthority(t)
	b := startBroker(t, func(o *Options) { o.Listeners = []Listener{{Name: "tls", Address: "127.0.0.1:0", TLS: a.server()}} })
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

func neverOver() bool { return false }
