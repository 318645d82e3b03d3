// SPDX-License-Identifier: Apache-2.0

package datadir

import (
	"math"

	"golang.org/x/sys/unix"
)

// freeSpace is how much of a file system is free for users other than root, in percent of what they may have, as df says it, and in bytes.
func freeSpace(path string) (percent float64, bytes uint64, err error) {
	var s unix.Statfs_t
	if err := unix.Statfs(path, &s); err != nil {
		return 0, 0, err
	}
	used := s.Blocks - s.Bfree
	if used+s.Bavail == 0 {
		return 100, math.MaxUint64, nil // a file system without blocks, such as one in memory without a limit
	}
	return 100 * float64(s.Bavail) / float64(used+s.Bavail), s.Bavail * uint64(s.Bsize), nil
}
