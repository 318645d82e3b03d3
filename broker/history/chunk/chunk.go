// SPDX-License-Identifier: Apache-2.0

// Package chunk encodes the values that a property had: numbers as the XOR chunks of Prometheus, bit for bit, and texts with their times.
//
// It never reads a file, and knows no property.
package chunk

import (
	"encoding/binary"
	"errors"
	"math"
	"math/bits"
)

// MaxSamples is how many samples a chunk has at most.
const MaxSamples = 120

// ErrDamaged is the error of bytes that are no chunk. Who reads chunks says where.
var ErrDamaged = errors.New("it is not a chunk of samples")

// GapValue is the value of a sample from which on nothing is known. It is a NaN that no device reports: those are no numbers of JSON.
var GapValue = math.Float64frombits(0x7ff0000000000002)

// IsGap is whether a value is GapValue.
func IsGap(v float64) bool { return math.Float64bits(v) == math.Float64bits(GapValue) }

// NumberChunk is a chunk of numbers, encoded as Gorilla does (Pelkonen et al., VLDB 2015), bit for bit as the XOR chunks of Prometheus: of the
// times the second difference is written, of the values what differs from the bits of the one before.
type NumberChunk struct {
	Bytes             []byte
	free              uint8 // bits of the last byte that are not used
	Count             int
	t                 int64
	delta             uint64
	v                 uint64
	leading, trailing uint8
}

// Reset makes the chunk empty. It keeps the memory of Bytes.
func (c *NumberChunk) Reset() {
	*c = NumberChunk{Bytes: append(c.Bytes[:0], 0, 0), leading: 0xff}
}

// Append adds a sample, of any time. There may be 65,535.
func (c *NumberChunk) Append(t int64, value float64) {
	if c.Count == 0 && len(c.Bytes) == 0 {
		c.Reset()
	}
	v := math.Float64bits(value)
	switch c.Count {
	case 0:
		for _, b := range binary.AppendVarint(nil, t) {
			c.write(uint64(b), 8)
		}
		c.write(v, 64)
	case 1:
		c.delta = uint64(t - c.t)
		for _, b := range binary.AppendUvarint(nil, c.delta) {
			c.write(uint64(b), 8)
		}
		c.writeXOR(v)
	default:
		delta := uint64(t - c.t)
		c.writeSecondDifference(int64(delta - c.delta))
		c.delta = delta
		c.writeXOR(v)
	}
	c.t, c.v = t, v
	c.Count++
	binary.BigEndian.PutUint16(c.Bytes, uint16(c.Count))
}

// differenceSizes are the numbers of bits in which a second difference may be written, by the number of ones before it.
var differenceSizes = [...]uint{0, 14, 17, 20, 64}

func (c *NumberChunk) writeSecondDifference(d int64) {
	for ones, size := range differenceSizes {
		switch {
		case size == 64:
			c.write(0b1111, 4)
		case size == 0 && d == 0, size > 0 && -(1<<(size-1)-1) <= d && d <= 1<<(size-1):
			c.write(1<<(ones+1)-2, uint(ones)+1)
		default:
			continue
		}
		c.write(uint64(d), size)
		return
	}
}

func (c *NumberChunk) writeXOR(v uint64) {
	x := v ^ c.v
	if x == 0 {
		c.write(0, 1)
		return
	}
	leading, trailing := uint8(min(bits.LeadingZeros64(x), 31)), uint8(bits.TrailingZeros64(x))
	if c.leading != 0xff && leading >= c.leading && trailing >= c.trailing {
		c.write(0b10, 2)
		c.write(x>>c.trailing, uint(64-c.leading-c.trailing))
		return
	}
	c.leading, c.trailing = leading, trailing
	size := uint(64 - leading - trailing)
	c.write(0b11, 2)
	c.write(uint64(leading), 5)
	c.write(uint64(size), 6) // 64 is written as 0
	c.write(x>>trailing, size)
}

// write writes the n lowest bits of v, the highest of them first.
func (c *NumberChunk) write(v uint64, n uint) {
	for n > 0 {
		if c.free == 0 {
			c.Bytes = append(c.Bytes, 0)
			c.free = 8
		}
		k := min(n, uint(c.free))
		part := byte(v>>(n-k)) & byte(1<<k-1)
		c.free -= uint8(k)
		c.Bytes[len(c.Bytes)-1] |= part << c.free
		n -= k
	}
}

