// SPDX-License-Identifier: Apache-2.0

package link

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"math/bits"
	"strings"
	"unicode/utf8"

	"github.com/fxamacker/cbor/v2"
)

// Version of the messages. Another one is refused, never guessed at.
const Version = 1

const maxRefusal = 512 // bytes of its text

// ErrMalformed is the error of Decode and Step for a message that no peer of this version sends.
var ErrMalformed = errors.New("malformed message")

// Type of a message.
type Type uint8

// The owner sends all but Seen.
const (
	TypeHello Type = 1 // the owner's position; asks for the replica's
	TypeSeen  Type = 2 // the replica's position, which it has committed
	TypeAdopt Type = 3 // the maps are equal: the replica takes the owner's lineage
	TypeDelta Type = 4 // what changed after Base, up to Upto
	TypeFull  Type = 5 // one part of the whole map as of Upto
)

func (t Type) String() string {
	if t >= TypeHello && t <= TypeFull {
		return [...]string{"HELLO", "SEEN", "ADOPT", "DELTA", "FULL"}[t-1]
	}
	return fmt.Sprintf("type(%d)", uint8(t))
}

// Message is one message of the link. Its type decides which fields are used:
//
//	HELLO  Lineage Seq Digest Keys Bytes
//	SEEN   Lineage Applied Digest; ID and Part: how many parts of that FULL the replica holds;
//	       Refused: why it applies nothing
//	ADOPT  Lineage Upto Digest
//	DELTA  Lineage Base Upto Entries; Digest on the last chunk
//	FULL   Lineage Upto ID Part Parts Entries; Digest on the last part
type Message struct {
	V       int          `cbor:"0,keyasint"`
	Map     MapDirection `cbor:"1,keyasint"`
	Type    Type         `cbor:"2,keyasint"`
	N       uint64       `cbor:"3,keyasint,omitempty"` // the owner's connection, echoed by the replica
	Lineage Lineage      `cbor:"4,keyasint"`
	Seq     uint64       `cbor:"5,keyasint,omitempty"`
	Applied uint64       `cbor:"6,keyasint,omitempty"`
	Base    uint64       `cbor:"7,keyasint,omitempty"`
	Upto    uint64       `cbor:"8,keyasint,omitempty"`
	ID      uint64       `cbor:"9,keyasint,omitempty"`
	Part    uint32       `cbor:"10,keyasint,omitempty"`
	Parts   uint32       `cbor:"11,keyasint,omitempty"`
	Entries []Entry      `cbor:"12,keyasint,omitempty"`
	Digest  *Digest      `cbor:"13,keyasint,omitempty"`
	Keys    uint64       `cbor:"14,keyasint,omitempty"` // how large the owner's map is
	Bytes   uint64       `cbor:"15,keyasint,omitempty"`
	Refused string       `cbor:"16,keyasint,omitempty"` // why the replica applies nothing, such as its quota
}

type cborCodec struct {
	enc cbor.EncMode
	dec cbor.DecMode
}

// wireCodec is immutable: the one CBOR dialect that this package writes and reads.
var wireCodec = newCBORCodec()

func newCBORCodec() cborCodec {
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
	return cborCodec{enc, dec}
}

// Encode writes a message as the machines make them; those never exceed
// MaxMessage.
func Encode(m Message) ([]byte, error) {
	b, err := wireCodec.enc.Marshal(m)
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
	if err := wireCodec.dec.Unmarshal(b, &m); err != nil {
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
	case m.Type < TypeHello || m.Type > TypeFull:
		return fmt.Errorf("%w: %v", ErrMalformed, m.Type)
	case m.Type != TypeSeen && m.Lineage.N == 0:
		return fmt.Errorf("%w: lineage %d", ErrMalformed, m.Lineage.N)
	case m.Digest == nil && m.Type <= TypeAdopt:
		return fmt.Errorf("%w: %v without digest", ErrMalformed, m.Type)
	case m.Type == TypeFull && (m.ID == 0 || m.Part >= m.Parts || m.Parts > MaxParts):
		return fmt.Errorf("%w: part %d of %d", ErrMalformed, m.Part, m.Parts)
	case m.Type == TypeDelta && m.Base >= m.Upto:
		return fmt.Errorf("%w: base %d, upto %d", ErrMalformed, m.Base, m.Upto)
	case len(m.Refused) > maxRefusal || m.Refused != "" && (m.Type != TypeSeen || !utf8.ValidString(m.Refused)):
		return fmt.Errorf("%w: refusal of %d bytes in %v", ErrMalformed, len(m.Refused), m.Type)
	case m.Type <= TypeAdopt && len(m.Entries) > 0:
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
		if e.Deleted && (m.Type == TypeFull || len(e.Value) > 0) {
			return fmt.Errorf("%w: tombstone of %s in %v", ErrMalformed, e.Key, m.Type)
		}
		last = e.Seq
	}
	return nil
}

