// SPDX-License-Identifier: Apache-2.0

package wal

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/edgebus/edgebus/broker/daemon/datadir"
	"github.com/edgebus/edgebus/broker/ordered"
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
		l.segments.add(segmentFile{number: n})
	}
	return nil
}

// Scan checks the segments from a number on from end to end, and hands over each
// frame's body, valid during the call. It is called once.
func (l *Log) Scan(from uint64, each func(at Position, body []byte) error) error {
	l.segments.need(from)
	r := &Reader{}
	defer r.Close()
	list := l.segments.list // nothing else uses it before Begin
	for i := range list {
		if list[i].number < from {
			continue
		}
		if err := l.scan(&list[i], i == len(list)-1, r, each); err != nil {
			return err
		}
	}
	return nil
}

// scan checks a segment. A crash can have torn the last one only: each is complete before another is made.
func (l *Log) scan(s *segmentFile, last bool, r *Reader, each func(Position, []byte) error) error {
	if err := r.open(l, s.number); err != nil {
		return err
	}
	header, err := r.in.Peek(HeaderSize)
	h, ok := parseHeader(header, s.number)
	if f := formatOf(header); f != Format && f != 0 {
		return fmt.Errorf("%s: its format is %q, this program reads %q: start the version that wrote it, or move the directory %s away to begin anew without %s in it",
			l.Path(s.number), f, Format, l.opts.Dir, l.opts.Keeps)
	}
	if !ok {
		return l.Damaged(Position{s.number, 0}, errors.Join(errors.New("no header of "+l.opts.Name), ignoreEOF(err)))
	}
	s.before = h.before
	l.tail.found(Position{s.number - 1, h.before}, h.identity)
	l.segments.need(h.base)
	if l.scanned.Segment == s.number-1 && l.scanned.At < h.before {
		return l.Damaged(l.scanned, fmt.Errorf("the frames up to byte %d are missing", h.before))
	}
	if l.scanned.Segment == s.number-1 && l.last != h.last {
		return l.Damaged(Position{s.number, 0}, errChain)
	}
	r.startAfter(h.last)
	if _, err := r.in.Discard(HeaderSize); err != nil {
		return err
	}
	end := r.at // of the frames
	for r.at.At < r.size {
		at := r.at
		body, ok, err := r.frame()
		if err != nil {
			return err
		}
		if !ok || r.follows && r.at.At < r.size {
			if err := l.torn(at, r.last, last); err != nil {
				return err
			}
			break
		}
		if r.follows {
			break
		}
		if err := each(at, body); err != nil {
			return l.Damaged(at, err)
		}
		end = r.at
	}
	s.size = r.at.At
	l.segments.size.Add(s.size)
	l.scanned, l.last = end, r.last
	if end.At > HeaderSize {
		l.tail.advance(end)
	}
	if err := l.checkEnd(end); err != nil {
		return err
	}
	if last && r.follows {
		return l.missing(s.number + 1)
	}
	return nil
}

// missing is the error for a segment that is needed and not there.
func (l *Log) missing(number uint64) error {
	return fmt.Errorf("%s is missing; restore the directory %s from a backup, or move it away to begin anew without %s in it",
		l.Path(number), l.opts.Dir, l.opts.Keeps)
}

func ignoreEOF(err error) error {
	if errors.Is(err, io.EOF) {
		return nil
	}
	return err
}

// errEnd is the error for a last frame with its end mark, and with damage before that.
var errEnd = errors.New("its last write reached its end, and its checksum is wrong: it was acknowledged and is damaged, " +
	"unless power was cut while it was written")

