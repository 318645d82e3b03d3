package link

import (
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"math/bits"
)

// Digest stands for the live entries of a map: the sum, modulo 2^128, of a
// hash of each. The order of writes, sequence numbers and lineage are not in
// it, so equal maps have equal digests however they came about; and a write
// costs one subtraction and one addition.
//
// It guards against faults, not against an adversary who may choose entries:
// sums of hashes can be made to collide. Whoever could do that owns the map.
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

type sum struct{ hi, lo uint64 }

func (s *sum) add(h sum) {
	var carry uint64
	s.lo, carry = bits.Add64(s.lo, h.lo, 0)
	s.hi, _ = bits.Add64(s.hi, h.hi, carry)
}

func (s *sum) sub(h sum) {
	var borrow uint64
	s.lo, borrow = bits.Sub64(s.lo, h.lo, 0)
	s.hi, _ = bits.Sub64(s.hi, h.hi, borrow)
}

func (s sum) digest() (d Digest) {
	binary.BigEndian.PutUint64(d[:8], s.hi)
	binary.BigEndian.PutUint64(d[8:], s.lo)
	return d
}

// hash covers what readers see: key, version, metadata and value. Each variable
// part has its length before it, so no two entries share an input.
func (e *Entry) hash() sum {
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
	} else { // don't copy a long value only to hash it
		h := sha256.New()
		h.Write(b)
		h.Write(e.Value)
		h.Sum(out[:0])
	}
	return sum{binary.BigEndian.Uint64(out[:8]), binary.BigEndian.Uint64(out[8:16])}
}
