// SPDX-License-Identifier: Apache-2.0

//go:build linux

package files

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"runtime/debug"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/edgebus/edgebus/topics/resource"
)

// prepareCrossing prepares a root and a version, and returns the next version: between them they need every operation there is.
func prepareCrossing(r *testStore) Spec {
	r.put("/etc/hosts", "the host's own")
	r.put("/etc/same", "the same")
	r.put("/etc/back", "the host's own, again")
	r.put("/var/lib/own/foreign", "x")
	r.apply("1",
		regularFile("/etc/app/a", "one"), regularFile("/etc/app/gone", "x"), linkFile("/etc/app/link", "a"), regularFile("/etc/back", "ours"),
		regularFile("/etc/becomes-dir", "file"), directoryFile("/etc/becomes-file", "0700"), regularFile("/etc/becomes-file/sub/x", "x"),
		directoryFile("/etc/dropped", "0755"), regularFile("/etc/dropped/x", "x"), directoryFile("/var/lib/own", "0711"), regularFile("/etc/mode", "x"))
	mode := regularFile("/etc/mode", "x")
	mode.Mode = "0600"
	return r.spec("2",
		regularFile("/etc/app/a", "two"), regularFile("/etc/app/new", "n"), linkFile("/etc/app/link", "new"), regularFile("/etc/becomes-dir/below", "b"),
		regularFile("/etc/becomes-file", "file"), regularFile("/etc/hosts", "ours"), regularFile("/etc/same", "the same"), mode,
		directoryFile("/usr/local/etc/deep/er", "0750"), regularFile("/usr/local/etc/deep/er/f", strings.Repeat("long ", 20<<10)))
}

// crossingTrees are the trees of crossing's versions.
func crossingTrees(t *testing.T) (before, after map[string]string, ops int) {
	r := newTestStoreIn(t, memoryDir(t))
	next := prepareCrossing(r)
	before = r.tree()
	require.NoError(t, r.Stage(t.Context(), next))
	everyKind, kinds := opKinds, map[opKind]bool{}
	for _, o := range r.journal.Update.Ops {
		kinds[o.Kind] = true
	}
	require.Len(t, kinds, len(everyKind), "every operation is in it")
	require.NoError(t, r.Swap())
	_, err := r.Commit()
	require.NoError(t, err)
	return before, r.tree(), len(kinds)
}

// TestKilledAtEachStep kills an update before each step, and the recovery from that at some of its own.
func TestKilledAtEachStep(t *testing.T) {
	before, after, _ := crossingTrees(t)
	for n, ended := 0, false; !ended; n++ {
		for second := range 3 {
			r := newTestStoreIn(t, memoryDir(t))
			next := prepareCrossing(r)
			r.Store.host.many = []int{16, 1000}[n%2]
			steps := r.killAt(n)
			if second == 2 && n%3 == 0 {
				r.Store.host.before = withoutExchange(r.Store.host.before)
			}
			done, err := r.update(next)
			ended = *steps <= n
			require.True(t, ended || err != nil || done == 3, "step %d", n)
			if second > 0 { // the recovery is killed, too
				_ = r.Close()
				r.open()
				r.killAt(second*7 + n%7)
				if what, _, err := r.Recover(); err == nil && what == RecoverySwapped {
					require.Error(t, firstError(r.RollBack(), errKilled))
				}
			}
			rollBack := n%2 == 0
			what, version := r.restart()
			if second > 0 && done == 2 && what == RecoveryRolledBack {
				done = 1 // it was being rolled back
			}
			r.whole(what, version, "2", done, before, after, rollBack)
		}
	}
}

// withoutExchange is a hook of a file system that can't have two names change places.
func withoutExchange(before func(treeStep) error) func(treeStep) error {
	return func(s treeStep) error {
		if err := before(s); err != nil || s.do != "exchange" {
			return err
		}
		return syscall.EINVAL
	}
}

