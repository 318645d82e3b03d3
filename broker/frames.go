// SPDX-License-Identifier: Apache-2.0

package broker

import (
	"bytes"
	"net"
	"sync"
	"syscall"
	"time"

	"github.com/mochi-mqtt/server/v2/packets"
)

const (
	readBufferSize  = 64 << 10 // of a client that sends much, from the pool
	smallBufferSize = 4 << 10  // under TLS and WebSocket, and for a part of a packet
)

var readBuffers = sync.Pool{New: func() any { return new([readBufferSize]byte) }}

// frameReader is the read buffer of a connection, which splits the byte stream into packets. It has memory only while there is
// something in it: an idle connection has none, and one that stopped in the middle of a packet no more than it sent.
type frameReader struct {
	conn         net.Conn
	raw          syscall.RawConn       // nil: TLS or WebSocket
	attemptFunc  func(fd uintptr) bool // attempt
	buf          []byte                // buf[taken:filled] has arrived and was not returned by next
	borrowed     *[readBufferSize]byte // the pool's array that buf is in; nil: none
	taken        int
	filled       int
	need         int // length of the incomplete packet, if known
	maxPacket    int // maximum length of a packet
	countedBytes int // bytes of memory that count was told of
	countBytes   func(more int) error
	err          error
	waitingSince time.Time // since when fill has waited; zero: it didn't wait
}

func newFrameReader(conn net.Conn, most int) *frameReader {
	f := &frameReader{conn: conn, raw: rawConnOf(conn), maxPacket: most, countBytes: func(int) error { return nil }}
	f.attemptFunc = f.attempt
	return f
}

// next returns the next complete packet in the buffer: its first byte and its body, which the next fill overwrites.
// It is not ok if there is none.
func (f *frameReader) next() (first byte, body []byte, ok bool, err error) {
	b := f.buf[f.taken:f.filled]
	f.need = 0
	n := 0
	for i := 1; i < len(b); i++ {
		n |= int(b[i]&0x7F) << (7 * (i - 1))
		end := 1 + i + n
		switch {
		case b[i] >= 0x80 && i == 4:
			return 0, nil, false, errMalformed
		case b[i] >= 0x80:
			continue
		case end > f.maxPacket:
			return 0, nil, false, packets.ErrPacketTooLarge
		case end > len(b):
			f.need = end
			return 0, nil, false, nil
		}
		f.taken += end
		return b[0], b[1+i : end], true, nil
	}
	return 0, nil, false, nil
}

// fill reads from the connection, and waits until something has arrived. It is called when next has no packet.
func (f *frameReader) fill() error {
	if f.raw == nil {
		f.makeRoom()
		if err := f.countHeld(); err != nil {
			return err
		}
		n, err := f.conn.Read(f.buf[f.filled:])
		f.filled += n
		if n > 0 {
			return nil // the error comes again
		}
		return err
	}
	f.err, f.waitingSince = nil, time.Time{}
	if err := f.raw.Read(f.attemptFunc); err != nil {
		return err
	}
	return f.err
}

// poll reads without waiting, whatever the connection's deadline is, and reports whether something was there.
func (f *frameReader) poll() (got bool, err error) {
	if f.raw == nil { // metered has looked already
		return false, nil
	}
	f.err = nil
	if err := f.raw.Control(func(fd uintptr) { got = f.attempt(fd) }); err != nil {
		return false, err
	}
	return got && f.err == nil, f.err
}

// waited returns how long the last fill waited.
func (f *frameReader) waited(now time.Time) time.Duration {
	if f.waitingSince.IsZero() {
		return 0
	}
	return now.Sub(f.waitingSince)
}

// attempt reads without waiting. It is not done if nothing is there.
func (f *frameReader) attempt(fd uintptr) (done bool) {
	f.makeRoom()
	n, nothing, err := tryRead(fd, f.buf[f.filled:])
	if nothing {
		f.returnBuffer()
		if f.err = f.countHeld(); f.err != nil {
			return true
		}
		if f.waitingSince.IsZero() {
			f.waitingSince = time.Now()
		}
		return false
	}
	f.filled += n
	f.err = err
	return true
}

// makeRoom makes sure that the buffer has free space at its end.
func (f *frameReader) makeRoom() {
	if f.taken > 0 {
		f.filled = copy(f.buf, f.buf[f.taken:f.filled])
		f.taken = 0
	}
	if f.filled == 0 && f.borrowed == nil && len(f.buf) > smallBufferSize {
		f.buf = nil // it was for a large packet
	}
	if f.filled < len(f.buf) {
		return
	}
	old, part := f.borrowed, f.buf
	f.borrowed = nil
	switch {
	case f.raw != nil && len(part) < readBufferSize:
		f.borrowed = readBuffers.Get().(*[readBufferSize]byte)
		f.buf = f.borrowed[:]
	case len(part) < smallBufferSize:
		f.buf = make([]byte, smallBufferSize)
	default: // memory for a larger packet is allocated as it arrives
		f.buf = make([]byte, min(2*len(part), max(f.need, len(part)+1)))
	}
	copy(f.buf, part)
	if old != nil {
		readBuffers.Put(old)
	}
}

// returnBuffer returns the buffer to the pool, as nothing may arrive for hours. A large part of a packet stays where it is, since
// it would be copied again with each byte that the client sends.
func (f *frameReader) returnBuffer() {
	if f.borrowed == nil || f.filled-f.taken > smallBufferSize {
		return
	}
	f.buf = append([]byte(nil), f.buf[f.taken:f.filled]...)
	f.taken, f.filled = 0, len(f.buf)
	readBuffers.Put(f.borrowed)
	f.borrowed = nil
}

// countHeld counts the memory of an unfinished packet before it is waited for. Little, which every connection may have, isn't counted.
func (f *frameReader) countHeld() error {
	holds := len(f.buf)
	if holds <= smallBufferSize || f.filled == f.taken {
		holds = 0
	}
	if holds == f.countedBytes {
		return nil
	}
	if err := f.countBytes(holds - f.countedBytes); err != nil {
		return err
	}
	f.countedBytes = holds
	return nil
}

// release ends what settle counted.
func (f *frameReader) release() {
	_ = f.countBytes(-f.countedBytes) // less is no error
	f.countedBytes = 0
}

// full reports whether the last read filled the buffer, so that more may wait in the socket.
func (f *frameReader) full() bool { return len(f.buf) >= readBufferSize && f.filled == len(f.buf) }

// version is that of the CONNECT of which the first bytes have arrived; 0: they haven't.
func (f *frameReader) version() byte {
	arrived := packetReader{b: bytes.Clone(f.buf[f.taken:f.filled])}
	arrived.uint8()
	arrived.varint()
	version, _, err := parseProtocol(arrived.b)
	if err != nil {
		return 0
	}
	return version
}
