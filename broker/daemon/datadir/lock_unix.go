// SPDX-License-Identifier: Apache-2.0

//go:build unix

package datadir

import (
	"os"
	"syscall"
)

func flock(f *os.File) error { return syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB) }
