// SPDX-License-Identifier: Apache-2.0

package datadir

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io/fs"
	"os"
	"path/filepath"
)

// ConfirmedFile is a small file beside a store: how far the store had come when it last acknowledged something, as numbers that only the store
// understands. A store that turns out to be less far has lost what was acknowledged, although it is whole by itself.
//
// It is written in place after the store was synced, and is itself synced only when it is made. So it outlives the end of the process with what was
// acknowledged; after a power cut it is an older one, which names less than there is. It never names more than was on disk.
type ConfirmedFile struct{ file *os.File }

// ConfirmedSuffix ends the names of these files. Backups leave them out: they tell of the store beside them, and of no other.
const ConfirmedSuffix = "confirmed"

const (
	confirmedMagic = "edgebusC"
	confirmedSize  = 8 + 2*8 + 4 // magic, numbers, checksum
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// ReadConfirmed reads the file before the store is read. known is false if there is none; one that is damaged is an error, and
// as good as none: a power cut may leave it so.
func ReadConfirmed(path string) (at [2]uint64, known bool, err error) {
	b, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return at, false, nil
	}
	if err != nil {
		return at, false, err
	}
	if len(b) != confirmedSize || string(b[:8]) != confirmedMagic || binary.LittleEndian.Uint32(b[24:]) != crc32.Checksum(b[:24], castagnoli) {
		return at, false, fmt.Errorf("%s is damaged, so this start can't tell whether what was written last is missing; it is written anew", path)
	}
	return [2]uint64{binary.LittleEndian.Uint64(b[8:]), binary.LittleEndian.Uint64(b[16:])}, true, nil
}

// OpenConfirmed opens the file for writing, and makes it if need be, with the numbers as they are.
func OpenConfirmed(path string, at [2]uint64) (*ConfirmedFile, error) {
	_, err := os.Stat(path)
	made := errors.Is(err, fs.ErrNotExist)
	file, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, err
	}
	c := &ConfirmedFile{file}
	if err = file.Truncate(confirmedSize); err == nil {
		err = c.Write(at)
	}
	if err == nil && made {
		if err = file.Sync(); err == nil {
			err = SyncDir(filepath.Dir(path))
		}
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("%s: %w", path, err), file.Close())
	}
	return c, nil
}

// Write records how far the store has come. If it fails, the record is an older one.
func (c *ConfirmedFile) Write(at [2]uint64) error {
	b := make([]byte, 0, confirmedSize)
	b = append(b, confirmedMagic...)
	b = binary.LittleEndian.AppendUint64(b, at[0])
	b = binary.LittleEndian.AppendUint64(b, at[1])
	b = binary.LittleEndian.AppendUint32(b, crc32.Checksum(b, castagnoli))
	_, err := c.file.WriteAt(b, 0)
	return err
}

// Close closes the file.
func (c *ConfirmedFile) Close() error {
	if c == nil {
		return nil
	}
	return c.file.Close()
}
