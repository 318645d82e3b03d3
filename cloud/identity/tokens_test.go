// SPDX-License-Identifier: Apache-2.0

package identity

import (
	"context"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/rs/zerolog"
	"github.com/stretchr/testify/require"

	"github.com/edgebus/edgebus/broker"
	"github.com/edgebus/edgebus/cloud/store/disk"
	"github.com/edgebus/edgebus/topics"
	"github.com/edgebus/edgebus/topics/resource"
)

type clock struct{ now time.Time }

func (c *clock) Now() time.Time { return c.now }

// openTokens makes the tokens of a hub whose store is in a file.
func openTokens(t testing.TB, file string, c *clock) (tokens *Tokens, closed func()) {
	t.Helper()
	s, err := disk.Open(disk.Options{Path: file})
	require.NoError(t, err)
	tokens, err = NewTokens(t.Context(), Options{
		Reader: s, Writer: s, Log: zerolog.Nop(), Now: c.Now,
		Taken: func(name string) bool { return name == "ann" },
	})
	require.NoError(t, err)
	return tokens, func() { require.NoError(t, s.Close()) }
}

func TestATokenIsGoodUntilItExpiresOrIsRevoked(t *testing.T) {
	file := filepath.Join(t.TempDir(), "log")
	c := &clock{now: time.Date(2026, 11, 22, 10, 0, 0, 0, time.UTC)}
	tokens, closed := openTokens(t, file, c)
	made, err := tokens.Create(t.Context(), TokenRequest{User: "ci", Role: topics.RoleOperator, Nodes: []string{"hall-*"}, TTL: "30d"}, TokenMaker{By: "ann"})
	require.NoError(t, err)
	require.True(t, IsToken(made.Token))
	require.Equal(t, "2026-12-22T10:00:00.000Z", made.Expires)
	want := broker.BearerUser{User: broker.User{Name: "ci", Role: topics.RoleOperator, Nodes: []string{"hall-*"}}, Expires: c.now.Add(30 * 24 * time.Hour)}
	check := func() {
		t.Helper()
		got, err := tokens.Verify(made.Token)
		require.NoError(t, err)
		require.True(t, strings.HasPrefix(got.ID, made.ID))
		want.ID, want.Revoked = got.ID, got.Revoked
		require.NoError(t, got.Revoked.Err())
		require.True(t, tokens.HasUser("ci"))
		require.Equal(t, want, got)
		_, err = tokens.Verify(made.Token + "0")
		require.ErrorIs(t, err, resource.Unauthorized)
	}
	check()
	closed()
	tokens, closed = openTokens(t, file, c)
	check() // also after a restart

	list := tokens.List()
	require.Len(t, list, 1)
	require.Equal(t, "ann", list[0].By)
	require.NotContains(t, list[0].ID, strings.TrimPrefix(made.Token, tokenPrefix), "only the hash is kept")

	c.now = want.Expires
	_, err = tokens.Verify(made.Token)
	require.ErrorContains(t, err, "expired at 2026-12-22")
	c.now = want.Expires.Add(-time.Second)
	require.ErrorIs(t, tokens.Revoke(t.Context(), "ffff", "ann"), resource.NotFound)
	require.NoError(t, tokens.Revoke(t.Context(), made.ID, "ann"))
	_, err = tokens.Verify(made.Token)
	require.ErrorIs(t, err, resource.Unauthorized)
	require.Error(t, want.Revoked.Err(), "what it opened ends")
	require.False(t, tokens.HasUser("ci"))
	closed()
	tokens, closed = openTokens(t, file, c)
	defer closed()
	require.Empty(t, tokens.List())
}

func TestTokensThatAreRefused(t *testing.T) {
	c := &clock{now: time.Now()}
	tokens, closed := openTokens(t, filepath.Join(t.TempDir(), "log"), c)
	defer closed()
	for field, r := range map[string]TokenRequest{
		"role":   {User: "ci", Role: topics.RoleNode, Nodes: []string{"*"}},
		"user":   {User: "node/x", Role: topics.RoleViewer, Nodes: []string{"*"}},
		"user ":  {User: "ann", Role: topics.RoleViewer, Nodes: []string{"*"}},
		"nodes":  {User: "ci", Role: topics.RoleViewer},
		"nodes ": {User: "ci", Role: topics.RoleViewer, Nodes: []string{"["}},
		"ttl":    {User: "ci", Role: topics.RoleViewer, Nodes: []string{"*"}, TTL: "-1h"},
		"ttl ":   {User: "ci", Role: topics.RoleViewer, Nodes: []string{"*"}, TTL: "9999999d"},
	} {
		_, err := tokens.Create(t.Context(), r, TokenMaker{By: "ann"})
		require.ErrorContains(t, err, strings.TrimSpace(field), "%+v", r)
	}
	require.Empty(t, tokens.List())
}

