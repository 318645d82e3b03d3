// SPDX-License-Identifier: Apache-2.0

package history

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"slices"

	"github.com/edgebus/edgebus/broker/daemon/datadir"
	"github.com/edgebus/edgebus/broker/history/chunk"
)

// A file has an hour: the chunks of each series, one series after the other, and a directory of them at the end. It is never changed.
const (
	fileMagic  = "EBHF1\n\r\n"
	footerSize = 8 + 8 + 4 + 4 + 4 + 4 + len(fileMagic)
)

// footer is the end of a file.
type fileFooter struct {
	from, to  int64 // the times of the samples, both inclusive
	thinned   bool
	directory uint32 // bytes of it, which stand before the footer
	checksum  uint32 // of the directory
}

// chunkEntry is a chunk in a directory.
type chunkEntry struct {
	form     form
	from, to int64
	offset   int64
	size     int
	checksum uint32
}

// seriesEntry is a series in a directory.
type seriesEntry struct {
	SeriesKey
	chunks []chunkEntry
}

// fileWriter writes a file, series by series in their order.
type fileWriter struct {
	w       *bufio.Writer
	size    int64
	entries []seriesEntry
	end     fileFooter
	encoder encoder
}

func newFileWriter(w io.Writer, thinned bool, from, to int64) (*fileWriter, error) {
	f := &fileWriter{w: bufio.NewWriterSize(w, 64<<10), end: fileFooter{from: from, to: to, thinned: thinned}}
	n, err := f.w.WriteString(fileMagic)
	f.size = int64(n)
	f.encoder.reset()
	return f, err
}

// add writes the samples of a series.
func (f *fileWriter) add(s SeriesKey, list []sample) error {
	if len(list) == 0 {
		return nil
	}
	e := seriesEntry{SeriesKey: s}
	first := 0
	f.encoder.digits = 0
	for _, v := range list {
		f.encoder.digits = max(f.encoder.digits, v.digits)
	}
	for i, v := range list {
		if !f.encoder.fits(v, chunk.MaxSamples) {
			if err := f.writeChunk(&e, list[first:i]); err != nil {
				return err
			}
			first = i
		}
		f.encoder.append(v)
	}
	if err := f.writeChunk(&e, list[first:]); err != nil {
		return err
	}
	f.entries = append(f.entries, e)
	return nil
}

func (f *fileWriter) writeChunk(e *seriesEntry, list []sample) error {
	b := f.encoder.bytes()
	c := chunkEntry{form: f.encoder.form, from: list[0].t, to: list[len(list)-1].t, offset: f.size, size: len(b), checksum: checksum(b)}
	f.end.from, f.end.to = min(f.end.from, c.from), max(f.end.to, c.to)
	e.chunks = append(e.chunks, c)
	_, err := f.w.Write(b)
	f.size += int64(len(b))
	f.encoder.reset()
	return err
}

// finish writes the directory and the footer.
func (f *fileWriter) finish() error {
	var d []byte
	d = binary.AppendUvarint(d, uint64(len(f.entries)))
	device := ""
	for _, e := range f.entries {
		name := e.Device
		if name == device {
			name = "" // as the one before
		} else {
			device = name
		}
		d = appendText(appendText(d, name), e.Property)
		d = binary.AppendUvarint(d, uint64(len(e.chunks)))
		d = binary.AppendUvarint(d, uint64(e.chunks[0].offset))
		for _, c := range e.chunks {
			d = append(d, byte(c.form))
			d = binary.AppendVarint(d, c.from-f.end.from)
			d = binary.AppendVarint(d, c.to-c.from)
			d = binary.AppendUvarint(d, uint64(c.size))
			d = binary.BigEndian.AppendUint32(d, c.checksum)
		}
	}
	f.end.directory, f.end.checksum = uint32(len(d)), checksum(d)
	d = append(d, f.end.bytes()...)
	f.size += int64(len(d))
	_, err := f.w.Write(d)
	return errors.Join(err, f.w.Flush())
}

