// SPDX-License-Identifier: Apache-2.0

package identity

import (
	"crypto/rand"
	"crypto/rsa"
	"encoding/json"
	"maps"
	"net/http"
	"net/http/httptest"
	"sync/atomic"
	"testing"
	"time"

	"github.com/coreos/go-oidc/v3/oidc"
	"github.com/coreos/go-oidc/v3/oidc/oidctest"
	"github.com/rs/zerolog"
	"github.com/stretchr/testify/require"

	"github.com/edgebus/edgebus/broker"
	"github.com/edgebus/edgebus/topics"
	"github.com/edgebus/edgebus/topics/resource"
)

// testProvider is a provider, and a verifier of its tokens.
type testProvider struct {
	t      testing.TB
	key    *rsa.PrivateKey
	issuer string
	away   atomic.Bool
	asked  atomic.Int32
	clock  *clock
	oidc   *OIDC
	// exchange answers the request for a token, if not nil.
	exchange http.HandlerFunc
}

func newTestProvider(t testing.TB, change func(*OIDCOptions)) *testProvider {
	t.Helper()
	r := &testProvider{t: t, clock: &clock{now: time.Now()}}
	var err error
	r.key, err = rsa.GenerateKey(rand.Reader, 2048)
	require.NoError(t, err)
	provider := &oidctest.Server{PublicKeys: []oidctest.PublicKey{{PublicKey: r.key.Public(), KeyID: "k", Algorithm: oidc.RS256}}}
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, q *http.Request) {
		r.asked.Add(1)
		if r.away.Load() {
			http.Error(w, "away", http.StatusBadGateway)
			return
		}
		if q.URL.Path == "/token" && r.exchange != nil {
			r.exchange(w, q)
			return
		}
		provider.ServeHTTP(w, q)
	}))
	t.Cleanup(server.Close)
	provider.SetIssuer(server.URL)
	r.issuer = server.URL
	o := OIDCOptions{
		Issuer: r.issuer, Audience: "edgebus", UserClaim: "email", GroupsClaim: "groups", Log: zerolog.Nop(), Now: r.clock.Now,
		Grants: []Grant{
			{Group: "admins", Role: topics.RoleOperator, Nodes: []string{"*"}},
			{Group: "hall-*", Role: topics.RoleOperator, Nodes: []string{"hall-*"}},
			{Group: "gate", Role: topics.RoleOperator, Nodes: []string{"gate"}},
			{Group: "everybody", Role: topics.RoleViewer, Nodes: []string{"*"}},
		},
	}
	if change != nil {
		change(&o)
	}
	r.oidc = NewOIDC(o)
	return r
}

// token is a good one, but for the claims that are given.
func (r *testProvider) token(claims map[string]any) string {
	r.t.Helper()
	all := map[string]any{
		"iss": r.issuer, "aud": "edgebus", "sub": "1", "exp": r.clock.now.Add(time.Hour).Unix(), "email": "ann@example.org", "email_verified": true, "groups": []string{"everybody"},
	}
	maps.Copy(all, claims)
	text, err := json.Marshal(all)
	require.NoError(r.t, err)
	return oidctest.SignIDToken(r.key, "k", oidc.RS256, string(text))
}

func TestGroupsGiveRoles(t *testing.T) {
	r := newTestProvider(t, nil)
	for _, c := range []struct {
		groups any
		role   topics.Role
		nodes  []string
	}{
		{[]string{"everybody", "admins"}, topics.RoleOperator, []string{"*"}},
		{[]string{"gate", "hall-3", "everybody"}, topics.RoleOperator, []string{"hall-*", "gate"}},
		{"everybody", topics.RoleViewer, []string{"*"}},
	} {
		u, err := r.oidc.Verify(t.Context(), r.token(map[string]any{"groups": c.groups}))
		require.NoError(t, err)
		require.Equal(t, broker.User{Name: "ann@example.org", Role: c.role, Nodes: c.nodes}, u.User, "%v", c.groups)
		require.Empty(t, u.ID, "it can't be revoked")
	}
}

