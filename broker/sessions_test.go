// SPDX-License-Identifier: Apache-2.0

package broker

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"maps"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/mochi-mqtt/server/v2/packets"
	"github.com/stretchr/testify/require"

	"github.com/edgebus/edgebus/topics"
	"github.com/edgebus/edgebus/topics/password"
)

// What an identity holds ends with it: the table of identity and holding.
func TestAnIdentityLeavesNothing(t *testing.T) {
	for name, who := range map[string]struct {
		credentials connectOption
		id, second  string
		end         func(b *Broker, revoke context.CancelFunc)
	}{
		"token": {credentialsOf("ci", "t_ci"), "c", "d", func(_ *Broker, revoke context.CancelFunc) { revoke() }},
		"node": {credentialsOf("node/n9", "secret"), "node/n9", "node/n9/d", func(b *Broker, _ context.CancelFunc) {
			b.DisconnectNode("n9", "revoked")
		}},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			revoked, revoke := context.WithCancel(t.Context())
			defer revoke()
			given := func(o *Options) {
				withTokens(o)
				bearer := maps.Clone(o.Auth.Bearer.(fakeTokens))
				u := bearer["t_ci"]
				u.Revoked = revoked
				bearer["t_ci"] = u
				bearer["t_new"] = BearerUser{User: u.User, Expires: u.Expires, ID: "c9"}
				o.Auth.Bearer, o.Tree = bearer, newFakeTree()
			}
			b, _ := startKept(t, dir, given)
			sub := openClient(t, b, "sub", credentialsOf("op", "secret"))
			sub.sub("will/#", 0)
			var will []connectOption
			if name == "token" { // a node's messages outside of v1/ are its link's
				will = []connectOption{withWill("will/now", "gone", 0)}
			}
			here := openClient(t, b, who.id, append(will, persistentSession, who.credentials)...)
			away := openClient(t, b, who.second, persistentSession, who.credentials)
			if name == "token" {
				away.leave(b, who.second)
				away = openClient(t, b, who.second, persistentSession, who.credentials, withWill("will/later", "gone", 3600))
				away.sub("queue", 1)
			}
			away.leave(b, who.second)
			openClient(t, b, "pub", credentialsOf("op", "secret")).publish1("queue", "waits")
			r := httptest.NewRequest(http.MethodGet, "/", nil)
			watching, stop := context.WithCancel(t.Context())
			defer stop()
			r = r.WithContext(watching)
			if name == "token" {
				r.Header.Set("Authorization", "Bearer t_ci")
			} else {
				r.SetBasicAuth("n9", "secret")
			}
			watch, err := b.SignIn(r)
			require.NoError(t, err)
			other, err := b.SignIn(func() *http.Request {
				r := httptest.NewRequest(http.MethodGet, "/", nil).WithContext(watching)
				r.SetBasicAuth("op", "secret")
				return r
			}())
			require.NoError(t, err)

			who.end(b, revoke)
			here.ended()
			<-watch.Revoked.Done()
			require.NoError(t, other.Revoked.Err(), "others' requests go on")
			require.Eventually(t, func() bool {
				return b.clients.session(who.id) == nil && b.clients.session(who.second) == nil
			}, testTimeout, time.Millisecond)
			sub.nothing()
			require.Zero(t, b.Stats().Kept)
			require.Zero(t, b.Stats().Queued)
			if name == "token" {
				again := openClient(t, b, who.second, persistentSession, credentialsOf("ci", "t_new"))
				require.False(t, again.connack.SessionPresent)
				again.nothing()
			}
		})
	}
}

