// SPDX-License-Identifier: Apache-2.0

package jetstream

import "golang.org/x/sys/unix"

// freeBytes is how much the disk of a directory has room for, if it is to be seen from here.
func freeBytes(dir string) (free uint64, known bool) {
	var s unix.Statfs_t
	if dir == "" || unix.Statfs(dir, &s) != nil {
		return 0, false
	}
	return s.Bavail * uint64(s.Bsize), true
}
