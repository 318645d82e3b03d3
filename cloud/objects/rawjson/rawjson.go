// SPDX-License-Identifier: Apache-2.0

// Package rawjson finds the parts of JSON, and writes them again, without decoding it. Lists and watches show stored objects so:
// finding the parts costs a third of decoding and encoding them (cloud/api's BenchmarkReads).
//
// It never checks: it is for JSON that was valid when it was stored. Invalid JSON ends a scan.
package rawjson

import "bytes"

// skipValue returns the end of the JSON value that begins at i, or -1.
func skipValue(raw []byte, i int) int {
	for depth := 0; i < len(raw); {
		switch raw[i] {
		case '"':
			if i = SkipString(raw, i); i < 0 {
				return -1
			}
		case '{', '[':
			depth++
			i++
			continue
		case '}', ']':
			depth--
			i++
		case ',', ':', ' ', '\t', '\n', '\r':
			i++
			continue
		default: // a number, true, false or null
			for i < len(raw) && !endsValue(raw[i]) {
				i++
			}
		}
		if depth == 0 {
			return i
		}
	}
	return -1
}

func endsValue(c byte) bool {
	switch c {
	case ',', '}', ']', ' ', '\t', '\n', '\r':
		return true
	}
	return false
}

// SkipString returns the end of the string that begins at i, or -1.
func SkipString(raw []byte, i int) int {
	for i++; i < len(raw); i++ {
		switch raw[i] {
		case '"':
			return i + 1
		case '\\':
			i++
		}
	}
	return -1
}

// SkipSpace returns the end of the white space that begins at i.
func SkipSpace(raw []byte, i int) int {
	for i < len(raw) && (raw[i] == ' ' || raw[i] == '\t' || raw[i] == '\n' || raw[i] == '\r') {
		i++
	}
	return i
}

// Scanner visits the fields of a JSON object:
//
//	for f := Fields(raw); f.Next(); {
//
// A name is the text between its quotes, escapes included. Invalid JSON ends the scan.
type Scanner struct {
	Name, Value []byte
	raw         []byte
	i           int // where the next field begins
}

// Fields begins a scan of an object.
func Fields(raw []byte) Scanner {
	i := SkipSpace(raw, 0)
	if i == len(raw) || raw[i] != '{' {
		return Scanner{}
	}
	return Scanner{raw: raw, i: SkipSpace(raw, i+1)}
}

// Next finds the next field, and reports whether there is one.
func (f *Scanner) Next() bool {
	if f.i == len(f.raw) || f.raw[f.i] != '"' {
		return false
	}
	end := SkipString(f.raw, f.i)
	if end < 0 {
		return false
	}
	f.Name = f.raw[f.i+1 : end-1]
	colon := SkipSpace(f.raw, end)
	if colon == len(f.raw) || f.raw[colon] != ':' {
		return false
	}
	begin := SkipSpace(f.raw, colon+1)
	if end = skipValue(f.raw, begin); end < 0 {
		return false
	}
	f.Value = f.raw[begin:end]
	if f.i = SkipSpace(f.raw, end); f.i < len(f.raw) && f.raw[f.i] == ',' {
		f.i = SkipSpace(f.raw, f.i+1)
	}
	return true
}

// Field is the value of a field of an object, or nil.
func Field(raw []byte, name string) []byte {
	for f := Fields(raw); f.Next(); {
		if string(f.Name) == name {
			return f.Value
		}
	}
	return nil
}

// WithField is an object with another value of a field that it has.
func WithField(raw []byte, name string, value []byte) []byte {
	out := append(make([]byte, 0, len(raw)+len(value)), '{')
	for f := Fields(raw); f.Next(); {
		if len(out) > 1 {
			out = append(out, ',')
		}
		if string(f.Name) == name {
			f.Value = value
		}
		out = AppendField(out, f.Name, f.Value)
	}
	return append(out, '}')
}

// AppendField writes a field of an object.
func AppendField(out, name, value []byte) []byte {
	out = append(append(append(out, '"'), name...), '"', ':')
	return append(out, value...)
}

// AppendPart writes another field of an object, if it has a value.
func AppendPart(out []byte, name string, value []byte) []byte {
	if len(value) == 0 {
		return out
	}
	return AppendField(append(out, ','), []byte(name), value)
}

// AppendContent writes the fields of an object behind those that are there already.
func AppendContent(out, object []byte) []byte {
	if object = bytes.TrimSpace(object); len(object) <= len("{}") || object[0] != '{' {
		return out
	}
	return append(append(out, ','), object[1:len(object)-1]...)
}
