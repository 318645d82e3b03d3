// SPDX-License-Identifier: Apache-2.0

package broker

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
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

	"github.com/edgebus/edgebus/broker/audit"
	"github.com/edgebus/edgebus/broker/daemon"
	"github.com/edgebus/edgebus/topics"
	"github.com/edgebus/edgebus/topics/acl"
	"github.com/edgebus/edgebus/topics/resource"
)

// fakeTokens are bearer tokens by their text.
type fakeTokens map[string]BearerUser

func (fakeTokens) IsToken(password string) bool { return strings.HasPrefix(password, "t_") }

func (t fakeTokens) Revoked(id string) context.Context {
	for _, u := range t {
		if u.ID == id && u.Revoked != nil {
			return u.Revoked
		} else if u.ID == id {
			return context.Background()
		}
	}
	gone, end := context.WithCancel(context.Background())
	end()
	return gone
}

func (t fakeTokens) Verify(_ context.Context, token string) (BearerUser, error) {
	u, ok := t[token]
	switch {
	case !ok:
		return u, resource.Errorf(resource.Unauthorized, "token", "there is no such token")
	case u.Name == "":
		return u, resource.Errorf(resource.Unavailable, "token", "the provider can't be asked")
	}
	return u, nil
}

func withTokens(o *Options) {
	withUsers(o)
	o.Auth.Anonymous = nil
	o.Limits.WrongPasswords = 2
	o.Auth.Bearer = fakeTokens{
		"t_ci":   {User: User{Name: "ci", Role: topics.RoleOperator, Nodes: []string{"n1"}}, Expires: time.Now().Add(time.Hour), ID: "c1"},
		"t_over": {User: User{Name: "late", Role: topics.RoleViewer, Nodes: []string{"*"}}, Expires: time.Now().Add(-time.Second), ID: "c2"},
		"t_op":   {User: User{Name: "op", Role: topics.RoleOperator, Nodes: []string{"*"}}, Expires: time.Now().Add(time.Hour), ID: "c3"},
		"t_down": {},
	}
}

func TestATokenIsAPassword(t *testing.T) {
	b := startBroker(t, withTokens)
	for i, c := range []struct {
		user, token string
		code        byte
		says        string
	}{
		{"ci", "t_ci", 0, ""},
		{"", "t_ci", 0, ""},
		{"ann", "t_ci", 0x86, "the token is ci's"},
		{"", "t_none", 0x86, "no such token"},
		{"op", "t_op", 0x86, "a user of auth.users"},
		{"", "t_down", 0x89, "can't be asked"},
		{"op", "secret", 0, ""},
	} {
		conn := dialBroker(t, b)
		require.Equal(t, c.code, conn.connect(fmt.Sprint("c", i), credentialsOf(c.user, c.token)), "%+v", c)
		require.Contains(t, conn.connack.Properties.ReasonString, c.says)
	}
}

func TestWhyATokenIsNotTakenIsCounted(t *testing.T) {
	var got RejectedConnect
	b := startBroker(t, func(o *Options) {
		withTokens(o)
		o.Rejected = func(r RejectedConnect) { got = r }
	})
	require.Equal(t, byte(0x89), dialBroker(t, b).connect("c", credentialsOf("", "t_down")))
	require.Contains(t, got.Reason, "can't be asked")
	require.EqualValues(t, 1, b.Stats().Rejected[daemon.Label(tokenNotTaken)])
}

func TestAConnectionEndsWithItsToken(t *testing.T) {
	b := startBroker(t, withTokens)
	c := openClient(t, b, "late", credentialsOf("", "t_over"))
	code, _ := c.ended()
	require.Equal(t, byte(0x87), code)
}

func TestAConnectionEndsWhenItsTokenIsRevoked(t *testing.T) {
	revoked, revoke := context.WithCancel(t.Context())
	b := startBroker(t, func(o *Options) {
		withTokens(o)
		u := o.Auth.Bearer.(fakeTokens)["t_ci"]
		u.Revoked = revoked
		o.Auth.Bearer.(fakeTokens)["t_ci"] = u
	})
	c, other := openClient(t, b, "c", credentialsOf("ci", "t_ci")), openClient(t, b, "other", credentialsOf("op", "secret"))
	r := httptest.NewRequest(http.MethodGet, "/", nil)
	r.Header.Set("Authorization", "Bearer t_ci")
	id, err := b.SignIn(r)
	require.NoError(t, err)
	require.NoError(t, id.Revoked.Err())
	revoke()
	code, _ := c.ended()
	require.Equal(t, byte(0x87), code)
	require.Error(t, id.Revoked.Err())
	require.Zero(t, other.publish1("site/a", "x").ReasonCode&0x80)
	c = openClient(t, b, "late", credentialsOf("ci", "t_ci")) // verified before it was revoked
	code, _ = c.ended()
	require.Equal(t, byte(0x87), code)
}

