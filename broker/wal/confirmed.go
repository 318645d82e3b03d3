// SPDX-License-Identifier: Apache-2.0

package wal

import (
	"fmt"
	"path/filepath"

	"github.com/edgebus/edgebus/broker/daemon/datadir"
)

// What is cut off the end of a log can look like what a crash leaves, or like nothing at all. So a file beside the segments has the
// segment and the place in it where the log ended when its last frame had been synced: see [datadir.Confirmed].

func (l *Log) confirmedPath() string { return filepath.Join(l.opts.Dir, datadir.ConfirmedSuffix) }

// readConfirmed reads the file, before any segment is.
func (l *Log) readConfirmed() {
	at, _, err := datadir.ReadConfirmed(l.confirmedPath())
	if err != nil {
		l.opts.Log.Warn().Err(err).Msg(l.opts.Name + ": the record of where it ended can't be used")
	}
	l.acknowledged = Position{at[0], int64(at[1])}
}

// openConfirmed opens the file for writing. A log opens without one that a full disk has no room for.
func (l *Log) openConfirmed() (err error) {
	l.confirmed, err = datadir.OpenConfirmed(l.confirmedPath(), l.endNumbers())
	if datadir.IsFull(err) {
		l.opts.Log.Warn().Err(err).Msg(l.opts.Name + ": where it ends can't be recorded before the next start, so that one can't tell whether what was written last is missing")
		return nil
	}
	return err
}

func (l *Log) endNumbers() [2]uint64 {
	end := l.segments.end()
	return [2]uint64{end.Segment, uint64(end.At)}
}

// confirm records where the log ends. If that fails, the record is an older one.
func (l *Log) confirm() {
	if l.confirmed != nil {
		_ = l.confirmed.Write(l.endNumbers())
	}
}

// checkEnd is the error for a segment that ends before the place up to which it was acknowledged; nil if it doesn't.
func (l *Log) checkEnd(end Position) error {
	if end.Segment != l.acknowledged.Segment || end.At >= l.acknowledged.At {
		return nil
	}
	return fmt.Errorf("%s has lost its end: it is whole up to byte %d, and was acknowledged up to byte %d; restore the directory %s from a backup, "+
		"move it away to begin anew without %s in it, or remove %s to go on with what is left",
		l.Path(end.Segment), end.At, l.acknowledged.At, l.opts.Dir, l.opts.Keeps, l.confirmedPath())
}