// torn reports whether what follows the last whole frame may be what a crash has left; otherwise it is damage.
func (l *Log) torn(at Position, before frameSum, last bool) error {
	rest, err := l.rest(at)
	if err != nil {
		return err
	}
	if !last && begunMark(rest, at, before) {
		return nil
	}
	if !last || hasWholeFrame(rest, at) {
		return l.Damaged(at, errors.New("a frame's checksum is wrong"))
	}
	if err := l.checkEnd(at); err != nil {
		return err
	}
	if isZero(rest) {
		return nil // room for frames
	}
	if bytes.HasSuffix(withoutRoom(rest), withoutRoom(appendMark(nil, at))) {
		if l.opts.ReadOnly {
			return l.Damaged(at, errEnd)
		}
		l.opts.Log.Error().Str("file", l.Path(at.Segment)).Int64("at", at.At).Int("bytes", len(rest)).Err(errEnd).
			Msg(l.opts.Name + ": what is damaged at its end is dropped")
		return nil
	}
	l.opts.Log.Info().Str("file", l.Path(at.Segment)).Int("bytes", len(rest)).
		Msg(l.opts.Name + ": the last write is cut short, as a crash leaves it before it is acknowledged: it is dropped")
	return nil
}

func isZero(text []byte) bool { return len(bytes.TrimLeft(text, "\x00")) == 0 }

// withoutRoom is text without the zeros at its end, which may be a mark's own.
func withoutRoom(text []byte) []byte { return bytes.TrimRight(text, "\x00") }

// rest is the contents of a segment from a place on.
func (l *Log) rest(at Position) ([]byte, error) {
	f, err := os.Open(l.Path(at.Segment))
	if err != nil {
		return nil, err
	}
	defer f.Close()
	if _, err := f.Seek(at.At, io.SeekStart); err != nil {
		return nil, err
	}
	return io.ReadAll(f)
}

// hasWholeFrame reports whether there is a whole frame after a place, where text begins. A whole frame after a broken one means
// damage: each frame is on disk before the next is written.
//
// A client's text may look like any number of heads, and the checksum of each would be that of all that follows. The end
// mark, which depends on where the frame stands, is looked at first: one that a client knows where to write is rare.
func hasWholeFrame(text []byte, at Position) bool {
	var magic [4]byte
	binary.LittleEndian.PutUint32(magic[:], frameMagic)
	common := magic[1:] // with all kinds
	for from := 2; from < len(text); from++ {
		i := bytes.Index(text[from:], common)
		if i < 0 {
			return false
		}
		from += i
		if frameAt(text[from-1:], Position{at.Segment, at.At + int64(from) - 1}) {
			return true
		}
	}
	return false
}

// Begin prepares the log for appending at its end. Segments before base, or before the base that the segments' headers name, are
// not needed and are removed; all later ones must exist. With base 0 the log may be new.
func (l *Log) Begin(base uint64) error {
	l.segments.need(base)
	_, newest := l.Segments()
	c := l.acknowledged.Segment
	if _, there := l.segments.find(c); c > 0 && c >= l.Base() && !there {
		return l.missing(c)
	}
	if newest == 0 && l.Base() == 0 {
		if l.used {
			gone := fmt.Errorf("no file of %s is in %s, which was in use: they were removed, or its first start was ended by a crash", l.opts.Name, l.opts.Dir)
			if l.opts.ReadOnly {
				return gone
			}
			l.opts.Log.Error().Err(gone).Msg(l.opts.Name + " begins anew, without " + l.opts.Keeps)
		}
		if l.opts.ReadOnly {
			return nil
		}
		if err := l.begin(1); err != nil {
			return err
		}
		l.firstStock()
		return l.openConfirmed()
	}
	if n := l.segments.gap(); n > 0 {
		return l.missing(n)
	}
	if l.opts.ReadOnly {
		return nil
	}
	if err := l.Retire(l.Base()); err != nil {
		return err
	}
	f, err := os.OpenFile(l.Path(newest), os.O_RDWR, 0)
	if err != nil {
		return err
	}
	if l.inUse, err = datadir.IdentifyFile(l.Path(newest)); err != nil {
		return errors.Join(err, f.Close())
	}
	l.file = l.opts.Wrap(f)
	l.suspect = true // of what may stand behind the last frame
	l.firstStock()
	return errors.Join(l.truncateSuspect(), l.openConfirmed())
}

