// SPDX-License-Identifier: Apache-2.0

//go:build linux

package files

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/edgebus/edgebus/test/disk"
	"github.com/edgebus/edgebus/test/root"
	"github.com/edgebus/edgebus/topics/resource"
)

func changedFile(f resource.RenderedFile, change func(*resource.RenderedFile)) resource.RenderedFile {
	change(&f)
	return f
}

func TestWhatIsRefused(t *testing.T) {
	r := newTestStore(t)
	r.put("/etc/foreign-dir/x", "x")
	r.put("/etc/foreign", "x")
	require.NoError(t, os.MkdirAll(r.host("/run"), 0o755))
	require.NoError(t, os.Symlink("../../run", r.host("/etc/link")))
	require.NoError(t, syscall.Mkfifo(r.host("/etc/fifo"), 0o600))
	before := r.tree()
	digest := r.blob("content")
	r.blobs[digest] = "another content"
	for what, c := range map[string]struct {
		files  []resource.RenderedFile
		reason string
		text   string
	}{
		"a relative path":            {[]resource.RenderedFile{regularFile("etc/a", "")}, resource.FailedInvalid, "must be absolute"},
		"dots":                       {[]resource.RenderedFile{regularFile("/etc/../root/a", "")}, resource.FailedInvalid, "without '..'"},
		"a NUL":                      {[]resource.RenderedFile{regularFile("/etc/a\x00b", "")}, resource.FailedInvalid, "NUL"},
		"a long path":                {[]resource.RenderedFile{regularFile("/etc/"+strings.Repeat("a/", 3000)+"a", "")}, resource.FailedInvalid, "4095"},
		"a long name":                {[]resource.RenderedFile{regularFile("/etc/"+strings.Repeat("a", 256), "")}, resource.FailedInvalid, "255"},
		"elsewhere":                  {[]resource.RenderedFile{regularFile("/opt/a", "")}, resource.FailedPath, "/etc, /usr/local/etc, /var/lib"},
		"beside an allowed one":      {[]resource.RenderedFile{regularFile("/etc2/a", "")}, resource.FailedPath, "not below"},
		"an allowed one itself":      {[]resource.RenderedFile{directoryFile("/etc", "0700")}, resource.FailedPath, "not below"},
		"forbidden":                  {[]resource.RenderedFile{regularFile("/etc/shadow", "")}, resource.FailedPath, "forbidden"},
		"below what is forbidden":    {[]resource.RenderedFile{regularFile("/etc/forbidden/a", "")}, resource.FailedPath, "forbidden"},
		"above what is forbidden":    {[]resource.RenderedFile{directoryFile("/etc/forbidden", "")}, resource.FailedPath, "forbidden"},
		"the agent's own names":      {[]resource.RenderedFile{regularFile("/etc/.edgebus-0123456789abcdef-0.old", "")}, resource.FailedPath, "own"},
		"through a link":             {[]resource.RenderedFile{regularFile("/etc/link/a", "")}, resource.FailedPath, "/etc/link, which is a symbolic link to ../../run"},
		"below a file":               {[]resource.RenderedFile{regularFile("/etc/foreign/a", "")}, resource.FailedPath, "/etc/foreign, which is not a directory"},
		"a file for a directory":     {[]resource.RenderedFile{regularFile("/etc/foreign-dir", "")}, resource.FailedWrite, "a directory stands"},
		"a directory for a file":     {[]resource.RenderedFile{directoryFile("/etc/foreign", "")}, resource.FailedWrite, "a file stands"},
		"a FIFO":                     {[]resource.RenderedFile{regularFile("/etc/fifo", "")}, resource.FailedWrite, "a special file stands"},
		"twice":                      {[]resource.RenderedFile{regularFile("/etc/a", ""), regularFile("/etc/a", "")}, resource.FailedInvalid, "twice"},
		"below a file of its own":    {[]resource.RenderedFile{regularFile("/etc/a", ""), regularFile("/etc/a/b", "")}, resource.FailedInvalid, "is below /etc/a"},
		"no type":                    {[]resource.RenderedFile{{Path: "/etc/a"}}, resource.FailedInvalid, "type"},
		"no mode":                    {[]resource.RenderedFile{changedFile(regularFile("/etc/a", ""), func(f *resource.RenderedFile) { f.Mode = "0899" })}, resource.FailedInvalid, "octal"},
		"setuid":                     {[]resource.RenderedFile{changedFile(regularFile("/etc/a", ""), func(f *resource.RenderedFile) { f.Mode = "4755" })}, resource.FailedPath, "setuid"},
		"no such user":               {[]resource.RenderedFile{changedFile(regularFile("/etc/a", ""), func(f *resource.RenderedFile) { f.User = "nobody-at-all" })}, resource.FailedInvalid, `no user "nobody-at-all"`},
		"no such group":              {[]resource.RenderedFile{changedFile(regularFile("/etc/a", ""), func(f *resource.RenderedFile) { f.Group = "nobody-at-all" })}, resource.FailedInvalid, "group"},
		"a link to nothing":          {[]resource.RenderedFile{linkFile("/etc/a", "")}, resource.FailedInvalid, "target"},
		"a target that isn't":        {[]resource.RenderedFile{changedFile(regularFile("/etc/a", ""), func(f *resource.RenderedFile) { f.Target = "x" })}, resource.FailedInvalid, "target"},
		"a directory with content":   {[]resource.RenderedFile{changedFile(directoryFile("/etc/a", ""), func(f *resource.RenderedFile) { f.Text = "x" })}, resource.FailedInvalid, "content"},
		"two contents":               {[]resource.RenderedFile{changedFile(regularFile("/etc/a", "x"), func(f *resource.RenderedFile) { f.Base64 = []byte("x") })}, resource.FailedInvalid, "more than one"},
		"no digest":                  {[]resource.RenderedFile{changedFile(regularFile("/etc/a", ""), func(f *resource.RenderedFile) { f.Digest = "sha256:12" })}, resource.FailedInvalid, "64 digits"},
		"no such blob":               {[]resource.RenderedFile{changedFile(regularFile("/etc/a", ""), func(f *resource.RenderedFile) { f.Digest = "sha256:" + strings.Repeat("0", 64) })}, resource.FailedContent, "no blob"},
		"another blob":               {[]resource.RenderedFile{changedFile(regularFile("/etc/a", ""), func(f *resource.RenderedFile) { f.Digest = digest })}, resource.FailedContent, "15 bytes and the digest"},
		"no such secret":             {[]resource.RenderedFile{changedFile(regularFile("/etc/a", ""), func(f *resource.RenderedFile) { f.Secret = &resource.SecretKey{Name: "a.b", Key: "c"} })}, resource.FailedContent, "no blob a.b/c"},
		"more than fits":             {[]resource.RenderedFile{changedFile(regularFile("/etc/a", ""), func(f *resource.RenderedFile) { f.Digest, f.Size = digest, 1<<50 })}, resource.FailedWrite, "no space left"},
		"a negative size":            {[]resource.RenderedFile{changedFile(regularFile("/etc/a", ""), func(f *resource.RenderedFile) { f.Digest, f.Size = digest, -1 })}, resource.FailedInvalid, "size"},
		"too many":                   {make([]resource.RenderedFile, MaxFiles+1), resource.FailedInvalid, "at most"},
		"among others that are fine": {[]resource.RenderedFile{regularFile("/etc/fine", "x"), regularFile("/opt/a", "")}, resource.FailedPath, "not below"},
	} {
		t.Run(what, func(t *testing.T) {
			err := r.Stage(t.Context(), r.spec("1", c.files...))
			require.ErrorContains(t, err, c.text)
			require.Equal(t, c.reason, errorReason(err))
			require.Equal(t, before, r.tree())
			require.Empty(t, r.own())
			what, _ := r.restart()
			require.Equal(t, RecoveryClean, what)
		})
	}
}

