// SPDX-License-Identifier: Apache-2.0

package files

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/edgebus/edgebus/topics/resource"
)

// hostModel says what a host's files must be: what is the host's own, overlaid with what the spec has and the directories above it.
type hostModel struct {
	host  map[string]string // what was there before, and what others made since
	ours  map[string]string // what the applied version made
	keeps map[string]string // those of them that are only made where there is nothing, as they were made
}

func (m *hostModel) tree() map[string]string {
	tree := maps.Clone(m.host)
	maps.Copy(tree, m.ours)
	return tree
}

func describesDir(what string) bool { return strings.HasPrefix(what, "dir ") }

// after is the model when a spec is applied; !ok if it can't be.
func (m *hostModel) after(files []resource.RenderedFile, disk map[string]string) (next *hostModel, ok bool) {
	next = &hostModel{host: maps.Clone(m.host), ours: map[string]string{}, keeps: map[string]string{}}
	for _, f := range files {
		_, mine := m.ours[f.Path]
		switch there, exists := disk[f.Path]; {
		case f.Keep && exists && !mine:
		case f.Keep && exists:
			next.ours[f.Path] = there
			if next.keeps[f.Path] = m.keeps[f.Path]; m.keeps[f.Path] == "" {
				next.keeps[f.Path] = m.ours[f.Path]
			}
		default:
			next.ours[f.Path] = m.describe(f)
			if f.Keep {
				next.keeps[f.Path] = next.ours[f.Path]
			}
		}
	}
	for _, f := range files {
		for p := filepath.Dir(f.Path); p != "/"; p = filepath.Dir(p) {
			if next.ours[p] != "" || describesDir(m.host[p]) {
				continue
			}
			if next.ours[p] = disk[p]; !describesDir(disk[p]) {
				next.ours[p] = fmt.Sprintf("dir 0755 %d:%d", os.Geteuid(), os.Getegid())
			}
		}
	}
	for p, made := range m.keeps {
		if next.ours[p] == "" && disk[p] != made && disk[p] != "" {
			next.host[p] = disk[p] // somebody made it theirs
		}
	}
	if next.conflicts(m) {
		return nil, false
	}
	for p := range next.host {
		for p = filepath.Dir(p); p != "/"; p = filepath.Dir(p) {
			switch {
			case next.ours[p] != "" || describesDir(next.host[p]):
			case next.host[p] == "":
				next.host[p] = disk[p] // is left, since it isn't empty
			default:
				next.ours[p] = disk[p] // in the place of a file of the host's own, which has to wait
			}
		}
	}
	return next, true
}

func (m *hostModel) describe(f resource.RenderedFile) string {
	uid, gid := os.Geteuid(), os.Getegid()
	if f.User != "" {
		uid, _ = strconv.Atoi(f.User)
	}
	owner := fmt.Sprintf(" %d:%d", uid, gid)
	mode := f.Mode
	switch f.Type {
	case resource.FileLink:
		return "link " + f.Target + owner
	case resource.FileDirectory:
		if there := m.host[f.Path]; describesDir(there) && f.Mode == "" && f.User == "" {
			return there
		}
		if mode == "" {
			mode = "0755"
		}
		return "dir " + mode + owner
	}
	if mode == "" {
		mode = "0644"
	}
	return "file " + mode + owner + " " + f.Text
}

// conflicts is whether something of the host's own stands where another type is wanted. What prev made over it is in its place
// already.
func (m *hostModel) conflicts(prev *hostModel) bool {
	for p, what := range m.ours {
		there := m.host[p]
		if !describesDir(what) && describesDir(there) {
			return true
		}
		if _, mine := prev.ours[p]; describesDir(what) && there != "" && !describesDir(there) && !mine {
			return true
		}
		for q := range m.host {
			if !describesDir(what) && strings.HasPrefix(q, p+"/") {
				return true
			}
		}
	}
	return false
}

