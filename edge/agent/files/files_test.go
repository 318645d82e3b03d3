// SPDX-License-Identifier: Apache-2.0

package files

import (
	"os"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/edgebus/edgebus/topics/resource"
)

func TestAVersionAndTheNext(t *testing.T) {
	r := newTestStore(t)
	before := r.tree()
	big := resource.RenderedFile{Path: "/usr/local/etc/app/big", Type: resource.FileRegular, Mode: "0600", Content: resource.Content{Digest: r.blob("large")}}
	changes := r.apply("1", directoryFile("/etc/app", "0750"), regularFile("/etc/app/a.conf", "one"), linkFile("/etc/app/current", "a.conf"), big)
	require.Equal(t, []Change{
		{"/etc/app", Created}, {"/etc/app/a.conf", Created}, {"/etc/app/current", Created}, {"/usr/local/etc/app/big", Created},
	}, changes)
	first := r.tree()
	require.Contains(t, first["/etc/app/a.conf"], "file 0644")
	require.Contains(t, first["/etc/app/a.conf"], " one")
	require.Contains(t, first["/etc/app"], "dir 0750")
	require.Contains(t, first["/etc/app/current"], "link a.conf")
	require.Contains(t, first["/usr/local/etc/app/big"], "file 0600")
	require.Empty(t, r.own())

	require.Equal(t, []Change{{"/etc/app/a.conf", Updated}, {"/etc/app/b.conf", Created}, {"/etc/app/current", Removed}, {"/usr/local/etc/app/big", Removed}},
		r.apply("2", directoryFile("/etc/app", "0750"), regularFile("/etc/app/a.conf", "two"), regularFile("/etc/app/b.conf", "new")))
	require.NotContains(t, r.tree(), "/usr")
	version, files := r.Applied()
	require.Equal(t, "2", version)
	require.Len(t, files, 3)
	require.Empty(t, r.apply("3", directoryFile("/etc/app", "0750"), regularFile("/etc/app/a.conf", "two"), regularFile("/etc/app/b.conf", "new")), "nothing changed")

	what, _ := r.restart()
	require.Equal(t, RecoveryClean, what)
	r.apply("4")
	require.Equal(t, before, r.tree())
	require.Empty(t, r.own())
	names, err := os.ReadDir(r.data.name)
	require.NoError(t, err)
	require.Len(t, names, 2, "the journal and one manifest")
}

// TestAnAdoptedFileComesBackAsItWas: a file that is as wanted already is the host's own all the same, whatever is done to it meanwhile.
func TestAnAdoptedFileComesBackAsItWas(t *testing.T) {
	for what, meanwhile := range map[string]func(r *testStore){
		"nothing": func(*testStore) {},
		"the spec changes its mode": func(r *testStore) {
			f := regularFile("/etc/key", "mine")
			f.Mode = "0600"
			r.apply("2", f)
		},
		"the spec changes its content": func(r *testStore) { r.apply("2", regularFile("/etc/key", "ours")) },
		"a program writes it in its place": func(r *testStore) {
			require.NoError(r.t, os.WriteFile(r.host("/etc/key"), []byte("edited"), 0o644))
		},
		"it is given up and adopted again": func(r *testStore) {
			for range 3 {
				r.apply("2")
				r.apply("3", regularFile("/etc/key", "mine"))
			}
		},
	} {
		t.Run(what, func(t *testing.T) {
			r := newTestStore(t)
			r.put("/etc/key", "mine")
			before := r.tree()
			r.apply("1", regularFile("/etc/key", "mine"))
			r.onlyOriginals()
			meanwhile(r)
			r.onlyOriginals()
			r.apply("last")
			require.Equal(t, before, r.tree())
			require.Empty(t, r.own())
		})
	}
}

// TestACopyKeepsHoles: where an original has to be copied, it takes the room that its data takes.
func TestACopyKeepsHoles(t *testing.T) {
	r := newTestStore(t)
	f, err := os.Create(r.host("/etc/sparse"))
	require.NoError(t, err)
	_, err = f.WriteAt([]byte("x"), 8<<20)
	require.NoError(t, err)
	require.NoError(t, f.Truncate(64<<20))
	require.NoError(t, f.Close())
	require.NoError(t, r.Store.host.copy("etc/sparse", "etc/copy"))
	at, err := r.Store.host.stat("etc/copy")
	require.NoError(t, err)
	require.EqualValues(t, 64<<20, at.info.Size())
	require.Less(t, allocatedBytes(at.info), int64(1<<20))
	sum, err := r.sumAt("etc/copy", at)
	require.NoError(t, err)
	from, err := r.Store.host.stat("etc/sparse")
	require.NoError(t, err)
	want, err := r.sumAt("etc/sparse", from)
	require.NoError(t, err)
	require.Equal(t, want, sum)
}

func TestASwappedVersionCanBeRolledBackAfterARestart(t *testing.T) {
	r := newTestStore(t)
	r.put("/etc/hosts", "the host's own")
	r.apply("1", regularFile("/etc/app/a", "one"), regularFile("/etc/app/gone", "x"))
	before := r.tree()
	require.NoError(t, r.Stage(t.Context(), r.spec("2", regularFile("/etc/app/a", "two"), regularFile("/etc/hosts", "ours"), directoryFile("/etc/new/dir", "0700"))))
	require.Equal(t, before, r.tree(), "staging changes nothing")
	require.NoError(t, r.Swap())
	require.NotEqual(t, before, r.tree())
	what, version := r.restart()
	require.Equal(t, RecoverySwapped, what)
	require.Equal(t, "2", version)
	require.Len(t, r.Changes(), 4)
	require.NoError(t, r.RollBack())
	require.Equal(t, before, r.tree())
	require.Empty(t, r.own())
	version, _ = r.Applied()
	require.Equal(t, "1", version)
}
