// SPDX-License-Identifier: Apache-2.0

package api

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"net/http/httptest"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/rs/zerolog"
	"github.com/stretchr/testify/require"
)

// A webhook is for those who know the value in the Repository's Secret, by the header of any common git server or registry, and only
// notes that it came.
func TestWebhooks(t *testing.T) {
	h := newHub(t, withSealer(t))
	secret := "/api/v1/namespaces/default/secrets"
	h.ok("POST", secret, `{"apiVersion":"v1","kind":"Secret","metadata":{"name":"s"},"stringData":{"webhook-secret":"hunter2"}}`)
	h.ok("POST", secret, `{"apiVersion":"v1","kind":"Secret","metadata":{"name":"without"},"stringData":{"password":"x"}}`)
	repository := func(name, spec string) {
		h.ok("POST", apiRoot+"/repositories", `{"apiVersion":"edgebus.io/v1alpha1","kind":"Repository","metadata":{"name":"`+name+`"},"spec":{"url":"https://git.example/x.git"`+spec+`}}`)
	}
	repository("r", `,"secretRef":{"name":"s"}`)
	repository("without", `,"secretRef":{"name":"without"}`)
	repository("gone", `,"secretRef":{"name":"gone"}`)
	repository("none", "")
	body, n := "", 0
	var signature string
	next := func() { // each push has another body
		n++
		body = `{"ref":"refs/heads/main","after":"` + strconv.Itoa(n) + `"}`
		mac := hmac.New(sha256.New, []byte("hunter2"))
		mac.Write([]byte(body))
		signature = hex.EncodeToString(mac.Sum(nil))
	}
	last := ""
	for _, path := range []string{"/api/v1/repositories/r/webhook", apiRoot + "/repositories/r/webhook"} {
		for name, value := range map[string]func() string{
			"X-Hub-Signature-256": func() string { return "sha256=" + signature }, "X-Gitea-Signature": func() string { return signature },
			"X-Gitlab-Token": func() string { return "hunter2" }, "Authorization": func() string { return "Bearer hunter2" },
		} {
			h.pass(time.Second)
			next()
			require.Equal(t, 202, h.do("POST", path, body, name, value()).code, name)
			at := h.ok("GET", apiRoot+"/repositories/r", "").str("status.notifiedAt")
			require.NotEqual(t, last, at)
			last = at
			if strings.Contains(name, "Signature") {
				h.pass(time.Second)
				require.Equal(t, 202, h.do("POST", path, body, name, value()).code, name)
				require.Equal(t, last, h.ok("GET", apiRoot+"/repositories/r", "").str("status.notifiedAt"), "sent again by whoever read it on its way")
			}
		}
	}
	for name, value := range map[string]string{
		"X-Hub-Signature-256": "sha256=" + signature[:62] + "00", "X-Gitea-Signature": "x", "X-Gitlab-Token": "hunter3", "Authorization": "Bearer ",
	} {
		answer := h.do("POST", "/api/v1/repositories/r/webhook", body, name, value)
		require.Equal(t, 401, answer.code, name)
		require.NotContains(t, string(answer.body), "hunter")
		for _, other := range []string{"without", "gone", "none", "nosuch"} {
			got := h.do("POST", "/api/v1/repositories/"+other+"/webhook", body, name, value)
			require.Equal(t, 401, got.code)
			require.Equal(t, string(answer.body), string(got.body), "it tells nobody which Repositories there are")
		}
	}
	require.Equal(t, 401, h.do("POST", "/api/v1/repositories/without/webhook", body, "Authorization", "Bearer ").code)
	require.Equal(t, 401, h.do("POST", "/api/v1/repositories/r/webhook", body+" ", "X-Hub-Signature-256", "sha256="+signature).code, "another body")
	require.Equal(t, last, h.ok("GET", apiRoot+"/repositories/r", "").str("status.notifiedAt"))
	require.Equal(t, 404, h.do("GET", "/api/v1/repositories/r/webhook", "").code)
}