// TestNoPathThatBothVersionsHaveIsEverMissing looks before each step of an update, of its roll-back, and of a recovery from a kill at
// each step.
func TestNoPathThatBothVersionsHaveIsEverMissing(t *testing.T) {
	before, after, _ := crossingTrees(t)
	for n, ended := 0, false; !ended; n++ {
		r := newTestStoreIn(t, memoryDir(t))
		next := prepareCrossing(r)
		look := func(treeStep) error {
			for p := range before {
				if _, err := os.Lstat(r.host(p)); err != nil && after[p] != "" {
					t.Errorf("%s is missing: %v", p, err)
				}
			}
			return nil
		}
		r.Store.host.before = look
		count := 0
		watched := func(s treeStep) error {
			if count++; count > n {
				return errKilled
			}
			return look(s)
		}
		r.Store.host.before, r.data.before = watched, watched
		done, err := r.update(next)
		ended = err == nil
		_ = r.Close()
		r.open()
		r.Store.host.before, r.data.before = look, look
		what, _, err := r.Recover()
		require.NoError(t, err)
		if what == RecoverySwapped {
			require.NoError(t, r.RollBack())
		}
		_ = look(treeStep{})
		require.False(t, t.Failed(), "killed before step %d, when %d was done", n, done)
	}
}

func firstError(err, other error) error {
	if err != nil {
		return err
	}
	return other
}

// underRace is whether the race detector watches. It has little to find in tests that go through steps one after the other: they have their
// repetitions without it, where they take half of the time.
func underRace() bool {
	info, _ := debug.ReadBuildInfo()
	return slices.ContainsFunc(info.Settings, func(s debug.BuildSetting) bool { return s.Key == "-race" && s.Value == "true" })
}

// TestAStepFails makes each step fail once, as a disk that is full or read-only would: the old version is whole then, and the
// next attempt succeeds.
func TestAStepFails(t *testing.T) {
	before, after, _ := crossingTrees(t)
	errnos := []syscall.Errno{syscall.ENOSPC, syscall.EROFS, syscall.EIO}
	if underRace() {
		errnos = errnos[:1]
	}
	for _, errno := range errnos {
		for n, ended := 1, false; !ended; n++ {
			r := newTestStoreIn(t, memoryDir(t))
			next := prepareCrossing(r)
			count := 0
			fail := func(treeStep) error {
				if count++; count == n {
					return &fs.PathError{Op: "x", Path: "x", Err: errno}
				}
				return nil
			}
			r.Store.host.before, r.data.before = fail, fail
			done, err := r.update(next)
			ended = count < n
			switch {
			case done == 2: // the commit: it can be called again
				require.ErrorIs(t, err, errno)
				_, err = r.Commit()
				require.NoError(t, err)
				require.Equal(t, after, r.tree())
			case err != nil:
				require.ErrorIs(t, err, errno, "step %d", n)
				require.Equal(t, resource.FailedWrite, errorReason(err), "step %d: %v", n, err)
				require.Contains(t, err.Error(), errno.Error())
				require.Equal(t, before, r.tree(), "step %d: %v", n, err)
				if what, _ := r.restart(); what != RecoveryClean {
					require.Equal(t, RecoveryRolledBack, what)
				}
				require.Equal(t, before, r.tree(), "step %d: %v", n, err)
				done, err = r.update(next)
				require.NoError(t, err)
				require.Equal(t, 3, done)
			}
			_, _ = r.restart() // and the cleaning up
			require.Equal(t, after, r.tree(), "step %d", n)
			r.onlyOriginals()
		}
	}
}

// stepRecorder knows what a power cut leaves of the steps before it: what was synced, and any part of the rest. Entries belong to their
// directory, contents and attributes to their file; each is safe when that was synced after it. Nothing else is promised: unsynced
// steps are lost or kept in any combination. A rename across directories is atomic.
type stepRecorder struct {
	base string
	inodeByPath
	next  int
	steps []recordedStep
	lost  func(treeStep) bool // syncs that do nothing
}

// inodeByPath are what is at paths.
type inodeByPath map[string]int

type recordedStep struct {
	treeStep
	inode int          // of what is at the path
	waits map[int]bool // inodes that have to be synced
}

// newRecorder is one with what is below a directory.
func newRecorder(t *testing.T, base string) *stepRecorder {
	d := &stepRecorder{base: base, inodeByPath: inodeByPath{}, lost: func(treeStep) bool { return false }}
	byNumber := map[uint64]int{}
	require.NoError(t, filepath.WalkDir(base, func(p string, e fs.DirEntry, err error) error {
		require.NoError(t, err)
		info, err := e.Info()
		require.NoError(t, err)
		number := info.Sys().(*syscall.Stat_t).Ino
		if byNumber[number] == 0 {
			d.next++
			byNumber[number] = d.next
		}
		d.inodeByPath[p] = byNumber[number]
		return nil
	}))
	return d
}

