// SPDX-License-Identifier: Apache-2.0

package backup

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

// related makes a key belong to the data, which must be the same text.
func (r *backupRig) related() {
	r.write("key", "one")
	r.write("unrelated", "x")
	r.keyed = func(dir string) error {
		require.NoFileExists(r.t, filepath.Join(dir, "unrelated"))
		data, err := os.ReadFile(filepath.Join(dir, "data"))
		require.NoError(r.t, err)
		key, err := os.ReadFile(filepath.Join(dir, "key"))
		if err == nil && string(key) != string(data) {
			err = errors.New("the key is another one")
		}
		return err
	}
}

// Checksums don't say whether files belong together: backup, check and restore look.
func TestFilesThatDoNotBelongTogetherAreDamage(t *testing.T) {
	r := newBackupRig(t)
	r.related()
	r.well("backup", r.backup)
	r.well("check", r.backup)
	r.well("restore", "--force", "--dry-run", r.backup)
	for what, spoil := range map[string]func(){
		"another one": func() { r.write("key", "two") },
		"no such":     func() { require.NoError(t, os.Remove(filepath.Join(r.dir, "key"))) },
	} {
		spoil()
		require.NoError(t, os.Remove(r.backup))
		require.Contains(t, r.fails(1, "backup", r.backup), what)
		require.NoFileExists(t, r.backup)
		require.Contains(t, r.well("backup", "--force", r.backup), "DAMAGED: the data in "+r.backup)
		require.Contains(t, r.fails(1, "check", r.backup), what)
		require.Contains(t, r.fails(1, "restore", "--force", "--dry-run", r.backup), what)
		require.Empty(t, r.parts())
		r.write("key", "one")
	}
}

// A backup that lies where nothing can be written is checked as well.
func TestInspectingWhereNothingCanBeWritten(t *testing.T) {
	dir, err := tempDir(filepath.Join(t.TempDir(), "nowhere", "x.backup"))
	require.NoError(t, err)
	require.NoError(t, os.RemoveAll(dir))
}
