package broker

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"math/big"
	"net"
	"testing"
	"time"

	"github.com/mochi-mqtt/server/v2/packets"
	"github.com/stretchr/testify/require"

	"github.com/edgebus/edgebus/topics"
)

// Hashes of "secret".
const (
	hash7 = "$7$101$MDEyMzQ1Njc4OWFi$EO/lLlkeUgIiBaS8G8UK0ZMP1u508TA7Tl+AdJ1cEsmlbGyEPAERErpfq84j1kepISs0UzmcdL4ucgZ2uodxfQ=="
	hash6 = "$6$MDEyMzQ1Njc4OWFi$qEXipeLbgxRlwd06QHfY5WITkUZg0jLg9SZbXzq3ifXjfj+v3GbJGrSfC5PAg3UNCS+UFfbhUIZX4bmIAs330w=="
)

func users() []User {
	return []User{
		{Name: "op", PasswordHash: hash7, Role: topics.RoleOperator, Nodes: []string{"a*"}},
		{Name: "boss", PasswordHash: hash7, Role: topics.RoleOperator, Nodes: []string{"*"}},
		{Name: "view", PasswordHash: hash6, Role: topics.RoleViewer, Nodes: []string{"a1"}},
		{Name: "map", PasswordHash: hash6, Role: topics.RoleMapper, Devices: []string{"lamp*"}},
		{Name: "modbus", PasswordHash: hash6, Role: topics.RoleMapper, Protocols: []string{"modbus"}},
		{Name: "any", PasswordHash: hash6, Role: topics.RoleMapper},
		{Name: "n9", PasswordHash: hash7, Role: topics.RoleNode},
	}
}

func withUsers(o *Options) { o.Auth.Users = users() }

func TestWhoMayConnect(t *testing.T) {
	hub := start(t, withUsers)
	closed := start(t, func(o *Options) { withUsers(o); o.Auth.Anonymous, o.Auth.LoopbackNodes = nil, false })
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
		five, three := dial(t, c.b), dial(t, c.b)
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
		require.Equal(t, want, three.connect("three-"+c.user+c.password, append(opts, v3)...))
	}
	require.Equal(t, int64(20), hub.Stats().Rejected["bad user name or password"])
}

func TestUnusualConnects(t *testing.T) {
	b := start(t, nil)
	c := dial(t, b)
	require.Equal(t, byte(0x8C), c.connect("c", func(pk *packets.Packet) { pk.Properties.AuthenticationMethod = "SCRAM" }))
	c = dial(t, b)
	require.Equal(t, byte(2), c.connect("", v3, persistent), "no id, and a session to keep")
	c = dial(t, b)
	require.Equal(t, byte(0), c.connect("", v3))
	c = dial(t, b)
	require.Equal(t, byte(0), c.connect("old", v31))
	c = dial(t, b)
	c.raw([]byte{0x10, 0})
	c.ended()
	c = dial(t, b)
	c.send(packets.Packet{FixedHeader: packets.FixedHeader{Type: packets.Pingreq}})
	c.ended()
	c = open(t, b, "twice")
	c.send(connectPacket("twice"))
	code, _ := c.ended()
	require.Equal(t, byte(0x82), code)
}

// A core calls itself node/{name} whatever it signs in with, and may change that.
func TestANodeWithAPassword(t *testing.T) {
	b := start(t, withUsers)
	c := open(t, b, "node/n9", credentialsOf("node/n9", "secret"), persistent)
	require.Equal(t, byte(0x87), c.publish1("v1/nodes/n1/sync/up", "x").ReasonCode)
	require.Equal(t, []byte{1}, c.subscribe("v1/nodes/n9/sync/down", 1).ReasonCodes)
	c.leave(b, "node/n9")
	for _, as := range []connectOption{credentialsOf("n9", "secret"), credentialsOf("node/n9", "")} {
		c = open(t, b, "node/n9", as, persistent)
		require.True(t, c.connack.SessionPresent)
		c.leave(b, "node/n9")
	}
}

func TestNobodyElseIsCalledLikeACore(t *testing.T) {
	for _, role := range []topics.Role{topics.RoleNode, topics.RoleOperator} {
		_, err := New(Options{Auth: Auth{Users: []User{{Name: "node/n1", PasswordHash: hash7, Role: role, Nodes: []string{"*"}}}}})
		require.ErrorContains(t, err, "the node's name alone")
	}
}

