// SPDX-License-Identifier: Apache-2.0

package identity

import (
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"io"
	"net/http"
	"net/http/cookiejar"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// browserTrial is a hub that signs browsers in at a provider which gives a token for the code "good" and the verifier of its challenge.
type browserTrial struct {
	*testProvider
	hub       *httptest.Server
	browser   *http.Client
	signedIn  string // token that the browser was signed in with
	challenge string
	nonce     string
	claims    map[string]any
}

func newBrowserTrial(t *testing.T) *browserTrial {
	b := &browserTrial{claims: map[string]any{}}
	b.testProvider = newTestProvider(t, nil)
	b.exchange = func(w http.ResponseWriter, r *http.Request) {
		sum := sha256.Sum256([]byte(r.FormValue("code_verifier")))
		if r.FormValue("code") != "good" || base64.RawURLEncoding.EncodeToString(sum[:]) != b.challenge {
			http.Error(w, `{"error":"invalid_grant"}`, http.StatusBadRequest)
			return
		}
		claims := map[string]any{"nonce": b.nonce}
		for k, v := range b.claims {
			claims[k] = v
		}
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(map[string]any{"access_token": "x", "token_type": "Bearer", "id_token": b.testProvider.token(claims)})
	}
	b.hub = httptest.NewServer(b.oidc.ServeBrowser(func(_ http.ResponseWriter, _ *http.Request, token string) error {
		b.signedIn = token
		return nil
	}))
	t.Cleanup(b.hub.Close)
	jar, err := cookiejar.New(nil)
	require.NoError(t, err)
	b.browser = &http.Client{Jar: jar, CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
	return b
}

// get is the status, and where a browser is led to.
func (b *browserTrial) get(at string) (int, string) {
	b.t.Helper()
	res, err := b.browser.Get(b.hub.URL + at)
	require.NoError(b.t, err)
	defer func() { _ = res.Body.Close() }()
	return res.StatusCode, res.Header.Get("Location")
}

// begin goes to the provider, and returns the state that it was given.
func (b *browserTrial) begin(to string) string {
	b.t.Helper()
	status, at := b.get(BrowserPath + "?to=" + url.QueryEscape(to))
	require.Equal(b.t, http.StatusSeeOther, status)
	u, err := url.Parse(at)
	require.NoError(b.t, err)
	q := u.Query()
	require.True(b.t, strings.HasPrefix(at, b.issuer+"/"), at)
	require.Equal(b.t, []string{"code", "S256", "edgebus", b.hub.URL + CallbackPath}, []string{q.Get("response_type"), q.Get("code_challenge_method"), q.Get("client_id"), q.Get("redirect_uri")})
	b.challenge, b.nonce = q.Get("code_challenge"), q.Get("nonce")
	return q.Get("state")
}

func TestABrowserIsLedToTheProviderAndBackToWhereItCameFrom(t *testing.T) {
	for to, back := range map[string]string{
		"/ui/nodes?state=offline": "/ui/nodes?state=offline", "": "/ui/", "https://evil.example/ui/": "/ui/", "//evil.example/ui/": "/ui/", "/ui/../x": "/ui/", `/ui/\evil`: "/ui/", "/tokens": "/ui/",
		"javascript:alert(1)": "/ui/",
	} {
		b := newBrowserTrial(t)
		state := b.begin(to)
		status, at := b.get(CallbackPath + "?code=good&state=" + state)
		require.Equal(t, http.StatusSeeOther, status, to)
		require.Equal(t, back, at)
		require.NotEmpty(t, b.signedIn)
		status, _ = b.get(CallbackPath + "?code=good&state=" + state)
		require.Equal(t, http.StatusUnauthorized, status, "a sign-in is finished once")
	}
}

func TestASignInThatTheBrowserDidNotBeginIsRefused(t *testing.T) {
	for name, trial := range map[string]func(b *browserTrial) string{
		"another state": func(b *browserTrial) string { b.begin("/ui/"); return "?code=good&state=other" },
		"no state":      func(b *browserTrial) string { b.begin("/ui/"); return "?code=good" },
		"another browser": func(b *browserTrial) string {
			s := b.begin("/ui/")
			b.browser.Jar = nil
			return "?code=good&state=" + s
		},
		"another code":      func(b *browserTrial) string { return "?code=bad&state=" + b.begin("/ui/") },
		"another challenge": func(b *browserTrial) string { s := b.begin("/ui/"); b.challenge = "x"; return "?code=good&state=" + s },
		"another nonce":     func(b *browserTrial) string { s := b.begin("/ui/"); b.nonce = "x"; return "?code=good&state=" + s },
		"no nonce": func(b *browserTrial) string {
			s := b.begin("/ui/")
			b.claims["nonce"] = nil
			return "?code=good&state=" + s
		},
		"no group": func(b *browserTrial) string {
			b.claims["groups"] = []string{"x"}
			return "?code=good&state=" + b.begin("/ui/")
		},
		"refused": func(b *browserTrial) string {
			return "?error=access_denied&error_description=%3Cscript%3E&state=" + b.begin("/ui/")
		},
	} {
		t.Run(name, func(t *testing.T) {
			b := newBrowserTrial(t)
			res, err := b.browser.Get(b.hub.URL + CallbackPath + trial(b))
			require.NoError(t, err)
			defer func() { _ = res.Body.Close() }()
			require.Contains(t, []int{http.StatusUnauthorized, http.StatusForbidden}, res.StatusCode)
			require.Empty(t, b.signedIn)
			text, err := io.ReadAll(res.Body)
			require.NoError(t, err)
			require.NotContains(t, string(text), "<script>")
			require.Contains(t, res.Header.Get("Content-Security-Policy"), "default-src 'none'")
		})
	}
}
