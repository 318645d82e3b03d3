package wal

import (
	"encoding/binary"
	"hash/crc32"
)

// A segment begins with a header: magic, segment number, base (the oldest segment
// needed), checksum. Frames follow: magic, length of the body, checksum of body and
// of where it stands (so that bytes that look like a frame, in a client's payload,
// never are one), body.
const (
	fileMagic  = "edgebusJ"
	frameMagic = 0xEB10C4A7

	HeaderSize = 28 // of a segment: where its first frame is
	HeadSize   = 12 // of a frame, before its body
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

// Seal fills in the head of a frame that is going to stand at a place.
func Seal(frame []byte, at Place) {
	binary.LittleEndian.PutUint32(frame, frameMagic)
	binary.LittleEndian.PutUint32(frame[4:], uint32(len(frame)-HeadSize))
	binary.LittleEndian.PutUint32(frame[8:], checksum(frame[HeadSize:], at))
}

func checksum(body []byte, at Place) uint32 {
	var where [16]byte
	binary.LittleEndian.PutUint64(where[:], at.Segment)
	binary.LittleEndian.PutUint64(where[8:], uint64(at.At))
	return crc32.Update(crc32.Checksum(where[:], castagnoli), castagnoli, body)
}

// bodySize is the length that a frame's head says, if the file has so much left.
func bodySize(head []byte, left int64) (n int64, ok bool) {
	n = int64(binary.LittleEndian.Uint32(head[4:]))
	return n, binary.LittleEndian.Uint32(head) == frameMagic && n <= left
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
	n, ok := bodySize(text, int64(len(text)-HeadSize))
	return ok && sealed(text, text[HeadSize:HeadSize+n], at)
}