// TestRootsAreResolvedOnce: an allowed directory may be a link; below it none is followed.
func TestRootsAreResolvedOnce(t *testing.T) {
	base := t.TempDir()
	require.NoError(t, os.MkdirAll(filepath.Join(base, "root/run"), 0o755))
	require.NoError(t, os.MkdirAll(filepath.Join(base, "root/var"), 0o755))
	require.NoError(t, os.MkdirAll(filepath.Join(base, "out"), 0o755))
	require.NoError(t, os.Symlink("../run", filepath.Join(base, "root/var/run")))
	o := Options{Dir: filepath.Join(base, "data"), Root: filepath.Join(base, "root"), Allowed: []string{"/var/run", "/run"}, Forbidden: []string{"/run/secret"}}
	s, err := Open(o)
	require.NoError(t, err)
	r := &testStore{t: t, base: base, Store: s}
	r.apply("1", regularFile("/var/run/a", "x"))
	require.Contains(t, r.tree(), "/run/a")
	err = r.Stage(t.Context(), r.spec("2", regularFile("/var/run/a", "x"), regularFile("/run/a", "y")))
	require.ErrorContains(t, err, "it is the same file as /var/run/a")
	err = r.Stage(t.Context(), r.spec("2", regularFile("/var/run/secret", "x")))
	require.ErrorContains(t, err, "forbidden")
	require.NoError(t, s.Close())

	require.NoError(t, os.Symlink("../out", filepath.Join(base, "root/out")))
	o.Allowed = []string{"/out"}
	_, err = Open(o)
	require.ErrorContains(t, err, "leads out of")
	o.Allowed = []string{"etc"}
	_, err = Open(o)
	require.ErrorContains(t, err, "must be absolute")
}

