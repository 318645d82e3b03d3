package api

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// A webhook is for those who know the value in the Repository's Secret, by the header of any common git server or registry, and only
// notes that it came.
func TestWebhooks(t *testing.T) {
	h := newHub(t, sealed(t))
	secret := "/api/v1/namespaces/default/secrets"
	h.ok("POST", secret, `{"apiVersion":"v1","kind":"Secret","metadata":{"name":"s"},"stringData":{"webhook-secret":"hunter2"}}`)
	h.ok("POST", secret, `{"apiVersion":"v1","kind":"Secret","metadata":{"name":"without"},"stringData":{"password":"x"}}`)
	repository := func(name, spec string) {
		h.ok("POST", base+"/repositories", `{"apiVersion":"edgebus.io/v1alpha1","kind":"Repository","metadata":{"name":"`+name+`"},"spec":{"url":"https://git.example/x.git"`+spec+`}}`)
	}
	repository("r", `,"secretRef":{"name":"s"}`)
	repository("without", `,"secretRef":{"name":"without"}`)
	repository("gone", `,"secretRef":{"name":"gone"}`)
	repository("none", "")
	body := `{"ref":"refs/heads/main"}`
	mac := hmac.New(sha256.New, []byte("hunter2"))
	mac.Write([]byte(body))
	signature := hex.EncodeToString(mac.Sum(nil))
	last := ""
	for _, path := range []string{"/api/v1/repositories/r/webhook", base + "/repositories/r/webhook"} {
		for name, value := range map[string]string{
			"X-Hub-Signature-256": "sha256=" + signature, "X-Gitea-Signature": signature, "X-Gitlab-Token": "hunter2", "Authorization": "Bearer hunter2",
		} {
			h.pass(time.Second)
			require.Equal(t, 202, h.do("POST", path, body, name, value).code, name)
			at := h.ok("GET", base+"/repositories/r", "").str("status.notifiedAt")
			require.NotEqual(t, last, at)
			last = at
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
	require.Equal(t, last, h.ok("GET", base+"/repositories/r", "").str("status.notifiedAt"))
	require.Equal(t, 404, h.do("GET", "/api/v1/repositories/r/webhook", "").code)
}
