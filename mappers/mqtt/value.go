// SPDX-License-Identifier: Apache-2.0

package mqtt

import (
	"encoding/base64"
	"encoding/json"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/edgebus/edgebus/mappers"
	"github.com/edgebus/edgebus/mappers/jsonpath"
)

// encode makes the payload of a command. said is what the device has said last: true, 1 and "1" are three things to some, and a command has
// the one that the device has itself.
func (f *mappedProperty) encode(value string, said lastReading) ([]byte, error) {
	literal, known := value, said.count > 0 && said.err == nil
	switch {
	case f.typ == mappers.Bytes && f.payload == "" && f.state.path == nil:
		return base64.StdEncoding.DecodeString(value)
	case f.typ == mappers.String && isScalar(value) && (known && !said.quoted || !known && f.words):
	case f.typ == mappers.String, f.typ == mappers.Bytes, f.typ == "", f.typ.Numeric() && known && said.quoted:
		literal = jsonpath.QuoteText(value)
	}
	switch {
	case f.payload != "":
		return []byte(strings.NewReplacer("{value}", value, "{json}", literal).Replace(f.payload)), nil
	case f.state.path != nil:
		return []byte(f.state.path.Wrap(literal)), nil
	}
	return []byte(value), nil
}

// isScalar reports whether a text is a number or a truth value in JSON.
func isScalar(text string) bool {
	if text == "true" || text == "false" {
		return true
	}
	_, err := strconv.ParseFloat(text, 64)
	return err == nil && json.Valid([]byte(text))
}

// decode makes a reading of a message. One that says nothing about the property, for the path leads nowhere, is no reading: ok is false.
func (f *mappedProperty) decode(m *jsonpath.Message) (r lastReading, ok bool) {
	text, quoted, ok, err := m.Find(f.state.path)
	switch {
	case err != nil:
		return lastReading{err: err}, true
	case !ok:
		return r, false
	case f.typ == mappers.Bytes && f.state.path == nil:
		return lastReading{value: base64.StdEncoding.EncodeToString(m.Payload)}, true
	}
	r.quoted = quoted || f.state.path == nil && !isScalar(strings.TrimSpace(text))
	r.value, r.err = f.value(text, quoted, m.Source)
	return r, true
}

// value makes the property's value of a text that came from somewhere.
func (f *mappedProperty) value(text string, quoted bool, from string) (string, error) {
	switch {
	case !utf8.ValidString(text):
		return "", mappers.Refuse(mappers.Unknown, "what comes on %s is no text: a property of the type bytes could have it", from)
	case f.typ == mappers.Object || f.typ == mappers.Array:
		if quoted {
			text = jsonpath.QuoteText(text)
		}
		return text, nil
	case f.typ == mappers.Bytes:
		return text, nil
	case f.typ == mappers.String && !f.words:
		return strings.TrimRight(text, "\r\n\x00"), nil // as programs in C and shells end what they publish
	}
	text = strings.Trim(text, " \t\r\n\x00")
	if f.typ == mappers.Boolean {
		return f.boolean(text, from)
	}
	if f.typ == mappers.Int && strings.ContainsAny(text, ".eE") { // 127.0 is a whole number
		if x, err := strconv.ParseFloat(text, 64); err == nil && x == float64(int64(x)) {
			return strconv.FormatInt(int64(x), 10), nil
		}
	}
	return text, nil
}

func (f *mappedProperty) boolean(value, from string) (string, error) {
	switch strings.ToLower(value) {
	case "true", "1", "on":
		return "true", nil
	case "false", "0", "off":
		return "false", nil
	}
	return "", mappers.Refuse(mappers.Invalid, "%q on %s is neither on nor off", clipText(value), from)
}

// clipText shortens a text for an error.
func clipText(text string) string {
	if len(text) > 80 {
		return strings.ToValidUTF8(text[:80], "") + "…"
	}
	return text
}