// drawFiles makes a spec over few paths, so that versions collide in every way.
func drawFiles(rnd *rand.Rand) (files []resource.RenderedFile) {
	seen := map[string]string{}
	for range rnd.IntN(12) {
		p := []string{"/etc", "/var/lib", "/usr/local/etc"}[rnd.IntN(3)]
		for range 1 + rnd.IntN(3) {
			p += "/" + string(rune('a'+rnd.IntN(3)))
		}
		f := resource.RenderedFile{Path: p, Type: resource.FileRegular}
		switch rnd.IntN(8) {
		case 0, 1:
			f.Type = resource.FileDirectory
			f.Mode = []string{"", "0700", "0755", "2755"}[rnd.IntN(4)]
		case 2:
			f.Type, f.Target = resource.FileLink, []string{"a", "/etc/passwd", "../nothing"}[rnd.IntN(3)]
		case 3:
			f.Path += ".keep"
			f.Keep, f.Text = true, fmt.Sprintf("kept %d", rnd.IntN(3))
		default:
			f.Text = strings.Repeat("x", rnd.IntN(3)) + strconv.Itoa(rnd.IntN(3))
			f.Mode = []string{"", "0600", "0640"}[rnd.IntN(3)]
		}
		if os.Geteuid() == 0 && rnd.IntN(3) == 0 {
			f.User = "1234"
		}
		if fitsFiles(seen, f) {
			seen[f.Path] = f.Type
			files = append(files, f)
		}
	}
	return files
}

func fitsFiles(seen map[string]string, f resource.RenderedFile) bool {
	for p, kind := range seen {
		if p == f.Path || kind != resource.FileDirectory && strings.HasPrefix(f.Path, p+"/") ||
			f.Type != resource.FileDirectory && strings.HasPrefix(p, f.Path+"/") {
			return false
		}
	}
	return true
}

// byHand changes something beside the agent, and says what to the model.
func (m *hostModel) byHand(t *testing.T, r *testStore, rnd *rand.Rand) {
	t.Helper()
	tree := r.tree()
	paths := slices.Sorted(maps.Keys(tree))
	p := paths[rnd.IntN(len(paths))]
	_, ours := m.ours[p]
	at := r.host(p)
	switch what := tree[p]; {
	case describesDir(what):
		if !strings.HasPrefix(p, "/etc/") && !strings.HasPrefix(p, "/var/lib/") || rnd.IntN(4) > 0 {
			return
		}
		foreign := p + "/" + string(rune('a'+rnd.IntN(4)))
		if _, ours := m.ours[foreign]; !ours && tree[foreign] == "" && m.host[foreign] == "" {
			text := "of the host"
			if rnd.IntN(2) == 0 { // as a spec may have it
				text = strconv.Itoa(rnd.IntN(3))
			}
			r.put(foreign, text)
			m.host[foreign] = r.tree()[foreign]
		}
	case strings.HasPrefix(what, "link "):
	case rnd.IntN(2) == 0:
		require.NoError(t, os.WriteFile(at, []byte("by hand"), 0o644))
		if !ours {
			m.host[p] = r.tree()[p]
		}
	case rnd.IntN(2) == 0:
		require.NoError(t, os.Chmod(at, 0o604))
		if !ours {
			m.host[p] = r.tree()[p]
		}
	default:
		require.NoError(t, os.Remove(at))
		if !ours {
			delete(m.host, p)
		}
	}
}

var errKilled = errors.New("killed")

// killAt makes every step from the nth on fail, as if the process were gone. It counts the steps.
func (r *testStore) killAt(n int) *int {
	count := 0
	before := func(treeStep) error {
		if count++; count > n {
			return errKilled
		}
		return nil
	}
	r.Store.host.before, r.data.before = before, before
	return &count
}

const noStep = 1 << 30

// update stages, swaps and commits, and says which of these returned without an error.
func (r *testStore) update(spec Spec) (done int, err error) {
	if err := r.Stage(r.t.Context(), spec); err != nil {
		return 0, err
	}
	if err := r.Swap(); err != nil {
		return 1, err
	}
	if _, err := r.Commit(); err != nil {
		return 2, err
	}
	return 3, nil
}

// settled restarts a Store that was interrupted in an update to version, and checks that the old version is whole or the new one.
// done is what the update was told. It says whether it is the new one now.
func (r *testStore) settled(version string, done int, before, after map[string]string, rollBack bool) bool {
	r.t.Helper()
	what, which := r.restart()
	return r.whole(what, which, version, done, before, after, rollBack)
}

func (r *testStore) whole(what Recovery, which, version string, done int, before, after map[string]string, rollBack bool) bool {
	t := r.t
	t.Helper()
	if what != RecoveryClean {
		require.Equal(t, version, which)
		require.Less(t, done, 3, "a version that was committed stays")
	}
	if done == 2 {
		require.NotEqual(t, RecoveryRolledBack, what, "a version that was swapped stays until it is committed or rolled back")
	}
	switch {
	case what == RecoverySwapped:
		now := r.tree()
		maps.DeleteFunc(now, func(p, what string) bool { return after[p] == "" && describesDir(what) && before[p] == what }) // until the commit
		require.Equal(t, after, now, "swapped: the new version")
		if rollBack {
			require.NoError(t, r.RollBack())
		} else {
			_, err := r.Commit()
			require.NoError(t, err)
		}
	case what == RecoveryRolledBack:
		require.Equal(t, before, r.tree(), "rolled back: the old version")
	}
	applied, _ := r.Applied()
	isNew := applied == version
	if isNew {
		require.Equal(t, after, r.tree(), "the new version is applied")
	} else {
		require.NotEqual(t, 3, done, "a version that was committed stays")
		require.Equal(t, before, r.tree(), "the old version is applied")
	}
	r.onlyOriginals()
	return isNew
}