// Whoever has lost its rights while the broker did not run has nothing when that starts, of the settings of then: the table of identity and what is
// stored of it. Wills and subscriptions outside of v1/ are for those who may have them.
func TestAnIdentityThatEndedWhileTheBrokerWasDown(t *testing.T) {
	a := newTestAuthority(t)
	op, node := a.client("op"), a.client("n1")
	without := func(name string) func(*Options) {
		return func(o *Options) {
			o.Auth.Users = slices.DeleteFunc(slices.Clone(o.Auth.Users), func(u User) bool { return u.Name == name })
		}
	}
	bearer := func(t fakeTokens) func(*Options) { return func(o *Options) { o.Auth.Bearer = t } }
	deny := func(d DeniedIdentity) func(*Options) { return func(o *Options) { o.Auth.Deny = []DeniedIdentity{d} } }
	with := func(o *Options) {
		withTokens(o)
		o.Auth.Anonymous = []topics.Role{topics.RoleOperator}
		o.Listeners = append(o.Listeners, Listener{Name: "tls", Address: "127.0.0.1:0", TLS: a.server()})
		all := maps.Clone(o.Auth.Bearer.(fakeTokens))
		all["t_ann"] = BearerUser{User: User{Name: "ann", Role: topics.RoleOperator, Nodes: []string{"*"}}, Expires: time.Now().Add(time.Hour)}
		o.Auth.Bearer = all
	}
	local := func(o *Options) { o.Node = "n1" }
	for name, c := range map[string]struct {
		shows    connectOption
		cert     *tls.Config
		id       string         // a client identifier that it may have
		is, then func(*Options) // the settings before and after; is may be nil
	}{
		"token revoked":                         {shows: credentialsOf("ci", "t_ci"), id: "c", then: bearer(fakeTokens{})},
		"user of the provider denied":           {shows: credentialsOf("", "t_ann"), id: "c", then: deny(DeniedIdentity{Name: "ann"})},
		"user of a provider that is no more":    {shows: credentialsOf("", "t_ann"), id: "c", then: bearer(nil)},
		"user denied":                           {shows: credentialsOf("op", "secret"), id: "c", then: deny(DeniedIdentity{Name: "op"})},
		"user removed":                          {shows: credentialsOf("op", "secret"), id: "c", then: func(o *Options) { without("op")(o); bearer(fakeTokens{})(o) }},
		"user removed, and there is a provider": {shows: credentialsOf("op", "secret"), id: "c", then: without("op")},
		"user removed who has a certificate":    {cert: op, id: "c", then: without("op")},
		"user's certificate denied":             {cert: op, id: "c", then: deny(DeniedIdentity{Fingerprint: Fingerprint(leafOf(t, op))})},
		"user's certificate denied by number":   {cert: op, id: "c", then: deny(DeniedIdentity{Serial: leafOf(t, op).SerialNumber.Text(16)})},
		"mapper's user on a core removed":       {shows: credentialsOf("modbus", "secret"), id: "modbus", is: local, then: func(o *Options) { local(o); without("modbus")(o) }},
		"mapper's user on a core denied":        {shows: credentialsOf("modbus", "secret"), id: "modbus", is: local, then: func(o *Options) { local(o); deny(DeniedIdentity{Name: "modbus"})(o) }},
		"who does not sign in":                  {shows: func(*packets.Packet) {}, id: "c", then: func(o *Options) { o.Auth.Anonymous = nil }},
		"node with a password removed":          {shows: credentialsOf("node/n9", "secret"), id: "node/n9", then: func(o *Options) { without("n9")(o); o.Auth.LoopbackNodes = false }},
		"node on loopback":                      {shows: func(pk *packets.Packet) { pk.Connect.UsernameFlag, pk.Connect.Username = true, []byte("node/n1") }, id: "node/n1", then: func(o *Options) { o.Auth.LoopbackNodes = false }},
		"node deleted":                          {cert: node, id: "node/n1", then: func(o *Options) { o.Auth.Node = func(string) bool { return false } }},
		"node denied":                           {cert: node, id: "node/n1", then: deny(DeniedIdentity{Name: "n1"})},
		"node's certificate denied":             {cert: node, id: "node/n1", then: deny(DeniedIdentity{Fingerprint: Fingerprint(leafOf(t, node))})},
		"node revoked": {cert: node, id: "node/n1", then: func(o *Options) {
			o.Auth.Revoked = func(name string, _ *x509.Certificate) string { return map[string]string{"n1": "revoked"}[name] }
		}},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			b, _ := startKept(t, dir, func(o *Options) {
				with(o)
				if c.is != nil {
					c.is(o)
				}
			})
			enter := func(id string, options ...connectOption) *testClient {
				if c.cert == nil {
					return openClient(t, b, id, append(options, c.shows)...)
				}
				conn := dialTLS(t, b.Addrs()[1], c.cert)
				require.Zero(t, conn.connect(id, options...))
				return conn
			}
			boss := credentialsOf("boss", "secret")
			waits := openClient(t, b, "boss", persistentSession, boss)
			waits.sub("will/#", 1)
			waits.leave(b, "boss")
			away, here, second := []connectOption{persistentSession}, []connectOption{}, c.id+"-2"
			isNode := strings.HasPrefix(c.id, nodePrefix)
			if isNode {
				second = c.id + "/2"
			} else {
				away, here = append(away, withWill("will/later", "gone", 3600)), append(here, withWill("will/now", "gone", 0))
			}
			conn := enter(c.id, away...)
			if !isNode {
				conn.sub("queue", 1)
			}
			conn.leave(b, c.id)
			enter(second, here...)
			openClient(t, b, "pub", boss).publish1("queue", "waits")
			require.NotNil(t, b.clients.session(c.id))

			b, _ = restartCrashed(t, dir, func(o *Options) { with(o); c.then(o) }) // with a crash, as otherwise wills are published before
			require.Eventually(t, func() bool { return b.clients.session(c.id) == nil }, testTimeout, time.Millisecond)
			waits = openClient(t, b, "boss", persistentSession, boss)
			require.True(t, waits.connack.SessionPresent)
			waits.nothing()
			require.Zero(t, b.Stats().Queued)
			require.Equal(t, 1, b.Stats().Subscriptions, "the boss's")
		})
	}
}

