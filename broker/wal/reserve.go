// SPDX-License-Identifier: Apache-2.0

package wal

import (
	"fmt"
	"io"
	"os"
	"path/filepath"

	"github.com/edgebus/edgebus/broker/daemon/datadir"
)

// A full disk can only get room again by writing: what is deleted is deleted by a frame, and a segment is retired by one. The
// reserve is a file whose room is given up for such frames, and taken again before any other frame is written.
type diskReserve struct {
	file *os.File // nil: it was not opened yet
	size int64    // bytes that it takes on disk
}

// ReserveSlack is what a file system may need besides a frame's own bytes: a block for its end, one for the next segment, and metadata.
const ReserveSlack = 64 << 10

// Reserved is how many bytes are reserved now.
func (l *Log) Reserved() int64 {
	l.writing.Lock()
	defer l.writing.Unlock()
	return l.reserve.size
}

// restock reserves what is missing.
func (l *Log) restock() error { return l.reserve.restock(l.opts.Dir, l.opts.Reserve) }

// restock makes the reserve in a directory so large. It fails if the disk is full; where nothing can be reserved for another reason,
// the log goes on without.
func (r *diskReserve) restock(dir string, size int64) error {
	if r.size >= size {
		return nil
	}
	path := filepath.Join(dir, "reserve")
	if r.file == nil {
		f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
		if err != nil {
			return ignoreUnlessFull(err)
		}
		r.file = f
		// What an earlier process has left of it stays, if it has its room on disk: a copy of the file may be without.
		if info, err := f.Stat(); err == nil && info.Size() > 0 && allocateFile(f, min(info.Size(), size)) == nil {
			r.size = min(info.Size(), size)
		}
		return r.restock(dir, size)
	}
	if err := allocateFile(r.file, size); err != nil {
		_ = r.file.Truncate(r.size)
		return ignoreUnlessFull(fmt.Errorf("%s: %w", path, err))
	}
	r.size = size
	return nil
}

func ignoreUnlessFull(err error) error {
	if datadir.IsFull(err) {
		return err
	}
	return nil
}

// release gives up n bytes of the reserve, or all that is left, but keeps so many. It reports whether the disk has more room now.
func (r *diskReserve) release(n, keep int64) bool {
	left := max(r.size-n, 0)
	if r.size == 0 || left < keep || r.file.Truncate(left) != nil {
		return false
	}
	r.size = left
	return r.file.Sync() == nil // ext4 gives room back when it has synced
}

// AppendReserved is Append for a frame after which the log can be shorter: on a full disk it takes room of the reserve, of which it
// leaves so many bytes.
func (l *Log) AppendReserved(frame []byte, keep int64) (at Position, err error) {
	l.writing.Lock()
	defer l.writing.Unlock()
	at, err = l.append(frame)
	if datadir.IsFull(err) && l.reserve.release(int64(len(frame))+ReserveSlack, keep) {
		at, err = l.append(frame)
	}
	return at, err
}

// writeZeros makes a file so long.
func writeZeros(f *os.File, size int64) error {
	info, err := f.Stat()
	if err != nil || info.Size() >= size {
		return err
	}
	_, err = io.CopyN(io.NewOffsetWriter(f, info.Size()), zeroReader{}, size-info.Size())
	if err == nil {
		err = f.Sync() // or it may find out later that there is no room
	}
	return err
}

type zeroReader struct{}

func (zeroReader) Read(b []byte) (int, error) {
	clear(b)
	return len(b), nil
}
