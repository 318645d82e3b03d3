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
)

// A tree is a directory and all below it, which is read and changed by keys: clean, slash-separated paths relative to it, "" for
// itself. No symbolic link is ever followed: each directory on the way is opened from the one above it, and must be what it was
// when it was seen to be no link. It doesn't leave the directory, whatever another process does meanwhile.
type tree struct {
	name string // the directory, for errors and steps
	root *os.Root
	// before is called before each change and each sync, for tests. An error is that step's outcome.
	before func(step) error
	// last is the directory that was used last: the keys of a transaction are mostly neighbours.
	last    *os.Root
	lastKey string
	// many is the number of syncs from which one of the whole file system takes less time.
	many int
}

// step is a change that is about to be made to a tree, or a sync.
type step struct {
	do        string // create write chown chmod xattr sync symlink link rename exchange remove mkdir syncdir syncfs
	path, new string
	data      []byte
	mode      fs.FileMode
	uid, gid  int
}

func openTree(dir string) (*tree, error) {
	r, err := os.OpenRoot(dir)
	if err != nil {
		return nil, err
	}
	return &tree{name: dir, root: r, many: 16}, nil
}

func (t *tree) close() error {
	t.forget()
	return t.root.Close()
}

func (t *tree) path(key string) string { return path.Join(t.name, key) }

func (t *tree) step(s step) error {
	if t.before == nil {
		return nil
	}
	return t.before(s)
}

// blocked is the error of a key that leads through something that isn't a directory.
type blocked struct {
	key    string // of what is in the way
	target string // where it points to, if it is a symbolic link
	link   bool
}

func (b *blocked) Error() string {
	if b.link {
		return fmt.Sprintf("leads through /%s, which is a symbolic link to %s: use the path that it points to", b.key, b.target)
	}
	return fmt.Sprintf("leads through /%s, which is not a directory", b.key)
}

// forget closes the directory that was used last. It is called when directories are moved or removed.
func (t *tree) forget() {
	if t.last != nil && t.last != t.root {
		t.last.Close()
	}
	t.last, t.lastKey = nil, ""
}

// dir opens a directory. It is the tree's own and is valid until the next call.
func (t *tree) dir(key string) (*os.Root, error) {
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

func (t *tree) open(key string) (*os.Root, error) {
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
		return nil, &blocked{key: key, target: target, link: true}
	case !seen.IsDir():
		return nil, &blocked{key: key}
	}
	d, err := in.OpenRoot(name)
	if err != nil {
		return nil, err
	}
	if got, err := d.Stat("."); err != nil || !os.SameFile(seen, got) {
		d.Close()
		return nil, &blocked{key: key, target: "elsewhere", link: true}
	}
	return d, nil
}

// at opens the directory that a key is in.
func (t *tree) at(key string) (in *os.Root, name string, err error) {
	in, err = t.dir(parent(key))
	return in, path.Base(key), err
}

// parent is the key of the directory that a key is in.
func parent(key string) string {
	if i := strings.LastIndexByte(key, '/'); i >= 0 {
		return key[:i]
	}
	return ""
}

// missing is whether an error says that there is nothing at a key.
func missing(err error) bool { return errors.Is(err, fs.ErrNotExist) }

// attrs are the permissions and the owner of a file or directory.
type attrs struct {
	Mode uint32 `json:"mode"` // with the bits 07000
	UID  int    `json:"uid"`
	GID  int    `json:"gid"`
}

// found is what there is at a key.
type found struct {
	info   fs.FileInfo // nil: nothing
	target string      // of a symbolic link
	attrs
}

func (f found) exists() bool  { return f.info != nil }
func (f found) dir() bool     { return f.info != nil && f.info.IsDir() }
func (f found) regular() bool { return f.info != nil && f.info.Mode().IsRegular() }
func (f found) link() bool    { return f.info != nil && f.info.Mode()&fs.ModeSymlink != 0 }
func (f found) file() bool    { return f.regular() || f.link() }