func TestTokensAreForHTTPToo(t *testing.T) {
	b := startBroker(t, withTokens)
	ask := func(token string) (Identity, error) {
		r := httptest.NewRequest(http.MethodGet, "/", nil)
		r.Header.Set("Authorization", "Bearer "+token)
		return b.SignIn(r)
	}
	id, err := ask("t_ci")
	require.NoError(t, err)
	require.Equal(t, "ci", id.User)
	require.Equal(t, []string{"n1"}, id.Nodes)
	require.False(t, id.Expires.IsZero())
	_, err = ask("secret")
	require.ErrorIs(t, err, resource.Unauthorized, "a password is no token")
	for range 2 * attemptsPerAddress {
		_, err = ask("t_none")
		require.ErrorIs(t, err, resource.Unauthorized)
	}
	_, err = ask("t_none")
	require.ErrorIs(t, err, resource.Quota, "an address that shows many wrong ones has to wait")
	_, err = ask("t_ci")
	require.NoError(t, err, "but not with one that was right there lately")
}

func TestRulesForUsersOwnTopics(t *testing.T) {
	var rules atomic.Pointer[acl.Rules]
	set := func(text string) {
		r := new(acl.Rules)
		require.NoError(t, r.Parse(strings.NewReader(text)))
		rules.Store(r)
	}
	set("user op\ntopic write site/out\ntopic read site/in/#\npattern readwrite own/%u/%c\nuser boss\ntopic readwrite #")
	b := startBroker(t, func(o *Options) {
		withUsers(o)
		o.Tree = newFakeTree()
		o.Auth.Topics = rules.Load
	})
	op, boss := openClient(t, b, "c1", credentialsOf("op", "secret")), openClient(t, b, "c2", credentialsOf("boss", "secret"))
	require.Zero(t, op.publish1("site/out", "x").ReasonCode&0x80)
	require.Equal(t, byte(0x87), op.publish1("site/in/a", "x").ReasonCode)
	op.publish("site/in/a", "at QoS 0", 0, 0)
	require.Zero(t, op.publish1("own/op/c1", "x").ReasonCode&0x80)
	require.Equal(t, byte(0x87), op.publish1("own/boss/c2", "x").ReasonCode)
	require.Equal(t, []byte{0x87}, op.subscribe("site/out", 1).ReasonCodes)
	require.Equal(t, []byte{0x87}, op.subscribe("elsewhere/#", 1).ReasonCodes)
	require.Equal(t, []byte{0x87}, op.subscribe("$share/g/elsewhere/+", 1).ReasonCodes)
	op.sub("site/#", 1) // some of it may be read
	require.Zero(t, boss.publish1("site/out", "not for op").ReasonCode&0x80)
	require.Zero(t, boss.publish1("site/in/1", "for op").ReasonCode&0x80)
	require.Equal(t, []string{"for op"}, op.collect(1))
	op.nothing()

	set("user op\ntopic read site/out\nuser boss\ntopic readwrite #") // nobody is disconnected
	b.RightsChanged()
	require.Zero(t, boss.publish1("site/in/1", "not any more").ReasonCode&0x80)
	require.Zero(t, boss.publish1("site/out", "now for op").ReasonCode&0x80)
	require.Equal(t, []string{"now for op"}, op.collect(1))
	require.Equal(t, byte(0x87), op.publish1("own/op/c1", "x").ReasonCode)
	require.Equal(t, byte(0x87), dialBroker(t, b).connect("c3", credentialsOf("op", "secret"), withWill("site/will", "x", 0)))
	require.Zero(t, boss.publish1("v1/nodes/n1/devices/d/desired/p", "1").ReasonCode&0x80, "the tree has its own rules")
}

// What a connection was once allowed it doesn't keep, neither on the fast path of QoS 0 nor for its will, and nobody answers
// where the asker may not publish.
func TestRulesHoldForConnectionsThatThereAre(t *testing.T) {
	var rules atomic.Pointer[acl.Rules]
	b := startBroker(t, func(o *Options) {
		withUsers(o)
		o.Tree = newFakeTree()
		o.Auth.Topics = rules.Load
	})
	watcher := openClient(t, b, "watcher", credentialsOf("boss", "secret"))
	watcher.sub("#", 1)
	op := openClient(t, b, "op", credentialsOf("op", "secret"), withWill("will/op", "gone", 0))
	for range 3 { // the second and third take the fast path
		op.publish("a", "before", 0, 0)
	}
	require.Equal(t, []string{"before", "before", "before"}, watcher.collect(3))
	require.Zero(t, watcher.publish1("kept", "retained", markRetain).ReasonCode)
	require.Equal(t, []string{"retained"}, watcher.collect(1))

	r := new(acl.Rules)
	require.NoError(t, r.Limit("op", acl.Write, []string{"b", "answers/%c"}))
	require.NoError(t, r.Limit("op", acl.Read, []string{"in/c", "answers/#"}))
	rules.Store(r)
	b.RightsChanged()
	op.publish("a", "after", 0, 0)
	require.Equal(t, byte(0x87), op.publish1("a", "after").ReasonCode)
	require.Zero(t, op.publish1("b", "allowed").ReasonCode&0x80)
	require.Equal(t, []string{"allowed"}, watcher.collect(1))
	for _, filter := range []string{"kept", "ke/#", "$share/g/kept", "kept/+"} {
		require.Equal(t, []byte{0x87}, op.subscribe(filter, 1).ReasonCodes, filter)
	}
	op.sub("#", 1) // there is a tree, too
	op.sub("reply/op/+", 1)
	require.Equal(t, []byte{0x87}, op.subscribe("reply/boss/+", 1).ReasonCodes)
	op.nothing()
	const get = "v1/nodes/a1/devices/d/get"
	for reply, may := range map[string]bool{"answers/op": true, "answers/boss": false, "reply/op/1": true, "reply/opa": false, "in/c": false, "b": false} {
		ack := op.publish1(get, "", func(pk *packets.Packet) { pk.Properties.ResponseTopic = reply })
		require.Equal(t, may, ack.ReasonCode < 0x80, reply)
	}
	require.NoError(t, op.conn.Close())
	watcher.nothing()
}

