package broker

import (
	"context"
	"maps"
	"net/http"
	"net/http/httptest"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
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
