// SPDX-License-Identifier: Apache-2.0

package backup

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/edgebus/edgebus/broker/daemon/datadir"
)

// backupRig is a program whose data is the file "data", well unless it says so.
type backupRig struct {
	t           *testing.T
	dir, backup string
	forked      []uint32
	failFork    error
	end         func() // of the program that runs
	keyed       func(dir string) error
}

func newBackupRig(t *testing.T) *backupRig {
	r := &backupRig{t: t, dir: filepath.Join(t.TempDir(), "data"), backup: filepath.Join(t.TempDir(), "x.backup")}
	require.NoError(t, os.MkdirAll(filepath.Join(r.dir, "sub"), 0o700))
	r.write("data", "one")
	r.write("sub/deep", strings.Repeat("deep", 1000))
	r.write("lock", "")
	r.write("half.new", "junk")
	return r
}

func (r *backupRig) write(name, text string) {
	require.NoError(r.t, os.WriteFile(filepath.Join(r.dir, name), []byte(text), 0o600))
}

func (r *backupRig) has(name, want string) {
	r.t.Helper()
	text, err := os.ReadFile(filepath.Join(r.dir, name))
	require.NoError(r.t, err)
	require.Equal(r.t, want, string(text))
}

func (r *backupRig) program() Program {
	return Program{
		Name:    "thing",
		DataDir: func(string) (string, error) { return r.dir, nil },
		Survey: func(dir string) []DataPart {
			text, err := os.ReadFile(filepath.Join(dir, "data"))
			if err == nil && strings.Contains(string(text), "damaged") {
				err = errors.New("data is damaged at byte 0")
			}
			return []DataPart{{Name: "data", Contents: "some data", Err: err}, {Name: "more", Contents: "more of it"}}
		},
		RelatedFiles: []string{"data", "key"},
		CheckRelated: r.keyed,
		NewLineages: func(_ string, stamp uint32) error {
			r.forked = append(r.forked, stamp)
			return r.failFork
		},
	}
}

func (r *backupRig) run(args ...string) (code int, said string) {
	r.t.Helper()
	var out bytes.Buffer
	code, mine := r.program().Main(args, &out, &out)
	require.True(r.t, mine)
	return code, out.String()
}

func (r *backupRig) well(args ...string) string {
	r.t.Helper()
	code, said := r.run(args...)
	require.Zero(r.t, code, said)
	return said
}

func (r *backupRig) fails(code int, args ...string) string {
	r.t.Helper()
	got, said := r.run(args...)
	require.Equal(r.t, code, got, said)
	return said
}

func TestBackupAndRestore(t *testing.T) {
	r := newBackupRig(t)
	require.Contains(t, r.well("backup", r.backup), "data of thing, 2 files")
	require.Contains(t, r.well("check", r.backup), "is whole")
	r.write("data", "two")
	require.Contains(t, r.fails(1, "restore", r.backup), "not empty")
	require.Contains(t, r.well("restore", "--force", "--dry-run", r.backup), "nothing was changed")
	r.has("data", "two")
	r.well("restore", "--force", r.backup)
	r.has("data", "one")
	r.has("sub/deep", strings.Repeat("deep", 1000))
	r.write("data", "three")
	r.well("restore", "--force", r.backup)
	r.has("data", "one")
	require.Len(t, r.forked, 2)
	require.Greater(t, r.forked[1], r.forked[0], "also within an hour")
	old, err := filepath.Glob(filepath.Join(r.dir, asidePrefix+"*", "data"))
	require.NoError(t, err)
	require.Len(t, old, 2, "nothing is written over")

	fresh := filepath.Join(t.TempDir(), "fresh")
	r.well("restore", "--data-dir", fresh, r.backup)
	r.dir = fresh
	r.has("data", "one")
	require.Contains(t, r.well("backup", "--force", r.backup), "3 files", "and when it was restored")
}

func TestRestoreNeverReplacesDataOfAnotherProgram(t *testing.T) {
	r := newBackupRig(t)
	r.well("backup", r.backup)
	r.write("tree", "a core's")
	for _, args := range [][]string{{"restore", r.backup}, {"restore", "--force", r.backup}, {"restore", "--force", "--dry-run", r.backup}} {
		require.Contains(t, r.fails(1, args...), "holds data of edgecore ("+filepath.Join(r.dir, "tree")+")")
	}
	r.has("tree", "a core's")
	r.has("data", "one")
}