func TestTheAuditLogHasSignInsWritesAndRefusals(t *testing.T) {
	file := filepath.Join(t.TempDir(), "audit.log")
	log, err := audit.New(audit.Options{File: file, Size: 1, Files: 1, Log: zerolog.Nop()})
	require.NoError(t, err)
	b := startBroker(t, func(o *Options) {
		withTokens(o)
		o.Tree, o.Audit = newFakeTree(), log
	})
	dialBroker(t, b).connect("x", credentialsOf("op", "wrong"))
	c := openClient(t, b, "c", credentialsOf("ci", "t_ci"))
	c.publish1("v1/nodes/n1/devices/d/desired/p", "1")
	c.publish1("v1/nodes/n2/devices/d/desired/p", "1")
	c.publish1("site/a", "a message")
	c.publish1("site/a", "a retained one", markRetain)
	c.subscribe("v1/nodes/n2/#", 0)
	http1 := httptest.NewServer(log.Handler(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if _, err := b.SignIn(r); err != nil {
			if r.Method == http.MethodDelete {
				audit.NoteName(r, "y")
			}
			w.WriteHeader(http.StatusUnauthorized)
		}
	})))
	defer http1.Close()
	for _, token := range []string{"t_ci", "t_none"} {
		for _, method := range []string{http.MethodGet, http.MethodPost} {
			r, err := http.NewRequestWithContext(t.Context(), method, http1.URL+"/apis/x", nil)
			require.NoError(t, err)
			r.Header.Set("Authorization", "Bearer "+token)
			resp, err := http1.Client().Do(r)
			require.NoError(t, err)
			require.NoError(t, resp.Body.Close())
		}
	}
	r, err := http.NewRequestWithContext(t.Context(), http.MethodDelete, http1.URL+"/apis/x?password=secret", nil)
	require.NoError(t, err)
	r.SetBasicAuth("op", "guess")
	r.Header.Set("User-Agent", "test")
	answered, err := http1.Client().Do(r)
	require.NoError(t, err)
	require.NoError(t, answered.Body.Close())
	dialBroker(t, b).connect("eyJhbGciOiJSUzI1NiJ9.e30.c2ln", credentialsOf("ebt_0123456789abcdef0123", "guess"))
	ctx, stop := context.WithCancel(t.Context())
	stop()
	require.NoError(t, log.Run(ctx))

	var got [][]string
	f, err := os.Open(file)
	require.NoError(t, err)
	defer f.Close()
	for lines := bufio.NewScanner(f); lines.Scan(); {
		var e audit.Entry
		require.NoError(t, json.Unmarshal(lines.Bytes(), &e))
		require.NotEmpty(t, e.Remote)
		got = append(got, []string{e.User, e.Via, e.Action, e.Object, e.Answer})
	}
	require.Equal(t, [][]string{
		{"op", "mqtt", "connect", "", connectReasons[codeBadCredentials]},
		{"ci", "mqtt", "connect", "", "ok"},
		{"ci", "mqtt", "publish", "v1/nodes/n1/devices/d/desired/p", "ok"},
		{"ci", "mqtt", "publish", "v1/nodes/n2/devices/d/desired/p", "Forbidden"},
		{"ci", "mqtt", "publish", "site/a", "ok"},
		{"ci", "mqtt", "subscribe", "v1/nodes/n2/#", "Forbidden"},
		{"ci", "http", "create", "/apis/x", "ok"},
		{"", "http", "get", "/apis/x", "Unauthorized"},
		{"", "http", "create", "/apis/x", "Unauthorized"},
		{"op", "http", "delete", "/apis/x/y", "Unauthorized"},
		{"ebt_01234567…", "mqtt", "connect", "", connectReasons[codeBadCredentials]},
	}, got)
	text, err := os.ReadFile(file)
	require.NoError(t, err)
	for _, testSecret := range []string{"t_ci", "t_none", "secret", "guess", "9abcdef", "c2ln", "a message", "a retained one"} {
		require.NotContains(t, string(text), testSecret)
	}
}
