package wal

import (
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"os"
	"path/filepath"
)

// What is cut off the end of a log can look like what a crash leaves, or like nothing at all. So a file beside the segments has
// where the log ended when its last frame had been synced. It is written after the frame, in place, and not synced: it survives
// the end of the process with the frame, and after a power cut it is an older one, which names less than there is. It never
// names more than was on disk; a log that ends before that place has lost what was acknowledged.
const (
	confirmedName  = "confirmed"
	confirmedMagic = "edgebusC"
	confirmedSize  = 28 // magic, segment, end, checksum
)

// confirmed is the open file.
type confirmed struct {
	file *os.File // nil: none
	end  Place    // as it was when the log was opened; zero: unknown
}

func (l *Log) confirmedPath() string { return filepath.Join(l.opts.Dir, confirmedName) }

// readConfirmed reads the file, before any segment is. One that can't be read is none: a power cut may leave it so.
func (l *Log) readConfirmed() error {
	b, err := os.ReadFile(l.confirmedPath())
	if os.IsNotExist(err) {
		return nil
	}
	if err != nil {
		return err
	}
	if len(b) != confirmedSize || string(b[:8]) != confirmedMagic || binary.LittleEndian.Uint32(b[24:]) != crc32.Checksum(b[:24], castagnoli) {
		l.opts.Log.Warn().Str("file", l.confirmedPath()).
			Msg(l.opts.Name + ": the record of where it ended is damaged, so this start can't tell whether its end is missing; the record is written anew")
		return nil
	}
	l.confirmed.end = Place{binary.LittleEndian.Uint64(b[8:]), int64(binary.LittleEndian.Uint64(b[16:]))}
	return nil
}

// openConfirmed opens the file for writing, and makes it if need be.
func (l *Log) openConfirmed() error {
	_, err := os.Stat(l.confirmedPath())
	made := os.IsNotExist(err)
	if l.confirmed.file, err = os.OpenFile(l.confirmedPath(), os.O_RDWR|os.O_CREATE, 0o600); err != nil {
		return err
	}
	if err := l.confirmed.file.Truncate(confirmedSize); err != nil {
		return fmt.Errorf("%s: %w", l.confirmedPath(), err)
	}
	l.confirm()
	if !made {
		return nil
	}
	if err := l.confirmed.file.Sync(); err != nil {
		return fmt.Errorf("%s: %w", l.confirmedPath(), err)
	}
	return syncDir(l.opts.Dir)
}

// confirm records where the log ends. If that fails, the record is an older one.
func (l *Log) confirm() {
	if l.confirmed.file == nil {
		return
	}
	end := l.end()
	b := make([]byte, 0, confirmedSize)
	b = append(b, confirmedMagic...)
	b = binary.LittleEndian.AppendUint64(b, end.Segment)
	b = binary.LittleEndian.AppendUint64(b, uint64(end.At))
	b = binary.LittleEndian.AppendUint32(b, crc32.Checksum(b, castagnoli))
	_, _ = l.confirmed.file.WriteAt(b, 0)
}

// shortened is the error for a segment that ends before the place up to which it was acknowledged; nil if it doesn't.
func (l *Log) shortened(end Place) error {
	c := l.confirmed.end
	if c.Segment != end.Segment || end.At >= c.At {
		return nil
	}
	return fmt.Errorf("%s has lost its end: it is whole up to byte %d, and was acknowledged up to byte %d; restore the directory %s from a backup, "+
		"move it away to begin anew without %s in it, or remove %s to go on with what is left",
		l.Path(end.Segment), end.At, c.At, l.opts.Dir, l.opts.Keeps, l.confirmedPath())
}
