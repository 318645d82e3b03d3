// SPDX-License-Identifier: Apache-2.0

package follow

import (
	"bufio"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"io"

	"github.com/edgebus/edgebus/broker/ordered"
)

// The stream is messages: kind, position, length of the body, body.
const (
	kindLog    = 'L' // the first one: the log's identity in hexadecimal digits; the position is where it ended for who begins
	kindFrame  = 'F' // a frame of the log, at its position
	kindStatus = 'S' // status as JSON, with where the log ends: all before it was sent, if Behind is 0
	kindFile   = 'A' // a file: name, zero byte, content
	kindBlobs  = 'B' // digests of all blobs, as a list in JSON

	headSize   = 1 + 8 + 4
	maxMessage = 1 << 30
)

// status is how far the hub is.
type status struct {
	Time   int64             `json:"time"`   // of the hub, in ms since 1970
	Behind int64             `json:"behind"` // bytes of the log that are still to be sent
	Keys   map[string]string `json:"keys"`   // SHA-256 of each file that is not sent
}

// message is one message. The body is valid until the next is read.
type message struct {
	kind byte
	at   ordered.Position
	body []byte
}

func appendMessage(b []byte, kind byte, at ordered.Position, body []byte) []byte {
	b = binary.LittleEndian.AppendUint64(append(b, kind), uint64(at))
	return append(binary.LittleEndian.AppendUint32(b, uint32(len(body))), body...)
}

func appendJSON(b []byte, kind byte, at ordered.Position, v any) []byte {
	text, err := json.Marshal(v)
	if err != nil {
		panic(err) // a type of this package
	}
	return appendMessage(b, kind, at, text)
}

// messageReader reads messages.
type messageReader struct {
	in   *bufio.Reader
	body []byte
}

func newMessageReader(r io.Reader) *messageReader {
	return &messageReader{in: bufio.NewReaderSize(r, 256<<10)}
}

// waits reports whether the next message has to be waited for.
func (r *messageReader) waits() bool { return r.in.Buffered() < headSize }

func (r *messageReader) next() (m message, err error) {
	var head [headSize]byte
	if _, err = io.ReadFull(r.in, head[:]); err != nil {
		return m, err
	}
	n := int(binary.LittleEndian.Uint32(head[9:]))
	if n > maxMessage {
		return m, fmt.Errorf("a message of %d bytes", n)
	}
	if cap(r.body) < n {
		r.body = make([]byte, n)
	}
	m = message{head[0], ordered.Position(binary.LittleEndian.Uint64(head[1:])), r.body[:n]}
	_, err = io.ReadFull(r.in, m.body)
	return m, err
}