// Limits of what travels. MaxMessage bounds an encoded message, so that both
// brokers can refuse anything larger; one entry at all its limits fits.
const (
	MaxMessage = 256 << 10
	MaxValue   = 128 << 10
	MaxKey     = 4 << 10
	MaxOrigin  = 1 << 10
	MaxParts   = 4096
)

// Errors that Put returns, wrapped with the key and the limit.
var (
	ErrValueTooLarge = errors.New("value too large")
	ErrBadKey        = errors.New("bad key")
)

// MapDirection says which of a node's two maps is meant.
type MapDirection uint8

// Down is written by the cloud, Up by the edge. Zero is neither.
const (
	Down MapDirection = 1
	Up   MapDirection = 2
)

func (d MapDirection) String() string {
	switch d {
	case Down:
		return "down"
	case Up:
		return "up"
	}
	return fmt.Sprintf("direction(%d)", uint8(d))
}

// Lineage names one numbering of a map. Sequence numbers of different lineages
// can't be compared. N orders lineages (see after); the nonce tells two apart that
// were begun independently with the same N. The zero lineage is none.
type Lineage struct {
	_     struct{} `cbor:",toarray"`
	N     uint64
	Nonce uint64
}

// after reports whether l is later than m. N is compared as a serial number (RFC 1982): l is later if it is less than 2^63
// ahead. There is no last number, so an owner can always begin a lineage that is later than its peer's.
func (l Lineage) after(m Lineage) bool {
	if l.N == 0 || m.N == 0 {
		return l.N != 0 && m.N == 0
	}
	return int64(l.N-m.N) > 0
}

// next is the number of the lineage that follows.
func (l Lineage) next() uint64 { return max(l.N+1, 1) }

// LeadOver is how many lineages l is ahead of m; 0 if it is not later. A side begins a lineage when its data was lost or
// restored. A lead of thousands is not normal operation.
func (l Lineage) LeadOver(m Lineage) uint64 {
	if m.N == 0 || !l.after(m) {
		return 0
	}
	return l.N - m.N
}

// OwnerID is the upper half of the nonce, in which the host that draws the nonce may identify itself. The link ignores it.
func (l Lineage) OwnerID() uint32 { return uint32(l.Nonce >> 32) }

// NonceOf makes a nonce of a host's identity and a random number.
func NonceOf(mark uint32, random uint64) uint64 { return uint64(mark)<<32 | random&math.MaxUint32 }

// Meta is metadata of a value. The link compares it and carries it, and does not interpret it.
type Meta struct {
	_       struct{} `cbor:",toarray"`
	For     uint64   // version that a reported value answers
	BasedOn uint64   // version that an override was made against
	Until   int64    // end of validity, Unix milliseconds
}

// Entry is one key with its value, or, when Deleted, its tombstone. A Value is
// never modified once it is handed over, in either direction.
type Entry struct {
	_       struct{} `cbor:",toarray"`
	Key     string
	Seq     uint64 // position in the owner's order; not shown to users
	Ver     uint64 // version of the value; shown to users
	TS      int64  // Unix milliseconds
	Origin  string // who wrote it
	Value   []byte
	Deleted bool
	Meta    Meta
}

// weight is how many bytes an entry counts against a Quota.
func (e *Entry) weight() int { return len(e.Key) + len(e.Origin) + len(e.Value) }

