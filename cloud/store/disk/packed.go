// SPDX-License-Identifier: Apache-2.0

package disk

import (
	"bytes"
	"encoding/binary"
	"strconv"
	"strings"
	"unique"
)

// packedText is a text in two parts: a form, which is in memory once however many texts have it, and the numbers that stand in its gaps.
// The statuses of Devices of one model differ in numbers alone, most of the time: times, values and versions.
type packedText struct {
	form    unique.Handle[string] // with a NUL for each number
	numbers []byte                // varints: the text's length, and for each number its double, and 1 more if it begins with a 0; then how many digits it has
}

const (
	numberGap = 0
	maxDigits = 18 // of a number; what is longer is several
)

var noForm unique.Handle[string]

// packText packs a text. One that has a NUL itself has no gaps.
func packText(text []byte) (p packedText) {
	if len(text) == 0 {
		return p
	}
	form := make([]byte, 0, len(text))
	numbers := binary.AppendUvarint(make([]byte, 0, len(text)/4+binary.MaxVarintLen64), uint64(len(text)))
	for at := 0; at < len(text); {
		c := text[at]
		if c == numberGap {
			return packedText{form: unique.Make(string(text))}
		}
		if c-'0' > 9 {
			form = append(form, c)
			at++
			continue
		}
		n, from := uint64(0), at
		for ; at < len(text) && at-from < maxDigits && text[at]-'0' <= 9; at++ {
			n = 10*n + uint64(text[at]-'0')
		}
		form = append(form, numberGap)
		if c != '0' {
			numbers = binary.AppendUvarint(numbers, 2*n)
		} else {
			numbers = append(binary.AppendUvarint(numbers, 2*n+1), byte(at-from))
		}
	}
	return packedText{form: unique.Make(string(form)), numbers: bytes.Clone(numbers)}
}

// unpack returns the text; nil if it is empty.
func (p packedText) unpack() []byte {
	if p.form == noForm {
		return nil
	}
	form := p.form.Value()
	if len(p.numbers) == 0 {
		return []byte(form)
	}
	size, at := binary.Uvarint(p.numbers)
	text := make([]byte, 0, size)
	for rest := p.numbers[at:]; len(rest) > 0; {
		gap := strings.IndexByte(form, numberGap)
		text = append(text, form[:gap]...)
		form = form[gap+1:]
		n, used := binary.Uvarint(rest)
		rest = rest[used:]
		if n&1 == 0 {
			text = strconv.AppendUint(text, n/2, 10)
			continue
		}
		digits := int(rest[0])
		rest = rest[1:]
		text = append(text, "000000000000000000"[:digits]...)
		for i, n := len(text)-1, n/2; n > 0; i, n = i-1, n/10 {
			text[i] = '0' + byte(n%10)
		}
	}
	return append(text, form...)
}

func (p packedText) equal(o packedText) bool {
	return p.form == o.form && bytes.Equal(p.numbers, o.numbers)
}

// size is about what the text takes in memory if no other has its form.
func (p packedText) size() int {
	if p.form == noForm {
		return 0
	}
	return len(p.form.Value()) + len(p.numbers)
}
