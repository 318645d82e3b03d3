// SPDX-License-Identifier: Apache-2.0

package history

import (
	"cmp"
	"encoding/binary"
	"hash/crc32"
	"math"
	"slices"
	"strconv"
	"strings"

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
	digits    byte // decimals of number, as it was written
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
			return sample{t: t, number: x, digits: countDecimals(value)}
		}
	}
	return sample{t: t, form: textForm, text: value}
}

// maxDecimals is the most decimals with which numbers are scaled, and maxScaled what a scaled number has to be below, so that it is exact.
const (
	maxDecimals = 6
	maxScaled   = 1 << 53
)

// countDecimals is how many digits a decimal number has after its point; 0 where scaling by them is of no use.
func countDecimals(value string) byte {
	_, after, _ := strings.Cut(value, ".")
	if len(after) > maxDecimals || strings.Trim(after, "0123456789") != "" {
		return 0
	}
	return byte(len(after))
}

var powersOfTen = [maxDecimals + 1]float64{1, 1e1, 1e2, 1e3, 1e4, 1e5, 1e6}

// scaleNumber makes a whole number of one with so many decimals: its bits differ in fewer places from those of the one before. ok is false where
// the number would not be the same again.
func scaleNumber(number float64, digits byte) (scaled float64, ok bool) {
	if digits == 0 {
		return number, true
	}
	scaled = math.Round(number * powersOfTen[digits])
	return scaled, math.Abs(scaled) < maxScaled && scaled/powersOfTen[digits] == number && (scaled != 0 || !math.Signbit(number))
}

// The form of a chunk of numbers is numberForm with their decimals above it.
const decimalsShift = 4

// encoder encodes the samples of a series as chunks, one after the other.
type encoder struct {
	form  form
	num   [3]chunk.NumberChunk // only the first one but of thinned samples
	text  chunk.TextChunk
	count int

	digits byte // with which the numbers are scaled: the most that there were, also in chunks before
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
	if e.count == 0 {
		return true
	}
	_, scales := scaleNumber(s.number, e.form.digits())
	return e.form.kind() == s.form && s.digits <= e.digits && (scales || s.gap || s.form != numberForm) && e.count < most && len(e.text.Bytes) < 1<<16
}

func (f form) kind() form { return f & (1<<decimalsShift - 1) }

func (f form) digits() byte { return byte(f >> decimalsShift) }

// begin chooses the form of a chunk by its first sample.
func (e *encoder) begin(s sample) {
	e.form = s.form
	if s.form != numberForm {
		return
	}
	e.digits = max(e.digits, s.digits)
	if _, ok := scaleNumber(s.number, e.digits); ok || s.gap {
		e.form |= form(e.digits) << decimalsShift
	}
}

func (e *encoder) append(s sample) {
	if e.count == 0 {
		e.begin(s)
	}
	e.count++
	switch {
	case s.form == textForm:
		e.text.Append(s.t, s.text, s.gap)
	case s.gap:
		e.num[0].Append(s.t, chunk.GapValue)
	case s.form == numberForm:
		scaled, _ := scaleNumber(s.number, e.form.digits())
		e.num[0].Append(s.t, scaled)
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
	switch e.form.kind() {
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
	digits := f.digits()
	if digits > maxDecimals || digits > 0 && f.kind() != numberForm {
		return to, chunk.ErrDamaged
	}
	switch f.kind() {
	case numberForm:
		err := chunk.DecodeNumbers(b, func(t int64, v float64) bool {
			if chunk.IsGap(v) {
				to = append(to, sample{t: t, gap: true})
			} else {
				to = append(to, sample{t: t, number: v / powersOfTen[digits], digits: digits})
			}
			return true
		})
		return to, err
	case textForm:
		err := chunk.DecodeTexts(b, func(t int64, text string, gap bool) bool {
			to = append(to, sample{t: t, form: textForm, text: text, gap: gap})
			return len(to) <= 2*maxSamples
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