// record is a tree's hook.
func (d *stepRecorder) record(s treeStep) error {
	s.data = bytes.Clone(s.data)
	w := recordedStep{treeStep: s, inode: d.inodeByPath[s.path], waits: map[int]bool{}}
	dirOf := func(path string) { w.waits[d.inodeByPath[filepath.Dir(path)]] = true }
	switch s.do {
	case "sync", "syncfs":
		for _, earlier := range d.steps {
			switch {
			case d.lost(s):
			case s.do == "sync":
				delete(earlier.waits, w.inode)
			default:
				clear(earlier.waits)
			}
		}
	case "write", "chown", "chmod", "xattr":
		w.waits[w.inode] = true
	case "create", "mkdir", "symlink":
		d.next++
		w.inode = d.next
		dirOf(s.path)
	case "lchown":
		dirOf(s.path)
	case "remove":
		dirOf(s.path)
		for _, earlier := range d.steps { // a directory that is gone is gone with what was in it
			if earlier.waits[w.inode] {
				delete(earlier.waits, w.inode)
				earlier.waits[d.inodeByPath[filepath.Dir(s.path)]] = true
			}
		}
	case "link":
		dirOf(s.new)
	case "rename", "exchange":
		dirOf(s.path)
		dirOf(s.new)
	default:
		return fmt.Errorf("what is %s?", s.do)
	}
	d.inodeByPath.after(w)
	d.steps = append(d.steps, w)
	return nil
}

// after is what is at the paths after a step.
func (at inodeByPath) after(w recordedStep) {
	switch w.do {
	case "create", "mkdir", "symlink":
		at[w.path] = w.inode
	case "remove":
		delete(at, w.path)
	case "link":
		at[w.new] = w.inode
	case "rename":
		if at[w.new] != w.inode { // else they are the same file, and it does nothing
			at[w.new] = w.inode
			delete(at, w.path)
		}
	case "exchange":
		at[w.path], at[w.new] = at[w.new], at[w.path]
	}
}

// replay makes of a copy of what was there before what is left of steps. keeps decides about those that were not synced. What
// depends on something that is lost is lost as well.
func (d *stepRecorder) replay(base string, at inodeByPath, steps []recordedStep, keeps func(i int) bool) {
	move := func(path string) string { return base + strings.TrimPrefix(path, d.base) }
	for i, w := range steps {
		if len(w.waits) > 0 && !keeps(i) {
			continue
		}
		_, there := at[w.path]
		if makes := w.do == "create" || w.do == "mkdir" || w.do == "symlink"; makes && !there || !makes && at[w.path] == w.inode {
			if replayStep(w.treeStep, move) == nil {
				at.after(w)
			}
		}
	}
}

func replayStep(s treeStep, move func(string) string) error {
	at := move(s.path)
	switch s.do {
	case "create":
		return os.WriteFile(at, nil, 0o600)
	case "write":
		f, err := os.OpenFile(at, os.O_WRONLY|os.O_APPEND, 0)
		if err != nil {
			return err
		}
		_, err = f.Write(s.data)
		return errors.Join(err, f.Close())
	case "chown":
		return os.Chown(at, s.uid, s.gid)
	case "lchown":
		return os.Lchown(at, s.uid, s.gid)
	case "chmod":
		return os.Chmod(at, s.mode)
	case "symlink":
		return os.Symlink(s.new, at)
	case "link":
		return os.Link(at, move(s.new))
	case "rename":
		return os.Rename(at, move(s.new))
	case "exchange":
		return unix.Renameat2(unix.AT_FDCWD, at, unix.AT_FDCWD, move(s.new), unix.RENAME_EXCHANGE)
	case "remove":
		return os.Remove(at)
	case "mkdir":
		return os.Mkdir(at, 0o700)
	}
	return nil
}

// copyTree copies files with their hard links.
func copyTree(t *testing.T, from, to string) {
	t.Helper()
	require.NoError(t, os.Mkdir(to, 0o755))
	out, err := exec.Command("cp", "-a", from+"/.", to).CombinedOutput()
	require.NoError(t, err, string(out))
}

