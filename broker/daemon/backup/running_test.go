// SPDX-License-Identifier: Apache-2.0

package backup

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/rs/zerolog"
	"github.com/stretchr/testify/require"

	"github.com/edgebus/edgebus/broker/daemon/datadir"
)

// textSource is a store's file, cut at a moment.
type textSource struct {
	path, text string
	fail       error // at the end
}

func (x textSource) Path() string { return x.path }
func (x textSource) Size() int64  { return int64(len(x.text)) }

func (x textSource) Copy(w io.Writer) error {
	_, err := io.WriteString(w, x.text)
	return errors.Join(err, x.fail)
}

// runs has the rig's program run until the test ends, or until it is stopped.
func (r *backupRig) runs(snapshot Snapshot) (stop func()) {
	r.t.Helper()
	dir, err := datadir.Open(r.dir, "thing")
	require.NoError(r.t, err)
	s := r.program().Listen(r.dir, snapshot, nil, zerolog.Nop())
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- s.Run(ctx) }()
	r.end = cancel
	stop = sync.OnceFunc(func() {
		cancel()
		require.NoError(r.t, <-ended)
		require.NoError(r.t, dir.Close())
	})
	r.t.Cleanup(stop)
	return stop
}

func (r *backupRig) parts() []string {
	parts, err := filepath.Glob(r.backup + ".*")
	require.NoError(r.t, err)
	return parts
}

// What runs gives its stores as they were at one moment, and the rest of the directory with them.
func TestBackupOfWhatRuns(t *testing.T) {
	r := newBackupRig(t)
	r.write("secrets.key", "key")
	r.write("sub/later", "not in it")
	released := false
	stop := r.runs(func() ([]Source, func(), error) {
		r.write("data", "later")
		return []Source{textSource{path: filepath.Join(r.dir, "data"), text: "one"}, textSource{path: filepath.Join(r.dir, "sub", "deep"), text: "deep"}},
			func() { released = true }, nil
	})
	info, err := os.Stat(filepath.Join(r.dir, SocketName))
	require.NoError(t, err)
	require.Zero(t, info.Mode().Perm()&0o077, "its owner's alone")
	require.Contains(t, r.well("backup", r.backup), "data of thing, 3 files, 10 bytes")
	require.Contains(t, r.fails(1, "backup", r.backup), "is there already")
	stop()
	require.True(t, released)
	require.Contains(t, r.well("check", r.backup), "is whole")
	r.well("restore", "--force", r.backup)
	r.has("data", "one")
	r.has("sub/deep", "deep")
	r.has("secrets.key", "key")
	require.NoFileExists(t, filepath.Join(r.dir, "sub", "later"))
	require.NoFileExists(t, filepath.Join(r.dir, SocketName))
	require.Empty(t, r.parts())
}

// What goes wrong is said, and leaves nothing.
func TestBackupsOfWhatRunsThatFail(t *testing.T) {
	r := newBackupRig(t)
	answer := Snapshot(func() ([]Source, func(), error) { return nil, nil, errors.New("it is damaged") })
	stop := r.runs(func() ([]Source, func(), error) { return answer() })
	require.Contains(t, r.fails(1, "backup", r.backup), "it is damaged")
	long := strings.Repeat("x", 1<<20)
	answer = func() ([]Source, func(), error) {
		return []Source{textSource{filepath.Join(r.dir, "data"), long, errors.New("it can't be read on")}}, func() {}, nil
	}
	require.Contains(t, r.fails(1, "backup", r.backup), "no whole backup: data: it can't be read on")
	answer = func() ([]Source, func(), error) {
		_, said := r.run("backup", r.backup)
		require.Contains(t, said, "another backup is being made")
		return nil, nil, errors.New("enough")
	}
	require.Contains(t, r.fails(1, "backup", r.backup), "enough")
	stop()
	d, err := datadir.Open(r.dir, "thing")
	require.NoError(t, err)
	require.Contains(t, r.fails(1, "backup", r.backup), "in use by thing", "something runs that gives none")
	require.NoError(t, d.Close())
	require.NoFileExists(t, r.backup)
	require.Empty(t, r.parts())
}

