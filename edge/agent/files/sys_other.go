// SPDX-License-Identifier: Apache-2.0

//go:build !linux

package files

import (
	"errors"
	"io/fs"
	"os"
	"time"
)

// The package is made for Linux. Elsewhere it builds, and does without owners, extended attributes and what else is missing here.

const openFlags = 0

func ownerOf(fs.FileInfo) (uid, gid int)   { return os.Geteuid(), os.Getegid() }
func deviceOf(fs.FileInfo) (uint64, bool)  { return 0, false }
func changedAt(info fs.FileInfo) time.Time { return info.ModTime() }
func freeBytes(*os.File) (uint64, bool)    { return 0, false }
func syncFileSystem(*os.File) error        { return errors.ErrUnsupported }

func copyXattrs(_, _ *os.File, _ bool, _ func() error) error { return nil }
func allocatedBytes(info fs.FileInfo) int64                  { return info.Size() }

func nextData(_ *os.File, from, size int64) (begin, length int64, ok bool) {
	return from, size - from, from < size
}

func renameAt(*os.Root, string, *os.Root, string) error   { return errors.ErrUnsupported }
func exchangeAt(*os.Root, string, *os.Root, string) error { return errors.ErrUnsupported }
func linkAt(*os.Root, string, *os.Root, string) error     { return errors.ErrUnsupported }
