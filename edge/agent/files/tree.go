// SPDX-License-Identifier: Apache-2.0

package files

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path"
	"slices"
	"strings"
	"syscall"
)

// dirTree is a directory and all below it, which is read and changed by keys: clean, slash-separated paths relative to it, "" for
// itself. No symbolic link is ever followed: each directory on the way is opened from the one above it, and must be what it was
// when it was seen to be no link. It doesn't leave the directory, whatever another process does meanwhile.
type dirTree struct {
	name string // the directory, for errors and steps
	root *os.Root
	// before is called before each change and each sync, for tests. An error is that step's outcome.
	before func(treeStep) error
	// last is the directory that was used last: the keys of a transaction are mostly neighbours.
	last    *os.Root
	lastKey string
	// many is the number of syncs from which one of the whole file system takes less time.
	many int
}

// treeStep is a change that is about to be made to a tree, or a sync.
type treeStep struct {
	do        string // create write chown chmod xattr sync symlink link rename exchange remove mkdir syncdir syncfs
	path, new string
	data      []byte
	mode      fs.FileMode
	uid, gid  int
}

func openDirTree(dir string) (*dirTree, error) {
	r, err := os.OpenRoot(dir)
	if err != nil {
		return nil, err
	}
	return &dirTree{name: dir, root: r, many: 16}, nil
}

func (t *dirTree) close() error {
	t.forget()
	return t.root.Close()
}

func (t *dirTree) path(key string) string { return path.Join(t.name, key) }

func (t *dirTree) step(s treeStep) error {
	if t.before == nil {
		return nil
	}
	return t.before(s)
}

// blockedPath is the error of a key that leads through something that isn't a directory.
type blockedPath struct {
	key    string // of what is in the way
	target string // where it points to, if it is a symbolic link
	link   bool
}

func (b *blockedPath) Error() string {
	if b.link {
		return fmt.Sprintf("leads through /%s, which is a symbolic link to %s: use the path that it points to", b.key, b.target)
	}
	return fmt.Sprintf("leads through /%s, which is not a directory", b.key)
}

// forget closes the directory that was used last. It is called when directories are moved or removed.
func (t *dirTree) forget() {
	if t.last != nil && t.last != t.root {
		t.last.Close()
	}
	t.last, t.lastKey = nil, ""
}

// dir opens a directory. It is the tree's own and is valid until the next call.
func (t *dirTree) dir(key string) (*os.Root, error) {
	if t.last != nil && t.lastKey == key {
		return t.last, nil
	}
	d, err := t.open(key)
	if err != nil {
		return nil, err
	}
	t.forget()
	t.last, t.lastKey = d, key
	return d, nil
}

func (t *dirTree) open(key string) (*os.Root, error) {
	if key == "" {
		return t.root, nil
	}
	at := t.root
	for end := 0; end < len(key); end++ {
		begin := end
		if next := strings.IndexByte(key[begin:], '/'); next >= 0 {
			end = begin + next
		} else {
			end = len(key)
		}
		next, err := openChild(at, key[begin:end], key[:end])
		if at != t.root {
			at.Close()
		}
		if err != nil {
			return nil, err
		}
		at = next
	}
	return at, nil
}

// openChild opens a directory in another, which must be a directory and no symbolic link to one.
func openChild(in *os.Root, name, key string) (*os.Root, error) {
	seen, err := in.Lstat(name)
	switch {
	case err != nil:
		return nil, err
	case seen.Mode()&fs.ModeSymlink != 0:
		target, _ := in.Readlink(name)
		return nil, &blockedPath{key: key, target: target, link: true}
	case !seen.IsDir():
		return nil, &blockedPath{key: key}
	}
	d, err := in.OpenRoot(name)
	if err != nil {
		return nil, err
	}
	if got, err := d.Stat("."); err != nil || !os.SameFile(seen, got) {
		d.Close()
		return nil, &blockedPath{key: key, target: "elsewhere", link: true}
	}
	return d, nil
}

// at opens the directory that a key is in.
func (t *dirTree) at(key string) (in *os.Root, name string, err error) {
	in, err = t.dir(parentKey(key))
	return in, path.Base(key), err
}

// parentKey is the key of the directory that a key is in.
func parentKey(key string) string {
	if i := strings.LastIndexByte(key, '/'); i >= 0 {
		return key[:i]
	}
	return ""
}

// isMissing is whether an error says that there is nothing at a key.
func isMissing(err error) bool { return errors.Is(err, fs.ErrNotExist) }