// A session belongs to its user: nobody else may have its messages, or end it.
func TestASessionIsItsUsersOwn(t *testing.T) {
	b := start(t, withUsers)
	op := open(t, b, "id", credentialsOf("op", "secret"), persistent)
	op.sub("a", 1)
	thief := dial(t, b)
	require.Equal(t, byte(0x87), thief.connect("id", credentialsOf("view", "secret"), persistent))
	op.nothing()
	op.leave(b, "id")
	thief = dial(t, b)
	require.Equal(t, byte(0x87), thief.connect("id", credentialsOf("view", "secret")))
	op = open(t, b, "id", credentialsOf("op", "secret"), persistent)
	require.True(t, op.connack.SessionPresent)
}

// authority makes certificates for 127.0.0.1 and for clients.
type authority struct {
	t    *testing.T
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
	pool *x509.CertPool
}

func newAuthority(t *testing.T) *authority {
	a := &authority{t: t, pool: x509.NewCertPool()}
	pair := a.issue("authority")
	a.cert, a.key = pair.Leaf, pair.PrivateKey.(*ecdsa.PrivateKey)
	a.pool.AddCert(a.cert)
	return a
}

func (a *authority) issue(name string) tls.Certificate {
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

func (a *authority) server() *tls.Config {
	return &tls.Config{
		Certificates: []tls.Certificate{a.issue("server")}, ClientCAs: a.pool,
		ClientAuth: tls.VerifyClientCertIfGiven, MinVersion: tls.VersionTLS12,
	}
}

func (a *authority) client(name string) *tls.Config {
	c := &tls.Config{RootCAs: a.pool, MinVersion: tls.VersionTLS12}
	if name != "" {
		c.Certificates = []tls.Certificate{a.issue(name)}
	}
	return c
}

func TestCertificateIsANode(t *testing.T) {
	a := newAuthority(t)
	told := &presence{}
	b := start(t, func(o *Options) {
		withUsers(o)
		o.Presence = told
		o.Listeners = []Listener{
			{Name: "tls", Address: "127.0.0.1:0", TLS: a.server()},
			{Name: "wss", Address: "127.0.0.1:0", TLS: a.server(), WebSocket: true},
		}
	})
	c := dialTLS(t, b.Addrs()[0], a.client("n1"))
	require.Equal(t, byte(0), c.connect("core"))
	require.Equal(t, byte(0x87), c.publish1("v1/nodes/n2/sync/up", "x").ReasonCode)
	id := told.last(t, "+core")
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
	stranger := newAuthority(t).client("n1")
	stranger.RootCAs = a.pool
	conn, err := tls.Dial("tcp", b.Addrs()[0].String(), stranger)
	if err == nil { // TLS 1.3 tells a client only when it reads
		_, err = conn.Read(make([]byte, 1))
	}
	require.Error(t, err)

	ws := dialWS(t, "wss://"+b.Addrs()[1].String()+"/mqtt", a.client("n3"))
	require.Equal(t, byte(0), ws.connect("ws"))
	require.Equal(t, "n3", told.last(t, "+ws").Node)
}

// The session is the user's, and what it brings what the user may read now.
func TestAUserGetsAnotherRole(t *testing.T) {
	dir := t.TempDir()
	as := func(role topics.Role) func(*Options) {
		return func(o *Options) {
			o.Auth.Users = []User{{Name: "ann", PasswordHash: hash7, Role: role, Nodes: []string{"*"}, Devices: []string{"lamp"}}}
		}
	}
	ann := credentialsOf("ann", "secret")
	b, stop := kept(t, dir, as(topics.RoleOperator))
	c := open(t, b, "app", persistent, ann)
	c.sub("#", 1)
	c.disconnect()
	stop()
	b, _ = kept(t, dir, as(topics.RoleMapper))
	c = open(t, b, "app", persistent, ann)
	require.True(t, c.connack.SessionPresent)
	b.Publish(Message{Topic: "v1/nodes/n1/devices/other/desired/power", Payload: []byte("not for you"), QoS: 1})
	b.Publish(Message{Topic: "own", Payload: []byte("for you"), QoS: 1})
	require.Equal(t, "for you", string(c.expect(packets.Publish).Payload))
	require.Equal(t, byte(codeNotAuthorized), dial(t, b).connect("app"), "another user has nothing of it")
}

func TestNobodyIsTheBrokerItself(t *testing.T) {
	for _, b := range []*Broker{start(t, outletOf([]string{"kept/#"}, nil)), start(t, nil)} {
		for _, id := range []string{OutletID, "$", "$another"} {
			c := dial(t, b)
			require.Equal(t, byte(codeBadClientID), c.connect(id))
			require.Contains(t, c.connack.Properties.ReasonString, "begin with $")
			require.Equal(t, byte(connackBadIdentifier), dial(t, b).connect(id, v3))
		}
	}
	require.Zero(t, dial(t, start(t, nil)).connect("a$"))
}