// TestALinkThatAppears: between any two steps another process puts a link in the place of a directory on the way. Nothing is
// changed behind the link.
func TestALinkThatAppears(t *testing.T) {
	for n, ended := 1, false; !ended; n++ {
		r := newTestStoreIn(t, memoryDir(t))
		r.put("/etc/app/old", "old")
		r.put("/etc/app/sub/old", "old")
		r.apply("1", regularFile("/etc/app/sub/gone", "gone"), regularFile("/etc/app/sub/a", "one"))
		out := filepath.Join(r.base, "out")
		require.NoError(t, os.MkdirAll(filepath.Join(out, "sub"), 0o755))
		for _, name := range []string{"old", "sub/gone", "sub/a"} {
			require.NoError(t, os.WriteFile(filepath.Join(out, name), []byte("not the agent's"), 0o644))
		}
		count := 0
		hook := func(treeStep) error {
			if count++; count == n {
				require.NoError(t, os.Rename(r.host("/etc/app"), r.host("/etc/moved")))
				require.NoError(t, os.Symlink(out, r.host("/etc/app")))
			}
			return nil
		}
		r.Store.host.before, r.data.before = hook, hook
		_, err := r.update(r.spec("2", regularFile("/etc/app/sub/a", "two"), regularFile("/etc/app/new/deep", "new"), directoryFile("/etc/app/sub", "0700")))
		if ended = count < n; ended {
			require.NoError(t, err)
		}
		tree, own := describeTree(t, out)
		require.Empty(t, own, "step %d", n)
		require.Len(t, tree, 4, "step %d", n)
		for p, what := range tree {
			require.True(t, describesDir(what) && strings.HasPrefix(what, "dir 0755") || strings.HasSuffix(what, "not the agent's"), "step %d: %s %s", n, p, what)
		}
	}
}

