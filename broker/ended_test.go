package broker

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"maps"
	"net/http"
	"net/http/httptest"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/edgebus/edgebus/topics"
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
				bearer := maps.Clone(o.Auth.Bearer.(tokens))
				u := bearer["t_ci"]
				u.Revoked = revoked
				bearer["t_ci"] = u
				bearer["t_new"] = BearerUser{User: u.User, Expires: u.Expires, ID: "c9"}
				o.Auth.Bearer, o.Tree = bearer, newFakeTree()
			}
			b, _ := kept(t, dir, given)
			sub := open(t, b, "sub", credentialsOf("op", "secret"))
			sub.sub("will/#", 0)
			var will []connectOption
			if name == "token" { // a node's messages outside of v1/ are its link's
				will = []connectOption{withWill("will/now", "gone", 0)}
			}
			here := open(t, b, who.id, append(will, persistent, who.credentials)...)
			away := open(t, b, who.second, persistent, who.credentials)
			if name == "token" {
				away.leave(b, who.second)
				away = open(t, b, who.second, persistent, who.credentials, withWill("will/later", "gone", 3600))
				away.sub("queue", 1)
			}
			away.leave(b, who.second)
			open(t, b, "pub", credentialsOf("op", "secret")).publish1("queue", "waits")
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
			}, patience, time.Millisecond)
			sub.nothing()
			require.Zero(t, b.Stats().Kept)
			require.Zero(t, b.Stats().Queued)
			if name == "token" {
				again := open(t, b, who.second, persistent, credentialsOf("ci", "t_new"))
				require.False(t, again.connack.SessionPresent)
				again.nothing()
			}
		})
	}
}

// Whoever has lost its rights while the broker did not run gets nothing of what it had when that starts.
func TestAnIdentityThatEndedWhileTheBrokerWasDown(t *testing.T) {
	for name, end := range map[string]func(*Options){
		"token revoked": func(o *Options) { o.Auth.Bearer = tokens{} },
		"user denied":   func(o *Options) { o.Auth.Deny = []Denied{{Name: "op"}} },
		"user removed": func(o *Options) {
			o.Auth.Bearer = tokens{} // and no provider
			o.Auth.Users = slices.DeleteFunc(slices.Clone(o.Auth.Users), func(u User) bool { return u.Name == "op" })
		},
		"user removed, and there is a provider": func(o *Options) {
			o.Auth.Users = slices.DeleteFunc(slices.Clone(o.Auth.Users), func(u User) bool { return u.Name == "op" })
		},
	} {
		t.Run(name, func(t *testing.T) {
			credentials := credentialsOf("op", "secret")
			if name == "token revoked" {
				credentials = credentialsOf("ci", "t_ci")
			}
			dir := t.TempDir()
			b, stop := kept(t, dir, withTokens)
			open(t, b, "boss", persistent, credentialsOf("boss", "secret")).sub("will", 1)
			open(t, b, "c", persistent, credentials, withWill("will", "gone", 3600)).leave(b, "c")
			stop()
			b, _ = kept(t, dir, func(o *Options) { withTokens(o); end(o) })
			require.Eventually(t, func() bool { return b.clients.session("c") == nil }, patience, time.Millisecond)
			boss := open(t, b, "boss", persistent, credentialsOf("boss", "secret"))
			require.True(t, boss.connack.SessionPresent)
			boss.nothing()
		})
	}
}

// A node that was revoked while the hub was down, or in another hub's data that its backup was restored to, gets nothing of what it had; one that
// has joined again since does, as does a user whom only the provider knows.
func TestWhoseIdentityIsNotTheRevokedOneKeepsItsSession(t *testing.T) {
	a := newAuthority(t)
	dir := t.TempDir()
	first, again := a.client("n1"), a.client("n1")
	of := func(revoked *x509.Certificate) func(*Options) {
		return func(o *Options) {
			withTokens(o)
			bearer := maps.Clone(o.Auth.Bearer.(tokens))
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
			b, stop := kept(t, dir, of(nil))
			node := dialTLS(t, b.Addrs()[1], c.shows)
			require.Zero(t, node.connect("node/n1", persistent))
			node.leave(b, "node/n1")
			open(t, b, "ann", persistent, credentialsOf("", "t_ann")).leave(b, "ann")
			stop()
			b, stop = kept(t, dir, of(leafOf(t, first)))
			require.NotNil(t, b.clients.session("ann"))
			if c.stays {
				require.NotNil(t, b.clients.session("node/n1"))
			} else {
				require.Eventually(t, func() bool { return b.clients.session("node/n1") == nil }, patience, time.Millisecond)
			}
			stop()
		})
	}
}
