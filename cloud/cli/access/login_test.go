// SPDX-License-Identifier: Apache-2.0

package access_test

import (
	"crypto/rand"
	"crypto/rsa"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/coreos/go-oidc/v3/oidc"
	"github.com/coreos/go-oidc/v3/oidc/oidctest"
	"github.com/stretchr/testify/require"

	"github.com/edgebus/edgebus/cloud/cli/exitcode"
	"github.com/edgebus/edgebus/cloud/cli/signin"
	"github.com/edgebus/edgebus/test/clitest"
)

// A token that has expired is renewed by the next command, once, and the refresh token that comes with it is kept.
func TestATokenIsRenewed(t *testing.T) {
	key, err := rsa.GenerateKey(rand.Reader, 2048)
	require.NoError(t, err)
	at := &oidctest.Server{PublicKeys: []oidctest.PublicKey{{PublicKey: key.Public(), KeyID: "k", Algorithm: oidc.RS256}}}
	var away, renewed atomic.Int32
	var issuer string
	token := func(life time.Duration) string {
		return oidctest.SignIDToken(key, "k", oidc.RS256, fmt.Sprintf(`{"iss":%q,"aud":"edgebus","sub":"ann","exp":%d}`, issuer, time.Now().Add(life).Unix()))
	}
	next := ""
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch {
		case away.Load() > 0:
			http.Error(w, "away", http.StatusBadGateway)
		case r.URL.Path != "/token":
			at.ServeHTTP(w, r)
		case r.FormValue("refresh_token") != fmt.Sprint("r", renewed.Load()):
			w.Header().Set("Content-Type", "application/json")
			w.WriteHeader(http.StatusBadRequest)
			_, _ = fmt.Fprint(w, `{"error":"invalid_grant","error_description":"the session has ended"}`)
		default:
			w.Header().Set("Content-Type", "application/json")
			_, _ = fmt.Fprintf(w, `{"access_token":"a","token_type":"Bearer","id_token":%q,"refresh_token":"r%d"}`, next, renewed.Add(1))
		}
	}))
	defer server.Close()
	issuer = server.URL
	at.SetIssuer(issuer)
	next = token(time.Hour)
	asked := make(chan string, 1)
	hub := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		asked <- r.Header.Get("Authorization")
		w.WriteHeader(http.StatusForbidden)
	}))
	defer hub.Close()
	signedIn := func(token, refresh string) string {
		how, err := json.Marshal(signin.Provider{Issuer: issuer, ClientID: "edgebus", RefreshToken: refresh})
		require.NoError(t, err)
		return clitest.UseKubeconfigs(t, "current-context: c\nclusters: [{name: c, cluster: {server: '"+hub.URL+"'}}]\n"+
			"users: [{name: u, user: {token: "+token+", extensions: [{name: edgebus.io/oidc, extension: "+string(how)+"}]}}]\n"+
			"contexts: [{name: c, context: {cluster: c, user: u}}]\n")[0]
	}

	path := signedIn(token(-time.Minute), "r0")
	for range 2 {
		clitest.Run(t, exitcode.Refused, "get", "kinds")
		require.Equal(t, "Bearer "+next, <-asked)
	}
	require.EqualValues(t, 1, renewed.Load())
	require.Contains(t, clitest.ReadFile(t, path), "refreshToken: r1")
	require.Contains(t, clitest.ReadFile(t, path), next)

	signedIn(token(-time.Minute), "old")
	_, errs := clitest.Run(t, exitcode.Refused, "get", "kinds")
	require.Contains(t, errs, "is not renewed; run edgebus login")
	require.Contains(t, errs, "the session has ended")
	signedIn(token(-time.Minute), "")
	_, errs = clitest.Run(t, exitcode.Refused, "get", "kinds")
	require.Contains(t, errs, "expired at")
	require.True(t, strings.HasSuffix(strings.TrimSpace(errs), "run edgebus login"), errs)

	away.Store(1)
	signedIn(token(-time.Minute), "r1")
	_, errs = clitest.Run(t, exitcode.Unreachable, "get", "kinds")
	require.Contains(t, errs, "no answer from the OpenID Connect provider")
	soon := token(10 * time.Second)
	signedIn(soon, "r1")
	clitest.Run(t, exitcode.Refused, "get", "kinds")
	require.Equal(t, "Bearer "+soon, <-asked, "one that has not expired is good for as long as it is")
}
