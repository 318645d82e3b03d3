// SPDX-License-Identifier: Apache-2.0

package hubdata

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/rs/zerolog"
	"github.com/stretchr/testify/require"

	"github.com/edgebus/edgebus/broker/journal"
)

// The follower may have been killed while a whole copy took the place of the one before: then there is one to take over all the same.
func TestACopyWhoseReplacementWasInterruptedIsTakenOver(t *testing.T) {
	dir := t.TempDir()
	records, err := OpenLog(dir, zerolog.Nop(), nil, nil)
	require.NoError(t, err)
	require.NoError(t, records.Sync([]journal.RecordChange{journal.Origin{Log: 1, At: 1}.Change()}))
	require.NoError(t, records.Close())
	log := filepath.Join(dir, LogDir)
	require.NoError(t, os.CopyFS(log+".old", os.DirFS(log)))
	require.NoError(t, os.Rename(log, log+".new"))
	_, err = checkCopy(dir)
	require.NoError(t, err)
	require.DirExists(t, log)
	require.NoDirExists(t, log+".old")

	require.NoError(t, os.WriteFile(filepath.Join(dir, ClusterKeyFile), nil, 0o600))
	_, err = checkCopy(dir)
	require.ErrorContains(t, err, "takes over by itself")
}
