// SPDX-License-Identifier: Apache-2.0

//go:build linux && race

package broker

import (
	"errors"
	"syscall"
)

// The race detector has to be told of the calls: what is written before comes before
// what is done after reading it.

func sysRead(fd uintptr, p []byte) (int, syscall.Errno)  { return call(syscall.Read, fd, p) }
func sysWrite(fd uintptr, p []byte) (int, syscall.Errno) { return call(syscall.Write, fd, p) }

func call(f func(int, []byte) (int, error), fd uintptr, p []byte) (int, syscall.Errno) {
	for {
		n, err := f(int(fd), p)
		var errno syscall.Errno
		if !errors.As(err, &errno) || errno != syscall.EINTR {
			return n, errno
		}
	}
}
