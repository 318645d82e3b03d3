// SPDX-License-Identifier: Apache-2.0

package chaos

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/rs/zerolog"
	"github.com/stretchr/testify/require"

	"github.com/edgebus/edgebus/broker/client"
	"github.com/edgebus/edgebus/cloud/store"
	"github.com/edgebus/edgebus/cloud/store/disk"
	"github.com/edgebus/edgebus/test/faults"
	"github.com/edgebus/edgebus/test/harness"
	"github.com/edgebus/edgebus/topics/resource"
)

// unreadBytes is what a hub may have sent between the reading of its metrics and its end.
const unreadBytes = 48 << 10

// TestADownloadSurvivesCuts downloads a blob over a slow link that is cut again and again, with hub and core killed in
// between: it arrives whole, and at most a twentieth of it is sent twice. BLOB_MB and BLOB_MBITS are its size and the link's
// rate: 200 and 2 take a quarter of an hour.
func TestADownloadSurvivesCuts(t *testing.T) {
	const cuts = 20
	size, rate := int64(envNumber("BLOB_MB", 20))<<20, int(envNumber("BLOB_MBITS", 20))*1_000_000/8
	w, content, digest := newDownload(t, size)
	link := w.Node("n1").Net
	link.Set(faults.Conditions{Shared: rate, Delay: 10 * time.Millisecond})
	require.NoError(t, w.Start(t.Context(), "hub"))
	require.NoError(t, putBlob(t.Context(), w, digest, content))
	require.NoError(t, w.Start(t.Context(), "core"))
	began := time.Now()
	answers := requestBlob(t, w, digest, size)
	part := filepath.Join(w.Dir, "core", "downloads", strings.TrimPrefix(digest, resource.DigestPrefix)+".part")
	sent, killed := int64(0), 0
	kill := func(name string) {
		if name == "hub" {
			sent += sentBytes(t, w) + unreadBytes
		}
		require.NoError(t, w.Crash(name))
		killed++
	}
	for i := range cuts {
		at := size/cuts*int64(i) + rand.Int64N(size/cuts/2)
		require.Eventually(t, func() bool {
			info, err := os.Stat(part)
			return err == nil && info.Size() >= at
		}, 10*time.Minute, 5*time.Millisecond, "%d of %d bytes", at, size)
		switch i % 4 {
		case 0:
			kill("hub")
			require.NoError(t, w.Start(t.Context(), "hub"))
		case 1:
			kill("core")
			require.NoError(t, w.Start(t.Context(), "core"))
		case 2:
			link.Drop()
		case 3:
			kill("core")
			kill("hub")
			require.NoError(t, w.Start(t.Context(), "core"))
			require.NoError(t, w.Start(t.Context(), "hub"))
		}
	}
	var path string
	select {
	case path = <-answers:
	case <-time.After(20 * time.Minute):
		t.Fatal("the blob did not arrive\n" + w.Logs(20))
	}
	took := time.Since(began)
	got, err := os.ReadFile(path)
	require.NoError(t, err)
	require.True(t, bytes.Equal(content, got))
	_, err = os.Stat(part)
	require.ErrorIs(t, err, fs.ErrNotExist)
	sent += sentBytes(t, w)
	_, passed := link.Passed()
	t.Logf("%d MB at %d Mbit/s in %s, %d cuts, %d kills: sent %d bytes, %.2f %% more than once; %d bytes on the link, state and protocol included: %.2f %% more than the blob",
		size>>20, rate*8/1_000_000, took.Round(time.Second), cuts, killed, sent, 100*float64(sent-size)/float64(size), passed, 100*float64(int64(passed)-size)/float64(size))
	require.Less(t, sent, size*105/100)
}

