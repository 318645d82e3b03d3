// SPDX-License-Identifier: Apache-2.0

package page

import (
	"bytes"
	"context"
	"net/http"
	"net/url"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"
	"github.com/stretchr/testify/require"
)

func findBinaries(t *testing.T) string {
	t.Helper()
	bin, err := filepath.Abs("../../bin")
	require.NoError(t, err)
	return bin
}

func queryEscape(text string) string { return url.QueryEscape(text) }

// awaitPublish publishes until it is accepted: a node may not know a Device yet.
func awaitPublish(t *testing.T, broker, topic, payload string) {
	t.Helper()
	_, port, _ := strings.Cut(broker, ":")
	require.Eventually(t, func() bool {
		return exec.Command("mosquitto_pub", "-V", "5", "-q", "1", "-p", port, "-t", topic, "-m", payload).Run() == nil
	}, patience, 50*time.Millisecond, topic)
}

// sendAs sends a request of a user, whose password is correct horse.
func (p *programs) sendAs(t *testing.T, user, method, at, body string) {
	t.Helper()
	r, err := http.NewRequestWithContext(context.Background(), method, "http://"+p.hub+at, strings.NewReader(body))
	require.NoError(t, err)
	r.SetBasicAuth(user, "correct horse")
	r.Header.Set("Content-Type", "application/json")
	res, err := http.DefaultClient.Do(r)
	require.NoError(t, err)
	defer func() { _ = res.Body.Close() }()
	var out bytes.Buffer
	_, _ = out.ReadFrom(res.Body)
	require.Less(t, res.StatusCode, 300, "%s %s: %s", method, at, out.String())
}

// signIn signs a user in with the form.
func (p *programs) signIn(t *testing.T, ctx context.Context, user string) {
	t.Helper()
	awaitText(t, ctx, "Password")
	run(t, ctx, chromedp.SendKeys(`input[autocomplete=username]`, user), chromedp.SendKeys(`input[type=password]`, "correct horse"+kb.Enter))
	awaitText(t, ctx, user+" · ")
}