// bitReader reads what NumberChunk.write has written.
type bitReader struct {
	bytes []byte
	used  uint // bits of the first byte that were read
	short bool // more was asked for than there is
}

func (r *bitReader) read(n uint) (v uint64) {
	for n > 0 {
		if len(r.bytes) == 0 {
			r.short = true
			return 0
		}
		k := min(n, 8-r.used)
		v = v<<k | uint64(r.bytes[0]>>(8-r.used-k))&(1<<k-1)
		n -= k
		if r.used += k; r.used == 8 {
			r.bytes, r.used = r.bytes[1:], 0
		}
	}
	return v
}

// ReadByte is for encoding/binary.
func (r *bitReader) ReadByte() (byte, error) {
	b := byte(r.read(8))
	if r.short {
		return 0, ErrDamaged
	}
	return b, nil
}

// readSecondDifference is the opposite of writeSecondDifference.
func (r *bitReader) readSecondDifference() int64 {
	ones := 0
	for ones < 4 && r.read(1) == 1 {
		ones++
	}
	size := differenceSizes[ones]
	d := r.read(size)
	if size > 0 && size < 64 && d > 1<<(size-1) {
		d -= 1 << size
	}
	return int64(d)
}

// DecodeNumbers calls yield with the samples of an encoded chunk, in order, until it says false.
func DecodeNumbers(chunk []byte, yield func(t int64, v float64) bool) error {
	if len(chunk) < 2 {
		return ErrDamaged
	}
	n := int(binary.BigEndian.Uint16(chunk))
	r := bitReader{bytes: chunk[2:]}
	var t int64
	var delta, v uint64
	var leading, size uint
	for i := range n {
		switch i {
		case 0:
			first, err := binary.ReadVarint(&r)
			if err != nil {
				return ErrDamaged
			}
			t, v = first, r.read(64)
		case 1:
			second, err := binary.ReadUvarint(&r)
			if err != nil {
				return ErrDamaged
			}
			delta = second
		default:
			delta += uint64(r.readSecondDifference())
		}
		if i > 0 {
			t += int64(delta)
			if r.read(1) == 1 {
				if r.read(1) == 1 {
					leading, size = uint(r.read(5)), uint(r.read(6))
					if size == 0 {
						size = 64
					}
				}
				if size == 0 || leading+size > 64 {
					return ErrDamaged
				}
				v ^= r.read(size) << (64 - leading - size)
			}
		}
		if r.short {
			return ErrDamaged
		}
		if !yield(t, math.Float64frombits(v)) {
			return nil
		}
	}
	return nil
}

// TextChunk is a chunk of texts: the difference of the times, and the text or that there is none.
type TextChunk struct {
	Bytes []byte
	Count int
	t     int64
}

// Reset makes the chunk empty. It keeps the memory of Bytes.
func (c *TextChunk) Reset() { *c = TextChunk{Bytes: c.Bytes[:0]} }

// Append adds a sample. gap says that nothing is known from there on.
func (c *TextChunk) Append(t int64, text string, gap bool) {
	c.Bytes = binary.AppendVarint(c.Bytes, t-c.t)
	if gap {
		c.Bytes = append(c.Bytes, 0)
	} else {
		c.Bytes = binary.AppendUvarint(c.Bytes, uint64(len(text))+1)
		c.Bytes = append(c.Bytes, text...)
	}
	c.t = t
	c.Count++
}

// DecodeTexts calls yield with the samples of an encoded chunk, in order, until it says false.
func DecodeTexts(chunk []byte, yield func(t int64, text string, gap bool) bool) error {
	t := int64(0)
	for len(chunk) > 0 {
		d, n := binary.Varint(chunk)
		if n <= 0 {
			return ErrDamaged
		}
		size, m := binary.Uvarint(chunk[n:])
		if m <= 0 || size > uint64(len(chunk)-n-m)+1 {
			return ErrDamaged
		}
		t += d
		chunk = chunk[n+m:]
		text := ""
		if size > 0 {
			text, chunk = string(chunk[:size-1]), chunk[size-1:]
		}
		if !yield(t, text, size == 0) {
			return nil
		}
	}
	return nil
}
