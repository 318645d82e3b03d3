// SPDX-License-Identifier: Apache-2.0

package wal

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"sync"

	"github.com/rs/zerolog"

	"github.com/edgebus/edgebus/broker/daemon/datadir"
)

// Options configure a log. Dir is needed.
type Options struct {
	Dir     string
	Name    string // of the log, in log lines and errors
	Keeps   string // what is lost without it, in log lines and errors
	Segment int    // bytes after which a segment is ended
	Reserve int64  // bytes on disk that are kept for AppendReserved and Cut; 0: none
	Log     zerolog.Logger
	// ReadOnly opens the log for reading alone: no file is made, changed, locked or removed, and frames are refused.
	ReadOnly bool
	// Wrap replaces the log's files in tests.
	Wrap func(*os.File) File
}

// File is what a log needs of the segment that it writes to.
type File interface {
	WriteAt(b []byte, at int64) (int, error)
	Sync() error
	Truncate(size int64) error
	Close() error
}

// Position is the position of a frame.
type Position struct {
	Segment uint64
	At      int64 // bytes from the file's beginning
}

// Log is an open log. It is opened by [Open], then [Log.Scan], then [Log.Begin]; after
// that frames can be appended. Its methods may be called from any goroutine then.
type Log struct {
	opts Options
	lock *os.File
	used bool // the directory had been used before it was opened

	writing   sync.Mutex // held while a frame is written, or a segment begun
	file      File
	suspect   bool                 // the file may end with bytes that were not acknowledged
	unrotated bool                 // the last attempt to make a new segment failed
	inUse     datadir.FileIdentity // the file
	last      frameSum             // of the last frame
	room      int64                // how long the file is: zeros follow the last frame
	reserve   diskReserve
	confirmed *datadir.ConfirmedFile

	tail logTail

	acknowledged Position // where the log ended when its last frame was acknowledged; zero: not known
	scanned      Position // where the frames end of the segment that Scan has read last

	segments segmentList
	readFrom openSegment
}

var errReadOnly = errors.New("it is open for reading only")

// Open opens a directory, which it makes if need be, and locks it against other processes.
func Open(o Options) (*Log, error) {
	if o.Wrap == nil {
		o.Wrap = func(f *os.File) File { return SyncedFile{f} }
	}
	l := &Log{opts: o}
	_, err := os.Stat(filepath.Join(o.Dir, "lock"))
	l.used = err == nil
	if !o.ReadOnly {
		if err := datadir.MakeDir(o.Dir); err != nil {
			return nil, err
		}
		var err error
		if l.lock, err = lockFile(filepath.Join(o.Dir, "lock"), o.Name); err != nil {
			return nil, err
		}
	}
	l.readConfirmed()
	if err := l.list(); err != nil {
		_ = l.Close()
		return nil, err
	}
	return l, nil
}

// Append makes a frame durable, and returns its place. The frame's body begins after HeadSize bytes, which are filled in
// here. After an error nothing of the frame is in the log. It fails while the disk has no room for the reserve besides.
func (l *Log) Append(frame []byte) (at Position, err error) {
	l.writing.Lock()
	defer l.writing.Unlock()
	if l.opts.ReadOnly {
		return at, errReadOnly
	}
	if err := l.restock(); err != nil {
		return at, err
	}
	return l.append(frame)
}

// append makes frames durable with one sync, all or, unless the machine fails meanwhile, none, and returns the place of the first.
func (l *Log) append(frames ...[]byte) (at Position, err error) {
	size := 0
	for _, f := range frames {
		size += len(f)
	}
	switch {
	case l.opts.ReadOnly:
		return at, errReadOnly
	case size > MaxFrame:
		return at, fmt.Errorf("%d bytes in one commit", size)
	}
	if err := l.inUse.CheckInPlace(); err != nil {
		return at, err
	}
	if err := l.truncateSuspect(); err != nil {
		return at, err
	}
	at = l.segments.end()
	if at.At > MaxFrame { // a place is within 32 bits
		if err := l.begin(at.Segment + 1); err != nil {
			return at, err
		}
		at = l.segments.end()
	}
	end, last := at, l.last
	for i, f := range frames {
		frames[i] = sealFrame(f, end, last)
		end.At += int64(len(frames[i]))
		last = sumOf(frames[i])
	}
	more := moreRoom(l.room, at.At, end.At, int64(l.opts.Segment))
	err = l.write(at, frames, more)
	if err != nil && more > 0 {
		if err = l.truncateSuspect(); err == nil {
			err = l.write(at, frames, 0)
		}
	}
	if err != nil {
		_ = l.truncateSuspect() // or before the next frame
		return at, fmt.Errorf("%s: %w", l.Path(at.Segment), err)
	}
	l.last = last
	l.segments.grow(end.At - at.At)
	l.tail.advance(end)
	l.confirm()
	l.rotate()
	return at, nil
}

