// SPDX-License-Identifier: Apache-2.0

//go:build !linux

package disk

import "testing"

// Disk is a file system that only Linux can make here.
type Disk struct{ Dir string }

// New ends the test.
func New(t testing.TB, _ int) *Disk {
	missingTools(t, "file systems that fail are made on Linux only")
	return nil
}

func (*Disk) Cut() error          { return nil }
func (*Disk) Restore() error      { return nil }
func (*Disk) ReadOnly(bool) error { return nil }
func (*Disk) Freeze() error       { return nil }
func (*Disk) Thaw() error         { return nil }
func (*Disk) Fill() error         { return nil }
func (*Disk) Free() error         { return nil }