// A check that could not be made says nothing about the data, and has an exit code of its own.
func TestACheckThatCannotBeMade(t *testing.T) {
	r := newBackupRig(t)
	r.fails(3, "check", filepath.Join(r.dir, "missing"))
	dir, err := datadir.Open(r.dir, "thing")
	require.NoError(t, err)
	r.fails(3, "check", r.dir)
	require.NoError(t, dir.Close())
	r.well("check", r.dir)

	unread := DataPart{Name: "data", Err: &os.PathError{Op: "open", Path: "data", Err: os.ErrPermission}}
	damaged := DataPart{Name: "more", Err: errors.New("checksum")}
	for _, c := range []struct {
		parts []DataPart
		code  int
	}{{[]DataPart{unread}, 3}, {[]DataPart{unread, damaged}, 1}, {[]DataPart{damaged}, 1}} {
		p := r.program()
		p.Survey = func(string) []DataPart { return c.parts }
		var out bytes.Buffer
		code, _ := p.Main([]string{"check", r.dir}, &out, &out)
		require.Equal(t, c.code, code, out.String())
	}
}

func TestCheckSaysWhatIsDamaged(t *testing.T) {
	r := newBackupRig(t)
	require.Contains(t, r.well("check"), "All is well")
	r.write("data", "damaged")
	said := r.fails(1, "check", r.dir)
	require.Contains(t, said, "data is damaged at byte 0")
	require.Contains(t, said, "more of it")
	require.Contains(t, said, "1 of 2 parts are damaged")
	require.Contains(t, said, "thing restore FILE")
	require.Contains(t, r.fails(1, "backup", r.backup), "--force")
	r.well("backup", "--force", r.backup)
	require.Contains(t, r.fails(1, "restore", "--force", r.backup), "made of damaged data")
	r.has("data", "damaged")
	d, err := datadir.Open(r.dir, "x")
	require.NoError(t, err, "a restore that failed leaves nothing")
	require.NoError(t, d.Close())
}

func TestInUse(t *testing.T) {
	r := newBackupRig(t)
	r.well("backup", r.backup)
	d, err := datadir.Open(r.dir, "thing")
	require.NoError(t, err)
	require.Contains(t, r.fails(3, "check"), "in use by thing, process")
	for _, args := range [][]string{{"backup", "--force", r.backup}, {"restore", "--force", r.backup}} {
		require.Contains(t, r.fails(1, args...), "in use by thing, process")
	}
	require.NoError(t, d.Close())
}

func TestAnUnfinishedRestoreIsRefusedAndRepeated(t *testing.T) {
	r := newBackupRig(t)
	r.well("backup", r.backup)
	require.NoError(t, os.Mkdir(filepath.Join(r.dir, datadir.RestoreDir), 0o700))
	_, err := datadir.Open(r.dir, "thing")
	require.ErrorContains(t, err, "was not finished")
	require.Contains(t, r.fails(1, "check", r.dir), "was not finished")
	r.well("restore", "--force", r.backup)
	d, err := datadir.Open(r.dir, "thing")
	require.NoError(t, err)
	require.NoError(t, d.Close())
}

func TestDamagedBackups(t *testing.T) {
	r := newBackupRig(t)
	r.well("backup", r.backup)
	good, err := os.ReadFile(r.backup)
	require.NoError(t, err)
	for _, bad := range [][]byte{nil, []byte("garbage"), good[:len(good)/2], good[:len(good)-1]} {
		require.NoError(t, os.WriteFile(r.backup, bad, 0o600))
		require.Contains(t, r.fails(1, "check", r.backup), "no whole backup")
		require.Contains(t, r.fails(1, "restore", "--force", r.backup), "no whole backup")
		r.has("data", "one")
	}
}

