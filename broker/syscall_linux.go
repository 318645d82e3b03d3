// SPDX-License-Identifier: Apache-2.0

//go:build linux && !race

package broker

import (
	"syscall"
	"unsafe"
)

func sysRead(fd uintptr, p []byte) (int, syscall.Errno)  { return rawSyscall(syscall.SYS_READ, fd, p) }
func sysWrite(fd uintptr, p []byte) (int, syscall.Errno) { return rawSyscall(syscall.SYS_WRITE, fd, p) }

func rawSyscall(trap, fd uintptr, p []byte) (int, syscall.Errno) {
	for {
		n, _, errno := syscall.RawSyscall(trap, fd, uintptr(unsafe.Pointer(unsafe.SliceData(p))), uintptr(len(p))) //nolint:gosec // G103: the system call takes the address of p, which is alive until it returns
		if errno != syscall.EINTR {
			return int(n), errno
		}
	}
}
