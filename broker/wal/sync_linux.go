// SPDX-License-Identifier: Apache-2.0

package wal

import (
	"errors"
	"math"
	"os"
	"syscall"
)

// SyncedFile is a file that is cheaper to sync.
type SyncedFile struct{ *os.File }

// Sync leaves out times of access and change.
func (s SyncedFile) Sync() error {
	for {
		if err := syscall.Fdatasync(int(s.Fd())); !errors.Is(err, syscall.EINTR) {
			return err
		}
	}
}

// allocateFile has a file take so many bytes on disk.
func allocateFile(f *os.File, size int64) error {
	for {
		err := syscall.Fallocate(int(f.Fd()), 0, 0, size)
		switch {
		case errors.Is(err, syscall.EINTR):
			continue
		case errors.Is(err, syscall.EOPNOTSUPP), errors.Is(err, syscall.ENOSYS):
			return writeZeros(f, size)
		}
		return err
	}
}

// DiskSize is how many bytes the file system of a directory has, used ones included.
func DiskSize(dir string) int64 {
	var s syscall.Statfs_t
	if err := syscall.Statfs(dir, &s); err != nil || s.Blocks == 0 || s.Bsize <= 0 {
		return math.MaxInt64
	}
	return int64(min(s.Blocks, math.MaxInt64/uint64(s.Bsize))) * int64(s.Bsize) //nolint:unconvert // it is 32 bits on some machines
}
