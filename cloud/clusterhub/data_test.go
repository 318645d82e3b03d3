// SPDX-License-Identifier: Apache-2.0

package clusterhub

import (
	"bytes"
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/rs/zerolog"
	"github.com/stretchr/testify/require"

	"github.com/edgebus/edgebus/broker/daemon/datadir"
	"github.com/edgebus/edgebus/broker/journal"
	"github.com/edgebus/edgebus/cloud/enroll"
	"github.com/edgebus/edgebus/cloud/hubdata"
	"github.com/edgebus/edgebus/cloud/store"
	"github.com/edgebus/edgebus/cloud/store/disk"
	"github.com/edgebus/edgebus/configs"
	"github.com/edgebus/edgebus/test/natsservers"
)

// A hub that stood by has revocations in its log alone. When the log of all hubs can't be read a backup is restored with what that one has.
func TestARestoreKnowsWhatThisHubHadOfALogThatCannotBeRead(t *testing.T) {
	data := t.TempDir()
	revoke := func(node string) {
		records, err := hubdata.OpenLog(data, zerolog.Nop(), nil, nil)
		require.NoError(t, err)
		st, err := disk.Open(disk.Options{Journal: records})
		require.NoError(t, err)
		text, err := json.Marshal(enroll.Revocation{Node: node, At: 1})
		require.NoError(t, err)
		require.NoError(t, store.Put(t.Context(), st, store.Object{Key: store.Key{Kind: "Revocation", Name: node}, Data: text}, 0))
		require.NoError(t, st.Close())
		require.NoError(t, records.Close())
	}
	revoke("before")
	restored := filepath.Join(data, datadir.RestoreDir)
	require.NoError(t, os.CopyFS(filepath.Join(restored, hubdata.LogDir), os.DirFS(filepath.Join(data, hubdata.LogDir))))
	require.NoError(t, datadir.MakeDir(filepath.Join(restored, enroll.DirName)))
	revoke("after")

	c := &clusterCall{cfg: configs.Hub{Store: configs.HubStore{Engine: "nats"}}}
	latest, err := c.latestLog(t.Context(), restored, zerolog.Nop())
	require.ErrorContains(t, err, hubdata.ClusterKeyFile, "the log can't be opened")
	require.NoError(t, carryRevocations(t.Context(), latest, restored))
	known, err := os.ReadFile(filepath.Join(restored, enroll.DirName, "revoked.json"))
	require.NoError(t, err)
	require.Contains(t, string(known), `"after"`)

	require.NoError(t, os.RemoveAll(filepath.Join(data, hubdata.LogDir)))
	none, err := c.latestLog(t.Context(), restored, zerolog.Nop())
	require.ErrorContains(t, err, hubdata.ClusterKeyFile)
	require.Empty(t, none, "there is no other log")
}

// What a command refuses it says by its own name.
func TestJoiningSaysThatItIsJoiningThatFails(t *testing.T) {
	var out bytes.Buffer
	require.Equal(t, 1, Main([]string{"join", "--data-dir", t.TempDir(), filepath.Join(t.TempDir(), "none.tgz")}, &out, &out))
	require.True(t, strings.HasPrefix(out.String(), "cloudhub cluster join: "), out.String())
}

// A hub joins with a file or from a hub, and help and refusals say so.
func TestJoinSaysThatItTakesAFileOrAHub(t *testing.T) {
	run := func(args ...string) (string, int) {
		var out bytes.Buffer
		code := Main(args, &out, &out)
		return out.String(), code
	}
	for _, args := range [][]string{{"--help"}, {"join", "--help"}} {
		said, code := run(args...)
		require.Zero(t, code)
		require.Contains(t, said, "cloudhub cluster join BACKUP|--from HUB [--config FILE]")
	}
	for said, args := range map[string][]string{
		"it takes BACKUP or --from HUB besides flags":                      {"join"},
		"with --from the backup is taken from a hub, and no file is named": {"join", "a.tgz", "--from", "hub-1"},
		"it takes nothing besides flags":                                   {"drain", "x"},
	} {
		out, code := run(args...)
		require.Equal(t, 2, code, out)
		require.Contains(t, out, said)
	}
}