// fileAttrs are the permissions and the owner of a file or directory.
type fileAttrs struct {
	Mode uint32 `json:"mode"` // with the bits 07000
	UID  int    `json:"uid"`
	GID  int    `json:"gid"`
}

// foundFile is what there is at a key.
type foundFile struct {
	info   fs.FileInfo // nil: nothing
	target string      // of a symbolic link
	fileAttrs
}

func (f foundFile) exists() bool  { return f.info != nil }
func (f foundFile) dir() bool     { return f.info != nil && f.info.IsDir() }
func (f foundFile) regular() bool { return f.info != nil && f.info.Mode().IsRegular() }
func (f foundFile) link() bool    { return f.info != nil && f.info.Mode()&fs.ModeSymlink != 0 }
func (f foundFile) file() bool    { return f.regular() || f.link() }

func (t *dirTree) stat(key string) (foundFile, error) {
	in, name, err := t.at(key)
	if err != nil {
		if isMissing(err) {
			err = nil
		}
		return foundFile{}, err
	}
	info, err := in.Lstat(name)
	if isMissing(err) {
		return foundFile{}, nil
	}
	if err != nil {
		return foundFile{}, err
	}
	f := foundFile{info: info}
	f.Mode = unixMode(info.Mode())
	f.UID, f.GID = ownerOf(info)
	if f.link() {
		f.target, err = in.Readlink(name)
	}
	return f, err
}

// read opens a regular file.
func (t *dirTree) read(key string) (*os.File, error) {
	in, name, err := t.at(key)
	if err != nil {
		return nil, err
	}
	return openRegular(in, name)
}

func openRegular(in *os.Root, name string) (*os.File, error) {
	seen, err := in.Lstat(name)
	if err != nil {
		return nil, err
	}
	if !seen.Mode().IsRegular() {
		return nil, &fs.PathError{Op: "open", Path: name, Err: errors.New("not a regular file")}
	}
	f, err := in.OpenFile(name, os.O_RDONLY|openFlags, 0)
	if err != nil {
		return nil, err
	}
	if got, err := f.Stat(); err != nil || !os.SameFile(seen, got) {
		f.Close()
		return nil, &fs.PathError{Op: "open", Path: name, Err: errors.New("replaced while it was opened")}
	}
	return f, nil
}

// names are those in a directory.
func (t *dirTree) names(key string) ([]string, error) {
	d, err := t.dir(key)
	if err != nil {
		return nil, err
	}
	f, err := d.Open(".")
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return f.Readdirnames(-1)
}

// newFile is one that is being written.
type newFile struct {
	*os.File
	t    *dirTree
	path string
}

// create makes a file that only its owner can read. There must not be one.
func (t *dirTree) create(key string) (*newFile, error) {
	in, name, err := t.at(key)
	if err != nil {
		return nil, err
	}
	if err := t.step(treeStep{do: "create", path: t.path(key)}); err != nil {
		return nil, err
	}
	f, err := in.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return nil, err
	}
	return &newFile{File: f, t: t, path: t.path(key)}, nil
}

func (f *newFile) Write(p []byte) (int, error) {
	if err := f.t.step(treeStep{do: "write", path: f.path, data: p}); err != nil {
		return 0, err
	}
	return f.File.Write(p)
}

// ReadFrom hides that of os.File, which would write beside Write.
func (f *newFile) ReadFrom(r io.Reader) (int64, error) {
	return io.Copy(struct{ io.Writer }{f}, r)
}

// setAttrs sets owner and permissions, in this order, since a change of the owner takes setuid away.
func (f *newFile) setAttrs(a fileAttrs) error {
	info, err := f.Stat()
	if err != nil {
		return err
	}
	if uid, gid := ownerOf(info); uid != a.UID || gid != a.GID {
		if err := f.t.step(treeStep{do: "chown", path: f.path, uid: a.UID, gid: a.GID}); err != nil {
			return err
		}
		if err := f.Chown(a.UID, a.GID); err != nil {
			return err
		}
	}
	if err := f.t.step(treeStep{do: "chmod", path: f.path, mode: fileMode(a.Mode)}); err != nil {
		return err
	}
	return f.Chmod(fileMode(a.Mode))
}

// What becomes of extended attributes that belong to a content.
const (
	contentReplaced = false
	contentCopied   = true
)

// keepXattrs gives the file the extended attributes of another, SELinux's label among them. Those of its content are kept only if that was
// copied.
func (f *newFile) keepXattrs(from *os.File, content bool) error {
	return copyXattrs(from, f.File, content, func() error { return f.t.step(treeStep{do: "xattr", path: f.path}) })
}