// makeArchive makes a backup of any content.
func makeArchive(t *testing.T, m Manifest, files map[string]string, sums ...string) []byte {
	t.Helper()
	var out bytes.Buffer
	z := gzip.NewWriter(&out)
	w := tar.NewWriter(z)
	add := func(name string, text []byte) {
		require.NoError(t, w.WriteHeader(&tar.Header{Name: name, Size: int64(len(text)), Mode: 0o600}))
		_, err := w.Write(text)
		require.NoError(t, err)
	}
	text, err := json.Marshal(m)
	require.NoError(t, err)
	add(manifestName, text)
	for name, content := range files {
		add(name, []byte(content))
	}
	for _, text := range sums {
		add(sumsName, []byte(text))
	}
	require.NoError(t, errors.Join(w.Close(), z.Close()))
	return out.Bytes()
}

func TestForgedBackups(t *testing.T) {
	r := newBackupRig(t)
	for what, c := range map[string]struct {
		m     Manifest
		files map[string]string
		sums  []string
	}{
		"outside the directory": {Manifest{Format: 1, Program: "thing", Files: []File{{Name: "../../x", Size: 1}}}, map[string]string{"../../x": "x"}, nil},
		"checksum is wrong":     {Manifest{Format: 1, Program: "thing", Files: []File{{Name: "x", Size: 1}}}, map[string]string{"x": "x"}, []string{strings.Repeat("0", 64) + "  x\n"}},
		"not where it should":   {Manifest{Format: 1, Program: "thing", Files: []File{{Name: "y", Size: 1}}}, map[string]string{"x": "x"}, nil},
		"more in it":            {Manifest{Format: 1, Program: "thing"}, nil, []string{"more"}},
		"its format is 3":       {Manifest{Format: 3, Program: "thing"}, nil, nil},
		"has data of other":     {Manifest{Format: 1, Program: "other"}, nil, []string{""}},
	} {
		require.NoError(t, os.WriteFile(r.backup, makeArchive(t, c.m, c.files, c.sums...), 0o600))
		require.Contains(t, r.fails(1, "restore", "--force", r.backup), what)
	}
	r.has("data", "one")
}

func TestUsage(t *testing.T) {
	r := newBackupRig(t)
	require.Contains(t, r.fails(2, "backup"), "thing backup FILE")
	require.Contains(t, r.fails(2, "check", "--what"), "unknown flag")
	require.Contains(t, r.well("restore", "--help"), "--dry-run")
	_, mine := r.program().Main([]string{"--data-dir", "x"}, nil, nil)
	require.False(t, mine)
	_, err := ProgramOf(r.dir)
	require.ErrorContains(t, err, "no data directory")
}

func TestStampsRiseAndStayExact(t *testing.T) {
	dir := t.TempDir()
	now := time.Date(2026, 11, 21, 14, 0, 0, 0, time.UTC)
	require.Equal(t, uint32(0), restoreStamp(time.Unix(0, 0), dir), "a clock that was never set")
	first := restoreStamp(now, dir)
	require.NoError(t, os.WriteFile(filepath.Join(dir, StampFile), fmt.Appendln(nil, first), 0o600))
	require.Equal(t, first+1, restoreStamp(now, dir))
	require.Equal(t, first+5, restoreStamp(now.Add(5*time.Hour), dir))
	require.Less(t, uint64(restoreStamp(now.AddDate(100, 0, 0), dir))<<32, uint64(1)<<53)
}

// Whatever a file holds, reading it as a backup ends with an error or with the backup.
func FuzzRead(f *testing.F) {
	m := Manifest{Format: 1, Program: "thing", Files: []File{{Name: "x", Size: 1}}}
	text, _ := json.Marshal(m)
	var out bytes.Buffer
	z := gzip.NewWriter(&out)
	w := tar.NewWriter(z)
	_ = w.WriteHeader(&tar.Header{Name: manifestName, Size: int64(len(text))})
	_, _ = w.Write(text)
	_ = errors.Join(w.Close(), z.Close())
	f.Add(out.Bytes())
	f.Add([]byte{})
	dir := f.TempDir()
	f.Fuzz(func(t *testing.T, b []byte) {
		path := filepath.Join(dir, "fuzz")
		require.NoError(t, os.WriteFile(path, b, 0o600))
		_, _ = readArchive(path, nil, func(m Manifest) *progress { return newProgress(t.Context(), nil, "", m.size()) })
	})
}