// equalForReaders reports whether two entries are equal for readers. TS and Origin are not compared.
func (e *Entry) equalForReaders(o *Entry) bool {
	return e.Deleted == o.Deleted && e.Ver == o.Ver && e.Meta == o.Meta && bytes.Equal(e.Value, o.Value)
}

func (e *Entry) check() error {
	if e.Key == "" || len(e.Key) > MaxKey || !utf8.ValidString(e.Key) {
		return fmt.Errorf("%w: %.64q: must be 1 to %d bytes of UTF-8", ErrBadKey, e.Key, MaxKey)
	}
	if len(e.Value) > MaxValue {
		return fmt.Errorf("%w: %s: %d bytes, limit %d", ErrValueTooLarge, e.Key, len(e.Value), MaxValue)
	}
	return nil
}

// cutOrigin shortens an origin to MaxOrigin. A long origin does not fail a write.
func cutOrigin(origin string) string {
	if len(origin) > MaxOrigin {
		origin = origin[:MaxOrigin]
	}
	return strings.ToValidUTF8(origin, "")
}

// Upper bounds of what CBOR adds to an entry's texts and bytes, and of a
// message without its entries.
const (
	entryOverhead   = 96
	messageOverhead = 256
)

func (e *Entry) size() int {
	return entryOverhead + len(e.Key) + len(e.Origin) + len(e.Value)
}

// Digest identifies the live entries of a map: the sum, modulo 2^128, of a
// hash of each. Sequence numbers, lineage and the order of writes are not part of it, so equal maps have equal
// digests. A write costs one subtraction and one addition.
//
// It detects faults, not attacks: a client that chooses entries can construct a collision. Only the map's owner can.
type Digest [16]byte

// MarshalCBOR writes a byte string of 16.
func (d Digest) MarshalCBOR() ([]byte, error) {
	return append([]byte{0x50}, d[:]...), nil
}

// UnmarshalCBOR accepts nothing but a byte string of 16.
func (d *Digest) UnmarshalCBOR(b []byte) error {
	if len(b) != 17 || b[0] != 0x50 {
		return fmt.Errorf("%w: digest is not a byte string of 16", ErrMalformed)
	}
	copy(d[:], b[1:])
	return nil
}

type hashSum struct{ hi, lo uint64 }

func (s *hashSum) add(h hashSum) {
	var carry uint64
	s.lo, carry = bits.Add64(s.lo, h.lo, 0)
	s.hi, _ = bits.Add64(s.hi, h.hi, carry)
}

func (s *hashSum) sub(h hashSum) {
	var borrow uint64
	s.lo, borrow = bits.Sub64(s.lo, h.lo, 0)
	s.hi, _ = bits.Sub64(s.hi, h.hi, borrow)
}

func (s hashSum) digest() (d Digest) {
	binary.BigEndian.PutUint64(d[:8], s.hi)
	binary.BigEndian.PutUint64(d[8:], s.lo)
	return d
}

// hash covers what readers see: key, version, metadata and value. Each variable
// part has its length before it, so no two entries share an input.
func (e *Entry) hash() hashSum {
	var scratch [384]byte
	b := binary.BigEndian.AppendUint64(scratch[:0], uint64(len(e.Key)))
	b = append(b, e.Key...)
	b = binary.BigEndian.AppendUint64(b, e.Ver)
	b = binary.BigEndian.AppendUint64(b, e.Meta.For)
	b = binary.BigEndian.AppendUint64(b, e.Meta.BasedOn)
	b = binary.BigEndian.AppendUint64(b, uint64(e.Meta.Until))
	b = binary.BigEndian.AppendUint64(b, uint64(len(e.Value)))
	var out [sha256.Size]byte
	if len(b)+len(e.Value) <= len(scratch) {
		out = sha256.Sum256(append(b, e.Value...))
	} else { // avoids a copy of a long value
		h := sha256.New()
		h.Write(b)
		h.Write(e.Value)
		h.Sum(out[:0])
	}
	return hashSum{binary.BigEndian.Uint64(out[:8]), binary.BigEndian.Uint64(out[8:16])}
}