// copyFrom copies another file's content, without what its holes would take, if there is room for it.
func (f *newFile) copyFrom(from *os.File) error {
	info, err := from.Stat()
	if err != nil {
		return err
	}
	if room, ok := freeBytes(f.File); ok && uint64(allocatedBytes(info))+reservedSpace > room {
		return fmt.Errorf("no space left on the file system for a copy: %d bytes are free, and %d are needed", room, uint64(allocatedBytes(info))+reservedSpace)
	}
	end := int64(0)
	for {
		begin, length, ok := nextData(from, end, info.Size())
		if !ok {
			break
		}
		if begin != end {
			if _, err := f.Seek(begin, io.SeekStart); err != nil {
				return err
			}
		}
		n, err := io.CopyN(f, io.NewSectionReader(from, begin, length), length)
		if end = begin + n; errors.Is(err, io.EOF) {
			return nil // somebody made it shorter
		}
		if err != nil {
			return err
		}
	}
	if end < info.Size() {
		return f.Truncate(info.Size())
	}
	return nil
}

func (f *newFile) sync() error {
	if err := f.t.step(treeStep{do: "sync", path: f.path}); err != nil {
		return err
	}
	return f.Sync()
}

// setAttrs sets owner and permissions of a directory or a regular file.
func (t *dirTree) setAttrs(key string, a fileAttrs) error {
	f, err := t.openAny(key)
	if err != nil {
		return err
	}
	defer f.Close()
	return (&newFile{File: f, t: t, path: t.path(key)}).setAttrs(a)
}

// openAny opens a directory or a regular file.
func (t *dirTree) openAny(key string) (*os.File, error) {
	what, err := t.stat(key)
	switch {
	case err != nil:
		return nil, err
	case !what.exists():
		return nil, &fs.PathError{Op: "open", Path: t.path(key), Err: fs.ErrNotExist}
	case !what.dir():
		return t.read(key)
	}
	d, err := t.dir(key)
	if err != nil {
		return nil, err
	}
	return d.Open(".")
}

func (t *dirTree) symlink(target, key string, a fileAttrs) error {
	in, name, err := t.at(key)
	if err != nil {
		return err
	}
	if err := t.step(treeStep{do: "symlink", path: t.path(key), new: target}); err != nil {
		return err
	}
	if err := in.Symlink(target, name); err != nil {
		return err
	}
	if made, err := in.Lstat(name); err == nil {
		if uid, gid := ownerOf(made); uid == a.UID && gid == a.GID {
			return nil
		}
	}
	if err := t.step(treeStep{do: "lchown", path: t.path(key), uid: a.UID, gid: a.GID}); err != nil {
		return err
	}
	return in.Lchown(name, a.UID, a.GID)
}

// link gives a file or a symbolic link another name.
func (t *dirTree) link(key, other string) error {
	return t.renameBetween("link", key, other, (*os.Root).Link, linkAt)
}

// rename moves a file, a link or a directory, and replaces a file or link that is there.
func (t *dirTree) rename(key, other string) error {
	defer t.forget()
	return t.renameBetween("rename", key, other, (*os.Root).Rename, renameAt)
}

// exchange has what is at two keys change places: neither is ever missing.
func (t *dirTree) exchange(key, other string) error {
	defer t.forget()
	return t.renameBetween("exchange", key, other, func(d *os.Root, name, other string) error { return exchangeAt(d, name, d, other) }, exchangeAt)
}

func (t *dirTree) renameBetween(do, key, other string, within func(*os.Root, string, string) error, across func(*os.Root, string, *os.Root, string) error) error {
	from, err := t.open(parentKey(key))
	if err != nil {
		return err
	}
	if from != t.root {
		defer from.Close()
	}
	to, name, err := t.at(other)
	if err != nil {
		return err
	}
	if err := t.step(treeStep{do: do, path: t.path(key), new: t.path(other)}); err != nil {
		return err
	}
	if parentKey(key) == parentKey(other) {
		return within(from, path.Base(key), name)
	}
	return across(from, path.Base(key), to, name)
}

// remove removes a file, a link or an empty directory. It is no error if there is none.
func (t *dirTree) remove(key string) error {
	in, name, err := t.at(key)
	if err == nil {
		_, err = in.Lstat(name)
	}
	var b *blockedPath
	if isMissing(err) || errors.As(err, &b) {
		return nil
	}
	if err != nil {
		return err
	}
	if err := t.step(treeStep{do: "remove", path: t.path(key)}); err != nil {
		return err
	}
	if err = in.Remove(name); isMissing(err) {
		err = nil
	}
	t.forget()
	return err
}

