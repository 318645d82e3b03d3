package link

import "fmt"

// MaxPart bounds the content of a Part.
const MaxPart = 64 << 10

// Part is a part of a large message of a stream or a bridge rule, on its way from a node to the hub. The PUBLISH of the last part has the
// properties of the message.
type Part struct {
	ID      []byte `cbor:"0,keyasint"` // of the message, chosen by the node
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