func (t *tree) look(key string) (found, error) {
	in, name, err := t.at(key)
	if err != nil {
		if missing(err) {
			err = nil
		}
		return found{}, err
	}
	info, err := in.Lstat(name)
	if missing(err) {
		return found{}, nil
	}
	if err != nil {
		return found{}, err
	}
	f := found{info: info}
	f.Mode = bits(info.Mode())
	f.UID, f.GID = ownerOf(info)
	if f.link() {
		f.target, err = in.Readlink(name)
	}
	return f, err
}

// read opens a regular file.
func (t *tree) read(key string) (*os.File, error) {
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
func (t *tree) names(key string) ([]string, error) {
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

// file is one that is being written.
type file struct {
	*os.File
	t    *tree
	path string
}

// create makes a file that only its owner can read. There must not be one.
func (t *tree) create(key string) (*file, error) {
	in, name, err := t.at(key)
	if err != nil {
		return nil, err
	}
	if err := t.step(step{do: "create", path: t.path(key)}); err != nil {
		return nil, err
	}
	f, err := in.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return nil, err
	}
	return &file{File: f, t: t, path: t.path(key)}, nil
}

func (f *file) Write(p []byte) (int, error) {
	if err := f.t.step(step{do: "write", path: f.path, data: p}); err != nil {
		return 0, err
	}
	return f.File.Write(p)
}

// ReadFrom hides that of os.File, which would write beside Write.
func (f *file) ReadFrom(r io.Reader) (int64, error) {
	return io.Copy(struct{ io.Writer }{f}, r)
}

// give sets owner and permissions, in this order, since a change of the owner takes setuid away.
func (f *file) give(a attrs) error {
	info, err := f.Stat()
	if err != nil {
		return err
	}
	if uid, gid := ownerOf(info); uid != a.UID || gid != a.GID {
		if err := f.t.step(step{do: "chown", path: f.path, uid: a.UID, gid: a.GID}); err != nil {
			return err
		}
		if err := f.Chown(a.UID, a.GID); err != nil {
			return err
		}
	}
	if err := f.t.step(step{do: "chmod", path: f.path, mode: fileMode(a.Mode)}); err != nil {
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
func (f *file) keepXattrs(from *os.File, content bool) error {
	return copyXattrs(from, f.File, content, func() error { return f.t.step(step{do: "xattr", path: f.path}) })
}

// copyFrom copies another file's content, without what its holes would take, if there is room for it.
func (f *file) copyFrom(from *os.File) error {
	info, err := from.Stat()
	if err != nil {
		return err
	}
	if room, ok := free(f.File); ok && uint64(allocated(info))+reserve > room {
		return fmt.Errorf("no space left on the file system for a copy: %d bytes are free, and %d are needed", room, uint64(allocated(info))+reserve)
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

func (f *file) sync() error {
	if err := f.t.step(step{do: "sync", path: f.path}); err != nil {
		return err
	}
	return f.Sync()
}

// give sets owner and permissions of a directory or a regular file.
func (t *tree) give(key string, a attrs) error {
	f, err := t.openAny(key)
	if err != nil {
		return err
	}
	defer f.Close()
	return (&file{File: f, t: t, path: t.path(key)}).give(a)
}

// openAny opens a directory or a regular file.
func (t *tree) openAny(key string) (*os.File, error) {
	what, err := t.look(key)
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

func (t *tree) symlink(target, key string, a attrs) error {
	in, name, err := t.at(key)
	if err != nil {
		return err
	}
	if err := t.step(step{do: "symlink", path: t.path(key), new: target}); err != nil {
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
	if err := t.step(step{do: "lchown", path: t.path(key), uid: a.UID, gid: a.GID}); err != nil {
		return err
	}
	return in.Lchown(name, a.UID, a.GID)
}

// link gives a file or a symbolic link another name.
func (t *tree) link(key, other string) error {
	return t.two("link", key, other, (*os.Root).Link, linkAt)
}

// rename moves a file, a link or a directory, and replaces a file or link that is there.
func (t *tree) rename(key, other string) error {
	defer t.forget()
	return t.two("rename", key, other, (*os.Root).Rename, renameAt)
}

// exchange has what is at two keys change places: neither is ever missing.
func (t *tree) exchange(key, other string) error {
	defer t.forget()
	return t.two("exchange", key, other, func(d *os.Root, name, other string) error { return exchangeAt(d, name, d, other) }, exchangeAt)
}

func (t *tree) two(do, key, other string, within func(*os.Root, string, string) error, across func(*os.Root, string, *os.Root, string) error) error {
	from, err := t.open(parent(key))
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
	if err := t.step(step{do: do, path: t.path(key), new: t.path(other)}); err != nil {
		return err
	}
	if parent(key) == parent(other) {
		return within(from, path.Base(key), name)
	}
	return across(from, path.Base(key), to, name)
}

// remove removes a file, a link or an empty directory. It is no error if there is none.
func (t *tree) remove(key string) error {
	in, name, err := t.at(key)
	if err == nil {
		_, err = in.Lstat(name)
	}
	var b *blocked
	if missing(err) || errors.As(err, &b) {
		return nil
	}
	if err != nil {
		return err
	}
	if err := t.step(step{do: "remove", path: t.path(key)}); err != nil {
		return err
	}
	if err = in.Remove(name); missing(err) {
		err = nil
	}
	t.forget()
	return err
}

func (t *tree) mkdir(key string, a attrs) error {
	in, name, err := t.at(key)
	if err != nil {
		return err
	}
	if err := t.step(step{do: "mkdir", path: t.path(key)}); err != nil {
		return err
	}
	if err := in.Mkdir(name, 0o700); err != nil {
		return err
	}
	return t.give(key, a)
}

// mkdirAs makes a directory, if it isn't there, and sets its attributes.
func (t *tree) mkdirAs(key string, a attrs) error {
	err := t.mkdir(key, a)
	if errors.Is(err, fs.ErrExist) {
		err = t.give(key, a)
	}
	return err
}

// touched are keys whose content, attributes or entries were changed and not synced yet.
type touched map[string]bool

// flush syncs those of files and directories that there still are.
func (t *tree) flush(keys touched) error {
	synced := map[uint64]bool{}
	for _, key := range slices.Sorted(maps.Keys(keys)) {
		at, err := t.look(key)
		var b *blocked
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

func (t *tree) flushOne(f *os.File, key string, many bool, synced map[uint64]bool) error {
	info, err := f.Stat()
	if err != nil {
		return err
	}
	device, ok := deviceOf(info)
	if !many || !ok {
		if err := t.step(step{do: "sync", path: t.path(key)}); err != nil {
			return err
		}
		return f.Sync()
	}
	if synced[device] {
		return nil
	}
	synced[device] = true
	if err := t.step(step{do: "syncfs", path: t.path(key)}); err != nil {
		return err
	}
	return syncFileSystem(f)
}

// replace writes a small file whole: it is the old one or the new one after a crash, and the new one when this returns.
func (t *tree) replace(key string, text []byte) error {
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
	return t.flush(touched{parent(key): true})
}

// bits are the permissions as Unix counts them.
func bits(m fs.FileMode) uint32 {
	b := uint32(m.Perm())
	for flag, bit := range special {
		if m&flag != 0 {
			b |= bit
		}
	}
	return b
}

func fileMode(b uint32) fs.FileMode {
	m := fs.FileMode(b & 0o777)
	for flag, bit := range special {
		if b&bit != 0 {
			m |= flag
		}
	}
	return m
}

var special = map[fs.FileMode]uint32{fs.ModeSetuid: 0o4000, fs.ModeSetgid: 0o2000, fs.ModeSticky: 0o1000}
