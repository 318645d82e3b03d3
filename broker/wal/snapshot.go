package wal

import (
	"fmt"
	"io"
	"os"
)

// Piece is a segment as it was at one moment: the beginning of a file that may have grown since.
type Piece struct {
	path string
	size int64
}

// Path is the segment's file.
func (p Piece) Path() string { return p.path }

// Size is how much of it was there.
func (p Piece) Size() int64 { return p.size }

// Copy writes it.
func (p Piece) Copy(w io.Writer) error {
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

// Snapshot is the log as it is at one moment: all that was appended, and nothing of a
// frame that is being written. also is called at that moment: nothing is appended until
// it returns. Segments stay where they are until release is called, although they may be retired.
func (l *Log) Snapshot(also func() error) (pieces []Piece, release func(), err error) {
	l.writing.Lock()
	defer l.writing.Unlock()
	if err := also(); err != nil {
		return nil, nil, err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, s := range l.segments {
		if s.number >= l.base {
			pieces = append(pieces, Piece{l.Path(s.number), s.size})
		}
	}
	l.pins++
	return pieces, l.unpin, nil
}

// unpin ends a snapshot. What can't be removed is removed at the next start.
func (l *Log) unpin() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.pins--; l.pins > 0 {
		return
	}
	for _, number := range l.kept {
		if err := os.Remove(l.Path(number)); err != nil {
			l.opts.Log.Warn().Err(err).Msg(l.opts.Name + ": a segment that isn't needed can't be removed")
		}
	}
	l.kept = nil
}