func TestExpiredTokensAreForgotten(t *testing.T) {
	c := &clock{now: time.Now()}
	tokens, closed := openTokens(t, filepath.Join(t.TempDir(), "log"), c)
	defer closed()
	r := TokenRequest{User: "ci", Role: topics.RoleViewer, Nodes: []string{"*"}, TTL: "1h"}
	_, err := tokens.Create(t.Context(), r, TokenMaker{By: "ann"})
	require.NoError(t, err)
	c.now = c.now.Add(26 * time.Hour)
	_, err = tokens.Create(t.Context(), r, TokenMaker{By: "ann"})
	require.NoError(t, err)
	require.Len(t, tokens.List(), 1)
}

// Expired tokens end what they were still good for, a day later.
func TestExpiredTokensAreForgottenWithoutAnyRequest(t *testing.T) {
	c := &clock{now: time.Now()}
	tokens, closed := openTokens(t, filepath.Join(t.TempDir(), "log"), c)
	defer closed()
	made, err := tokens.Create(t.Context(), TokenRequest{User: "ci", Role: topics.RoleViewer, Nodes: []string{"*"}, TTL: "1h"}, TokenMaker{})
	require.NoError(t, err)
	u, err := tokens.Verify(made.Token)
	require.NoError(t, err)
	c.now = c.now.Add(26 * time.Hour)
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error)
	go func() { ended <- tokens.Run(ctx) }()
	<-u.Revoked.Done()
	stop()
	require.NoError(t, <-ended)
	require.Empty(t, tokens.List())
}

// A token ends with the rights of whoever made it, for good: also if somebody of that name comes back.
func TestATokenEndsWithItsMaker(t *testing.T) {
	file := filepath.Join(t.TempDir(), "log")
	c := &clock{now: time.Now()}
	tokens, closed := openTokens(t, file, c)
	made := map[string]NewToken{}
	for name, by := range map[string]TokenMaker{
		"ann's": {By: "ann"}, "bob's": {By: "bob"}, "by certificate": {By: "bob", Serial: "4a1f", Fingerprint: "ab"}, "nobody's": {}, "provider's": {By: "ann", Provider: true},
	} {
		one, err := tokens.Create(t.Context(), TokenRequest{User: "ci", Role: topics.RoleViewer, Nodes: []string{"*"}}, by)
		require.NoError(t, err)
		made[name] = one
	}
	closed()
	left := []string{"bob's", "nobody's", "provider's"}
	for _, ended := range []func(TokenMaker) string{
		func(by TokenMaker) string {
			if by == (TokenMaker{By: "ann"}) || by.Serial == "4a1f" && by.Fingerprint == "ab" {
				return "gone"
			}
			return ""
		},
		nil,
	} {
		s, err := disk.Open(disk.Options{Path: file})
		require.NoError(t, err)
		tokens, err = NewTokens(t.Context(), Options{Reader: s, Writer: s, Log: zerolog.Nop(), Now: c.Now, Ended: ended})
		require.NoError(t, err)
		for name, one := range made {
			u, err := tokens.Verify(one.Token)
			if slices.Contains(left, name) {
				require.NoError(t, err, name)
				continue
			}
			require.ErrorIs(t, err, resource.Unauthorized, name)
			require.Error(t, tokens.Revoked(u.ID).Err())
		}
		require.NoError(t, s.Close())
	}
}

func BenchmarkVerify(b *testing.B) {
	tokens, closed := openTokens(b, filepath.Join(b.TempDir(), "log"), &clock{now: time.Now()})
	defer closed()
	made, err := tokens.Create(b.Context(), TokenRequest{User: "ci", Role: topics.RoleViewer, Nodes: []string{"*"}}, TokenMaker{By: "ann"})
	require.NoError(b, err)
	for b.Loop() {
		if _, err := tokens.Verify(made.Token); err != nil {
			b.Fatal(err)
		}
	}
}

// BenchmarkSignIn is what a request costs that shows a token of the hub, with all that the broker does to let it in.
func BenchmarkSignIn(b *testing.B) {
	tokens, closed := openTokens(b, filepath.Join(b.TempDir(), "log"), &clock{now: time.Now()})
	defer closed()
	made, err := tokens.Create(b.Context(), TokenRequest{User: "ci", Role: topics.RoleViewer, Nodes: []string{"*"}}, TokenMaker{By: "ann"})
	require.NoError(b, err)
	signIn(b, Bearer{Tokens: tokens}, made.Token)
}

// signIn measures a request's way through the broker's SignIn; the request itself is made beforehand.
func signIn(b *testing.B, bearer Bearer, token string) {
	b.Helper()
	br, err := broker.New(broker.Options{Auth: broker.Auth{Bearer: bearer}, Log: zerolog.Nop()})
	require.NoError(b, err)
	shown := httptest.NewRequest(http.MethodGet, "/", nil)
	shown.Header.Set("Authorization", "Bearer "+token)
	for b.Loop() {
		ctx, done := context.WithCancel(b.Context())
		if _, err := br.SignIn(shown.WithContext(ctx)); err != nil {
			b.Fatal(err)
		}
		done()
	}
}
