package broker

import (
	"net"
	"sync"
	"syscall"
	"time"

	"github.com/mochi-mqtt/server/v2/packets"
)

const (
	readBuffer  = 64 << 10 // read at once, of a client that sends much
	smallBuffer = 4 << 10  // where something lies between us and the socket, and of a part of a packet
)

var readBuffers = sync.Pool{New: func() any { return new([readBuffer]byte) }}

// frames cuts what arrives on a connection into packets. It has a buffer only while
// there is something in it: a connection that says nothing costs none, and one that
// stops in the middle of a packet no more than it sent.
type frames struct {
	conn     net.Conn
	raw      syscall.RawConn       // nil: TLS or WebSocket
	again    func(fd uintptr) bool // attempt
	buf      []byte                // what has arrived and not been taken is buf[taken:filled]
	borrowed *[readBuffer]byte     // what buf is in, if it is the pool's
	taken    int
	filled   int
	need     int // the length of the packet of which only a part is there, if known
	most     int // length of a packet
	err      error
	idle     time.Time // since when fill waited; zero: it didn't
}

func newFrames(conn net.Conn, most int) *frames {
	f := &frames{conn: conn, raw: readable(conn), most: most}
	f.again = f.attempt
	return f
}

// next takes a packet that has arrived: its first byte, and what follows its length,
// which is overwritten by the next fill.
func (f *frames) next() (first byte, body []byte, ok bool, err error) {
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
		case end > f.most:
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

// fill waits until more has arrived. It is called once next has no more.
func (f *frames) fill() error {
	if f.raw == nil {
		f.room()
		n, err := f.conn.Read(f.buf[f.filled:])
		f.filled += n
		if n > 0 {
			return nil // the error comes again
		}
		return err
	}
	f.err, f.idle = nil, time.Time{}
	if err := f.raw.Read(f.again); err != nil {
		return err
	}
	return f.err
}

// waited is how long the last fill waited.
func (f *frames) waited(now time.Time) time.Duration {
	if f.idle.IsZero() {
		return 0
	}
	return now.Sub(f.idle)
}

// attempt reads what is there, without waiting.
func (f *frames) attempt(fd uintptr) (done bool) {
	f.room()
	n, nothing, err := tryRead(fd, f.buf[f.filled:])
	if nothing {
		f.rest()
		if f.idle.IsZero() {
			f.idle = time.Now()
		}
		return false
	}
	f.filled += n
	f.err = err
	return true
}

// room sees to it that there is some for what arrives.
func (f *frames) room() {
	if f.taken > 0 {
		f.filled = copy(f.buf, f.buf[f.taken:f.filled])
		f.taken = 0
	}
	if f.filled == 0 && f.borrowed == nil && len(f.buf) > smallBuffer {
		f.buf = nil // it was for a large packet
	}
	if f.filled < len(f.buf) {
		return
	}
	old, part := f.borrowed, f.buf
	f.borrowed = nil
	switch {
	case f.raw != nil && len(part) < readBuffer:
		f.borrowed = readBuffers.Get().(*[readBuffer]byte)
		f.buf = f.borrowed[:]
	case len(part) < smallBuffer:
		f.buf = make([]byte, smallBuffer)
	default: // a packet that is larger gets its memory as it arrives
		f.buf = make([]byte, min(2*len(part), max(f.need, len(part)+1)))
	}
	copy(f.buf, part)
	if old != nil {
		readBuffers.Put(old)
	}
}

// rest gives the pool's buffer back. Nothing is there to be read, and may not be for
// hours. A large part of a packet is left where it is: it would be copied as often as
// a client sends another byte.
func (f *frames) rest() {
	if f.borrowed == nil || f.filled-f.taken > smallBuffer {
		return
	}
	f.buf = append([]byte(nil), f.buf[f.taken:f.filled]...)
	f.taken, f.filled = 0, len(f.buf)
	readBuffers.Put(f.borrowed)
	f.borrowed = nil
}

// full says that there may be more than was read at once.
func (f *frames) full() bool { return len(f.buf) >= readBuffer && f.filled == len(f.buf) }
