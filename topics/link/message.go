package link

import (
	"errors"
	"fmt"
	"unicode/utf8"

	"github.com/fxamacker/cbor/v2"
)

// Version of the messages. Another one is refused, never guessed at.
const Version = 1

const maxRefusal = 512 // bytes of its text

// ErrMalformed is what Decode and Step say of a message that no peer of this
// version sends.
var ErrMalformed = errors.New("malformed message")

// Type of a message.
type Type uint8

// The owner sends all but Seen.
const (
	Hello Type = 1 // this is where I am: where are you?
	Seen  Type = 2 // this is where I am, and it is on disk
	Adopt Type = 3 // your map is mine already: call it by my lineage
	Delta Type = 4 // what changed after Base, up to Upto
	Full  Type = 5 // one part of the whole map as of Upto
)

func (t Type) String() string {
	if t >= Hello && t <= Full {
		return [...]string{"HELLO", "SEEN", "ADOPT", "DELTA", "FULL"}[t-1]
	}
	return fmt.Sprintf("type(%d)", uint8(t))
}

// Message is what travels. Which fields count depends on the type:
//
//	HELLO  Lineage Seq Digest Keys Bytes
//	SEEN   Lineage Applied Digest; ID and Part: so many parts of that FULL are held;
//	       Refused: more than is taken
//	ADOPT  Lineage Upto Digest
//	DELTA  Lineage Base Upto Entries; Digest on the last chunk
//	FULL   Lineage Upto ID Part Parts Entries; Digest on the last part
type Message struct {
	V       int       `cbor:"0,keyasint"`
	Map     Direction `cbor:"1,keyasint"`
	Type    Type      `cbor:"2,keyasint"`
	N       uint64    `cbor:"3,keyasint,omitempty"` // the owner's connection, echoed by the replica
	Lineage Lineage   `cbor:"4,keyasint"`
	Seq     uint64    `cbor:"5,keyasint,omitempty"`
	Applied uint64    `cbor:"6,keyasint,omitempty"`
	Base    uint64    `cbor:"7,keyasint,omitempty"`
	Upto    uint64    `cbor:"8,keyasint,omitempty"`
	ID      uint64    `cbor:"9,keyasint,omitempty"`
	Part    uint32    `cbor:"10,keyasint,omitempty"`
	Parts   uint32    `cbor:"11,keyasint,omitempty"`
	Entries []Entry   `cbor:"12,keyasint,omitempty"`
	Digest  *Digest   `cbor:"13,keyasint,omitempty"`
	Keys    uint64    `cbor:"14,keyasint,omitempty"` // how large the owner's map is
	Bytes   uint64    `cbor:"15,keyasint,omitempty"`
	Refused string    `cbor:"16,keyasint,omitempty"` // why nothing is taken from the owner
}

type codec struct {
	enc cbor.EncMode
	dec cbor.DecMode
}

// wire is immutable: the one CBOR dialect that this package writes and reads.
var wire = newCodec()

func newCodec() codec {
	enc, err := cbor.EncOptions{Sort: cbor.SortCoreDeterministic, BinaryMarshaler: cbor.BinaryMarshalerNone}.EncMode()
	if err != nil {
		panic(err) // constant options: a test would fail at once
	}
	dec, err := cbor.DecOptions{
		DupMapKey:         cbor.DupMapKeyEnforcedAPF,
		IndefLength:       cbor.IndefLengthForbidden,
		TagsMd:            cbor.TagsForbidden,
		MaxNestedLevels:   8,
		MaxMapPairs:       16,
		MaxArrayElements:  1 << 15,
		ExtraReturnErrors: cbor.ExtraDecErrorUnknownField,
		BinaryUnmarshaler: cbor.BinaryUnmarshalerNone,
	}.DecMode()
	if err != nil {
		panic(err)
	}
	return codec{enc, dec}
}

// Encode writes a message as the machines make them; those never exceed
// MaxMessage.
func Encode(m Message) ([]byte, error) {
	b, err := wire.enc.Marshal(m)
	if err == nil && len(b) > MaxMessage {
		err = fmt.Errorf("%w: %d bytes, limit %d", ErrMalformed, len(b), MaxMessage)
	}
	if err != nil {
		return nil, fmt.Errorf("encode %v: %w", m.Type, err)
	}
	return b, nil
}

// Decode reads a message from a peer, which is not trusted: whatever comes, it
// returns a message that the machines can take, or an error. The message holds
// no reference to b.
func Decode(b []byte) (Message, error) {
	if len(b) > MaxMessage {
		return Message{}, fmt.Errorf("%w: %d bytes, limit %d", ErrMalformed, len(b), MaxMessage)
	}
	var m Message
	if err := wire.dec.Unmarshal(b, &m); err != nil {
		return Message{}, fmt.Errorf("%w: %w", ErrMalformed, err)
	}
	if err := m.check(); err != nil {
		return Message{}, err
	}
	return m, nil
}

func (m *Message) check() error {
	switch {
	case m.V != Version:
		return fmt.Errorf("%w: version %d, want %d", ErrMalformed, m.V, Version)
	case m.Map != Down && m.Map != Up:
		return fmt.Errorf("%w: %v", ErrMalformed, m.Map)
	case m.Type < Hello || m.Type > Full:
		return fmt.Errorf("%w: %v", ErrMalformed, m.Type)
	case m.Type != Seen && m.Lineage.N == 0:
		return fmt.Errorf("%w: lineage %d", ErrMalformed, m.Lineage.N)
	case m.Digest == nil && m.Type <= Adopt:
		return fmt.Errorf("%w: %v without digest", ErrMalformed, m.Type)
	case m.Type == Full && (m.ID == 0 || m.Part >= m.Parts || m.Parts > MaxParts):
		return fmt.Errorf("%w: part %d of %d", ErrMalformed, m.Part, m.Parts)
	case m.Type == Delta && m.Base >= m.Upto:
		return fmt.Errorf("%w: base %d, upto %d", ErrMalformed, m.Base, m.Upto)
	case len(m.Refused) > maxRefusal || m.Refused != "" && (m.Type != Seen || !utf8.ValidString(m.Refused)):
		return fmt.Errorf("%w: refusal of %d bytes in %v", ErrMalformed, len(m.Refused), m.Type)
	case m.Type <= Adopt && len(m.Entries) > 0:
		return fmt.Errorf("%w: %v with entries", ErrMalformed, m.Type)
	}
	return m.checkEntries()
}

func (m *Message) checkEntries() error {
	last := m.Base
	for i := range m.Entries {
		e := &m.Entries[i]
		if err := e.check(); err != nil {
			return fmt.Errorf("%w: %w", ErrMalformed, err)
		}
		if e.Seq <= last || e.Seq > m.Upto || len(e.Origin) > MaxOrigin {
			return fmt.Errorf("%w: entry %s: seq %d after %d, upto %d", ErrMalformed, e.Key, e.Seq, last, m.Upto)
		}
		if e.Deleted && (m.Type == Full || len(e.Value) > 0) {
			return fmt.Errorf("%w: tombstone of %s in %v", ErrMalformed, e.Key, m.Type)
		}
		last = e.Seq
	}
	return nil
}
