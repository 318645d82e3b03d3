// SPDX-License-Identifier: Apache-2.0

//go:build unix

package backup

import (
	"bytes"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/edgebus/edgebus/broker/daemon/datadir"
)

// What root restores belongs to whoever the directory belongs to, the lock included: the
// service must be able to use it.
func TestRestoredFilesBelongToTheDirectorysOwner(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("only root can give files away")
	}
	const nobody = 65534
	r := newBackupRig(t)
	r.well("backup", r.backup)
	require.NoError(t, os.Remove(filepath.Join(r.dir, "lock")))
	require.NoError(t, os.Chown(r.dir, nobody, nobody))
	r.well("restore", "--force", r.backup)
	require.NoError(t, filepath.WalkDir(r.dir, func(path string, _ fs.DirEntry, err error) error {
		require.NoError(t, err)
		info, err := os.Stat(path)
		require.NoError(t, err)
		if strings.Contains(path, asidePrefix+"2") && !strings.HasPrefix(filepath.Base(path), asidePrefix) || filepath.Base(path) == "half.new" {
			return nil // it was there before, and is whose it was
		}
		require.EqualValues(t, nobody, info.Sys().(*syscall.Stat_t).Uid, path)
		return nil
	}))
}

// What root writes when it takes a copy over is for the service, too, which can't start otherwise.
func TestTheFilesOfACopyThatIsTakenOverBelongToTheDirectorysOwner(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("only root can give files away")
	}
	const nobody = 65534
	r := newBackupRig(t)
	require.NoError(t, os.Chown(r.dir, nobody, nobody))
	p := r.program()
	p.CheckCopy = func(string) (string, error) { return "all of it", nil }
	p.TakeOver = func(dir string, _ uint32) error { return os.WriteFile(filepath.Join(dir, "made"), nil, 0o600) }
	var out bytes.Buffer
	code, _ := p.Main([]string{"takeover"}, &out, &out)
	require.Zero(t, code, out.String())
	for _, name := range []string{"made", StampFile, datadir.LockName} {
		info, err := os.Stat(filepath.Join(r.dir, name))
		require.NoError(t, err)
		require.EqualValues(t, nobody, info.Sys().(*syscall.Stat_t).Uid, name)
	}
}