// A program that ends, or is killed, in the midst of a backup: there is none.
func TestTheProgramEndsInTheMidstOfABackup(t *testing.T) {
	r := newBackupRig(t)
	midst := make(chan struct{})
	r.runs(func() ([]Source, func(), error) {
		return []Source{slowSource{textSource{path: filepath.Join(r.dir, "data"), text: strings.Repeat("x", 1<<20)}, midst}}, func() {}, nil
	})
	go func() {
		<-midst
		r.end()
	}()
	require.Contains(t, r.fails(1, "backup", r.backup), "no whole backup")
	require.NoFileExists(t, r.backup)
	require.Empty(t, r.parts())
}

// slowSource is a file whose reader is told when some of it was sent, and then goes on until nobody listens.
type slowSource struct {
	textSource
	midst chan struct{}
}

func (x slowSource) Size() int64 { return 1 << 40 }

func (x slowSource) Copy(w io.Writer) error {
	err := x.textSource.Copy(w)
	close(x.midst)
	for err == nil {
		err = x.textSource.Copy(w)
	}
	return err
}

// Also without a socket, which some file systems don't have, the program works.
func TestWithoutASocket(t *testing.T) {
	r := newBackupRig(t)
	require.NoError(t, os.MkdirAll(filepath.Join(r.dir, SocketName, "taken"), 0o700))
	stop := r.runs(nil)
	require.Contains(t, r.fails(1, "backup", r.backup), "gives no backup")
	stop()
}

// What a killed program leaves is no obstacle.
func TestAnOldSocketIsReplaced(t *testing.T) {
	r := newBackupRig(t)
	l, err := net.Listen("unix", filepath.Join(r.dir, SocketName))
	require.NoError(t, err)
	l.(*net.UnixListener).SetUnlinkOnClose(false)
	require.NoError(t, l.Close())
	r.runs(func() ([]Source, func(), error) { return nil, func() {}, nil })
	require.Contains(t, r.well("backup", r.backup), "data of thing")
}

// A backup without its end is none, nor is one whose checksums are others.
func TestChecksumsStandAtTheEnd(t *testing.T) {
	r := newBackupRig(t)
	m := Manifest{Format: 1, Program: "thing", Files: []File{{Name: "x", Size: 1}}}
	for want, sums := range map[string]string{
		"unexpected EOF":    "2d71\n",
		"checksum is wrong": strings.Repeat("0", 64) + "  x\n",
		"more in it":        "2d711642b726b04401627ca9fbac32f5c8530fb1903cc4db02258717921a4881  x\n?",
		"is whole":          "2d711642b726b04401627ca9fbac32f5c8530fb1903cc4db02258717921a4881  x\n",
	} {
		require.NoError(t, os.WriteFile(r.backup, makeArchive(t, m, map[string]string{"x": "x"}, sums), 0o600))
		_, said := r.run("check", r.backup)
		require.Contains(t, said, want)
	}
	require.NoError(t, os.WriteFile(r.backup, makeArchive(t, m, map[string]string{"x": "x"}), 0o600))
	require.Contains(t, r.fails(1, "check", r.backup), "unexpected EOF")
}

// A program that watches over another asks it for its state, which it gives if it is ready.
func TestStateOfWhatRuns(t *testing.T) {
	dir := t.TempDir()
	s := Program{Name: "thing"}.Listen(dir, nil, nil, zerolog.Nop())
	ready := errors.New("nothing can be stored")
	s.State(func() (any, error) { return map[string]string{"version": "v1.2.0"}, ready })
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- s.Run(ctx) }()
	l := &commandLine{dir: dir, ctx: ctx}
	get := func() (int, string) {
		res, err := (&http.Client{Transport: &http.Transport{DialContext: l.dial, DisableKeepAlives: true}}).Get(StateURL)
		require.NoError(t, err)
		defer res.Body.Close()
		text, err := io.ReadAll(res.Body)
		require.NoError(t, err)
		return res.StatusCode, strings.TrimSpace(string(text))
	}
	code, text := get()
	require.Equal(t, "503 nothing can be stored", fmt.Sprint(code, " ", text))
	ready = nil
	code, text = get()
	require.Equal(t, `200 {"version":"v1.2.0"}`, fmt.Sprint(code, " ", text))
	cancel()
	require.NoError(t, <-ended)
}