func TestIDTokensThatAreRefused(t *testing.T) {
	r := newTestProvider(t, nil)
	stranger, err := rsa.GenerateKey(rand.Reader, 2048)
	require.NoError(t, err)
	for name, c := range map[string]struct {
		token string
		kind  resource.ErrorKind
		says  string
	}{
		"expired":        {r.token(map[string]any{"exp": r.clock.now.Add(-time.Second).Unix()}), resource.Unauthorized, "expired"},
		"audience":       {r.token(map[string]any{"aud": "other"}), resource.Unauthorized, `expected audience "edgebus"`},
		"issuer":         {r.token(map[string]any{"iss": "https://other.example.org"}), resource.Unauthorized, `of the issuer "https://other.example.org"`},
		"no group":       {r.token(map[string]any{"groups": []string{"x"}}), resource.Forbidden, "is in no group of auth.oidc.groups (its groups: x)"},
		"groups' type":   {r.token(map[string]any{"groups": 7}), resource.Forbidden, "is in no group"},
		"no name":        {r.token(map[string]any{"email": nil}), resource.Forbidden, `it has no claim "email" (auth.oidc.userClaim), but aud, email, email_verified, exp`},
		"a topic's name": {r.token(map[string]any{"email": "node/n1"}), resource.Forbidden, "is no name of a user"},
		"control":        {r.token(map[string]any{"email": "a\nb"}), resource.Forbidden, "is no name of a user"},
		"unsaid":         {r.token(map[string]any{"email_verified": nil}), resource.Forbidden, "has not verified the address ann@example.org, as the claim email_verified"},
		"unverified":     {r.token(map[string]any{"email_verified": false}), resource.Forbidden, "has not verified the address"},
		"another key":    {oidctest.SignIDToken(stranger, "k", oidc.RS256, `{"iss":"`+r.issuer+`","aud":"edgebus","exp":9999999999}`), resource.Unauthorized, "failed to verify"},
		"nonsense":       {"eyJ.eyJ.x", resource.Unauthorized, "of the issuer"},
	} {
		_, err := r.oidc.Verify(t.Context(), c.token)
		require.ErrorIs(t, err, c.kind, name)
		require.ErrorContains(t, err, c.says, name)
	}
}

func TestAProviderThatIsAway(t *testing.T) {
	r := newTestProvider(t, nil)
	r.away.Store(true)
	token := r.token(nil)
	for range 5 {
		_, err := r.oidc.Verify(t.Context(), token)
		require.ErrorIs(t, err, resource.Unavailable)
	}
	require.EqualValues(t, 1, r.asked.Load(), "it is asked again after a while")
	r.away.Store(false)
	r.clock.now = r.clock.now.Add(retryProvider)
	_, err := r.oidc.Verify(t.Context(), token)
	require.NoError(t, err)

	r.away.Store(true)
	_, err = r.oidc.Verify(t.Context(), token)
	require.NoError(t, err, "a token that was verified is good until it expires")
	r.clock.now = r.clock.now.Add(time.Hour)
	_, err = r.oidc.Verify(t.Context(), token)
	require.ErrorIs(t, err, resource.Unauthorized)
}

func TestKeysThatCantBeFetchedAreNoWrongToken(t *testing.T) {
	r := newTestProvider(t, nil)
	_, err := r.oidc.provider(t.Context(), r.clock.now)
	require.NoError(t, err)
	r.away.Store(true)
	_, err = r.oidc.Verify(t.Context(), r.token(nil))
	require.ErrorIs(t, err, resource.Unavailable)
}

func TestNamesAreOnesOwn(t *testing.T) {
	r := newTestProvider(t, func(o *OIDCOptions) { o.UserClaim = "name" })
	tokens, closed := openTokens(t, t.TempDir()+"/log", r.clock)
	defer closed()
	b := Bearer{Tokens: tokens, OIDC: r.oidc, IsNode: func(name string) bool { return name == "n1" }}
	_, err := tokens.Create(t.Context(), TokenRequest{User: "ci", Role: topics.RoleViewer, Nodes: []string{"*"}}, TokenMaker{By: "ann"})
	require.NoError(t, err)
	for _, name := range []string{"ci", "n1"} {
		_, err := b.Verify(t.Context(), r.token(map[string]any{"name": name}))
		require.ErrorIs(t, err, resource.Forbidden, name)
	}
	_, err = b.Verify(t.Context(), r.token(map[string]any{"name": "bob"}))
	require.NoError(t, err)
	require.True(t, b.IsToken(r.token(nil)))
	require.False(t, Bearer{Tokens: tokens}.IsToken(r.token(nil)), "without a provider it is a password")
	require.False(t, b.IsToken("a password"))
}

// BenchmarkSignInAtAProvider is what a request costs that shows an ID token which was verified before.
func BenchmarkSignInAtAProvider(b *testing.B) {
	r := newTestProvider(b, nil)
	tokens, closed := openTokens(b, b.TempDir()+"/log", r.clock)
	defer closed()
	signIn(b, Bearer{Tokens: tokens, OIDC: r.oidc, IsNode: func(string) bool { return false }}, r.token(nil))
}
