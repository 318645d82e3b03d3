// SPDX-License-Identifier: Apache-2.0

//go:build unix

package configs

import (
	"errors"
	"io/fs"
	"os"
	"syscall"
)

// copyOwner gives a file that takes the place of another the same owner and group, where the caller may.
func copyOwner(old string, f *os.File) error {
	info, err := os.Stat(old)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	if was, ok := info.Sys().(*syscall.Stat_t); ok && os.Geteuid() == 0 {
		return f.Chown(int(was.Uid), int(was.Gid))
	}
	return nil
}

// lockDir waits until no other process holds the lock of a directory, and holds it until unlock is called.
func lockDir(name string) (unlock func(), err error) {
	dir, err := os.Open(name)
	if err != nil {
		return nil, err
	}
	if err := syscall.Flock(int(dir.Fd()), syscall.LOCK_EX); err != nil {
		return nil, errors.Join(err, dir.Close())
	}
	return func() { _ = dir.Close() }, nil
}

// isWritableDir reports whether this process may make files in a directory.
func isWritableDir(name string) bool {
	info, err := os.Stat(name)
	const write, search = 2, 1
	return err == nil && info.IsDir() && syscall.Access(name, write|search) == nil
}
