// SPDX-License-Identifier: Apache-2.0

package page

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/cookiejar"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/chromedp/cdproto/network"
	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"
	"github.com/stretchr/testify/require"
)

// startProvider starts an OpenID Connect provider that leads browsers back to a hub, and returns its issuer.
func startProvider(t *testing.T, hub string) (issuer string) {
	t.Helper()
	tool, err := filepath.Abs("../../.tools/oidc-provider")
	require.NoError(t, err)
	file := filepath.Join(t.TempDir(), "issuer")
	cmd := exec.Command(tool, "--issuer-file", file, "--redirect", "http://"+hub+"/auth/oidc/callback")
	require.NoError(t, cmd.Start(), "make oidc-provider in .tools comes before")
	t.Cleanup(func() {
		_ = cmd.Process.Signal(syscall.SIGTERM)
		_ = cmd.Wait()
	})
	require.Eventually(t, func() bool {
		text, err := os.ReadFile(file)
		issuer = string(text)
		_, answers := getText(issuer + "/.well-known/openid-configuration")
		return err == nil && answers
	}, patience, 20*time.Millisecond)
	return issuer
}

func TestOneSignsInAtAProviderAndIsLedBack(t *testing.T) {
	bin, err := filepath.Abs("../../bin")
	require.NoError(t, err)
	hub := freeAddress(t)
	issuer := startProvider(t, hub)
	secret := filepath.Join(t.TempDir(), "secret")
	require.NoError(t, os.WriteFile(secret, []byte("secret\n"), 0o600))
	p := startHubWith(t, bin, hub, fmt.Sprintf(`oidc: {issuer: %q, audience: page, clientSecretFile: %q, userClaim: preferred_username,
  groups: [{group: plant-admins, role: operator, nodes: ["*"]}, {group: every*, role: viewer, nodes: ["*"]}]}`, issuer, secret))
	for user, role := range map[string]string{"ann": "operator", "bob": "viewer"} {
		ctx := startBrowser(t)
		p.open(t, ctx, "/ui/nodes?state=offline")
		awaitText(t, ctx, "Sign in at 127.0.0.1")
		pressButton(t, ctx, "Sign in at 127.0.0.1")
		awaitTrue(t, ctx, `location.pathname === '/login/username' && document.querySelector('input[name=password]')`)
		run(t, ctx, chromedp.SendKeys(`input[name=username]`, user), chromedp.SendKeys(`input[name=password]`, "verysecure"+kb.Enter))
		awaitTrue(t, ctx, fmt.Sprintf(`location.host === %q && location.pathname + location.search === '/ui/nodes?state=offline' && document.body.innerText.includes('%s · %s')`, hub, user, role))
		awaitTrue(t, ctx, `document.cookie === ''`)
		awaitTrue(t, ctx, `fetch('/session').then(r => r.json()).then(s => Date.parse(s.expires) < Date.now() + 3700e3)`) // with the provider's token
		awaitTrue(t, ctx, fmt.Sprintf(`[...document.querySelectorAll('nav a')].some(a => a.textContent === 'Tokens') === %t`, role == "operator"))
		pressButton(t, ctx, "Sign out")
		awaitText(t, ctx, "Sign in at 127.0.0.1")
		awaitTrue(t, ctx, `fetch('/apis/edgebus.io/v1alpha1/nodes').then(r => r.status === 401)`)
	}
}

