package history

import (
	"cmp"
	"encoding/binary"
	"hash/crc32"
	"math"
	"slices"
	"strconv"

	"github.com/edgebus/edgebus/broker/history/chunk"
	"github.com/edgebus/edgebus/topics/resource"
)

// SeriesKey names what is recorded: a property of a device. Device is the UID of the Device, so that another one of the same name has
// another past.
type SeriesKey struct{ Device, Property string }

func (s SeriesKey) compare(o SeriesKey) int {
	return cmp.Or(cmp.Compare(s.Device, o.Device), cmp.Compare(s.Property, o.Property))
}

// form is how the samples of a chunk are encoded.
type form byte

const (
	numberForm form = iota
	textForm
	thinForm // mean, least and greatest number of each thinStep
)

// sample is one value, and from when on it was so. In a thinned one number is the mean of thinStep, of which low and high are
// the least and the greatest.
type sample struct {
	t         int64 // ms since 1970
	form      form
	gap       bool // nothing is known from there on
	number    float64
	low, high float64
	text      string
}

func (s sample) sameValue(o sample) bool {
	return s.form == o.form && s.gap == o.gap && s.number == o.number && s.text == o.text
}

// parseSample reads a value of a type as a sample. Integers that no float64 is are kept as texts.
func parseSample(kind resource.DataType, value string, t int64) sample {
	switch kind {
	case resource.TypeBoolean:
		switch value {
		case "true":
			return sample{t: t, number: 1}
		case "false":
			return sample{t: t}
		}
	case resource.TypeInt:
		n, err := strconv.ParseInt(value, 10, 64)
		if err == nil && int64(float64(n)) == n && n != math.MaxInt64 {
			return sample{t: t, number: float64(n)}
		}
	case resource.TypeFloat, resource.TypeDouble:
		if x, err := strconv.ParseFloat(value, 64); err == nil && !math.IsNaN(x) && !math.IsInf(x, 0) {
			return sample{t: t, number: x}
		}
	}
	return sample{t: t, form: textForm, text: value}
}

// encoder encodes the samples of a series as chunks, one after the other.
type encoder struct {
	form  form
	num   [3]chunk.NumberChunk // only the first one but of thinned samples
	text  chunk.TextChunk
	count int
}

func (e *encoder) reset() {
	for i := range e.num {
		e.num[i].Reset()
	}
	e.text.Reset()
	e.count = 0
}

// fits is whether a sample can be added to the chunk.
func (e *encoder) fits(s sample, most int) bool {
	return e.count == 0 || e.form == s.form && e.count < most && len(e.text.Bytes) < 1<<16
}

func (e *encoder) append(s sample) {
	e.form = s.form
	e.count++
	switch {
	case s.form == textForm:
		e.text.Append(s.t, s.text, s.gap)
	case s.gap:
		e.num[0].Append(s.t, chunk.GapValue)
	default:
		e.num[0].Append(s.t, s.number)
	}
	if s.form == thinForm {
		e.num[1].Append(s.t, s.low)
		e.num[2].Append(s.t, s.high)
	}
}

// bytes is the encoded chunk, valid until the next call.
func (e *encoder) bytes() []byte {
	switch e.form {
	case textForm:
		return e.text.Bytes
	case thinForm:
		var b []byte
		for i := range e.num {
			b = binary.AppendUvarint(b, uint64(len(e.num[i].Bytes)))
			b = append(b, e.num[i].Bytes...)
		}
		return b
	}
	return e.num[0].Bytes
}

// decodeChunk appends the samples of an encoded chunk.
func decodeChunk(to []sample, f form, b []byte) ([]sample, error) {
	switch f {
	case numberForm:
		err := chunk.DecodeNumbers(b, func(t int64, v float64) bool {
			to = append(to, sample{t: t, number: v})
			if chunk.IsGap(v) {
				to[len(to)-1] = sample{t: t, gap: true}
			}
			return true
		})
		return to, err
	case textForm:
		err := chunk.DecodeTexts(b, func(t int64, text string, gap bool) bool {
			to = append(to, sample{t: t, form: textForm, text: text, gap: gap})
			return true
		})
		return to, err
	case thinForm:
		first := len(to)
		for i := range 3 {
			size, n := binary.Uvarint(b)
			if n <= 0 || size > uint64(len(b)-n) {
				return to, chunk.ErrDamaged
			}
			at := first
			err := chunk.DecodeNumbers(b[n:n+int(size)], func(t int64, v float64) bool {
				if i == 0 {
					to = append(to, sample{t: t, form: thinForm, number: v})
				}
				if at == len(to) {
					return false
				}
				*[]*float64{&to[at].number, &to[at].low, &to[at].high}[i] = v
				at++
				return true
			})
			if err != nil || at != len(to) {
				return to, chunk.ErrDamaged
			}
			b = b[n+int(size):]
		}
		return to, nil
	}
	return to, chunk.ErrDamaged
}

// sortSamples sorts by time. What was recorded twice stays once.
func sortSamples(list []sample) []sample {
	byTime := func(a, b sample) int { return cmp.Compare(a.t, b.t) }
	if !slices.IsSortedFunc(list, byTime) {
		slices.SortStableFunc(list, byTime)
	}
	return slices.Compact(list)
}

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

func checksum(b []byte) uint32 { return crc32.Checksum(b, castagnoli) }

func appendText(b []byte, text string) []byte {
	return append(binary.AppendUvarint(b, uint64(len(text))), text...)
}

// byteReader reads what encoding/binary has appended. After the first failure all is zero.
type byteReader struct {
	b   []byte
	bad bool
}

func (r *byteReader) uvarint() uint64 {
	v, n := binary.Uvarint(r.b)
	if n <= 0 {
		r.b, r.bad = nil, true
		return 0
	}
	r.b = r.b[n:]
	return v
}

func (r *byteReader) varint() int64 {
	v, n := binary.Varint(r.b)
	if n <= 0 {
		r.b, r.bad = nil, true
		return 0
	}
	r.b = r.b[n:]
	return v
}

func (r *byteReader) take(n uint64) []byte {
	if n > uint64(len(r.b)) {
		r.b, r.bad = nil, true
		return nil
	}
	b := r.b[:n]
	r.b = r.b[n:]
	return b
}

func (r *byteReader) text() string { return string(r.take(r.uvarint())) }
