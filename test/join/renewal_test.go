// SPDX-License-Identifier: Apache-2.0

package join

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/rs/zerolog"
	"github.com/stretchr/testify/require"

	"github.com/edgebus/edgebus/configs"
	"github.com/edgebus/edgebus/edge"
	"github.com/edgebus/edgebus/edge/enroll"
	"github.com/edgebus/edgebus/test/harness"
	"github.com/edgebus/edgebus/topics/resource"
)

// logBuffer is a log that a test reads while it is written.
type logBuffer struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (w *logBuffer) Write(b []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.text.Write(b)
}

func (w *logBuffer) has(text string) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return strings.Contains(w.text.String(), text)
}

// A certificate is renewed over the link, with a new key, and the link connects anew with it. What fails is tried again. While the authority is
// rotated both are trusted, and the node gets to know the new one when it renews. The core is not restarted. Settings allow no certificates that are
// so short-lived: the hub has them from the test.
func TestACertificateIsRenewedOverTheLink(t *testing.T) {
	if testing.Short() {
		t.Skip("it waits for four renewals")
	}
	t.Parallel()
	const validity, patience = 12 * time.Second, time.Minute
	dir, data := t.TempDir(), t.TempDir()
	log, hubLog := new(logBuffer), new(logBuffer)
	at := hubAddresses{mqtt: harness.FreeAddress(t), api: harness.FreeAddress(t), https: harness.FreeAddress(t)}
	short := func(o *hubOptions) { o.validity, o.log, o.at = validity, zerolog.New(hubLog), at }
	h := startHub(t, dir, 20, short)
	joined, err := enroll.Join(testContext(t), h.options(data, "n7", h.invite("n7", 1)))
	require.NoError(t, err)
	require.NoError(t, joined.Close())
	first, err := os.ReadFile(joined.Pair())
	require.NoError(t, err)
	h.core(t, joined, data, log)
	says := func(l *logBuffer, text string) {
		t.Helper()
		require.Eventually(t, func() bool { return l.has(text) }, patience, 10*time.Millisecond, text)
	}
	online := func(h *joinHub, state string) (expires string) {
		t.Helper()
		require.Eventually(t, func() bool {
			var n resource.Node
			h.read(t, "/apis/edgebus.io/v1alpha1/nodes/n7", &n)
			expires = n.Status.CertificateExpires
			return n.Status.State == state
		}, patience, 10*time.Millisecond)
		return expires
	}
	before := online(h, resource.Online)
	says(log, "the certificate was renewed")
	now, err := os.ReadFile(joined.Pair())
	require.NoError(t, err)
	require.NotEqual(t, first, now)
	info, err := os.Stat(joined.Pair())
	require.NoError(t, err)
	require.Equal(t, os.FileMode(0o600), info.Mode().Perm())
	says(log, "the link connects anew, with the renewed certificate")
	require.Eventually(t, func() bool { after := online(h, resource.Online); return after != "" && after != before }, patience, 10*time.Millisecond)

	h.stop()
	says(log, "the certificate could not be renewed")
	h = startHub(t, dir, 20, short)
	online(h, resource.Online)

	require.Equal(t, http.StatusOK, h.post("/enroll/authority/rotate", map[string]string{"overlap": "20s"}, nil))
	require.Equal(t, http.StatusConflict, h.post("/enroll/authority/rotate", map[string]string{"overlap": "20s"}, nil), "the last one is not over")
	require.Eventually(t, func() bool {
		roots, err := os.ReadFile(joined.Roots())
		return err == nil && bytes.Count(roots, []byte("BEGIN CERTIFICATE")) > 1
	}, patience, 10*time.Millisecond)
	says(hubLog, "an authority that was replaced is no longer trusted")
	h.stop()
	h = startHub(t, dir, 20, short)
	online(h, resource.Online)
	another, err := enroll.Join(testContext(t), h.options(t.TempDir(), "n8", h.invite("n8", 1)))
	require.NoError(t, err)
	require.NoError(t, another.Close())
}

// core runs the core that has joined until the test ends.
func (h *joinHub) core(t *testing.T, joined enroll.JoinResult, data string, log *logBuffer) {
	t.Helper()
	file := filepath.Join(t.TempDir(), "core.yaml")
	require.NoError(t, os.WriteFile(file, fmt.Appendf(nil, `
node: {name: %s}
data: {dir: %q}
mqtt: {listen: "127.0.0.1:0"}
http: {listen: "127.0.0.1:0"}
link:
  server: mqtts://%s
  tls: {ca: %q, cert: %q, key: %q}
  retry: {backoff: {min: 50ms, max: 500ms}}
`, joined.Node, data, h.mqtt, joined.Roots(), joined.Pair(), joined.Pair()), 0o600))
	cfg, err := configs.Load[configs.Core]("edgecore", file, nil)
	require.NoError(t, err)
	ctx, stop := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- edge.Run(ctx, edge.Options{Config: cfg, Version: "test", Log: zerolog.New(log)}) }()
	t.Cleanup(func() {
		stop()
		require.NoError(t, <-ended)
	})
}

// read asks the API.
func (h *joinHub) read(t *testing.T, path string, into any) {
	t.Helper()
	r, err := http.Get(h.api + path)
	if err != nil {
		return
	}
	defer r.Body.Close()
	require.NoError(t, json.NewDecoder(r.Body).Decode(into))
}