func (f fileFooter) bytes() []byte {
	b := binary.BigEndian.AppendUint64(nil, uint64(f.from))
	b = binary.BigEndian.AppendUint64(b, uint64(f.to))
	flags := uint32(0)
	if f.thinned {
		flags = 1
	}
	b = binary.BigEndian.AppendUint32(b, flags)
	b = binary.BigEndian.AppendUint32(b, f.directory)
	b = binary.BigEndian.AppendUint32(b, f.checksum)
	b = binary.BigEndian.AppendUint32(b, checksum(b))
	return append(b, fileMagic...)
}

func readFooter(r io.ReaderAt, size int64) (f fileFooter, err error) {
	b := make([]byte, footerSize)
	if size < int64(len(fileMagic)+footerSize) {
		return f, errDamaged
	}
	if _, err := r.ReadAt(b, size-int64(footerSize)); err != nil {
		return f, err
	}
	sum := footerSize - len(fileMagic) - 4
	if err := checkMagic(string(b[sum+4:]), fileMagic); err != nil {
		return f, err
	}
	if checksum(b[:sum]) != binary.BigEndian.Uint32(b[sum:]) {
		return f, errDamaged
	}
	f = fileFooter{
		from: int64(binary.BigEndian.Uint64(b)), to: int64(binary.BigEndian.Uint64(b[8:])), thinned: binary.BigEndian.Uint32(b[16:]) == 1,
		directory: binary.BigEndian.Uint32(b[20:]), checksum: binary.BigEndian.Uint32(b[24:]),
	}
	if int64(f.directory) > size-int64(footerSize) {
		return f, errDamaged
	}
	return f, nil
}

// fileReader reads a file.
type fileReader struct {
	*os.File
	end     fileFooter
	entries []seriesEntry
	buffer  []byte
}

func openFile(path string) (*fileReader, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	r := &fileReader{File: f}
	if err := r.readDirectory(); err != nil {
		return nil, errors.Join(fmt.Errorf("%s: %w", path, err), f.Close())
	}
	return r, nil
}

func (r *fileReader) readDirectory() error {
	info, err := r.Stat()
	if err != nil {
		return err
	}
	if r.end, err = readFooter(r, info.Size()); err != nil {
		return err
	}
	d := make([]byte, r.end.directory)
	if _, err := r.ReadAt(d, info.Size()-int64(footerSize)-int64(len(d))); err != nil {
		return err
	}
	if checksum(d) != r.end.checksum {
		return errDamaged
	}
	p := byteReader{b: d}
	device := ""
	for n := p.uvarint(); n > 0 && !p.bad; n-- {
		if name := p.text(); name != "" {
			device = name
		}
		e := seriesEntry{SeriesKey: SeriesKey{device, p.text()}}
		chunks := p.uvarint()
		offset := int64(p.uvarint() & math.MaxInt64)
		for ; chunks > 0 && !p.bad; chunks-- {
			c := chunkEntry{offset: offset}
			if f := p.take(1); f != nil {
				c.form = form(f[0])
			}
			c.from = r.end.from + p.varint()
			c.to = c.from + p.varint()
			c.size = int(p.uvarint() & math.MaxInt32)
			if sum := p.take(4); sum != nil {
				c.checksum = binary.BigEndian.Uint32(sum)
			}
			offset += int64(c.size)
			if c.from < r.end.from || c.to < c.from || c.to > r.end.to || offset < 0 || offset > info.Size() {
				return errDamaged // a node may send its hub any file
			}
			e.chunks = append(e.chunks, c)
		}
		if len(e.chunks) == 0 {
			return errDamaged
		}
		r.entries = append(r.entries, e)
	}
	if p.bad {
		return errDamaged
	}
	return nil
}

