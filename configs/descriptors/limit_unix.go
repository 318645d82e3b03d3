//go:build unix

package descriptors

import "syscall"

// most is how many descriptors the process may have; 0: nobody knows.
func most() int {
	var r syscall.Rlimit
	if syscall.Getrlimit(syscall.RLIMIT_NOFILE, &r) != nil {
		return 0
	}
	return int(min(r.Cur, 1<<30))
}
