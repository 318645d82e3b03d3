package wal

import (
	"encoding/binary"
	"hash/crc32"
)

// A segment begins with a header: magic, segment number, base (the oldest segment
// needed), checksum. Frames follow: magic, length of the body, checksum of body and
// of where it stands (so that bytes that look like a frame, in a client's payload,
// never are one), body, end mark. A frame of the older magic has no end mark. The last thing in a segment
// that another one follows is the head of an empty frame with a magic of its own.
const (
	fileMagic   = "edgebusJ"
	frameMagic  = 0xEB10C4A8
	oldMagic    = 0xEB10C4A7
	followMagic = 0xEB10C4A9

	HeaderSize = 28 // of a segment: where its first frame is
	HeadSize   = 12 // of a frame, before its body
	markSize   = 4  // behind it
	MaxFrame   = 1 << 30
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// AppendHeader appends a segment's header.
func AppendHeader(b []byte, number, base uint64) []byte {
	from := len(b)
	b = append(b, fileMagic...)
	b = binary.LittleEndian.AppendUint64(b, number)
	b = binary.LittleEndian.AppendUint64(b, base)
	return binary.LittleEndian.AppendUint32(b, crc32.Checksum(b[from:], castagnoli))
}

func parseHeader(b []byte, number uint64) (base uint64, ok bool) {
	if len(b) < HeaderSize || string(b[:8]) != fileMagic || binary.LittleEndian.Uint64(b[8:]) != number ||
		binary.LittleEndian.Uint32(b[24:]) != crc32.Checksum(b[:24], castagnoli) {
		return 0, false
	}
	return binary.LittleEndian.Uint64(b[16:]), true
}

// Seal fills in the head of a frame that is going to stand at a place, and appends its end mark.
func Seal(frame []byte, at Place) []byte {
	sealHead(frame, frameMagic, frame[HeadSize:], at)
	return appendMark(frame, at)
}

func sealHead(head []byte, magic uint32, body []byte, at Place) {
	binary.LittleEndian.PutUint32(head, magic)
	binary.LittleEndian.PutUint32(head[4:], uint32(len(body)))
	binary.LittleEndian.PutUint32(head[8:], checksum(body, at))
}

// appendMark appends the end mark of a frame at a place: where it is there, all of the frame was written.
func appendMark(b []byte, at Place) []byte {
	return binary.LittleEndian.AppendUint32(b, ^checksum(nil, at))
}

func checksum(body []byte, at Place) uint32 {
	var where [16]byte
	binary.LittleEndian.PutUint64(where[:], at.Segment)
	binary.LittleEndian.PutUint64(where[8:], uint64(at.At))
	return crc32.Update(crc32.Checksum(where[:], castagnoli), castagnoli, body)
}

// followMark is what stands at a place behind the last frame of a segment that another one follows.
func followMark(at Place) (head [HeadSize]byte) {
	sealHead(head[:], followMagic, nil, at)
	return head
}

// begunMark says whether text is what a crash leaves of a mark that is being written: a part of it, and zeros
// where something was to be.
func begunMark(text []byte, at Place) bool {
	const most = 128
	mark := followMark(at)
	for i, c := range text {
		if c != 0 && (i >= len(mark) || c != mark[i]) {
			return false
		}
	}
	return len(text) <= most
}

// parseHead is what a frame's head says: its magic, the length of its body, and of the mark behind that. It is
// no head if the file hasn't so much left.
func parseHead(head []byte, left int64) (magic uint32, body, mark int64, ok bool) {
	magic = binary.LittleEndian.Uint32(head)
	body = int64(binary.LittleEndian.Uint32(head[4:]))
	if magic == frameMagic {
		mark = markSize
	}
	return magic, body, mark, magic >= oldMagic && magic <= followMagic && body+mark <= left
}

// sealed says whether a head is that of a body at a place.
func sealed(head, body []byte, at Place) bool {
	return checksum(body, at) == binary.LittleEndian.Uint32(head[8:])
}

// frameAt says whether text begins with a whole frame that stands at a place.
func frameAt(text []byte, at Place) bool {
	if len(text) < HeadSize {
		return false
	}
	_, n, _, ok := parseHead(text, int64(len(text)-HeadSize))
	return ok && sealed(text, text[HeadSize:HeadSize+n], at)
}