// A restore looks at the servers while the data of before is in its place.
func TestARestoreLooksAtTheServersFirst(t *testing.T) {
	dir := t.TempDir()
	key, err := clusterKey(dir)
	require.NoError(t, err)
	require.NotZero(t, key)
	records, err := hubdata.OpenLog(dir, zerolog.Nop(), nil, nil)
	require.NoError(t, err)
	require.NoError(t, records.Sync([]journal.RecordChange{journal.Origin{Log: 1}.Change()}))
	require.NoError(t, records.Close())
	monitor := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		_, _ = io.WriteString(w, `{"server_id":"A","server_name":"n1","version":"2.10.0"}`)
	}))
	defer monitor.Close()
	c := &clusterCall{force: true, cfg: configs.Hub{Store: configs.HubStore{Engine: "nats", NATS: configs.HubNATS{
		Servers: []string{"nats://127.0.0.1:1"}, Monitor: []string{monitor.URL}, Stream: "edgebus", Replicas: 3,
	}}}}
	require.ErrorContains(t, c.restoreData(t.Context(), dir, 1, zerolog.Nop()), "2.10.0")
}

// Hubs that run are found although the log that they have in common was deleted a moment ago: they would go on as if it were there.
func TestARestoreRefusesWhileHubsRunWhoseLogIsDeleted(t *testing.T) {
	servers := natsservers.StartWith(t, 1, func(_ int, settings string) string {
		alone, _, _ := strings.Cut(settings, "cluster {") // else it waits for others
		return alone
	})
	dir := t.TempDir()
	_, err := clusterKey(dir)
	require.NoError(t, err)
	records, err := hubdata.OpenLog(dir, zerolog.Nop(), nil, nil)
	require.NoError(t, err)
	require.NoError(t, records.Sync([]journal.RecordChange{journal.Origin{Log: 1}.Change()}))
	require.NoError(t, records.Close())
	hub, err := nats.Connect(servers.URLs()[0])
	require.NoError(t, err)
	defer hub.Close()
	_, err = hub.Subscribe("edgebus.at.edgebus", func(m *nats.Msg) {
		if strings.Contains(string(m.Data), `"asks":true`) {
			_ = hub.Publish(m.Subject, []byte(`{"name":"hub-2","instance":1,"at":5}`))
		}
	})
	require.NoError(t, err)
	require.NoError(t, hub.Flush())
	c := &clusterCall{force: true, unknownRevocations: true, cfg: configs.Hub{Store: configs.HubStore{Engine: "nats", NATS: configs.HubNATS{
		Servers: servers.URLs(), Monitor: servers.Monitors(), Stream: "edgebus", Replicas: 1,
	}}}}
	require.ErrorContains(t, c.restoreData(t.Context(), dir, 1, zerolog.Nop()), "hubs run: hub-2. Stop all of them first")

	hub.Close()
	require.NoError(t, c.restoreData(t.Context(), dir, 1, zerolog.Nop()), "all are stopped")
}

// However far the clock was set back, a hub isn't drained for longer than it was to be.
func TestADrainEndsAlthoughTheClockWasSetBack(t *testing.T) {
	d, err := openDrained(t.TempDir())
	require.NoError(t, err)
	require.NoError(t, d.set(time.Now().Add(time.Hour)))
	text, err := os.ReadFile(d.path)
	require.NoError(t, err)
	now := time.Now().AddDate(-1, 0, 0)
	until, err := parseDrained(string(text), now)
	require.NoError(t, err)
	require.WithinDuration(t, now.Add(time.Hour), until, time.Minute)
	until, err = parseDrained(string(text), time.Now())
	require.NoError(t, err)
	require.WithinDuration(t, time.Now().Add(time.Hour), until, time.Minute)
}