// roomChunk is how many zeros are written at once behind a frame for which the file must grow. A file system commits its journal, four blocks and another wait
// for the disk, whenever a file that has grown is synced: so it does that once for all frames that fit, and not for each.
const roomChunk = 64 << 10

// moreRoom is how many zeros are to be written behind frames from at to end, in a file so long; 0 if there is room, or if frames are so long that it is no matter.
func moreRoom(length, at, end, segment int64) int64 {
	if end <= length || end-at > roomChunk/4 {
		return 0
	}
	return max(min(end+roomChunk, segment)-end, 0)
}

// write writes frames that are sealed, with zeros behind them, and syncs them.
func (l *Log) write(at Position, frames [][]byte, zeros int64) (err error) {
	l.suspect = true
	for _, f := range frames {
		if _, err := l.file.WriteAt(f, at.At); err != nil {
			return err
		}
		at.At += int64(len(f))
	}
	if zeros > 0 {
		if _, err := l.file.WriteAt(make([]byte, zeros), at.At); err != nil {
			return err
		}
	}
	if err := l.file.Sync(); err != nil {
		return err
	}
	l.suspect = false
	l.room = max(l.room, at.At+zeros)
	return nil
}

// Probe reports whether a frame of n bytes could be appended now. It writes as much behind the last frame, and takes that away again.
func (l *Log) Probe(n int) error {
	l.writing.Lock()
	defer l.writing.Unlock()
	if l.opts.ReadOnly {
		return errReadOnly
	}
	if err := l.restock(); err != nil {
		return err
	}
	if err := l.inUse.CheckInPlace(); err != nil {
		return err
	}
	if err := l.truncateSuspect(); err != nil {
		return err
	}
	at := l.segments.end()
	l.suspect = true
	_, err := l.file.WriteAt(make([]byte, n+markSize), at.At)
	if err == nil {
		err = l.file.Sync()
	}
	if err != nil {
		err = fmt.Errorf("%s: %w", l.Path(at.Segment), err)
	}
	return errors.Join(err, l.truncateSuspect())
}

// truncateSuspect truncates the file to its last acknowledged frame after a failed write: what was refused must not be there after a restart.
func (l *Log) truncateSuspect() error {
	if !l.suspect {
		return nil
	}
	at := l.segments.end()
	err := l.file.Truncate(at.At)
	if err == nil {
		err = l.file.Sync()
	}
	if err != nil {
		return fmt.Errorf("%s: %w", l.Path(at.Segment), err)
	}
	l.suspect, l.room = false, at.At
	return nil
}

// rotate begins another segment if this one is long enough. If that fails, the log goes on with this segment.
func (l *Log) rotate() {
	if l.segments.end().At < int64(l.opts.Segment) {
		return
	}
	err := l.begin(l.segments.end().Segment + 1)
	if err != nil && !l.unrotated {
		l.opts.Log.Warn().Err(err).Msg(l.opts.Name + ": no new segment")
	}
	l.unrotated = err != nil
}

// Cut begins another segment, unless the last one is empty.
func (l *Log) Cut() error {
	l.writing.Lock()
	defer l.writing.Unlock()
	if l.segments.end().At == HeaderSize {
		return nil
	}
	if err := l.truncateSuspect(); err != nil {
		return err
	}
	err := l.begin(l.segments.end().Segment + 1)
	if datadir.IsFull(err) && l.reserve.release(ReserveSlack, 0) {
		err = l.begin(l.segments.end().Segment + 1)
	}
	return err
}

// begin makes a segment, to which the log writes from then on. The file is renamed to its final name once its header is on disk,
// because a segment without a header counts as damaged.
func (l *Log) begin(number uint64) error {
	path := l.Path(number)
	f, err := os.OpenFile(path+".new", os.O_RDWR|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return err
	}
	w := l.opts.Wrap(f)
	h := segmentHeader{base: l.Base(), last: l.last, identity: l.tail.id()}
	if l.file != nil {
		h.before = l.segments.end().At
	}
	_, err = w.WriteAt(h.append(nil, number), 0)
	if err == nil {
		err = w.Sync()
	}
	if err == nil {
		err = os.Rename(path+".new", path)
	}
	var inUse datadir.FileIdentity
	if err == nil {
		inUse, err = datadir.IdentifyFile(path)
	}
	if err == nil {
		err = datadir.SyncDir(l.opts.Dir)
	}
	if err != nil {
		_ = w.Close()
		_ = os.Remove(path + ".new")
		_ = os.Remove(path)
		return fmt.Errorf("%s: %w", path, err)
	}
	if l.file != nil {
		l.markFollowed()
		_ = l.file.Close()
	}
	l.file, l.inUse, l.room = w, inUse, HeaderSize
	l.segments.add(segmentFile{number, HeaderSize, h.before})
	l.confirm()
	return nil
}

