package modbus

import (
	"math"
	"strconv"

	"github.com/edgebus/edgebus/mappers"
)

// encode makes registers of text, or says why it can't.
func (f *field) encode(value string) ([]uint16, error) {
	if f.kind == kindBit {
		switch value {
		case f.on:
			return []uint16{1}, nil
		case f.off:
			return []uint16{0}, nil
		}
		return nil, mappers.Refuse(mappers.Invalid, "%q is neither %s nor %s", value, f.on, f.off)
	}
	x, err := strconv.ParseFloat(value, 64)
	if err != nil || math.IsNaN(x) || math.IsInf(x, 0) {
		return nil, mappers.Refuse(mappers.Invalid, "%q is no number", value)
	}
	n, ok := f.number(value, (x-f.offset)/f.scale)
	if !ok {
		return nil, mappers.Refuse(mappers.OutOfRange, "%s doesn't fit the %d registers", value, f.words)
	}
	return f.registers(n), nil
}

// number is the bit pattern of a value. Integers that are not scaled never pass through a float, which would cost
// the last digits of large ones.
func (f *field) number(text string, x float64) (n uint64, ok bool) {
	bits := 16 * int(f.words)
	plain := f.scale == 1 && f.offset == 0
	if i, err := strconv.ParseInt(text, 10, 64); err == nil && plain && f.kind == kindInt {
		return uint64(i), bits == 64 || i >= -(1<<(bits-1)) && i < 1<<(bits-1)
	}
	if u, err := strconv.ParseUint(text, 10, 64); err == nil && plain && f.kind == kindUint {
		return u, bits == 64 || u < 1<<bits
	}
	limit := math.Ldexp(1, bits)
	switch f.kind {
	case kindInt:
		x = math.Round(x)
		if x < -limit/2 || x >= limit/2 {
			return 0, false
		}
		return uint64(int64(x)), true
	case kindUint:
		x = math.Round(x)
		if x < 0 || x >= limit {
			return 0, false
		}
		return uint64(x), true
	}
	if bits == 32 {
		return uint64(math.Float32bits(float32(x))), !math.IsInf(float64(float32(x)), 0)
	}
	return math.Float64bits(x), true
}
