// SPDX-License-Identifier: Apache-2.0

package disk

import (
	"bytes"
	"encoding/binary"
	"slices"
	"strconv"
	"strings"
	"time"
	"unique"
)

// packedText is a text in two parts: a form, which is in memory once however many texts have it, and the numbers and times that stand in its gaps.
// The statuses of Devices of one model differ in these alone, most of the time. Most of their times are the one before, or of the same day.
type packedText struct {
	form unique.Handle[string] // with a NUL for each number or time
	// numbers are varints: the text's length, and for each gap four times what is in it, and its kind. After a number that begins with a 0 there is how many
	// digits it has; a time is the milliseconds since the one before.
	numbers []byte
}

const (
	numberGap = 0
	maxDigits = 18 // of a number; what is longer is several

	plainNumber  = 0
	paddedNumber = 1 // with zeros before it
	millisTime   = 2 // 2026-11-27T21:03:00.050Z
	secondsTime  = 3 // 2026-11-27T21:03:00Z

	millisLen, secondsLen, dateLen = len("2026-11-27T21:03:00.050Z"), len("2026-11-27T21:03:00Z"), len("2026-11-27T")
	dayMillis                      = 24 * 60 * 60 * 1000
)

var noForm unique.Handle[string]

// packText packs a text. One that has a NUL itself has no gaps.
func packText(text []byte) (p packedText) {
	if len(text) == 0 {
		return p
	}
	form := make([]byte, 0, len(text))
	numbers := binary.AppendUvarint(make([]byte, 0, len(text)/4+binary.MaxVarintLen64), uint64(len(text)))
	last, lastText := int64(0), []byte(nil)
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
		form = append(form, numberGap)
		millis, size := last, len(lastText)
		if size == 0 || !bytes.HasPrefix(text[at:], lastText) {
			millis, size = readTime(text[at:])
		}
		if size > 0 {
			kind := uint64(millisTime)
			if size == secondsLen {
				kind = secondsTime
			}
			delta := millis - last
			numbers = binary.AppendUvarint(numbers, uint64(delta<<1^delta>>63)<<2|kind)
			last, lastText, at = millis, text[at:at+size], at+size
			continue
		}
		n, from := uint64(0), at
		for ; at < len(text) && at-from < maxDigits && text[at]-'0' <= 9; at++ {
			n = 10*n + uint64(text[at]-'0')
		}
		if c != '0' {
			numbers = binary.AppendUvarint(numbers, n<<2|plainNumber)
		} else {
			numbers = append(binary.AppendUvarint(numbers, n<<2|paddedNumber), byte(at-from))
		}
	}
	return packedText{form: unique.Make(string(form)), numbers: bytes.Clone(numbers)}
}

// readTime reads a time that a text begins with, of which size bytes are; 0: it begins with none that appendTime writes so.
func readTime(text []byte) (millis int64, size int) {
	if len(text) < secondsLen || text[4] != '-' || text[10] != 'T' {
		return 0, 0
	}
	layout := time.RFC3339
	switch {
	case text[secondsLen-1] == 'Z':
		size = secondsLen
	case len(text) >= millisLen && text[millisLen-1] == 'Z':
		layout, size = "2006-01-02T15:04:05.000Z07:00", millisLen
	default:
		return 0, 0
	}
	at, err := time.Parse(layout, string(text[:size]))
	if err != nil || string(appendTime(nil, at.UnixMilli(), size)) != string(text[:size]) {
		return 0, 0
	}
	return at.UnixMilli(), size
}

// appendTime writes a time in so many bytes.
func appendTime(text []byte, millis int64, size int) []byte {
	year, month, day := time.UnixMilli(millis).UTC().Date()
	text = appendDigits(text, year, 4)
	text = appendDigits(append(text, '-'), int(month), 2)
	text = appendDigits(append(text, '-'), day, 2)
	return appendClock(append(text, 'T'), millis, size)
}

// appendClock writes what follows the date of a time.
func appendClock(text []byte, millis int64, size int) []byte {
	n := int((millis%dayMillis + dayMillis) % dayMillis)
	text = appendDigits(text, n/3_600_000, 2)
	text = appendDigits(append(text, ':'), n/60_000%60, 2)
	text = appendDigits(append(text, ':'), n/1000%60, 2)
	if size == millisLen {
		text = appendDigits(append(text, '.'), n%1000, 3)
	}
	return append(text, 'Z')
}

// appendDigits writes a number in so many digits.
func appendDigits(text []byte, n, digits int) []byte {
	text = append(text, "000000000000000000"[:digits]...)
	for i := len(text) - 1; n > 0; i, n = i-1, n/10 {
		text[i] = '0' + byte(n%10)
	}
	return text
}

// unpack returns the text; nil if it is empty.
func (p packedText) unpack() []byte { return p.unpackInto(nil) }

// unpackInto is unpack with the memory of a buffer, unless that is nil: the text is appended to it.
func (p packedText) unpackInto(buffer *[]byte) (text []byte) {
	if p.form == noForm {
		return nil
	}
	size, at := uint64(len(p.form.Value())), 0
	if len(p.numbers) > 0 {
		size, at = binary.Uvarint(p.numbers)
	}
	if buffer == nil {
		return p.appendTo(make([]byte, 0, size), at)
	}
	*buffer = slices.Grow(*buffer, int(size))
	from := len(*buffer)
	*buffer = p.appendTo(*buffer, at)
	return (*buffer)[from:len(*buffer):len(*buffer)]
}

// appendTo appends the text, whose numbers begin at a place.
func (p packedText) appendTo(text []byte, at int) []byte {
	form := p.form.Value()
	last, lastAt, lastSize := int64(0), 0, 0
	for rest := p.numbers[at:]; len(rest) > 0; {
		gap := strings.IndexByte(form, numberGap)
		text = append(text, form[:gap]...)
		form = form[gap+1:]
		n, used := binary.Uvarint(rest)
		rest = rest[used:]
		kind := n & 3
		if n >>= 2; kind == plainNumber {
			text = strconv.AppendUint(text, n, 10)
			continue
		}
		if kind == paddedNumber {
			text = appendDigits(text, int(n), int(rest[0]))
			rest = rest[1:]
			continue
		}
		size := millisLen
		if kind == secondsTime {
			size = secondsLen
		}
		millis, from := last+(int64(n>>1)^-int64(n&1)), len(text)
		switch {
		case lastSize == size && millis == last:
			text = append(text, text[lastAt:lastAt+size]...)
		case lastSize > 0 && millis/dayMillis == last/dayMillis && millis > 0 && last > 0:
			text = appendClock(append(text, text[lastAt:lastAt+dateLen]...), millis, size)
		default:
			text = appendTime(text, millis, size)
		}
		last, lastAt, lastSize = millis, from, size
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
