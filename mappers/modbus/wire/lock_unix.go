// SPDX-License-Identifier: Apache-2.0

//go:build unix

package wire

import (
	"io"
	"os"
	"syscall"
)

// lockLine marks a serial line as taken, for as long as it is open. What can't be opened is left to who opens it next, who knows better words
// for it.
func lockLine(path string) (io.Closer, error) {
	f, err := os.OpenFile(path, os.O_RDWR|syscall.O_NOCTTY|syscall.O_NONBLOCK, 0)
	if err != nil {
		return io.NopCloser(nil), nil //nolint:nilerr // see above
	}
	if syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB) != nil {
		_ = f.Close()
		return nil, errLineTaken
	}
	return f, nil
}
