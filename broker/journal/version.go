// SPDX-License-Identifier: Apache-2.0

package journal

import (
	"encoding/binary"
	"fmt"
)

// versionRecord has the version of what the records are, which is the owners' own: they write what that version has. It is a record like others: a copy has it
// with what was written before it, and so has a backup.
const versionRecord = originRecord + 1

// firstVersion is the one of a journal that doesn't say it.
const firstVersion = 1

// VersionError is why a program can't use records, or apply frames: they are, or will be, of a version that it doesn't know.
type VersionError struct{ Needed, Known uint32 }

func (e *VersionError) Error() string {
	return fmt.Sprintf("the records are of version %d, and this program knows them up to version %d: upgrade it to one that knows version %d", e.Needed, e.Known, e.Needed)
}

// VersionOf is the version of a journal's records.
func VersionOf(j *Journal) uint32 { return max(j.version.Load(), firstVersion) }

// SetVersion has a journal's records be of a version. Records that only this version has may be written once it has returned.
func SetVersion(j *Journal, version uint32) error {
	if err := j.opts.checkVersion(version); err != nil {
		return err
	}
	err := j.Sync([]RecordChange{{ID: versionRecord, Value: binary.LittleEndian.AppendUint32(nil, version)}})
	if err == nil {
		j.version.Store(version)
	}
	return err
}

func (o *Options) checkVersion(version uint32) error {
	if o.Version > 0 && version > o.Version {
		return &VersionError{Needed: version, Known: o.Version}
	}
	return nil
}

// versionIn is the version that an operation sets; 0: it sets none.
func (op frameOperation) versionIn() (uint32, error) {
	if op.kind != opPut || op.id != versionRecord {
		return 0, nil
	}
	if len(op.value) != 4 {
		return 0, errOperation
	}
	return binary.LittleEndian.Uint32(op.value), nil
}
