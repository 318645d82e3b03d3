package wal

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// list finds the segments.
func (l *Log) list() error {
	entries, err := os.ReadDir(l.opts.Dir) // sorted
	if err != nil {
		return err
	}
	for _, e := range entries {
		name, is := strings.CutSuffix(e.Name(), ".log")
		if !is {
			continue
		}
		n, err := strconv.ParseUint(name, 10, 64)
		if err != nil || l.Path(n) != filepath.Join(l.opts.Dir, e.Name()) {
			return fmt.Errorf("%s is no part of %s", filepath.Join(l.opts.Dir, e.Name()), l.opts.Name)
		}
		l.add(segment{number: n})
	}
	return nil
}

// Scan checks the segments from a number on from end to end, and hands over each
// frame's body, valid during the call. It is called once.
func (l *Log) Scan(from uint64, each func(at Place, body []byte) error) error {
	l.base = max(l.base, from)
	var text []byte
	for i := range l.segments {
		if l.segments[i].number < from {
			continue
		}
		var err error
		if text, err = l.scan(&l.segments[i], i == len(l.segments)-1, text, each); err != nil {
			return err
		}
	}
	return nil
}

// scan checks a segment. Only the last one may have been torn, since the one before is
// complete before another is begun.
func (l *Log) scan(s *segment, last bool, buf []byte, each func(Place, []byte) error) (text []byte, err error) {
	if text, err = readFile(l.Path(s.number), buf); err != nil {
		return nil, err
	}
	base, ok := parseHeader(text, s.number)
	if !ok {
		return nil, l.Damaged(Place{s.number, 0}, errors.New("no header of "+l.opts.Name))
	}
	l.base = max(l.base, base)
	s.size = HeaderSize
	for s.size < int64(len(text)) {
		at := Place{s.number, s.size}
		body, ok := frameAt(text, at)
		if !ok {
			if next := whole(text, at); !last || next >= 0 {
				return nil, l.Damaged(at, errors.New("a frame's checksum is wrong"))
			}
			l.opts.Log.Info().Str("file", l.Path(s.number)).Int64("bytes", int64(len(text))-s.size).
				Msg(l.opts.Name + ": the end of the last write, which was never acknowledged, is dropped")
			break
		}
		if err := each(at, body); err != nil {
			return nil, l.Damaged(at, err)
		}
		s.size += int64(HeadSize + len(body))
	}
	l.size.Add(s.size)
	return text, nil
}

// whole finds the first whole frame behind a place. One behind a broken one means
// damage, for each was on disk before the next was written.
func whole(text []byte, at Place) int64 {
	var magic [4]byte
	binary.LittleEndian.PutUint32(magic[:], frameMagic)
	for from := at.At + 1; from < int64(len(text)); from++ {
		i := bytes.Index(text[from:], magic[:])
		if i < 0 {
			return -1
		}
		from += int64(i)
		if _, ok := frameAt(text, Place{at.Segment, from}); ok {
			return from
		}
	}
	return -1
}

// readFile reads a file into a buffer, if it is large enough, or into one of its own.
func readFile(path string, buf []byte) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return nil, err
	}
	if int64(cap(buf)) < info.Size() {
		buf = make([]byte, info.Size())
	}
	n, err := io.ReadFull(f, buf[:info.Size()])
	return buf[:n], err
}

// Begin goes on at the log's end. Segments before base, or before what the log itself
// knows of it, are not needed, and removed; those from there on must be there. With base 0 the
// log may be a new one.
func (l *Log) Begin(base uint64) error {
	l.base = max(l.base, base)
	if len(l.segments) == 0 && l.base == 0 {
		if l.opts.ReadOnly {
			return nil
		}
		return l.begin(1)
	}
	newest, err := l.gapless()
	if err != nil || l.opts.ReadOnly {
		return err
	}
	if err := l.Retire(l.base); err != nil {
		return err
	}
	f, err := os.OpenFile(l.Path(newest), os.O_RDWR, 0)
	if err != nil {
		return err
	}
	l.file = l.opts.Wrap(f)
	l.suspect = true // of what may stand behind the last frame
	return l.mend()
}

// gapless checks that all segments are there that are needed.
func (l *Log) gapless() (newest uint64, err error) {
	next := max(l.base, 1)
	for _, s := range l.segments {
		if s.number == next {
			newest = next
			next++
		} else if s.number > next {
			break
		}
	}
	if newest == 0 || newest != l.segments[len(l.segments)-1].number {
		return 0, fmt.Errorf("%s is missing; restore the directory %s from a backup, or move it away to begin anew without %s in it",
			l.Path(next), l.opts.Dir, l.opts.Keeps)
	}
	return newest, nil
}

// Reader goes through a segment's frames.
type Reader struct {
	log  *Log
	text []byte
	at   Place
	size int64
}

// Read begins to go through a segment, up to its present end. The memory of a reader
// that has done its work serves again, if there is one.
func (l *Log) Read(number uint64, done *Reader) (*Reader, error) {
	r := &Reader{log: l, at: Place{number, HeaderSize}, size: l.sizeOf(number)}
	var buf []byte
	if done != nil {
		buf = done.text
	}
	text, err := readFile(l.Path(number), buf)
	if err == nil && int64(len(text)) < r.size {
		err = io.ErrUnexpectedEOF
	}
	if err != nil {
		return nil, fmt.Errorf("%s: %w", l.Path(number), err)
	}
	r.text = text
	return r, nil
}

// Next is the next frame's body, and where it is. At the end it is [io.EOF].
func (r *Reader) Next() (body []byte, at Place, err error) {
	if r.at.At >= r.size {
		return nil, r.at, io.EOF
	}
	body, ok := frameAt(r.text[:r.size], r.at)
	if !ok {
		return nil, r.at, r.log.Damaged(r.at, errors.New("it was well when it was opened"))
	}
	at = r.at
	r.at.At += int64(HeadSize + len(body))
	return body, at, nil
}

func (l *Log) sizeOf(number uint64) int64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, s := range l.segments {
		if s.number == number {
			return s.size
		}
	}
	return 0
}
