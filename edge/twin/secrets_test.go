// SPDX-License-Identifier: Apache-2.0

package twin

import (
	"bytes"
	"encoding/base64"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/rs/zerolog"
	"github.com/stretchr/testify/require"

	"github.com/edgebus/edgebus/topics"
	"github.com/edgebus/edgebus/topics/link"
)

const (
	wifiKey   = "secrets/default.wifi"
	wifiValue = `{"version":"1","data":{"psk":"aHVudGVyMi1wbGFpbg=="}}`
)

// retains waits until the twin has a value, which may be in parts; empty: none.
func (r *rig) retains(key, value string) {
	r.t.Helper()
	require.Eventually(r.t, func() bool {
		got := ""
		for next := r.twin.Retained(topics.TopicOf("n1", key)); ; {
			chunk := next(10)
			if len(chunk) == 0 {
				return got == value
			}
			for _, m := range chunk {
				got = string(m.Payload)
			}
		}
	}, testTimeout, 5*time.Millisecond, "%s is %q", key, value)
}

// textsInFiles reports the files of a directory that have one of the texts, as it is or in base64.
func textsInFiles(t *testing.T, dir string, texts ...string) (found []string) {
	t.Helper()
	require.NoError(t, filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || !d.Type().IsRegular() {
			return err
		}
		raw, err := os.ReadFile(path)
		for _, text := range texts {
			if bytes.Contains(raw, []byte(text)) || bytes.Contains(raw, []byte(base64.StdEncoding.EncodeToString([]byte(text)))) {
				found = append(found, path)
			}
		}
		return err
	}))
	return found
}

func TestSecretsAreEncryptedOnDisk(t *testing.T) {
	r := newRig(t)
	r.connect()
	large := `{"version":"1","data":{"key":"` + strings.Repeat("bGFyZS1wbGFpbg==", 8000) + `"}}`
	manifest, parts := topics.SplitDocument([]byte(large))
	r.want("secrets/default.large", string(manifest), 0)
	for i, part := range parts {
		r.want(topics.PartKey("secrets/default.large", i), string(part), 0)
	}
	r.want(wifiKey, wifiValue, 0)
	r.want("membership", `{"marker":"in-plain"}`, 0)
	r.retains(wifiKey, wifiValue)
	r.retains("secrets/default.large", large)
	secret := []string{"aHVudGVyMi1wbGFpbg", "bGFyZS1wbGFpbg", "hunter2-plain", "large-plain"}
	require.NotEmpty(t, textsInFiles(t, r.dir, "in-plain"), "the log has the other values as they are")
	require.Empty(t, textsInFiles(t, r.dir, secret...))

	r.hub.Lock()
	lineage, digest := r.down.Lineage(), r.down.Digest()
	r.hub.Unlock()
	r.restart() // moves everything into the database
	require.Empty(t, textsInFiles(t, r.dir, secret...))
	r.retains(wifiKey, wifiValue)
	r.retains("secrets/default.large", large)
	require.Equal(t, digest, r.twin.down.Digest(), "the digest is that of the plain values, which the hub has, too")
	r.connect()
	r.want(wifiKey, "", 0)
	r.retains(wifiKey, "")
	r.hub.Lock()
	require.Equal(t, lineage, r.down.Lineage(), "nothing was sent again")
	r.hub.Unlock()
	r.restart()
	r.retains(wifiKey, "")
	r.retains("secrets/default.large", large)
}

// logLines keeps a log.
type logLines struct {
	mu   sync.Mutex
	text strings.Builder
}

func (l *logLines) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(b)
}

func (l *logLines) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.String()
}

// A core whose key is lost goes on without the Secrets, and has them again once it is linked to the hub. What it has
// besides is as it was.
func TestSecretsOfALostKeyComeAgain(t *testing.T) {
	r := newRig(t)
	log := &logLines{}
	r.log = zerolog.New(log)
	r.connect()
	r.add("lamp", "u1", thermostat)
	r.want("secrets/default.gone", wifiValue, 0)
	r.want(wifiKey, wifiValue, 0)
	r.want("spec", `{"renderedVersion":"1"}`, 0)
	r.retains(wifiKey, wifiValue)
	r.retains("spec", `{"renderedVersion":"1"}`)

	r.newKey()
	r.restart()
	require.Contains(t, log.String(), `"count":2,"message":"stored Secrets can't be decrypted with the key in the data directory, and are forgotten: the hub sends them again"`)
	require.NotContains(t, log.String(), "aHVudGVyMi1wbGFpbg")
	r.retains(wifiKey, "")
	r.retains("spec", `{"renderedVersion":"1"}`)
	r.want("secrets/default.gone", "", 0) // while the node is away

	r.connect()
	r.retains(wifiKey, wifiValue)
	r.retains("secrets/default.gone", "")
	require.Empty(t, textsInFiles(t, r.dir, "aHVudGVyMi1wbGFpbg", "hunter2-plain"))
	was := log.String()
	r.restart()
	require.Equal(t, was, log.String(), "what can't be decrypted is no longer there")
	r.retains(wifiKey, wifiValue)
	r.retains("spec", `{"renderedVersion":"1"}`)
	require.Equal(t, 1, r.twin.Stats().Devices)
}

// Without a hub the node starts as often as it has to. If the key is put back before anything else is stored, the values are there again.
func TestALostKeyAndNoHub(t *testing.T) {
	r := newRig(t)
	r.connect()
	r.want(wifiKey, wifiValue, 0)
	r.retains(wifiKey, wifiValue)
	had := r.secrets
	for range 3 {
		r.newKey()
		r.restart()
		r.retains(wifiKey, "")
	}
	r.secrets = had
	r.restart()
	r.retains(wifiKey, wifiValue)
}

// The map that a store without a key gives has everything but the Secrets, and a commit of one is refused: it would be in plain text.
func TestAStoreWithoutAKey(t *testing.T) {
	r := newRig(t)
	r.connect()
	r.want(wifiKey, wifiValue, 0)
	r.retains(wifiKey, wifiValue)
	r.stop()
	r.cut()
	r.secrets = nil
	down := link.NewOwner(link.Down, func() uint64 { return 1 })
	_, _, err := down.Put(link.Entry{Key: wifiKey, Value: []byte(wifiValue)})
	require.NoError(t, err)
	r.start()
	r.retains(wifiKey, "")
	r.down = down
	r.connect()
	require.Eventually(t, func() bool { return r.twin.Stats().FailedCommits > 0 }, testTimeout, time.Millisecond)
	require.Empty(t, textsInFiles(t, r.dir, "aHVudGVyMi1wbGFpbg"))
}