// firstStock makes the reserve before the first frame is written.
func (l *Log) firstStock() {
	if err := l.restock(); err != nil {
		l.opts.Log.Error().Err(err).Msg(l.opts.Name + ": the disk is full: only what makes room is written")
	}
}

// Reader reads the frames of a segment in order. It holds one of them in memory at a time.
type Reader struct {
	log  *Log
	file *os.File
	in   *bufio.Reader
	body []byte
	at   Position
	size int64

	follows bool // the mark that another segment follows has been read

	last    frameSum // of the frame before
	chained bool     // last is known
}

// startAfter has the next frame follow one with a checksum.
func (r *Reader) startAfter(last frameSum) { r.last, r.chained = last, true }

const readBuffer = 64 << 10

// Read opens a segment for reading up to its present end. reuse is a reader that is no longer used, whose memory is used again;
// it may be nil.
func (l *Log) Read(number uint64, reuse *Reader) (*Reader, error) {
	r := reuse
	if r == nil {
		r = &Reader{}
	}
	s, _ := l.segments.find(number)
	err := r.open(l, number)
	if err == nil && r.size < s.size {
		err = fmt.Errorf("%s: %w", l.Path(number), io.ErrUnexpectedEOF)
	}
	if err == nil {
		r.size = s.size
		err = r.skipHeader()
	}
	if err != nil {
		r.Close()
		return nil, err
	}
	return r, nil
}

// skipHeader reads the header, which was checked when the log was opened.
func (r *Reader) skipHeader() error {
	text, err := r.in.Peek(HeaderSize)
	if err != nil {
		return r.failed(err)
	}
	h, ok := parseHeader(text, r.at.Segment)
	if !ok {
		return r.log.Damaged(Position{r.at.Segment, 0}, errors.New("a header that was whole when the log was opened is not whole now"))
	}
	r.startAfter(h.last)
	_, err = r.in.Discard(HeaderSize)
	return err
}

// open opens a segment. The header is still to be read.
func (r *Reader) open(l *Log, number uint64) error {
	r.Close()
	f, err := os.Open(l.Path(number))
	if err != nil {
		return err
	}
	info, err := f.Stat()
	if err != nil {
		_ = f.Close()
		return err
	}
	if r.in == nil {
		r.in = bufio.NewReaderSize(f, readBuffer)
	}
	r.in.Reset(f)
	r.log, r.file, r.at, r.size, r.follows, r.chained = l, f, Position{number, HeaderSize}, info.Size(), false, false
	return nil
}

// Close closes the file, as reaching the end does.
func (r *Reader) Close() {
	if r != nil && r.file != nil {
		_ = r.file.Close()
		r.file = nil
	}
}

// Next is the next frame's body, which is valid until the next call, and where it is. At the
// end it is [io.EOF].
func (r *Reader) Next() (body []byte, at Position, err error) {
	at = r.at
	if at.At >= r.size {
		r.Close()
		return nil, at, io.EOF
	}
	body, ok, err := r.frame()
	if err != nil {
		return nil, at, err
	}
	if !ok {
		return nil, at, r.log.Damaged(at, errors.New("a frame that was whole when the log was opened is not whole now"))
	}
	if r.follows {
		return r.Next()
	}
	return body, at, nil
}

// frame reads the next frame, if it is whole.
func (r *Reader) frame() (body []byte, ok bool, err error) {
	left := r.size - r.at.At - HeadSize
	if left < 0 {
		return nil, false, nil
	}
	var head [HeadSize]byte
	if _, err := io.ReadFull(r.in, head[:]); err != nil {
		return nil, false, r.failed(err)
	}
	magic, n, mark, ok := parseHead(head[:], left)
	if !ok {
		return nil, false, nil
	}
	if int64(cap(r.body)) < n {
		r.body = make([]byte, n)
	}
	body = r.body[:n]
	_, err = io.ReadFull(r.in, body)
	var end [markSize]byte
	if err == nil {
		_, err = io.ReadFull(r.in, end[:mark])
	}
	if err != nil {
		return nil, false, r.failed(err)
	}
	if !hasChecksum(head[:], body, r.at) || mark > 0 && binary.LittleEndian.Uint32(end[:]) != endMark(r.at) {
		return nil, false, nil
	}
	if r.chained && beforeOf(head[:]) != r.last {
		return nil, false, r.log.Damaged(r.at, errChain)
	}
	r.at.At += HeadSize + n + mark
	if r.follows = magic == followMagic; !r.follows {
		r.startAfter(sumOf(head[:]))
	}
	return body, true, nil
}

