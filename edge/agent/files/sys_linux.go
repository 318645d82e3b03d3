// SPDX-License-Identifier: Apache-2.0

package files

import (
	"bytes"
	"errors"
	"io/fs"
	"os"
	"slices"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// openFlags keep a FIFO that takes a file's place from blocking who opens it.
const openFlags = unix.O_NOFOLLOW | unix.O_NONBLOCK

func ownerOf(info fs.FileInfo) (uid, gid int) {
	st := info.Sys().(*syscall.Stat_t)
	return int(st.Uid), int(st.Gid)
}

func deviceOf(info fs.FileInfo) (uint64, bool) {
	return info.Sys().(*syscall.Stat_t).Dev, true
}

// changedAt is when the file's inode was changed last. No user can set this time.
func changedAt(info fs.FileInfo) time.Time {
	at := info.Sys().(*syscall.Stat_t).Ctim
	return time.Unix(at.Unix())
}

// freeBytes is the space that the file system of an open file has for who isn't root, in bytes.
func freeBytes(f *os.File) (uint64, bool) {
	var st unix.Statfs_t
	if err := unix.Fstatfs(int(f.Fd()), &st); err != nil {
		return 0, false
	}
	return st.Bavail * uint64(st.Bsize), true
}

func syncFileSystem(f *os.File) error {
	return os.NewSyscallError("syncfs", unix.Syncfs(int(f.Fd())))
}

func renameAt(from *os.Root, name string, to *os.Root, other string) error {
	return withDirFDs("rename", from, to, func(from, to int) error { return unix.Renameat(from, name, to, other) })
}

func exchangeAt(from *os.Root, name string, to *os.Root, other string) error {
	return withDirFDs("exchange", from, to, func(from, to int) error { return unix.Renameat2(from, name, to, other, unix.RENAME_EXCHANGE) })
}

// allocatedBytes is how much room a file takes on its file system, in bytes.
func allocatedBytes(info fs.FileInfo) int64 { return info.Sys().(*syscall.Stat_t).Blocks * 512 }

// nextData is where a file has data next, from an offset on; a file system that doesn't know has all of it.
func nextData(f *os.File, from, size int64) (begin, length int64, ok bool) {
	if from >= size {
		return 0, 0, false
	}
	begin, err := unix.Seek(int(f.Fd()), from, unix.SEEK_DATA)
	if errors.Is(err, unix.ENXIO) || err == nil && begin >= size {
		return 0, 0, false
	}
	if err != nil {
		return from, size - from, true
	}
	end, err := unix.Seek(int(f.Fd()), begin, unix.SEEK_HOLE)
	if err != nil {
		end = size
	}
	return begin, min(end, size) - begin, true
}

func linkAt(from *os.Root, name string, to *os.Root, other string) error {
	return withDirFDs("link", from, to, func(from, to int) error { return unix.Linkat(from, name, to, other, 0) })
}

func withDirFDs(op string, from, to *os.Root, do func(from, to int) error) error {
	a, err := from.Open(".")
	if err != nil {
		return err
	}
	defer a.Close()
	b, err := to.Open(".")
	if err != nil {
		return err
	}
	defer b.Close()
	return os.NewSyscallError(op, do(int(a.Fd()), int(b.Fd())))
}

// ofContent are extended attributes that belong to a content, not to its place. Those of a file's inode can't be copied.
var (
	ofContent = []string{"security.capability", "security.ima", "security.evm"}
	ofInode   = []string{"security.ima", "security.evm"}
)

// copyXattrs copies the extended attributes that belong to a file's place, and those of its content if that was copied. step is called
// before each.
func copyXattrs(from, to *os.File, content bool, step func() error) error {
	left := ofContent
	if content {
		left = ofInode
	}
	names, err := xattrNames(int(from.Fd()))
	if errors.Is(err, unix.ENOTSUP) {
		return nil
	}
	for _, name := range names {
		if slices.Contains(left, name) {
			continue
		}
		var value []byte
		if value, err = xattr(int(from.Fd()), name); errors.Is(err, unix.ENODATA) {
			continue
		}
		if err == nil {
			err = step()
		}
		if err == nil {
			err = unix.Fsetxattr(int(to.Fd()), name, value, 0)
		}
		if err != nil {
			return os.NewSyscallError("the extended attribute "+name, err)
		}
	}
	return os.NewSyscallError("listxattr", err)
}

func xattrNames(fd int) (names []string, err error) {
	list, err := readGrowing(func(p []byte) (int, error) { return unix.Flistxattr(fd, p) })
	for name := range bytes.SplitSeq(list, []byte{0}) {
		if len(name) > 0 {
			names = append(names, string(name))
		}
	}
	return names, err
}

func xattr(fd int, name string) ([]byte, error) {
	return readGrowing(func(p []byte) (int, error) { return unix.Fgetxattr(fd, name, p) })
}

// readGrowing calls get with a buffer that is large enough.
func readGrowing(get func([]byte) (int, error)) ([]byte, error) {
	for size := 1 << 10; ; size *= 4 {
		p := make([]byte, size)
		n, err := get(p)
		if !errors.Is(err, unix.ERANGE) {
			return p[:max(n, 0)], err
		}
		if size > 1<<20 {
			return nil, err
		}
	}
}
