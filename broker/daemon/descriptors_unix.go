// SPDX-License-Identifier: Apache-2.0

//go:build unix

package daemon

import "syscall"

// maxDescriptors is how many descriptors the process may have; 0: unknown.
func maxDescriptors() int {
	var r syscall.Rlimit
	if syscall.Getrlimit(syscall.RLIMIT_NOFILE, &r) != nil {
		return 0
	}
	return int(min(r.Cur, 1<<30))
}