func (t *dirTree) mkdir(key string, a fileAttrs) error {
	in, name, err := t.at(key)
	if err != nil {
		return err
	}
	if err := t.step(treeStep{do: "mkdir", path: t.path(key)}); err != nil {
		return err
	}
	if err := in.Mkdir(name, 0o700); err != nil {
		return err
	}
	return t.setAttrs(key, a)
}

// mkdirAs makes a directory, if it isn't there, and sets its attributes.
func (t *dirTree) mkdirAs(key string, a fileAttrs) error {
	err := t.mkdir(key, a)
	if errors.Is(err, fs.ErrExist) {
		err = t.setAttrs(key, a)
	}
	return err
}

// unsyncedKeys are keys whose content, attributes or entries were changed and not synced yet.
type unsyncedKeys map[string]bool

// flush syncs those of files and directories that there still are.
func (t *dirTree) flush(keys unsyncedKeys) error {
	synced := map[uint64]bool{}
	for _, key := range slices.Sorted(maps.Keys(keys)) {
		at, err := t.stat(key)
		var b *blockedPath
		if errors.As(err, &b) || err == nil && key != "" && !at.dir() && !at.regular() {
			continue
		}
		if err != nil {
			return err
		}
		f, err := t.openAny(key)
		if err != nil {
			return err
		}
		err = t.flushOne(f, key, len(keys) >= t.many, synced)
		f.Close()
		if err != nil {
			return err
		}
	}
	return nil
}

func (t *dirTree) flushOne(f *os.File, key string, many bool, synced map[uint64]bool) error {
	info, err := f.Stat()
	if err != nil {
		return err
	}
	device, ok := deviceOf(info)
	if !many || !ok {
		if err := t.step(treeStep{do: "sync", path: t.path(key)}); err != nil {
			return err
		}
		return f.Sync()
	}
	if synced[device] {
		return nil
	}
	synced[device] = true
	if err := t.step(treeStep{do: "syncfs", path: t.path(key)}); err != nil {
		return err
	}
	return syncFileSystem(f)
}

// replace writes a small file whole: it is the old one or the new one after a crash, and the new one when this returns.
func (t *dirTree) replace(key string, text []byte) error {
	next := key + ".tmp"
	if err := t.remove(next); err != nil {
		return err
	}
	f, err := t.create(next)
	if err != nil {
		return err
	}
	_, err = f.Write(text)
	if err == nil {
		err = f.sync()
	}
	if err := errors.Join(err, f.Close()); err != nil {
		return err
	}
	if err := t.rename(next, key); err != nil {
		return err
	}
	return t.flush(unsyncedKeys{parentKey(key): true})
}

// unixMode are the permissions as Unix counts them.
func unixMode(m fs.FileMode) uint32 {
	b := uint32(m.Perm())
	for flag, bit := range specialModes {
		if m&flag != 0 {
			b |= bit
		}
	}
	return b
}

func fileMode(b uint32) fs.FileMode {
	m := fs.FileMode(b & 0o777)
	for flag, bit := range specialModes {
		if b&bit != 0 {
			m |= flag
		}
	}
	return m
}

var specialModes = map[fs.FileMode]uint32{fs.ModeSetuid: 0o4000, fs.ModeSetgid: 0o2000, fs.ModeSticky: 0o1000}

// duplicate gives a file or link a second name, or copies it where a file system has no such names.
func (t *dirTree) duplicate(key, other string) error {
	err := t.link(key, other)
	if errors.Is(err, syscall.EPERM) || errors.Is(err, syscall.ENOTSUP) || errors.Is(err, syscall.EMLINK) || errors.Is(err, errors.ErrUnsupported) {
		return t.copy(key, other)
	}
	return err
}

func (t *dirTree) copy(key, other string) error {
	from, err := t.stat(key)
	if err != nil {
		return err
	}
	if from.link() {
		return t.symlink(from.target, other, from.fileAttrs)
	}
	r, err := t.read(key)
	if err != nil {
		return err
	}
	defer r.Close()
	f, err := t.create(other)
	if err != nil {
		return err
	}
	err = f.copyFrom(r)
	if err == nil {
		err = f.setAttrs(from.fileAttrs)
	}
	if err == nil { // after the owner, whose change takes capabilities away
		err = f.keepXattrs(r, contentCopied)
	}
	if err == nil {
		err = f.sync()
	}
	return errors.Join(err, f.Close())
}

func (t *dirTree) removeIf(key string, is func(foundFile) bool) error {
	at, err := t.stat(key)
	var b *blockedPath
	if errors.As(err, &b) || err == nil && !is(at) {
		return nil
	}
	if err != nil {
		return err
	}
	return t.remove(key)
}
