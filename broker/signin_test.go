package broker

import (
	"context"
	"crypto/tls"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/mochi-mqtt/server/v2/packets"
	"github.com/rs/zerolog"
	"github.com/stretchr/testify/require"

	"github.com/edgebus/edgebus/topics"
	"github.com/edgebus/edgebus/topics/resource"
)

// A listed name makes a certificate that user's; any other is a node's.
func TestACertificateOfAUser(t *testing.T) {
	a := newAuthority(t)
	b := start(t, func(o *Options) {
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
	require.Equal(t, byte(0), c.connect("listed as a node", credentialsOf("node/n9", "")))

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
	a := newAuthority(t)
	b := start(t, withUsers)
	closed := start(t, func(o *Options) { withUsers(o); o.Auth.Anonymous, o.Auth.LoopbackNodes = nil, false })
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

func TestTrial12WhoIsNotLetInOverHTTPIsLogged(t *testing.T) {
	path := filepath.Join(t.TempDir(), "log")
	log, err := os.Create(path)
	require.NoError(t, err)
	defer log.Close()
	b := start(t, func(o *Options) { withUsers(o); o.Log = zerolog.New(log); o.Limits.WrongPasswords = 1000 })
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
	require.Equal(t, 1, said(`"level":"info","error":"nobody is signed in`))
	require.Equal(t, 3, said("HTTP request refused"))
	for range 100 {
		refused("op")
	}
	require.Less(t, said("HTTP request refused"), 60, "of a flood not each")
	require.Zero(t, said("guess"))
	require.Zero(t, said(strings.Repeat("x", 200)))
}

func TestAnExpiredCertificateSignsNobodyIn(t *testing.T) {
	a := newAuthority(t)
	b := start(t, func(o *Options) {
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
	b := start(t, func(o *Options) { withUsers(o); o.Limits.WrongPasswords = 2 })
	c := dial(t, b)
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
	c = dial(t, b)
	require.Equal(t, byte(0x9F), c.connect("c", credentialsOf("op", "secret")))
}

// With the defaults on loopback a name and a password are accepted, and say nothing: many clients can't do without.
// Names of nodes are nobody else's, and once users are listed each name is one of theirs.
func TestTrial28CredentialsThatNobodyNeeds(t *testing.T) {
	b := start(t, nil)
	for _, version := range []connectOption{v3, func(*packets.Packet) {}} {
		c := open(t, b, "c", credentialsOf("homeassistant", "whatever"), version)
		c.publish1("a", "x")
		require.Empty(t, b.clients.connected("c").ident.User)
		open(t, b, "d", credentialsOf("name", ""), version)
		open(t, b, "n", credentialsOf("node/n1", "password"), version)
		require.Equal(t, "n1", b.clients.connected("n").ident.Node)
	}
	require.Equal(t, byte(0x86), dial(t, b).connect("x", credentialsOf("node/+", "")))
	listed := start(t, withUsers)
	require.Equal(t, byte(0x86), dial(t, listed).connect("x", credentialsOf("somebody", "else")))
	nobody := start(t, func(o *Options) { o.Auth.Anonymous = nil })
	require.Equal(t, byte(0x86), dial(t, nobody).connect("x", credentialsOf("somebody", "else")))
}