func (r *Reader) failed(err error) error {
	return fmt.Errorf("%s: %w", r.log.Path(r.at.Segment), err)
}

// ReadAt reads a part of a segment.
func (l *Log) ReadAt(b []byte, at Position) error {
	if known, err := l.readFrom.readAt(b, at); known && err != nil {
		return fmt.Errorf("%s: %w", l.Path(at.Segment), err)
	} else if known {
		return nil
	}
	f, err := os.Open(l.Path(at.Segment))
	if err != nil {
		return err
	}
	if _, err := f.ReadAt(b, at.At); err != nil {
		_ = f.Close()
		return fmt.Errorf("%s: %w", l.Path(at.Segment), err)
	}
	l.readFrom.replace(at.Segment, f)
	return nil
}

// A segment begins with a header: magic, format, segment number, base (the oldest segment
// needed), end of the segment before (0: none) and checksum of its last frame, identity of the log, checksum. Frames follow: magic, length of the body,
// checksum of the body, of where it stands (so that bytes that look like a frame, in a client's payload,
// never are one) and of what comes next, checksum of the frame before (so that a frame of another time in the same place is none), body, end mark.
// The last thing in a segment that is followed by another is the head of an
// empty frame with a magic of its own and no end mark, which is not the frame before any other. Behind the last frame of the last segment there may be zeros.
const (
	fileMagic   = "edgebus"
	frameMagic  = 0xEB10C4A8
	followMagic = 0xEB10C4A9

	HeaderSize = 44 // of a segment: where its first frame is
	HeadSize   = 16 // of a frame, before its body
	markSize   = 4  // behind it
	MaxFrame   = 1 << 30
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// Format is the format of segments. It rises when a program with the present one would misread them, and then the Format of edge/store, which
// upgrades compare, rises with it. Every format has a header of this size, which ends with its checksum, so that another format is told from damage.
const Format = '1'

// formatOf is the format of a segment that begins with a header; 0: there is no whole header of any format.
func formatOf(header []byte) rune {
	if len(header) < HeaderSize || string(header[:len(fileMagic)]) != fileMagic ||
		binary.LittleEndian.Uint32(header[HeaderSize-4:]) != crc32.Checksum(header[:HeaderSize-4], castagnoli) {
		return 0
	}
	return rune(header[len(fileMagic)])
}

// segmentHeader is what a segment begins with.
type segmentHeader struct {
	base     uint64   // the oldest segment needed
	before   int64    // where the frames end of the segment before; 0: it is the first
	last     frameSum // of the last of them
	identity ordered.LogID
}

// AppendHeader appends the header of a log's first segment.
func AppendHeader(b []byte, number uint64, identity ordered.LogID) []byte {
	return segmentHeader{identity: identity}.append(b, number)
}

func (h segmentHeader) append(b []byte, number uint64) []byte {
	from := len(b)
	b = append(append(b, fileMagic...), Format)
	b = binary.LittleEndian.AppendUint64(b, number)
	b = binary.LittleEndian.AppendUint64(b, h.base)
	b = binary.LittleEndian.AppendUint32(b, uint32(h.before)) // a place is within 32 bits
	b = binary.LittleEndian.AppendUint32(b, uint32(h.last))
	b = binary.LittleEndian.AppendUint64(b, uint64(h.identity))
	return binary.LittleEndian.AppendUint32(b, crc32.Checksum(b[from:], castagnoli))
}

func parseHeader(b []byte, number uint64) (h segmentHeader, ok bool) {
	if formatOf(b) != Format || binary.LittleEndian.Uint64(b[8:]) != number {
		return h, false
	}
	return segmentHeader{
		binary.LittleEndian.Uint64(b[16:]), int64(binary.LittleEndian.Uint32(b[24:])), frameSum(binary.LittleEndian.Uint32(b[28:])),
		ordered.LogID(binary.LittleEndian.Uint64(b[32:])),
	}, true
}

// frameSum is the checksum of a frame. Each frame has that of the one before in it, so that it stands for all up to there.
type frameSum uint32

func sumOf(head []byte) frameSum { return frameSum(binary.LittleEndian.Uint32(head[8:])) }

func beforeOf(head []byte) frameSum { return frameSum(binary.LittleEndian.Uint32(head[12:])) }

// errChain is why a whole frame in its place is not the log's.
var errChain = errors.New("it doesn't follow what was written before it: one of the two is of another copy of the log")

// SealFrame fills in the head of a log's first frame, which is going to stand at a place, and appends its end mark.
func SealFrame(frame []byte, at Position) []byte { return sealFrame(frame, at, 0) }

func sealFrame(frame []byte, at Position, before frameSum) []byte {
	sealHead(frame, frameMagic, frame[HeadSize:], at, before)
	return appendMark(frame, at)
}

func sealHead(head []byte, magic uint32, body []byte, at Position, before frameSum) {
	binary.LittleEndian.PutUint32(head, magic)
	binary.LittleEndian.PutUint32(head[4:], uint32(len(body)))
	binary.LittleEndian.PutUint32(head[8:], frameChecksum(body, at, before))
	binary.LittleEndian.PutUint32(head[12:], uint32(before))
}

// appendMark appends the end mark of a frame at a place. A frame that has it was written whole.
func appendMark(b []byte, at Position) []byte {
	return binary.LittleEndian.AppendUint32(b, endMark(at))
}

func endMark(at Position) uint32 { return ^frameChecksum(nil, at, 0) }

func frameChecksum(body []byte, at Position, before frameSum) uint32 {
	var where [20]byte
	binary.LittleEndian.PutUint64(where[:], at.Segment)
	binary.LittleEndian.PutUint64(where[8:], uint64(at.At))
	binary.LittleEndian.PutUint32(where[16:], uint32(before))
	return crc32.Update(crc32.Checksum(where[:], castagnoli), castagnoli, body)
}

// followMark is what follows the last frame of a segment that is followed by another.
func followMark(at Position, before frameSum) (head [HeadSize]byte) {
	sealHead(head[:], followMagic, nil, at, before)
	return head
}

// begunMark reports whether text is what a crash leaves of a mark that was being written: a part of it, and zeros for the rest.
func begunMark(text []byte, at Position, before frameSum) bool {
	const most = roomChunk + 128
	mark := followMark(at, before)
	for i, c := range text {
		if c != 0 && (i >= len(mark) || c != mark[i]) {
			return false
		}
	}
	return len(text) <= most
}

// parseHead decodes a frame's head: its magic, the length of its body, and of the mark after that. It fails if the file has
// less than that left.
func parseHead(head []byte, left int64) (magic uint32, body, mark int64, ok bool) {
	magic = binary.LittleEndian.Uint32(head)
	body = int64(binary.LittleEndian.Uint32(head[4:]))
	if magic == frameMagic {
		mark = markSize
	}
	return magic, body, mark, (magic == frameMagic || magic == followMagic) && body+mark <= left
}

// hasChecksum reports whether the head's checksum is that of a body at a place.
func hasChecksum(head, body []byte, at Position) bool {
	return frameSum(frameChecksum(body, at, beforeOf(head))) == sumOf(head)
}

// frameAt reports whether text begins with a whole frame that was written at a place.
func frameAt(text []byte, at Position) bool {
	if len(text) < HeadSize {
		return false
	}
	_, n, mark, ok := parseHead(text, int64(len(text)-HeadSize))
	if !ok || mark > 0 && !bytes.HasPrefix(text[HeadSize+n:], appendMark(nil, at)) {
		return false
	}
	return hasChecksum(text, text[HeadSize:HeadSize+n], at)
}
