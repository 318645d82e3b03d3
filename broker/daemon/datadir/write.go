// SPDX-License-Identifier: Apache-2.0

package datadir

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"syscall"
)

// WriteFile writes a file whole or not at all, durably, for its owner only.
func WriteFile(path string, text []byte) error {
	f, err := os.OpenFile(path+".new", os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return err
	}
	_, err = f.Write(text)
	if err := errors.Join(err, f.Sync(), f.Close()); err != nil {
		return err
	}
	if err := os.Rename(path+".new", path); err != nil {
		return err
	}
	return SyncDir(filepath.Dir(path))
}

// IsFull reports whether an error says that the disk, or what its quota leaves of it, is full.
func IsFull(err error) bool { return errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT) }

// FormatError is of a file that is in another format than this program's.
type FormatError struct{ found, own int }

func (e FormatError) Error() string {
	return fmt.Sprintf("has the format %d, and this program reads the format %d", e.found, e.own)
}

// CheckFormat reads the field format of a file in JSON. It returns a FormatError if that isn't the program's own.
func CheckFormat(text []byte, own int) error {
	var f struct {
		Format int `json:"format"`
	}
	if err := json.Unmarshal(text, &f); err != nil {
		return err
	}
	if f.Format != own {
		return FormatError{f.Format, own}
	}
	return nil
}
