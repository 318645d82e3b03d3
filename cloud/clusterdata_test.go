// SPDX-License-Identifier: Apache-2.0

package cloud

import (
	"encoding/json"
	"os"
	"path/filepath"
	"testing"

	"github.com/rs/zerolog"
	"github.com/stretchr/testify/require"

	"github.com/edgebus/edgebus/broker/daemon/datadir"
	"github.com/edgebus/edgebus/cloud/enroll"
	"github.com/edgebus/edgebus/cloud/store"
	"github.com/edgebus/edgebus/cloud/store/disk"
	"github.com/edgebus/edgebus/configs"
)

// A hub that stood by has revocations in its log alone. When the log of all hubs can't be read a backup is restored with what that one has.
func TestARestoreKnowsWhatThisHubHadOfALogThatCannotBeRead(t *testing.T) {
	data := t.TempDir()
	revoke := func(node string) {
		records, err := openLog(data, zerolog.Nop(), nil, nil)
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
	require.NoError(t, os.CopyFS(filepath.Join(restored, LogDir), os.DirFS(filepath.Join(data, LogDir))))
	require.NoError(t, datadir.MakeDir(filepath.Join(restored, enroll.DirName)))
	revoke("after")

	c := &clusterCall{cfg: configs.Hub{Store: configs.HubStore{Engine: "nats"}}}
	latest, err := c.latestLog(t.Context(), restored, zerolog.Nop())
	require.ErrorContains(t, err, ClusterKeyFile, "the log can't be opened")
	require.NoError(t, carryRevocations(t.Context(), latest, restored))
	known, err := os.ReadFile(filepath.Join(restored, enroll.DirName, "revoked.json"))
	require.NoError(t, err)
	require.Contains(t, string(known), `"after"`)

	require.NoError(t, os.RemoveAll(filepath.Join(data, LogDir)))
	none, err := c.latestLog(t.Context(), restored, zerolog.Nop())
	require.ErrorContains(t, err, ClusterKeyFile)
	require.Empty(t, none, "there is no other log")
}