// A Secret that can't be opened is for the hub's log: the answer tells nobody that there is one, or its name.
func TestWebhooksWithoutAKey(t *testing.T) {
	h := newHub(t, withSealer(t))
	h.ok("POST", "/api/v1/namespaces/default/secrets", `{"apiVersion":"v1","kind":"Secret","metadata":{"name":"s"},"stringData":{"webhook-secret":"hunter2"}}`)
	h.ok("POST", apiRoot+"/repositories", `{"apiVersion":"edgebus.io/v1alpha1","kind":"Repository","metadata":{"name":"r"},"spec":{"url":"https://git.example/x.git","secretRef":{"name":"s"}}}`)
	keyless := newAPI(hubOptions{Writer: h.store, Options: Options{Reader: h.store, Watcher: h.store, Log: zerolog.Nop()}})
	answer := func(name string) string {
		w := httptest.NewRecorder()
		r := httptest.NewRequest("POST", "/api/v1/repositories/"+name+"/webhook", nil)
		r.Header.Set("Authorization", "Bearer hunter2")
		keyless.ServeHTTP(w, r)
		require.Equal(t, 401, w.Code)
		return w.Body.String()
	}
	require.Equal(t, answer("nosuch"), answer("r"))
}

// Whoever knows the secret of a Repository can't have it read without limit. Callers that don't know it use up nothing, and one
// Repository's webhooks don't count for another.
func TestWebhooksAreLimited(t *testing.T) {
	const burst, interval = 30, 2 * time.Second
	h := newHub(t, withSealer(t))
	h.ok("POST", "/api/v1/namespaces/default/secrets", `{"apiVersion":"v1","kind":"Secret","metadata":{"name":"s"},"stringData":{"webhook-secret":"hunter2"}}`)
	for _, name := range []string{"busy", "other"} {
		h.ok("POST", apiRoot+"/repositories", `{"apiVersion":"edgebus.io/v1alpha1","kind":"Repository","metadata":{"name":"`+name+`"},"spec":{"url":"https://git.example/x.git","secretRef":{"name":"s"}}}`)
	}
	busy, other := "/api/v1/repositories/busy/webhook", "/api/v1/repositories/other/webhook"
	for range burst + 1 {
		require.Equal(t, 401, h.do("POST", busy, "", "Authorization", "Bearer guess").code)
	}
	for range burst {
		h.pass(time.Millisecond)
		require.Equal(t, 202, h.do("POST", busy, "", "Authorization", "Bearer hunter2").code)
	}
	require.Equal(t, "2", h.do("POST", busy, "", "Authorization", "Bearer hunter2").header.Get("Retry-After"))
	noted := h.ok("GET", apiRoot+"/repositories/busy", "").str("status.notifiedAt")
	h.pass(time.Millisecond)
	require.Equal(t, "the Repository busy has had too many webhooks: at most 30 at once, and one per 2s for long",
		h.refused(429, "TooManyRequests", "POST", busy, "", "Authorization", "Bearer hunter2"))
	require.Equal(t, 429, h.do("POST", apiRoot+"/repositories/busy/webhook", "", "Authorization", "Bearer hunter2").code, "its other path has the same limit")
	require.Equal(t, noted, h.ok("GET", apiRoot+"/repositories/busy", "").str("status.notifiedAt"))
	require.Equal(t, 401, h.do("POST", busy, "", "Authorization", "Bearer guess").code, "the limit is told to those only that know the secret")
	require.Equal(t, 202, h.do("POST", other, "", "Authorization", "Bearer hunter2").code)
	h.pass(interval)
	require.Equal(t, 202, h.do("POST", busy, "", "Authorization", "Bearer hunter2").code)
}

// A body that is too large is refused whatever it is for, before it is read.
func TestWebhooksAreBounded(t *testing.T) {
	h := newHub(t, withSealer(t))
	large := strings.Repeat("x", 1<<20+1)
	for _, name := range []string{"r", "nosuch"} {
		says := h.refused(413, "RequestEntityTooLarge", "POST", "/api/v1/repositories/"+name+"/webhook", large, "X-Gitea-Signature", strings.Repeat("0", 64))
		require.Equal(t, "a webhook has at most 1048576 bytes, this one 1048577", says)
	}
}
