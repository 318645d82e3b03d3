// SPDX-License-Identifier: Apache-2.0

//go:build unix

package datadir

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
)

// CopyOwner gives a directory and all in it the owner and group of another one, where the caller may: what root has made is to be the program's.
func CopyOwner(from, to string) error {
	info, err := os.Stat(from)
	if err != nil {
		return err
	}
	was, ok := info.Sys().(*syscall.Stat_t)
	if !ok || os.Geteuid() != 0 {
		return nil
	}
	var failed error
	err = filepath.WalkDir(to, func(path string, _ fs.DirEntry, err error) error {
		if err == nil {
			err = os.Lchown(path, int(was.Uid), int(was.Gid))
		}
		failed = errors.Join(failed, err)
		return nil
	})
	return errors.Join(failed, err)
}