func TestDrift(t *testing.T) {
	r := newTestStore(t)
	keep := changedFile(regularFile("/etc/keep", "x"), func(f *resource.RenderedFile) { f.Keep = true })
	spec := []resource.RenderedFile{
		regularFile("/etc/content", "x"), regularFile("/etc/gone", "x"), regularFile("/etc/mode", "x"), linkFile("/etc/link", "a"), directoryFile("/etc/dir", "0755"),
		regularFile("/etc/type", "x"), regularFile("/etc/fine", "x"), regularFile("/etc/d/far", "x"), keep,
	}
	r.apply("1", spec...)
	whole := r.tree()
	drifted, err := r.Drift(t.Context())
	require.NoError(t, err)
	require.Empty(t, drifted)

	require.NoError(t, os.WriteFile(r.host("/etc/content"), []byte("y"), 0o644))
	require.NoError(t, os.Remove(r.host("/etc/gone")))
	require.NoError(t, os.Chmod(r.host("/etc/mode"), 0o666))
	require.NoError(t, os.Remove(r.host("/etc/link")))
	require.NoError(t, os.Symlink("b", r.host("/etc/link")))
	require.NoError(t, os.Chmod(r.host("/etc/dir"), 0o700))
	require.NoError(t, os.Remove(r.host("/etc/type")))
	require.NoError(t, os.Symlink("fine", r.host("/etc/type")))
	require.NoError(t, os.RemoveAll(r.host("/etc/d")))
	require.NoError(t, os.WriteFile(r.host("/etc/keep"), []byte("y"), 0o644))
	drifted, err = r.Drift(t.Context())
	require.NoError(t, err)
	require.Equal(t, []Drift{
		{"/etc/content", "content"},
		{"/etc/d/far", "gone"},
		{"/etc/dir", "mode"},
		{"/etc/gone", "gone"},
		{"/etc/link", "content"},
		{"/etc/mode", "mode"},
		{"/etc/type", "type"},
	}, drifted)

	changed := r.tree()
	report := r.spec("2", append(spec, regularFile("/etc/another", "x"))...)
	report.LeaveDrifted = true
	require.NoError(t, r.Stage(t.Context(), report))
	require.NotContains(t, r.Changes(), Change{"/etc/content", Updated})
	require.NoError(t, r.Swap())
	require.Equal(t, changed["/etc/content"], r.tree()["/etc/content"])
	require.Equal(t, changed["/etc/mode"], r.tree()["/etc/mode"])
	require.NoError(t, r.RollBack())

	version, files := r.Applied()
	r.apply(version, files...)
	whole["/etc/keep"] = changed["/etc/keep"]
	require.Equal(t, whole, r.tree(), "restored")
}

// TestADigestIsNotRememberedTooLong: a file of the same size that is changed by hand is seen, though digests are remembered.
func TestADigestIsNotRememberedTooLong(t *testing.T) {
	r := newTestStore(t)
	r.apply("1", regularFile("/etc/a", "0"))
	info, err := os.Stat(r.host("/etc/a"))
	require.NoError(t, err)
	for i := range 200 {
		require.NoError(t, os.WriteFile(r.host("/etc/a"), []byte{byte('0' + i%2)}, 0o644))
		require.NoError(t, os.Chtimes(r.host("/etc/a"), info.ModTime(), info.ModTime()))
		drifted, err := r.Drift(t.Context())
		require.NoError(t, err)
		require.Len(t, drifted, i%2, "change %d", i)
	}
}

