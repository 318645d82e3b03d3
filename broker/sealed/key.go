// SPDX-License-Identifier: Apache-2.0

package sealed

import (
	"crypto/rand"
	"encoding/base64"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strings"

	"github.com/edgebus/edgebus/broker/daemon/datadir"
)

// Key is what the keys of a log's writers are derived from. Whoever has it reads and writes the log.
type Key [32]byte

const keyHeader = "edgebus log key 1 "

// NewKey makes a key.
func NewKey() (k Key) {
	_, _ = rand.Read(k[:]) // crypto/rand never fails
	return k
}

// LoadKey reads a key's file. If there is none the error is fs.ErrNotExist.
func LoadKey(path string) (k Key, err error) {
	info, err := os.Stat(path)
	if err != nil {
		return k, err
	}
	if info.Mode().Perm()&0o007 != 0 {
		return k, fmt.Errorf("%s can be read by others, with the mode %04o: chmod 600 it", path, info.Mode().Perm())
	}
	text, err := os.ReadFile(path)
	if err != nil {
		return k, err
	}
	encoded, ok := strings.CutPrefix(strings.TrimSpace(string(text)), keyHeader)
	raw, err := base64.StdEncoding.DecodeString(encoded)
	if !ok || err != nil || len(raw) != len(k) {
		return k, fmt.Errorf("%s is not the key of a log, or is damaged: take it from another hub of the log, or from where you keep a copy", path)
	}
	return Key(raw), nil
}

// Write writes the key's file. It fails if the file exists.
func (k Key) Write(path string) error {
	if _, err := os.Lstat(path); !errors.Is(err, fs.ErrNotExist) {
		return errors.Join(fmt.Errorf("%s: %w", path, fs.ErrExist), err)
	}
	return datadir.WriteFile(path, fmt.Append(nil, keyHeader, base64.StdEncoding.EncodeToString(k[:]), "\n"))
}