// onlyOriginals checks that no update left files of its own, but those that are going to be put back.
func (r *testStore) onlyOriginals() {
	r.t.Helper()
	var originals []string
	for _, e := range r.applied.Entries {
		if e.Original != "" {
			originals = append(originals, "/"+e.Original)
		}
	}
	require.ElementsMatch(r.t, originals, r.own())
	r.oneNameEach()
}

// oneNameEach checks that no two names are of one file: who changes one of them would change the other.
func (r *testStore) oneNameEach() {
	r.t.Helper()
	names := map[uint64]string{}
	require.NoError(r.t, filepath.WalkDir(r.host(""), func(p string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		info, err := d.Info()
		require.NoError(r.t, err)
		inode := info.Sys().(*syscall.Stat_t).Ino
		require.Empty(r.t, names[inode], "%s is the same file", p)
		names[inode] = p
		return nil
	}))
}

// TestRandomSpecs applies 200 random specs in a row to one root, in which others change files, too, and kills some of the updates.
func TestRandomSpecs(t *testing.T) {
	for _, seed := range []uint64{1, 16378014500863773535, rand.Uint64()} { // the second puts files where an original is kept
		t.Run(fmt.Sprintf("seed %d", seed), func(t *testing.T) { randomSpecs(t, seed) })
	}
}

func randomSpecs(t *testing.T, seed uint64) {
	rnd := rand.New(rand.NewPCG(seed, 0))
	r := newTestStore(t)
	r.put("/etc/a/b", "of the host")
	r.put("/etc/c", "1")
	r.put("/var/lib/b/foreign", "of the host")
	m := &hostModel{host: r.tree(), ours: map[string]string{}, keeps: map[string]string{}}
	refused, killed, applied := 0, 0, 0
	for i := range 200 {
		for range rnd.IntN(3) {
			m.byHand(t, r, rnd)
		}
		files, before := drawFiles(rnd), r.tree()
		next, ok := m.after(files, before)
		version, last := strconv.Itoa(i), ""
		last, _ = r.Applied()
		r.Store.host.many = []int{1, 1000}[rnd.IntN(2)]
		at := noStep
		if rnd.IntN(3) == 0 {
			at = rnd.IntN(60)
		}
		steps := r.killAt(at)
		done, err := r.update(r.spec(version, files...))
		if !ok && done == 0 && !errors.Is(err, errKilled) {
			require.Contains(t, []string{resource.FailedWrite, resource.FailedPath}, errorReason(err), "version %d: %v", i, files)
			refused++
			require.Equal(t, before, r.tree())
			continue
		}
		if !ok && *steps > at { // before it was refused
			require.False(t, r.settled(version, done, before, nil, false))
			continue
		}
		require.True(t, ok, "version %d must be refused: %v", i, files)
		if *steps > at || rnd.IntN(10) == 0 {
			killed++
			if !r.settled(version, done, before, next.tree(), rnd.IntN(2) == 0) {
				now, _ := r.Applied()
				require.Equal(t, last, now)
				continue
			}
		}
		require.True(t, done == 3 || errors.Is(err, errKilled), "version %d: %v", i, err)
		applied++
		m = next
		require.Equal(t, m.tree(), r.tree(), "version %d: %v", i, files)
		r.onlyOriginals()
	}
	t.Logf("applied %d, refused %d, killed %d", applied, refused, killed)
	require.Greater(t, applied, 30)
	r.killAt(noStep)
	before := r.tree()
	if next, ok := m.after(nil, before); ok {
		r.apply("last")
		require.Equal(t, next.tree(), r.tree())
		r.onlyOriginals()
		for _, e := range r.applied.Entries { // everything that was there before is back, but where a directory has files of others by now
			if e.Original != "" {
				others, err := os.ReadDir(r.host(e.Path))
				require.NoError(t, err)
				require.NotEmpty(t, others, e.Path)
			}
		}
	}
}
