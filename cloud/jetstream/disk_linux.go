// SPDX-License-Identifier: Apache-2.0

package jetstream

import "golang.org/x/sys/unix"

// diskBytes is how much the disk of a directory has room for, and how large it is, if it is to be seen from here.
func diskBytes(dir string) (free, size uint64, known bool) {
	var s unix.Statfs_t
	if dir == "" || unix.Statfs(dir, &s) != nil {
		return 0, 0, false
	}
	return s.Bavail * uint64(s.Bsize), s.Blocks * uint64(s.Bsize), true
}