func TestOwnersAndAttributesAreKept(t *testing.T) {
	root.Require(t)
	r := newTestStore(t)
	r.put("/etc/a", "the host's")
	require.NoError(t, unix.Lchown(r.host("/etc/a"), 1, 2))
	require.NoError(t, unix.Setxattr(r.host("/etc/a"), "user.label", []byte("kept"), 0))
	require.NoError(t, unix.Setxattr(r.host("/etc/a"), "trusted.label", []byte("kept"), 0))
	before := r.tree()
	r.apply("1", changedFile(regularFile("/etc/a", "ours"), func(f *resource.RenderedFile) { f.User, f.Group, f.Mode = "daemon", "2", "0640" }),
		changedFile(linkFile("/etc/l", "a"), func(f *resource.RenderedFile) { f.User = "1" }), changedFile(directoryFile("/etc/d", "2750"), func(f *resource.RenderedFile) { f.Group = "daemon" }))
	require.Equal(t, "file 0640 1:2 ours", r.tree()["/etc/a"])
	require.Equal(t, "link a 1:0", r.tree()["/etc/l"])
	require.Equal(t, "dir 2750 0:1", r.tree()["/etc/d"])
	for _, name := range []string{"user.label", "trusted.label"} {
		value := make([]byte, 10)
		n, err := unix.Getxattr(r.host("/etc/a"), name, value)
		require.NoError(t, err)
		require.Equal(t, "kept", string(value[:n]))
	}
	require.NoError(t, os.Lchown(r.host("/etc/l"), 3, 0))
	drifted, err := r.Drift(t.Context())
	require.NoError(t, err)
	require.Equal(t, []Drift{{"/etc/l", "owner"}}, drifted)
	r.apply("2")
	require.Equal(t, before, r.tree())
}

// TestSetuid: it is given only where the node allows it, and doesn't get lost with the change of the owner.
func TestSetuid(t *testing.T) {
	root.Require(t)
	r := newTestStore(t)
	r.o.Setuid = true
	r.apply("1", changedFile(regularFile("/etc/a", "x"), func(f *resource.RenderedFile) { f.Mode, f.User = "4755", "1" }))
	require.Equal(t, "file 4755 1:0 x", r.tree()["/etc/a"])
}

// TestAFullDisk and the others run on file systems that fail as real ones do.
func TestAFullDisk(t *testing.T) {
	d := disk.New(t, 32)
	r := newTestStoreIn(t, d.Dir)
	r.apply("1", regularFile("/etc/a", "one"))
	before := r.tree()
	require.NoError(t, d.Fill())
	err := r.Stage(t.Context(), r.spec("2", regularFile("/etc/a", "two"), regularFile("/etc/b", strings.Repeat("x", 1<<20))))
	require.ErrorContains(t, err, "no space left")
	require.Equal(t, resource.FailedWrite, errorReason(err))
	require.NoError(t, d.Free())
	require.Equal(t, before, r.tree())
	what, _ := r.restart()
	require.NotEqual(t, RecoverySwapped, what)
	require.Equal(t, before, r.tree())
	r.apply("2", regularFile("/etc/a", "two"))
}

func TestAReadOnlyDisk(t *testing.T) {
	d := disk.New(t, 32)
	r := newTestStoreIn(t, d.Dir)
	r.apply("1", regularFile("/etc/a", "one"))
	before := r.tree()
	require.NoError(t, d.ReadOnly(true))
	err := r.Stage(t.Context(), r.spec("2", regularFile("/etc/a", "two")))
	require.ErrorContains(t, err, "read-only file system")
	require.Equal(t, resource.FailedWrite, errorReason(err))
	require.Equal(t, before, r.tree())
	require.NoError(t, r.Close())
	require.NoError(t, d.ReadOnly(false))
	r.open()
	_, _, err = r.Recover()
	require.NoError(t, err)
	require.Equal(t, before, r.tree())
	r.apply("2", regularFile("/etc/a", "two"))
}

// TestAnImmutableFile: what the host's administrator has locked ends the update.
func TestAnImmutableFile(t *testing.T) {
	d := disk.New(t, 32)
	r := newTestStoreIn(t, d.Dir)
	r.apply("1", regularFile("/etc/a", "one"), regularFile("/etc/b", "one"))
	before := r.tree()
	require.NoError(t, exec.Command("chattr", "+i", r.host("/etc/b")).Run())
	t.Cleanup(func() { require.NoError(t, exec.Command("chattr", "-i", r.host("/etc/b")).Run()) })
	for _, files := range [][]resource.RenderedFile{{regularFile("/etc/a", "two"), regularFile("/etc/b", "two")}, {regularFile("/etc/a", "two")}} {
		require.NoError(t, r.Stage(t.Context(), r.spec("2", files...)))
		err := r.Swap()
		require.ErrorContains(t, err, "/etc/b")
		require.ErrorContains(t, err, "operation not permitted")
		require.Equal(t, before, r.tree())
		require.Empty(t, r.own())
	}
}