// TestPowerIsCutAtEachStep runs an update on a disk that keeps what was synced, and any part of what was not.
func TestPowerIsCutAtEachStep(t *testing.T) {
	before, after, _ := crossingTrees(t)
	const parts = 5 // what is kept of what was not synced: nothing, all, or a part at random
	for _, way := range []string{"commit", "roll back"} {
		for _, many := range []int{1000, 1} {
			t.Run(fmt.Sprintf("%s, many %d", way, many), func(t *testing.T) {
				c := newPowerCuts(t, way == "roll back", many, func(treeStep) bool { return false })
				for n := range len(c.steps) + 1 {
					for i := range parts {
						if underRace() && i != n%parts {
							continue
						}
						require.NoError(t, c.cut(t, n, i, before, after), "before step %d of %d, kept %d", n, len(c.steps), i)
					}
				}
			})
		}
	}
}

// TestPowerLossIsSeen shows that TestPowerIsCutAtEachStep can fail: without some of the syncs a version isn't whole.
func TestPowerLossIsSeen(t *testing.T) {
	before, after, _ := crossingTrees(t)
	for what, lost := range map[string]func(treeStep) bool{
		"new contents":    func(s treeStep) bool { return strings.HasSuffix(s.path, ".new") },
		"directories":     func(s treeStep) bool { return strings.Contains(s.path, "/root/") && !strings.HasSuffix(s.path, ".new") },
		"the journal":     func(s treeStep) bool { return strings.HasSuffix(s.path, "journal.json.tmp") },
		"its directory":   func(s treeStep) bool { return strings.HasSuffix(s.path, "/data") },
		"the manifest":    func(s treeStep) bool { return strings.Contains(s.path, "manifest") },
		"the attributes":  func(s treeStep) bool { return strings.HasSuffix(s.path, "/etc/mode") },
		"new directories": func(s treeStep) bool { return strings.HasSuffix(s.path, "/deep/er") },
	} {
		t.Run(what, func(t *testing.T) {
			c := newPowerCuts(t, false, 1000, lost)
			for n := len(c.steps); n >= 0; n-- {
				for i := range 5 {
					if err := c.cut(t, n, i, before, after); err != nil {
						t.Logf("as it must: %.400v", err)
						return
					}
				}
			}
			t.Errorf("nothing is lost without syncing %s: the test sees nothing", what)
		})
	}
}

// powerCuts is an update that was recorded.
type powerCuts struct {
	*stepRecorder
	rollBack bool
	start    string // a copy of what was there before
	inodesAt inodeByPath
	waits    [][]map[int]bool // what was not synced before each step
	acked    [4]int           // how many steps there were when the update was told that it is staged, swapped and committed
	blobs    map[string]string
	rnd      *rand.Rand
}

func newPowerCuts(t *testing.T, rollBack bool, many int, lost func(treeStep) bool) *powerCuts {
	t.Helper()
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	r := newTestStoreIn(t, memoryDir(t))
	next := prepareCrossing(r)
	c := &powerCuts{rollBack: rollBack, start: filepath.Join(memoryDir(t), "start"), blobs: r.blobs, rnd: rand.New(rand.NewPCG(seed, 0))}
	copyTree(t, r.base, c.start)
	c.stepRecorder = newRecorder(t, r.base)
	c.stepRecorder.lost = lost
	c.inodesAt = maps.Clone(c.stepRecorder.inodeByPath)
	hook := func(s treeStep) error {
		c.remember()
		return c.record(s)
	}
	r.Store.host.many = many
	r.Store.host.before, r.data.before = hook, hook
	require.NoError(t, r.Stage(t.Context(), next))
	c.acked[1] = len(c.steps)
	require.NoError(t, r.Swap())
	c.acked[2], c.acked[3] = len(c.steps), noStep
	if rollBack {
		require.NoError(t, r.RollBack())
	} else {
		_, err := r.Commit()
		require.NoError(t, err)
		c.acked[3] = len(c.steps)
	}
	c.remember()
	return c
}

func (c *powerCuts) remember() {
	var waits []map[int]bool
	for _, w := range c.steps {
		waits = append(waits, maps.Clone(w.waits))
	}
	c.waits = append(c.waits, waits)
}

