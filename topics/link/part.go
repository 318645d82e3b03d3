// SPDX-License-Identifier: Apache-2.0

package link

import (
	"crypto/rand"
	"errors"
	"fmt"
)

// MaxPart bounds the content of a Part.
const MaxPart = 64 << 10

// PropParts is the user property of a CONNECT with which a core says that it takes large messages in parts. Its value names what the core
// keeps of an unfinished message: with another value it has nothing.
const PropParts = "parts"

// MessagePart is a part of a large message on its way between a node and the hub. The PUBLISH of the last part has the
// properties of the message.
type MessagePart struct {
	ID      []byte `cbor:"0,keyasint"` // of the message, chosen by the sender
	Size    int    `cbor:"1,keyasint"` // of its payload
	Offset  int    `cbor:"2,keyasint"` // of Content in that
	Content []byte `cbor:"3,keyasint"`
	Topic   string `cbor:"4,keyasint,omitempty"` // of the message; only in the last part
}

// Last reports whether nothing comes after the part.
func (p *MessagePart) Last() bool { return p.Offset+len(p.Content) == p.Size }

// EncodeMessagePart writes a part.
func EncodeMessagePart(p MessagePart) ([]byte, error) { return wireCodec.enc.Marshal(p) }

// DecodeMessagePart reads a part from a peer, which is not trusted. It holds no reference to b.
func DecodeMessagePart(b []byte) (p MessagePart, err error) {
	if err := wireCodec.dec.Unmarshal(b, &p); err != nil {
		return MessagePart{}, fmt.Errorf("%w: %w", ErrMalformed, err)
	}
	switch n := len(p.Content); {
	case len(p.ID) == 0 || len(p.ID) > 32:
		return MessagePart{}, fmt.Errorf("%w: identifier of %d bytes", ErrMalformed, len(p.ID))
	case n == 0 || n > MaxPart:
		return MessagePart{}, fmt.Errorf("%w: part of %d bytes, limit %d", ErrMalformed, n, MaxPart)
	case p.Offset < 0 || p.Size < n || p.Offset > p.Size-n:
		return MessagePart{}, fmt.Errorf("%w: %d bytes at %d of %d", ErrMalformed, n, p.Offset, p.Size)
	case p.Last() != (p.Topic != ""):
		return MessagePart{}, fmt.Errorf("%w: the last part has the topic, and no other", ErrMalformed)
	}
	return p, nil
}

// OutgoingParts is a message that is sent in parts.
type OutgoingParts struct {
	ID      []byte
	Topic   string
	Payload []byte
	Sent    int // bytes from the beginning that were sent over this connection, or need not be sent again
	Acked   int // bytes from the beginning that the other side has
}

// NewPartID makes the identifier of a message that is sent in parts.
func NewPartID() []byte { return []byte(rand.Text()[:16]) }

// Next takes the next part, of at most size bytes.
func (c *OutgoingParts) Next(size int) MessagePart {
	p := MessagePart{ID: c.ID, Size: len(c.Payload), Offset: c.Sent, Content: c.Payload[c.Sent:min(c.Sent+size, len(c.Payload))]}
	c.Sent += len(p.Content)
	if p.Last() {
		p.Topic = c.Topic
	}
	return p
}

// ErrPartsMissing is about a part that the parts before it did not come before.
var ErrPartsMissing = errors.New("the parts before this one are not here")

// IncomingParts is a message that arrives in parts.
type IncomingParts struct {
	ID      string
	Size    int
	Content []byte // from the beginning
	Whole   bool   // it has come; who didn't get the acknowledgement sends the last part again
}

// NewIncomingParts begins the message of a part.
func NewIncomingParts(p *MessagePart) IncomingParts {
	return IncomingParts{ID: string(p.ID), Size: p.Size}
}

// NewContent is what a part has beyond what has come; nothing, if all of it has come before.
func (a *IncomingParts) NewContent(p *MessagePart) ([]byte, error) {
	switch {
	case a.ID != string(p.ID) || a.Size != p.Size || !a.Whole && p.Offset > len(a.Content):
		return nil, ErrPartsMissing
	case a.Whole || p.Offset+len(p.Content) <= len(a.Content):
		return nil, nil
	}
	return p.Content[len(a.Content)-p.Offset:], nil
}
