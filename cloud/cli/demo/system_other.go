// SPDX-License-Identifier: Apache-2.0

//go:build unix && !linux

package demo

import "syscall"

func ownGroup() *syscall.SysProcAttr { return &syscall.SysProcAttr{Setpgid: true} }

func whoListens(string) string { return "" }