// cut is a power cut before a step, and what is wrong after it.
func (c *powerCuts) cut(t *testing.T, n, i int, before, after map[string]string) (err error) {
	done := 0
	for done < 3 && n >= c.acked[done+1] {
		done++
	}
	if c.rollBack && n > c.acked[2] {
		done = 1 // either is right while it is rolled back
	}
	upTo := c.rnd.IntN(n + 1)
	keeps := []func(int) bool{
		func(int) bool { return false }, func(int) bool { return true }, func(i int) bool { return i < upTo },
		func(int) bool { return c.rnd.IntN(2) == 0 }, func(int) bool { return c.rnd.IntN(8) > 0 },
	}[i]
	base := filepath.Join(memoryDir(t), "cut")
	copyTree(t, c.start, base)
	defer os.RemoveAll(base)
	steps := make([]recordedStep, n)
	for i := range steps {
		steps[i] = c.steps[i]
		steps[i].waits = c.waits[n][i]
	}
	at := inodeByPath{}
	for p, id := range c.inodesAt {
		at[p] = id
	}
	c.replay(base, at, steps, keeps)
	s, err := Open(testOptions(base))
	if err != nil {
		return err
	}
	defer s.Close()
	what, version, err := s.Recover()
	if err != nil {
		return err
	}
	seen := &recordingTB{TB: t}
	again := &testStore{t: seen, base: base, blobs: c.blobs, Store: s}
	defer func() {
		if stopped := recover(); stopped != nil && stopped != seen {
			panic(stopped)
		}
		err = seen.err
	}()
	again.whole(what, version, "2", done, before, after, c.rnd.IntN(2) == 0)
	return nil
}

// recordingTB is a test whose failure is an error.
type recordingTB struct {
	testing.TB
	err error
}

func (f *recordingTB) Errorf(format string, args ...any) { f.err = fmt.Errorf(format, args...) }
func (f *recordingTB) FailNow()                          { panic(f) }

// TestKilled kills a process that applies versions, at moments of its own.
func TestKilled(t *testing.T) {
	if base := os.Getenv("FILES_TEST_BASE"); base != "" {
		applyForever(base)
	}
	r := newTestStoreIn(t, memoryDir(t))
	r.put("/etc/b", "of the host")
	r.put("/etc/d/9", "of the host")
	require.NoError(t, r.Close())
	for range 20 {
		child := exec.Command(os.Args[0], "-test.run=^TestKilled$")
		child.Env = append(os.Environ(), "FILES_TEST_BASE="+r.base)
		child.Stderr = os.Stderr
		lines, err := child.StdoutPipe()
		require.NoError(t, err)
		require.NoError(t, child.Start())
		_, err = lines.Read(make([]byte, 1+rand.IntN(40))) // it says something for each version
		require.NoError(t, errors.Join(err, child.Process.Kill()))
		_ = child.Wait()
		r.open()
		what, _, err := r.Recover()
		require.NoError(t, err)
		if what == RecoverySwapped {
			require.NoError(t, r.RollBack())
		}
		version, _ := r.Applied()
		n, _ := strconv.Atoi(version)
		for i := range 10 {
			text, err := os.ReadFile(r.host("/etc/d/" + strconv.Itoa(i)))
			switch {
			case i == 9 && n%2 == 0:
				require.Equal(t, "of the host", string(text))
			case n == 0 || i%2 != n%2:
				require.ErrorIs(t, err, fs.ErrNotExist)
			default:
				require.Equal(t, version, string(text))
			}
		}
		r.onlyOriginals()
		require.NoError(t, r.Close())
	}
	r.open()
}

// applyForever applies versions of which each has half of the files: those with even numbers, or those with odd ones.
func applyForever(base string) {
	s, err := Open(testOptions(base))
	if err != nil {
		panic(err)
	}
	if _, _, err := s.Recover(); err != nil {
		panic(err)
	}
	version, _ := s.Applied()
	for n, _ := strconv.Atoi(version); ; {
		n++
		var files []resource.RenderedFile
		for i := range 10 {
			if i%2 == n%2 {
				files = append(files, regularFile("/etc/d/"+strconv.Itoa(i), strconv.Itoa(n)))
			}
		}
		if err := s.Stage(context.Background(), Spec{Version: strconv.Itoa(n), Files: files}); err != nil {
			panic(err)
		}
		if err := s.Swap(); err != nil {
			panic(err)
		}
		if _, err := s.Commit(); err != nil {
			panic(err)
		}
		fmt.Print(".")
	}
}
