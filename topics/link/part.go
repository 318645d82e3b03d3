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

// Part is a part of a large message on its way between a node and the hub. The PUBLISH of the last part has the
// properties of the message.
type Part struct {
	ID      []byte `cbor:"0,keyasint"` // of the message, chosen by the sender
	Size    int    `cbor:"1,keyasint"` // of its payload
	Offset  int    `cbor:"2,keyasint"` // of Content in that
	Content []byte `cbor:"3,keyasint"`
	Topic   string `cbor:"4,keyasint,omitempty"` // of the message; only in the last part
}

// Last reports whether nothing comes after the part.
func (p *Part) Last() bool { return p.Offset+len(p.Content) == p.Size }

// EncodePart writes a part.
func EncodePart(p Part) ([]byte, error) { return wire.enc.Marshal(p) }

// DecodePart reads a part from a peer, which is not trusted. It holds no reference to b.
func DecodePart(b []byte) (p Part, err error) {
	if err := wire.dec.Unmarshal(b, &p); err != nil {
		return Part{}, fmt.Errorf("%w: %w", ErrMalformed, err)
	}
	switch n := len(p.Content); {
	case len(p.ID) == 0 || len(p.ID) > 32:
		return Part{}, fmt.Errorf("%w: identifier of %d bytes", ErrMalformed, len(p.ID))
	case n == 0 || n > MaxPart:
		return Part{}, fmt.Errorf("%w: part of %d bytes, limit %d", ErrMalformed, n, MaxPart)
	case p.Offset < 0 || p.Size < n || p.Offset > p.Size-n:
		return Part{}, fmt.Errorf("%w: %d bytes at %d of %d", ErrMalformed, n, p.Offset, p.Size)
	case p.Last() != (p.Topic != ""):
		return Part{}, fmt.Errorf("%w: the last part has the topic, and no other", ErrMalformed)
	}
	return p, nil
}

// Cut is a message that is sent in parts.
type Cut struct {
	ID      []byte
	Topic   string
	Payload []byte
	Sent    int // bytes from the beginning that were sent over this connection, or need not be sent again
	Acked   int // bytes from the beginning that the other side has
}

// NewPartID makes the identifier of a message that is sent in parts.
func NewPartID() []byte { return []byte(rand.Text()[:16]) }

// Next takes the next part, of at most size bytes.
func (c *Cut) Next(size int) Part {
	p := Part{ID: c.ID, Size: len(c.Payload), Offset: c.Sent, Content: c.Payload[c.Sent:min(c.Sent+size, len(c.Payload))]}
	c.Sent += len(p.Content)
	if p.Last() {
		p.Topic = c.Topic
	}
	return p
}

// ErrPartsMissing is about a part that the parts before it did not come before.
var ErrPartsMissing = errors.New("the parts before this one are not here")

// Assembly is a message that arrives in parts.
type Assembly struct {
	ID      string
	Size    int
	Content []byte // from the beginning
	Whole   bool   // it has come; who didn't get the acknowledgement sends the last part again
}

// NewAssembly begins the message of a part.
func NewAssembly(p *Part) Assembly { return Assembly{ID: string(p.ID), Size: p.Size} }

// Fresh is what a part has beyond what has come; nothing, if all of it has come before.
func (a *Assembly) Fresh(p *Part) ([]byte, error) {
	switch {
	case a.ID != string(p.ID) || a.Size != p.Size || !a.Whole && p.Offset > len(a.Content):
		return nil, ErrPartsMissing
	case a.Whole || p.Offset+len(p.Content) <= len(a.Content):
		return nil, nil
	}
	return p.Content[len(a.Content)-p.Offset:], nil
}