// What a user left has the rights that the settings give the user when the broker starts again, and goes on with another password.
func TestWhatIsStoredHasTheRightsOfNow(t *testing.T) {
	const far = topics.Prefix + "b1/devices/lamp/telemetry/t"
	for name, c := range map[string]struct {
		then             func(u *User)
		password         string
		kept, will, left bool
	}{
		"as before":        {then: func(*User) {}, password: "secret", kept: true, will: true, left: true},
		"another password": {then: func(u *User) { u.PasswordHash = password.NewHash([]byte("other")) }, password: "other", kept: true, will: true, left: true},
		"a viewer now":     {then: func(u *User) { u.Role = topics.RoleViewer }, password: "secret", kept: true, left: true},
		"of other nodes":   {then: func(u *User) { u.Nodes = []string{"a*"} }, password: "secret", will: true, left: true},
		"a node now":       {then: func(u *User) { u.Role, u.Nodes = topics.RoleNode, nil }, password: ""},
	} {
		t.Run(name, func(t *testing.T) {
			users := func(change func(*User)) func(*Options) {
				return func(o *Options) {
					withTokens(o)
					all := slices.Clone(o.Auth.Users)
					one := User{Name: "one", PasswordHash: hashPBKDF2, Role: topics.RoleOperator, Nodes: []string{"*"}}
					change(&one)
					o.Auth.Users = append(all, one)
				}
			}
			dir := t.TempDir()
			b, _ := startKept(t, dir, users(func(*User) {}))
			boss := openClient(t, b, "boss", persistentSession, credentialsOf("boss", "secret"))
			boss.sub("will/#", 1)
			boss.leave(b, "boss")
			one := openClient(t, b, "one", persistentSession, credentialsOf("one", "secret"))
			one.sub(topics.Prefix+"#", 1)
			one.leave(b, "one")
			openClient(t, b, "two", credentialsOf("one", "secret"), withWill("will/now", "gone", 0))
			openClient(t, b, "flush", credentialsOf("boss", "secret")).publish1("elsewhere", "takes the will to disk", markRetain)
			require.True(t, b.HasDurableSubscriber(far))

			b, _ = restartCrashed(t, dir, users(c.then))
			boss = openClient(t, b, "boss", persistentSession, credentialsOf("boss", "secret"))
			require.Equal(t, c.kept, b.HasDurableSubscriber(far))
			require.Equal(t, c.left, b.clients.session("one") != nil)
			if c.will {
				require.Equal(t, []string{"gone"}, boss.collect(1))
			}
			boss.nothing()
			if c.password == "" {
				return
			}
			if c.password != "secret" {
				require.NotZero(t, dialBroker(t, b).connect("one", persistentSession, credentialsOf("one", "secret")))
			}
			require.True(t, openClient(t, b, "one", persistentSession, credentialsOf("one", c.password)).connack.SessionPresent)
		})
	}
}

// A node that was revoked while the hub was down, or in another hub's data that its backup was restored to, gets nothing of what it had; one that
// has joined again since does, as does a user whom only the provider knows.
func TestWhoseIdentityIsNotTheRevokedOneKeepsItsSession(t *testing.T) {
	a := newTestAuthority(t)
	dir := t.TempDir()
	first, again := a.client("n1"), a.client("n1")
	of := func(revoked *x509.Certificate) func(*Options) {
		return func(o *Options) {
			withTokens(o)
			bearer := maps.Clone(o.Auth.Bearer.(fakeTokens))
			bearer["t_ann"] = BearerUser{User: User{Name: "ann", Role: topics.RoleViewer, Nodes: []string{"*"}}, Expires: time.Now().Add(time.Hour)}
			o.Auth.Bearer = bearer
			o.Listeners = append(o.Listeners, Listener{Name: "tls", Address: "127.0.0.1:0", TLS: a.server()})
			o.Auth.Revoked = func(node string, cert *x509.Certificate) string {
				if revoked != nil && node == "n1" && (cert == nil || cert.Equal(revoked)) {
					return "its certificates were revoked"
				}
				return ""
			}
		}
	}
	for name, c := range map[string]struct {
		shows *tls.Config
		stays bool
	}{"revoked": {first, false}, "joined again": {again, true}} {
		t.Run(name, func(t *testing.T) {
			b, stop := startKept(t, dir, of(nil))
			node := dialTLS(t, b.Addrs()[1], c.shows)
			require.Zero(t, node.connect("node/n1", persistentSession))
			node.leave(b, "node/n1")
			openClient(t, b, "ann", persistentSession, credentialsOf("", "t_ann")).leave(b, "ann")
			stop()
			b, stop = startKept(t, dir, of(leafOf(t, first)))
			require.NotNil(t, b.clients.session("ann"))
			if c.stays {
				require.NotNil(t, b.clients.session("node/n1"))
			} else {
				require.Eventually(t, func() bool { return b.clients.session("node/n1") == nil }, testTimeout, time.Millisecond)
			}
			stop()
		})
	}
}
