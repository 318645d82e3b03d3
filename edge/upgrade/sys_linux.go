// SPDX-License-Identifier: Apache-2.0

package upgrade

import (
	"errors"

	"golang.org/x/sys/unix"
)

// exchangeFiles gives two files each other's name, at once.
func exchangeFiles(a, b string) error {
	return unix.Renameat2(unix.AT_FDCWD, a, unix.AT_FDCWD, b, unix.RENAME_EXCHANGE)
}

func freeBytes(dir string) (int64, error) {
	var s unix.Statfs_t
	if err := unix.Statfs(dir, &s); err != nil {
		return 0, err
	}
	return int64(s.Bavail) * int64(s.Bsize), nil //nolint:unconvert // it is an int32 on 32-bit ARM
}

// awaitEnd returns when a child has ended, and leaves it to be waited for.
func awaitEnd(pid int) {
	for errors.Is(unix.Waitid(unix.P_PID, pid, nil, unix.WEXITED|unix.WNOWAIT, nil), unix.EINTR) {
	}
}
