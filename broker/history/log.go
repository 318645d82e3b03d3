// SPDX-License-Identifier: Apache-2.0

package history

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
)

// A log has what was recorded since the last full hour: a header and a block for each minute, which begins with its length and its
// checksum. It is only appended to. A series has the number of its first appearance in the log, where its name stands.
const (
	logMagic    = "EBHL1\n\r\n"
	blockHeader = 8
	maxBlock    = 64 << 20
)

// errDamaged is the error of a file that isn't as it was written.
var errDamaged = errors.New("the file is damaged")

// formatError is of a file in another format, of which a program makes as much as of one that is damaged.
type formatError struct{ found, own byte }

func (e formatError) Error() string {
	return fmt.Sprintf("its format is %q, this program reads %q", e.found, e.own)
}

func (formatError) Is(err error) bool { return err == errDamaged }

const formatAt = 4 // the place of the format, a digit, among the first and last bytes of files

// checkMagic compares a file's first or last bytes with those that this program writes.
func checkMagic(found, own string) error {
	switch {
	case found == own:
		return nil
	case found[:formatAt] == own[:formatAt] && found[formatAt+1:] == own[formatAt+1:] && '0' <= found[formatAt] && found[formatAt] <= '9':
		return formatError{found[formatAt], own[formatAt]}
	}
	return errDamaged
}

// logEntry is a chunk in a log.
type logEntry struct {
	id     int
	form   form
	bytes  []byte // valid until the next block is read
	offset int64  // of bytes, in the file
}

// logReader reads a log block by block.
type logReader struct {
	f      io.ReaderAt
	at     int64 // where the next block begins
	end    int64
	time   int64 // of the last block that was read
	series []SeriesKey
	buffer []byte
}

func newLogReader(f io.ReaderAt, size int64) (*logReader, error) {
	var magic [len(logMagic)]byte
	if _, err := f.ReadAt(magic[:], 0); err != nil {
		return nil, errDamaged
	}
	if err := checkMagic(string(magic[:]), logMagic); err != nil {
		return nil, err
	}
	return &logReader{f: f, at: int64(len(logMagic)), end: size}, nil
}

// next reads a block, and calls yield with its entries. ok is false at the end, and where a block is not whole.
func (r *logReader) next(yield func(logEntry)) (ok bool) {
	var head [blockHeader]byte
	if _, err := r.f.ReadAt(head[:], r.at); err != nil || r.at+blockHeader > r.end {
		return false
	}
	size := int64(binary.BigEndian.Uint32(head[:]))
	if size > maxBlock || r.at+blockHeader+size > r.end {
		return false
	}
	if int64(cap(r.buffer)) < size {
		r.buffer = make([]byte, size)
	}
	b := r.buffer[:size]
	if _, err := r.f.ReadAt(b, r.at+blockHeader); err != nil || checksum(b) != binary.BigEndian.Uint32(head[4:]) {
		return false
	}
	p := byteReader{b: b}
	t := p.varint()
	for n := p.uvarint(); n > 0 && !p.bad; n-- {
		e := logEntry{id: int(p.uvarint() & math.MaxInt32)}
		if e.id == len(r.series) {
			r.series = append(r.series, SeriesKey{p.text(), p.text()})
		}
		if e.id > len(r.series) {
			return false
		}
		e.form = form(p.uvarint())
		e.bytes = p.take(p.uvarint())
		e.offset = r.at + blockHeader + size - int64(len(p.b)) - int64(len(e.bytes))
		if !p.bad {
			yield(e)
		}
	}
	if p.bad || len(p.b) > 0 {
		return false
	}
	r.time, r.at = t, r.at+blockHeader+size
	return true
}

// logWriter appends to a log.
type logWriter struct {
	f    *os.File
	size int64
	ids  map[SeriesKey]int
}

func createLog(path string) (*logWriter, error) {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_EXCL|os.O_RDWR, 0o600)
	if err != nil {
		return nil, err
	}
	if _, err := f.WriteString(logMagic); err != nil {
		return nil, errors.Join(err, f.Close(), os.Remove(path))
	}
	return &logWriter{f: f, size: int64(len(logMagic)), ids: make(map[SeriesKey]int)}, nil
}

// block is what a minute brought.
type logBlock struct {
	entries []byte
	n       uint64
	named   []SeriesKey // series that appear for the first time
}

func (w *logWriter) add(b *logBlock, s SeriesKey, f form, bytes []byte) {
	id, known := w.ids[s]
	if !known {
		id = len(w.ids)
		w.ids[s] = id
		b.named = append(b.named, s)
	}
	b.entries = binary.AppendUvarint(b.entries, uint64(id))
	if !known {
		b.entries = appendText(appendText(b.entries, s.Device), s.Property)
	}
	b.entries = append(b.entries, byte(f))
	b.entries = binary.AppendUvarint(b.entries, uint64(len(bytes)))
	b.entries = append(b.entries, bytes...)
	b.n++
}

// write appends a block. If that fails the log is as it was before.
func (w *logWriter) write(b *logBlock, t int64) error {
	payload := binary.AppendUvarint(binary.AppendVarint(make([]byte, blockHeader, len(b.entries)+32), t), b.n)
	payload = append(payload, b.entries...)
	binary.BigEndian.PutUint32(payload, uint32(len(payload)-blockHeader))
	binary.BigEndian.PutUint32(payload[4:], checksum(payload[blockHeader:]))
	_, err := w.f.WriteAt(payload, w.size)
	if err == nil {
		err = w.f.Sync()
	}
	if err != nil {
		w.forget([]*logBlock{b})
		return errors.Join(err, w.f.Truncate(w.size))
	}
	w.size += int64(len(payload))
	return nil
}

// forget undoes add for blocks that are not written.
func (w *logWriter) forget(blocks []*logBlock) {
	for _, b := range blocks {
		for _, s := range b.named {
			delete(w.ids, s)
		}
	}
}

// reopenLog opens a log of before to append to it, without what was not written whole. each gets its entries.
func reopenLog(path string, each func(SeriesKey, form, []byte)) (w *logWriter, last int64, err error) {
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		return nil, 0, err
	}
	info, err := f.Stat()
	if err != nil {
		return nil, 0, errors.Join(err, f.Close())
	}
	r, err := newLogReader(f, info.Size())
	if err != nil {
		return nil, 0, errors.Join(fmt.Errorf("%s: %w", path, err), f.Close())
	}
	for r.next(func(e logEntry) { each(r.series[e.id], e.form, e.bytes) }) {
		last = r.time
	}
	w = &logWriter{f: f, size: r.at, ids: make(map[SeriesKey]int)}
	// A block that is not whole may have named series.
	whole := &logReader{f: f, at: int64(len(logMagic)), end: r.at}
	for whole.next(func(logEntry) {}) {
	}
	for id, s := range whole.series {
		w.ids[s] = id
	}
	return w, last, f.Truncate(r.at)
}
