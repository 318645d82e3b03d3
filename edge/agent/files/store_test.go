// SPDX-License-Identifier: Apache-2.0

package files

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/edgebus/edgebus/topics/resource"
)

// testStore is a scratch root with a Store.
type testStore struct {
	t    testing.TB
	base string
	*Store
	blobs map[string]string
}

func newTestStore(t testing.TB) *testStore { return newTestStoreIn(t, t.TempDir()) }

// memoryDir is a directory whose syncs cost nothing, if there is one: for tests that model themselves what a sync is for.
func memoryDir(t testing.TB) string {
	dir, err := os.MkdirTemp("/dev/shm", "files")
	if err != nil {
		return t.TempDir()
	}
	t.Cleanup(func() { require.NoError(t, os.RemoveAll(dir)) })
	return dir
}

func newTestStoreIn(t testing.TB, base string) *testStore {
	r := &testStore{t: t, base: base, blobs: map[string]string{}}
	for _, dir := range []string{"root/etc", "root/var/lib", "root/opt"} {
		require.NoError(t, os.MkdirAll(filepath.Join(r.base, dir), 0o755))
	}
	r.open()
	t.Cleanup(func() { _ = r.Close() })
	return r
}

func testOptions(base string) Options {
	return Options{
		Dir: filepath.Join(base, "data"), Root: filepath.Join(base, "root"),
		Allowed: []string{"/etc", "/var/lib", "/usr/local/etc"}, Forbidden: []string{"/etc/forbidden", "/etc/shadow"},
	}
}

func (r *testStore) open() {
	r.t.Helper()
	var err error
	r.Store, err = Open(testOptions(r.base))
	require.NoError(r.t, err)
}

// restart opens the Store anew, as after a crash.
func (r *testStore) restart() (Recovery, string) {
	r.t.Helper()
	_ = r.Close()
	r.open()
	what, version, err := r.Recover()
	require.NoError(r.t, err)
	return what, version
}

func (r *testStore) spec(version string, files ...resource.RenderedFile) Spec {
	return Spec{Version: version, Files: files, Content: func(c resource.Content) (io.ReadCloser, error) {
		key := c.Digest
		if c.Secret != nil {
			key = c.Secret.Name + "/" + c.Secret.Key
		}
		text, ok := r.blobs[key]
		if !ok {
			return nil, fmt.Errorf("no blob %s", key)
		}
		return io.NopCloser(strings.NewReader(text)), nil
	}}
}

func (r *testStore) apply(version string, files ...resource.RenderedFile) []Change {
	r.t.Helper()
	require.NoError(r.t, r.Stage(context.Background(), r.spec(version, files...)))
	changes := r.Changes()
	require.NoError(r.t, r.Swap())
	_, err := r.Commit()
	require.NoError(r.t, err)
	return changes
}

func (r *testStore) host(path string) string { return filepath.Join(r.base, "root", path) }

func (r *testStore) put(path, text string) {
	r.t.Helper()
	require.NoError(r.t, os.MkdirAll(filepath.Dir(r.host(path)), 0o755))
	require.NoError(r.t, os.WriteFile(r.host(path), []byte(text), 0o644))
}

func (r *testStore) blob(text string) string {
	sum := sha256.Sum256([]byte(text))
	digest := "sha256:" + hex.EncodeToString(sum[:])
	r.blobs[digest] = text
	return digest
}

func regularFile(path, text string) resource.RenderedFile {
	return resource.RenderedFile{Path: path, Type: resource.FileRegular, Content: resource.Content{Text: text}}
}

func directoryFile(path, mode string) resource.RenderedFile {
	return resource.RenderedFile{Path: path, Type: resource.FileDirectory, Mode: mode}
}

func linkFile(path, target string) resource.RenderedFile {
	return resource.RenderedFile{Path: path, Type: resource.FileLink, Target: target}
}

// describeTree describes what is below a directory, without the files that updates make for themselves: these are counted.
func describeTree(t testing.TB, root string) (tree map[string]string, own []string) {
	t.Helper()
	tree = map[string]string{}
	require.NoError(t, filepath.WalkDir(root, func(p string, d fs.DirEntry, err error) error {
		if err != nil || p == root {
			return err
		}
		name := strings.TrimPrefix(p, root)
		if strings.HasPrefix(d.Name(), ownPrefix) {
			own = append(own, name)
			return nil
		}
		info, err := d.Info()
		if err != nil {
			return err
		}
		tree[name] = describeFile(t, p, info)
		return nil
	}))
	return tree, own
}

func describeFile(t testing.TB, p string, info fs.FileInfo) string {
	t.Helper()
	uid, gid := ownerOf(info)
	owner := fmt.Sprintf(" %d:%d", uid, gid)
	switch {
	case info.IsDir():
		return fmt.Sprintf("dir %04o", unixMode(info.Mode())) + owner
	case info.Mode()&fs.ModeSymlink != 0:
		target, err := os.Readlink(p)
		require.NoError(t, err)
		return "link " + target + owner
	case !info.Mode().IsRegular():
		return "special" + owner
	}
	text, err := os.ReadFile(p)
	require.NoError(t, err)
	if len(text) > 100 {
		text = fmt.Appendf(nil, "%d bytes, %x", len(text), sha256.Sum256(text))
	}
	return fmt.Sprintf("file %04o%s %s", unixMode(info.Mode()), owner, text)
}

func (r *testStore) tree() map[string]string {
	r.t.Helper()
	tree, _ := describeTree(r.t, r.host(""))
	return tree
}

// own are the files in the root that updates made for themselves.
func (r *testStore) own() []string {
	r.t.Helper()
	_, own := describeTree(r.t, r.host(""))
	return own
}

func errorReason(err error) string {
	var e *Error
	if errors.As(err, &e) {
		return e.Reason
	}
	return ""
}

// Applied is the version that is applied, and its files. While an update is under way it is the old one.
func (s *Store) Applied() (version string, files []resource.RenderedFile) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, e := range s.applied.Entries {
		if !e.Implicit {
			files = append(files, e.RenderedFile)
		}
	}
	return s.applied.Version, files
}
