// SPDX-License-Identifier: Apache-2.0

//go:build unix

package backup

import "syscall"

// ownerOnly makes a socket's file its owner's alone, before it is bound, where the system can.
func ownerOnly(_, _ string, c syscall.RawConn) error {
	return c.Control(func(fd uintptr) { _ = syscall.Fchmod(int(fd), 0o600) })
}