func (r *fileReader) find(s SeriesKey) *seriesEntry {
	if i, ok := slices.BinarySearchFunc(r.entries, s, func(e seriesEntry, s SeriesKey) int { return e.compare(s) }); ok {
		return &r.entries[i]
	}
	return nil
}

// samples are those of a series, in order.
func (r *fileReader) samples(e *seriesEntry) (list []sample, err error) {
	for _, c := range e.chunks {
		if cap(r.buffer) < c.size {
			r.buffer = make([]byte, c.size)
		}
		b := r.buffer[:c.size]
		if _, err := r.ReadAt(b, c.offset); err != nil {
			return nil, err
		}
		if checksum(b) != c.checksum {
			return nil, fmt.Errorf("%s: %w", r.Name(), errDamaged)
		}
		before := len(list)
		list, err = decodeChunk(list, c.form, b)
		outside := slices.ContainsFunc(list[before:], func(v sample) bool { return v.t < c.from || v.t > c.to })
		if err != nil || outside || len(list) > 2*maxSamples {
			return nil, fmt.Errorf("%s: %w", r.Name(), errDamaged)
		}
	}
	return sortSamples(list), nil
}

// writeFile writes a file that is on disk, whole, once it has its name.
func writeFile(path string, thinned bool, from, to int64, fill func(*fileWriter) error) (err error) {
	f, err := os.OpenFile(path+unfinishedSuffix, os.O_CREATE|os.O_TRUNC|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			_ = os.Remove(path + unfinishedSuffix)
		}
	}()
	w, err := newFileWriter(f, thinned, from, to)
	if err == nil {
		err = fill(w)
	}
	if err == nil {
		err = w.finish()
	}
	if err == nil {
		err = f.Sync()
	}
	if err = errors.Join(err, f.Close()); err != nil {
		return err
	}
	if err = os.Rename(path+unfinishedSuffix, path); err != nil {
		return err
	}
	return datadir.SyncDir(dirOf(path))
}

// closeLog writes the file of a log: what it has, in chunks. The same log always makes the same file. Without a sample
// there is no file.
func closeLog(log, path string) (kept int, err error) {
	f, err := os.Open(log)
	if err != nil {
		return 0, err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return 0, err
	}
	r, err := newLogReader(f, info.Size())
	if err != nil {
		return 0, fmt.Errorf("%s: %w", log, err)
	}
	type place struct {
		offset int64
		size   int32
		form   form
	}
	var places [][]place // by the number of the series
	first, last := int64(math.MaxInt64), int64(math.MinInt64)
	for r.next(func(e logEntry) {
		if e.id == len(places) {
			places = append(places, nil)
		}
		places[e.id] = append(places[e.id], place{e.offset, int32(len(e.bytes)), e.form})
	}) {
		first, last = min(first, r.time), max(last, r.time)
	}
	if r.at < info.Size() {
		return 0, fmt.Errorf("%s: %w", log, errDamaged)
	}
	if len(places) == 0 {
		return 0, nil
	}
	order := make([]int, len(places))
	for id := range order {
		order[id] = id
	}
	slices.SortFunc(order, func(a, b int) int { return r.series[a].compare(r.series[b]) })
	var list []sample
	var buffer []byte
	return len(places), writeFile(path, false, first, last, func(w *fileWriter) error {
		for _, id := range order {
			list = list[:0]
			for _, p := range places[id] {
				if cap(buffer) < int(p.size) {
					buffer = make([]byte, p.size)
				}
				if _, err := f.ReadAt(buffer[:p.size], p.offset); err != nil {
					return err
				}
				var err error
				if list, err = decodeChunk(list, p.form, buffer[:p.size]); err != nil || len(list) > 2*maxSamples {
					return fmt.Errorf("%s: %w", log, errDamaged)
				}
			}
			if err := w.add(r.series[id], sortSamples(list)); err != nil {
				return err
			}
		}
		return nil
	})
}