// markFollowed marks the current segment as followed by another, which exists by now: if that is missing later, the log is refused.
func (l *Log) markFollowed() {
	at := l.segments.end()
	head := followMark(at, l.last)
	_, err := l.file.WriteAt(head[:], at.At)
	if err == nil && l.room > at.At+HeadSize {
		err = l.file.Truncate(at.At + HeadSize)
	}
	if err != nil || l.file.Sync() != nil {
		_ = l.file.Truncate(at.At)
		return
	}
	l.segments.grow(HeadSize)
}

// Retire removes the segments before number. The owner has stored their contents elsewhere.
func (l *Log) Retire(number uint64) error { return l.segments.retire(number, l.remove) }

// Segments are the numbers of the oldest segment and of the one that is written to:
// all before that are closed. There are none before Begin if oldest is 0.
func (l *Log) Segments() (oldest, newest uint64) { return l.segments.ends() }

// Base is the oldest segment that is needed, as of the last Retire.
func (l *Log) Base() uint64 { return l.segments.needed() }

// Size is the sum of all segments' sizes in bytes.
func (l *Log) Size() int64 { return l.segments.size.Load() }

// Count is the number of segments.
func (l *Log) Count() int64 { return l.segments.count.Load() }

// remove removes a segment's file, which is not read from any more.
func (l *Log) remove(number uint64) error {
	l.readFrom.closeUpTo(number)
	return os.Remove(l.Path(number))
}

// Path is a segment's file.
func (l *Log) Path(number uint64) string {
	return filepath.Join(l.opts.Dir, fmt.Sprintf("%012d.log", number))
}

// InPlace returns an error if a segment that is needed was removed, moved or replaced since it was opened.
func (l *Log) InPlace() error {
	l.writing.Lock()
	inUse := l.inUse
	l.writing.Unlock()
	if err := inUse.CheckInPlace(); err != nil {
		return err
	}
	return l.segments.check(func(number uint64) error {
		if _, err := os.Stat(l.Path(number)); errors.Is(err, os.ErrNotExist) {
			return fmt.Errorf("%s was removed or moved while it was in use", l.Path(number))
		}
		return nil
	})
}

// Close closes the files.
func (l *Log) Close() error {
	l.writing.Lock()
	defer l.writing.Unlock()
	var errs []error
	if l.file != nil {
		if end := l.segments.end(); l.room > end.At {
			_ = l.file.Truncate(end.At) // or at the next start
		}
		errs = append(errs, l.file.Close())
	}
	l.readFrom.replace(0, nil)
	if l.reserve.file != nil {
		errs = append(errs, l.reserve.file.Close())
		l.reserve.file, l.reserve.size = nil, 0
	}
	errs = append(errs, l.confirmed.Close())
	if l.lock != nil {
		errs = append(errs, l.lock.Close())
	}
	return errors.Join(errs...)
}

// Damaged returns the error for a segment with damage at a position.
func (l *Log) Damaged(at Position, what error) error {
	return fmt.Errorf("%s is damaged at byte %d: %w; restore the directory %s from a backup, or move it away to begin anew without "+
		"%s in it", l.Path(at.Segment), at.At, what, l.opts.Dir, l.opts.Keeps)
}

// SegmentSnapshot is a segment as it was at one moment. The file may have grown since.
type SegmentSnapshot struct {
	path string
	size int64
}

// Path is the segment's file.
func (p SegmentSnapshot) Path() string { return p.path }

// Size is the size that it had.
func (p SegmentSnapshot) Size() int64 { return p.size }

// Copy writes the segment, up to that size.
func (p SegmentSnapshot) Copy(w io.Writer) error {
	f, err := os.Open(p.path)
	if err != nil {
		return err
	}
	defer f.Close()
	if _, err := io.CopyN(w, f, p.size); err != nil {
		return fmt.Errorf("%s: %w", p.path, err)
	}
	return nil
}

// Snapshot is the log as it is at one moment: all that was appended, and nothing of a frame that is being written. also is
// called at that moment: nothing is appended until it returns. Retired segments are not removed before release is called.
func (l *Log) Snapshot(also func() error) (pieces []SegmentSnapshot, release func(), err error) {
	l.writing.Lock()
	defer l.writing.Unlock()
	if err := also(); err != nil {
		return nil, nil, err
	}
	for _, s := range l.segments.pin() {
		pieces = append(pieces, SegmentSnapshot{l.Path(s.number), s.size})
	}
	return pieces, l.unpin, nil
}

func (l *Log) unpin() {
	if err := l.segments.unpin(l.remove); err != nil {
		l.opts.Log.Warn().Err(err).Msg(l.opts.Name + ": a segment that isn't needed can't be removed")
	}
}
