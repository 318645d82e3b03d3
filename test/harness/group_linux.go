// SPDX-License-Identifier: Apache-2.0

package harness

import "syscall"

// ownGroup gives a child a process group, and death with its parent: also a test
// that panics or times out leaves nothing behind.
func ownGroup() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
}