// newDownload makes a world whose node n1 refers to a random blob, and whose core lets this user in as its agent.
func newDownload(t testing.TB, size int64) (w *harness.World, content []byte, digest string) {
	t.Helper()
	dir, err := os.MkdirTemp("", "blobs") // a socket's path is short
	require.NoError(t, err)
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	w, err = harness.NewWorld(dir, 1)
	require.NoError(t, err)
	t.Cleanup(w.Close)
	content = make([]byte, size)
	chance := rand.NewChaCha8([32]byte{1})
	_, _ = chance.Read(content)
	digest = resource.DigestOf(content)
	file := fmt.Sprintf(`{"path":"/opt/artifact","digest":%q,"size":%d}`, digest, size)
	st, err := disk.Open(disk.Options{Path: filepath.Join(dir, "hub", "log")})
	require.NoError(t, err)
	for kind, text := range map[string]string{
		resource.KindNode: `{"apiVersion":"` + resource.APIVersion + `","kind":"Node","metadata":{"name":"n1","uid":"1","generation":1},"spec":{"config":[` +
			`{"name":"artifact","configType":"FileListProviderSpec","files":[` + file + `]}]}}`,
		resource.KindRenderedSpec: `{"renderedVersion":"1","files":[` + strings.Replace(file, "{", `{"type":"file","mode":"0644",`, 1) + `]}`,
	} {
		_, err = st.Create(context.Background(), store.Object{Key: store.Key{Kind: kind, Name: "n1"}, Data: []byte(text)})
		require.NoError(t, err)
	}
	require.NoError(t, st.Close())
	core := fmt.Sprintf("mqtt:\n  socket: %s\nauth:\n  users:\n  - {name: agent, role: agent, local: \"%d\", nodes: [n1]}\n", filepath.Join(dir, "s"), os.Getuid())
	require.NoError(t, os.WriteFile(filepath.Join(dir, "core.yaml"), []byte(core), 0o600))
	return w, content, digest
}

func putBlob(ctx context.Context, w *harness.World, digest string, content []byte) error {
	r, err := http.NewRequestWithContext(ctx, http.MethodPut, "http://"+w.Hub.HTTP+"/blobs/"+digest, bytes.NewReader(content))
	if err != nil {
		return err
	}
	res, err := http.DefaultClient.Do(r)
	if err == nil && res.StatusCode != http.StatusOK {
		err = errors.New(res.Status)
	}
	return err
}

// requestBlob requests a blob as the agent does, on each new connection again, until it is told the path.
func requestBlob(t testing.TB, w *harness.World, digest string, size int64) <-chan string {
	t.Helper()
	done := make(chan string, 10)
	payload, err := json.Marshal(resource.BlobRequest{Digest: digest, Size: size})
	require.NoError(t, err)
	const answers = "v1/nodes/n1/blobs/answers/test"
	var c *client.Client
	request := func() {
		c.PublishAsync(client.Message{Topic: "v1/nodes/n1/blobs/get", Payload: payload, QoS: 1, ResponseTopic: answers}, func(err error) {
			if refused := (*client.Refused)(nil); errors.As(err, &refused) {
				t.Errorf("refused: %v", err)
			}
		})
	}
	c, err = client.New(client.Options{
		Servers: []string{"unix://" + filepath.Join(w.Dir, "s")}, ClientID: "agent", CleanStart: true, Log: zerolog.Nop(),
		Backoff:       client.Backoff{Min: 10 * time.Millisecond, Max: 100 * time.Millisecond},
		Subscriptions: []client.Subscription{{Filter: answers, QoS: 1}},
		OnConnect: func(context.Context, bool) error {
			request()
			return nil
		},
		OnMessage: func(m client.Message) {
			var a resource.BlobAnswer
			if err := json.Unmarshal(m.Payload, &a); err != nil {
				t.Errorf("%v: %s", err, m.Payload)
			}
			switch {
			case a.Error != "":
				t.Logf("answer: %s: %s", a.Reason, a.Error)
				time.AfterFunc(time.Second, request)
			case a.Path != "":
				done <- a.Path
			}
		},
	})
	require.NoError(t, err)
	ctx, stop := context.WithCancel(context.Background())
	ended := make(chan error)
	go func() { ended <- c.Run(ctx) }()
	t.Cleanup(func() {
		stop()
		require.NoError(t, <-ended)
	})
	return done
}

var sentMetric = regexp.MustCompile(`(?m)^edgebus_blobs_sent_bytes_total (\S+)$`)

// sentBytes is how many bytes of blobs the hub has sent since its start.
func sentBytes(t *testing.T, w *harness.World) int64 {
	t.Helper()
	text, err := harness.Call(t.Context(), http.MethodGet, "http://"+w.Hub.HTTP+"/metrics", nil)
	require.NoError(t, err)
	found := sentMetric.FindSubmatch(text)
	require.NotNil(t, found)
	n, err := strconv.ParseFloat(string(found[1]), 64)
	require.NoError(t, err)
	return int64(n)
}