// TestPowerIsCut takes the power from a real file system once an update says that it is swapped, and once it says committed.
func TestPowerIsCut(t *testing.T) {
	for _, committed := range []bool{false, true} {
		d := disk.New(t, 32)
		r := newTestStoreIn(t, filepath.Join(d.Dir))
		next := prepareCrossing(r)
		unix.Sync() // what is the host's own
		before := r.tree()
		require.NoError(t, r.Stage(t.Context(), next))
		require.NoError(t, r.Swap())
		swapped := r.tree()
		if committed {
			_, err := r.Commit()
			require.NoError(t, err)
			swapped = r.tree()
		}
		require.NoError(t, d.Cut())
		require.NoError(t, r.Close())
		require.NoError(t, d.Restore())
		r.open()
		what, _, err := r.Recover()
		require.NoError(t, err)
		require.Equal(t, swapped, r.tree())
		if committed {
			require.Equal(t, RecoveryClean, what)
			continue
		}
		require.Equal(t, RecoverySwapped, what)
		require.NoError(t, r.RollBack())
		require.Equal(t, before, r.tree())
	}
}

// FuzzJournal feeds the decoder. What it accepts names no file that isn't below the root, and none but an update's own to be removed.
func FuzzJournal(f *testing.F) {
	f.Add([]byte(`{"format":1,"applied":"0123456789abcdef","phase":"swapping","update":{"id":"0123456789abcdef","version":"2","ops":[{"kind":"write","key":"etc/a","new":"etc/.edgebus-0123456789abcdef-0.new","old":"etc/.edgebus-0123456789abcdef-0.old","backup":true}]},"cleanup":["etc/.edgebus-0123456789abcdef-1.old"],"dirs":["etc/d"]}`))
	f.Add([]byte(`{"format":1,"cleanup":["etc/passwd"]}`))
	f.Add([]byte(`{"format":1,"phase":"swapped"}`))
	f.Add([]byte(`{"format":1,"dirs":["../x"]}`))
	f.Fuzz(func(t *testing.T, text []byte) {
		j, err := decodeJournal(text)
		if err != nil {
			return
		}
		own := j.Cleanup
		keys := j.Dirs
		if j.Update != nil {
			own = append(own, j.Update.Originals...)
			keys = append(keys, j.Update.Dirs...)
			for _, o := range j.Update.Ops {
				keys = append(keys, o.Key)
				for _, key := range []string{o.New, o.Old} {
					if key != "" {
						own = append(own, key)
					}
				}
			}
		}
		for _, key := range own {
			require.True(t, strings.HasPrefix(filepath.Base(key), ownPrefix), key)
		}
		for _, key := range append(keys, own...) {
			require.True(t, filepath.IsLocal(key), key)
		}
	})
}

// FuzzManifest feeds the decoder of manifests.
func FuzzManifest(f *testing.F) {
	f.Add([]byte(`{"version":"1","entries":[{"path":"/etc/a","type":"file","key":"etc/a","attrs":{"mode":420,"uid":0,"gid":0},"original":"etc/.edgebus-0123456789abcdef-1.old"}]}`))
	f.Fuzz(func(t *testing.T, text []byte) {
		m, err := decodeManifest(text)
		if err != nil {
			return
		}
		for _, e := range m.Entries {
			require.True(t, filepath.IsLocal(e.Key), e.Key)
			require.True(t, e.Original == "" || strings.HasPrefix(filepath.Base(e.Original), ownPrefix), e.Original)
		}
	})
}