// A cookie that somebody has copied is worth nothing after the sign-out.
func TestAStolenCookieIsRefusedAfterTheSignOut(t *testing.T) {
	bin, err := filepath.Abs("../../bin")
	require.NoError(t, err)
	p := startHub(t, bin, passwordHash(t, bin, "correct horse"))
	ctx := startBrowser(t)
	p.open(t, ctx, "/ui/")
	awaitText(t, ctx, "Sign in")
	run(t, ctx, chromedp.SendKeys(`input[autocomplete=username]`, "ann"), chromedp.SendKeys(`input[type=password]`, "correct horse"+kb.Enter))
	awaitText(t, ctx, "ann · operator")
	var cookies []*network.Cookie
	run(t, ctx, chromedp.ActionFunc(func(ctx context.Context) (err error) {
		cookies, err = network.GetCookies().Do(ctx)
		return err
	}))
	require.Len(t, cookies, 1)
	require.True(t, cookies[0].HTTPOnly)
	require.Equal(t, network.CookieSameSiteLax, cookies[0].SameSite)
	thief := func() int {
		r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+p.hub+"/apis/edgebus.io/v1alpha1/nodes", nil)
		require.NoError(t, err)
		r.AddCookie(&http.Cookie{Name: cookies[0].Name, Value: cookies[0].Value})
		res, err := http.DefaultClient.Do(r)
		require.NoError(t, err)
		defer func() { _ = res.Body.Close() }()
		_, _ = io.Copy(io.Discard, res.Body)
		return res.StatusCode
	}
	require.Equal(t, http.StatusOK, thief())
	pressButton(t, ctx, "Sign out")
	awaitText(t, ctx, "Password")
	require.Equal(t, http.StatusUnauthorized, thief())
}

// What is served can't be put into a frame, nor taken for something else, by any address.
func TestNoAddressOfThePageCanBeFramed(t *testing.T) {
	bin, err := filepath.Abs("../../bin")
	require.NoError(t, err)
	p := startHub(t, bin, passwordHash(t, bin, "correct horse"))
	jar, err := cookiejar.New(nil)
	require.NoError(t, err)
	client := &http.Client{Jar: jar}
	for _, at := range []string{"/ui/", "/ui/devices", "/ui/nodes/x", "/ui/assets/none.js", "/ui/%2e%2e/x"} {
		res, err := client.Get("http://" + p.hub + at)
		require.NoError(t, err)
		_ = res.Body.Close()
		require.Contains(t, res.Header.Get("Content-Security-Policy"), "frame-ancestors 'none'", at)
		require.Equal(t, "DENY", res.Header.Get("X-Frame-Options"), at)
		require.Equal(t, "nosniff", res.Header.Get("X-Content-Type-Options"), at)
	}
	// In a real browser the frame stays empty, and it is the headers that keep it so. A page of the same origin could look into the frame.
	for _, stripped := range []bool{false, true} {
		target, err := url.Parse("http://" + p.hub)
		require.NoError(t, err)
		proxy := &httputil.ReverseProxy{Rewrite: func(r *httputil.ProxyRequest) { r.SetURL(target) }, ModifyResponse: func(r *http.Response) error {
			if stripped {
				r.Header.Del("Content-Security-Policy")
				r.Header.Del("X-Frame-Options")
			}
			return nil
		}}
		other := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if r.URL.Path == "/other" {
				w.Header().Set("Content-Type", "text/html")
				_, _ = io.WriteString(w, `<iframe src="/ui/" onload="window.loaded = true"></iframe>`)
				return
			}
			proxy.ServeHTTP(w, r)
		}))
		ctx := startBrowser(t)
		run(t, ctx, chromedp.Navigate(other.URL+"/other"))
		awaitTrue(t, ctx, `window.loaded`)
		awaitTrue(t, ctx, fmt.Sprintf(`!!document.querySelector('iframe').contentDocument?.querySelector('#app') === %t`, stripped))
		other.Close()
	}
}

// passwordHash is what edgebus passwd makes of a password.
func passwordHash(t *testing.T, bin, password string) string {
	t.Helper()
	cmd := exec.Command(filepath.Join(bin, "edgebus"), "passwd")
	cmd.Stdin = strings.NewReader(password + "\n")
	out, err := cmd.CombinedOutput()
	require.NoError(t, err, "%s", out)
	return strings.TrimSpace(string(out))
}
