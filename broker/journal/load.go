package journal

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

// read finds out what there is, and goes on writing at its end.
func (j *Journal) read() error {
	if err := j.scan(); err != nil {
		return err
	}
	if len(j.segments) == 0 {
		return j.begin(1)
	}
	if err := j.prune(); err != nil {
		return err
	}
	last := j.current()
	f, err := os.OpenFile(last.path, os.O_RDWR, 0)
	if err != nil {
		return err
	}
	j.file = j.wrap(f)
	j.suspect = true // of what may stand behind the last frame
	return j.mend()
}

// scan checks the segments from end to end, and that those needed are there.
func (j *Journal) scan() error {
	numbers, err := j.list()
	if err != nil {
		return err
	}
	var text []byte
	for i, number := range numbers {
		if text, err = j.readSegment(number, i == len(numbers)-1, text); err != nil {
			return err
		}
	}
	if len(j.segments) == 0 {
		return nil
	}
	if first := j.segments[0].number; first > max(j.base, 1) {
		return fmt.Errorf("%s is missing", j.path(max(j.base, 1)))
	}
	for _, s := range j.segments {
		if s.number < j.base && s.live > 0 {
			return j.damaged(s.path, 0, errors.New("it has records that were copied, and are missing where they were copied to"))
		}
	}
	return nil
}

// list gives the segments' numbers, which have no gap.
func (j *Journal) list() (numbers []uint64, err error) {
	entries, err := os.ReadDir(j.opts.Dir) // sorted
	if err != nil {
		return nil, err
	}
	for _, e := range entries {
		name, is := strings.CutSuffix(e.Name(), ".log")
		if !is {
			continue
		}
		n, err := strconv.ParseUint(name, 10, 64)
		if err != nil || j.path(n) != filepath.Join(j.opts.Dir, e.Name()) {
			return nil, fmt.Errorf("%s is no part of %s", filepath.Join(j.opts.Dir, e.Name()), j.opts.Name)
		}
		if k := len(numbers); k > 0 && numbers[k-1]+1 != n {
			return nil, fmt.Errorf("%s is missing", j.path(numbers[k-1]+1))
		}
		numbers = append(numbers, n)
	}
	return numbers, nil
}

// readSegment takes a segment into the index. Only the last one may have been
// torn, since the one before is complete before another is begun.
func (j *Journal) readSegment(number uint64, last bool, buf []byte) (text []byte, err error) {
	path := j.path(number)
	if text, err = readFile(path, buf); err != nil {
		return nil, err
	}
	base, ok := parseHeader(text, number)
	if !ok {
		return nil, j.damaged(path, 0, errors.New("no header of "+j.opts.Name))
	}
	j.base = max(j.base, base)
	s := &segment{number: number, path: path, size: headerSize}
	j.segments = append(j.segments, s)
	for s.size < int64(len(text)) {
		body, ok := frameAt(text, number, s.size)
		if !ok {
			if next := whole(text, number, s.size+1); !last || next >= 0 {
				return nil, j.damaged(path, s.size, errors.New("a frame's checksum is wrong"))
			}
			j.opts.Log.Info().Str("file", path).Int64("bytes", int64(len(text))-s.size).
				Msg(j.opts.Name + ": the end of the last write, which was never acknowledged, is dropped")
			break
		}
		if err := j.replay(s, body); err != nil {
			return nil, j.damaged(path, s.size, err)
		}
		s.size += int64(frameHead + len(body))
	}
	j.stats.bytes.Add(s.size)
	return text, nil
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

// whole finds the first whole frame at or after a place. One behind a broken one
// means damage, for each was on disk before the next was written.
func whole(text []byte, number uint64, from int64) int64 {
	var magic [4]byte
	binary.LittleEndian.PutUint32(magic[:], frameMagic)
	for from < int64(len(text)) {
		i := bytes.Index(text[from:], magic[:])
		if i < 0 {
			return -1
		}
		from += int64(i)
		if _, ok := frameAt(text, number, from); ok {
			return from
		}
		from++
	}
	return -1
}

func (j *Journal) replay(s *segment, body []byte) error {
	at := s.size + frameHead
	for len(body) > 0 {
		op, err := nextOp(body)
		if err != nil {
			return err
		}
		if op.kind == opBase {
			j.base = max(j.base, op.id)
		} else {
			j.account(op.id, place{s.number, uint32(at), uint32(op.size)}, op.kind == opPut)
		}
		at += int64(op.size)
		body = body[op.size:]
	}
	return nil
}

// prune removes the segments that aren't needed.
func (j *Journal) prune() error {
	for len(j.segments) > 1 && j.segments[0].number < j.base {
		s := j.segments[0]
		if err := os.Remove(s.path); err != nil {
			return err
		}
		j.stats.bytes.Add(-s.size)
		j.segments = j.segments[1:]
	}
	return nil
}

// Load goes through the live records; commits wait as long. A value is only valid
// during the call. An error from each ends it, and names the file.
func (j *Journal) Load(each func(id uint64, value []byte) error) error {
	j.files.Lock()
	defer j.files.Unlock()
	var text []byte
	for _, s := range j.segments {
		if s.live == 0 {
			continue
		}
		var err error
		if text, err = readFile(s.path, text); err != nil {
			return err
		}
		for at := int64(headerSize); at < s.size; {
			body, ok := frameAt(text, s.number, at)
			if !ok {
				return j.damaged(s.path, at, errors.New("it was well when it was opened"))
			}
			if err := j.loadFrame(s, at+frameHead, body, each); err != nil {
				return j.damaged(s.path, at, err)
			}
			at += int64(frameHead + len(body))
		}
	}
	return nil
}

func (j *Journal) loadFrame(s *segment, at int64, body []byte, each func(uint64, []byte) error) error {
	for len(body) > 0 {
		op, err := nextOp(body)
		if err != nil {
			return err
		}
		if p, ok := j.index[op.id]; ok && op.kind == opPut && p.segment == s.number && int64(p.at) == at {
			if err := each(op.id, op.value); err != nil {
				return fmt.Errorf("record %d: %w", op.id, err)
			}
		}
		at += int64(op.size)
		body = body[op.size:]
	}
	return nil
}
