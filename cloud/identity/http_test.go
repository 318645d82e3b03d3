// SPDX-License-Identifier: Apache-2.0

package identity

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/edgebus/edgebus/broker"
	"github.com/edgebus/edgebus/topics"
	"github.com/edgebus/edgebus/topics/resource"
)

func TestWhoMakesTokens(t *testing.T) {
	tokens, closed := openTokens(t, t.TempDir()+"/log", &clock{now: time.Now()})
	defer closed()
	of := func(user string, role topics.Role, nodes ...string) broker.Identity {
		return broker.Identity{User: user, Roles: []topics.Role{role}, Nodes: nodes}
	}
	ann, anonymous, holder := of("boss", topics.RoleOperator, "*"), of("", topics.RoleOperator, "*"), of("ci", topics.RoleOperator, "*")
	holder.Token = "abc"
	ask := func(id broker.Identity, method, path, body string) (*httptest.ResponseRecorder, error) {
		w := httptest.NewRecorder()
		return w, tokens.ServeHTTP(w, httptest.NewRequest(method, path, strings.NewReader(body)), id)
	}
	const some, all = `{"user":"x","role":"operator","nodes":["hall-*"]}`, `{"user":"x","role":"operator","nodes":["*"]}`
	for _, c := range []struct {
		id   broker.Identity
		body string
		kind resource.ErrorKind // empty: it is made
	}{
		{ann, some, ""},
		{ann, all, ""},
		{ann, `{"user":"x","role":"controller"}`, ""},
		{ann, `{"user":"x","rolle":"viewer"}`, resource.Invalid},
		{ann, `{`, resource.Invalid},
		{anonymous, some, ""},
		{anonymous, all, resource.Forbidden},
		{anonymous, `{"user":"x","role":"controller"}`, resource.Forbidden},
		{anonymous, `{"user":"x","role":"viewer","nodes":["*"]}`, ""},
		{holder, some, resource.Forbidden},
		{of("op", topics.RoleOperator, "hall-*"), some, resource.Forbidden},
		{of("vic", topics.RoleViewer, "*"), some, resource.Forbidden},
		{of("prog", topics.RoleController), some, resource.Forbidden},
	} {
		_, err := ask(c.id, http.MethodPost, "/tokens", c.body)
		if c.kind == "" {
			require.NoError(t, err, "%+v", c)
			continue
		}
		require.ErrorIs(t, err, c.kind, "%+v", c)
	}
	w, err := ask(ann, http.MethodGet, "/tokens", "")
	require.NoError(t, err)
	var list []Token
	require.NoError(t, json.Unmarshal(w.Body.Bytes(), &list))
	require.Len(t, list, 5)
	require.Len(t, list[0].ID, shownID)
	for _, id := range []string{"", "abc", "ffffffffffffffff", strings.Repeat("f", 1000)} {
		_, err = ask(ann, http.MethodDelete, "/tokens/"+id, "")
		require.ErrorIs(t, err, resource.NotFound)
	}
	_, err = ask(ann, http.MethodPut, "/tokens", "")
	require.ErrorIs(t, err, resource.NotFound)
	_, err = ask(ann, http.MethodDelete, "/tokens/"+list[0].ID, "")
	require.NoError(t, err)
	require.Len(t, tokens.List(), 4)
}

// Who has somebody's sign-in for a few minutes gets nothing that lasts longer.
func TestATokenDoesNotOutliveTheSignInThatMadeIt(t *testing.T) {
	now := time.Date(2026, 11, 22, 12, 0, 0, 0, time.UTC)
	tokens, closed := openTokens(t, t.TempDir()+"/log", &clock{now: now})
	defer closed()
	pia := broker.Identity{User: "pia", Roles: []topics.Role{topics.RoleOperator}, Nodes: []string{"*"}, Expires: now.Add(5 * time.Minute)}
	ask := func(ttl string) (expires string, err error) {
		w := httptest.NewRecorder()
		err = tokens.ServeHTTP(w, httptest.NewRequest(http.MethodPost, "/tokens", strings.NewReader(`{"user":"x","role":"viewer","nodes":["*"],"ttl":"`+ttl+`"}`)), pia)
		var made NewToken
		if err == nil {
			require.NoError(t, json.Unmarshal(w.Body.Bytes(), &made))
		}
		return made.Expires, err
	}
	for _, ttl := range []string{"1825d", "5m1s"} {
		_, err := ask(ttl)
		require.ErrorIs(t, err, resource.Forbidden, ttl)
		require.ErrorContains(t, err, "until 2026-11-22T12:05:00")
	}
	for ttl, ends := range map[string]time.Duration{"": 5 * time.Minute, "5m": 5 * time.Minute, "1m": time.Minute} {
		expires, err := ask(ttl)
		require.NoError(t, err)
		require.Equal(t, resource.FormatTime(now.Add(ends)), expires, ttl)
	}
	pia.Expires = now.Add(365 * 24 * time.Hour)
	expires, err := ask("")
	require.NoError(t, err)
	require.Equal(t, resource.FormatTime(now.Add(defaultTTL)), expires)
}
