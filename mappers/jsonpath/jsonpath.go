// SPDX-License-Identifier: Apache-2.0

// Package jsonpath finds values in JSON that devices send: by a singular query of RFC 9535, with numbers as they were written.
package jsonpath

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/edgebus/edgebus/mappers"
)

// Path leads to one value in JSON: names (string) and indexes (int).
type Path []any

// Parse reads a singular query of RFC 9535, with or without the $ before it: state, color.x, $.list[0]['a name'].
func Parse(text string) (p Path, err error) {
	if !utf8.ValidString(text) {
		return nil, errors.New("is not UTF-8")
	}
	rest := strings.TrimPrefix(text, "$")
	if rest == "" {
		if text != "" {
			return nil, errors.New("is the whole payload: leave it out")
		}
		return nil, nil
	}
	if rest == text && rest[0] != '[' {
		rest = "." + rest
	}
	for rest != "" {
		var step any
		switch {
		case rest[0] == '.':
			end := len(rest)
			if i := strings.IndexAny(rest[1:], ".["); i >= 0 {
				end = i + 1
			}
			step, rest = rest[1:end], rest[end:]
			if step == "" {
				return nil, errors.New("a name is missing after a dot")
			}
		case rest[0] == '[':
			if step, rest, err = parseBracket(rest); err != nil {
				return nil, err
			}
		default:
			return nil, fmt.Errorf("%q: expected . or [", rest)
		}
		p = append(p, step)
	}
	return p, nil
}

// parseBracket reads [0], ['name'] or ["name"] at the beginning of text.
func parseBracket(text string) (step any, rest string, err error) {
	for _, mark := range []string{"'", `"`} {
		if inner, ok := strings.CutPrefix(text, "["+mark); ok {
			name, rest, ok := strings.Cut(inner, mark+"]")
			if !ok {
				return nil, "", fmt.Errorf("%s: %s] is missing", text, mark)
			}
			return name, rest, nil
		}
	}
	digits, rest, ok := strings.Cut(text[1:], "]")
	n, err := strconv.ParseUint(digits, 10, 31)
	if !ok || err != nil {
		return nil, "", fmt.Errorf("%s: expected an index, such as [0], or a quoted name", text)
	}
	return int(n), rest, nil
}

// Indexed reports whether it leads through a list.
func (p Path) Indexed() bool {
	for _, step := range p {
		if _, ok := step.(int); ok {
			return true
		}
	}
	return false
}

// Wrap makes the object in which the path, which has names only, leads to a JSON value.
func (p Path) Wrap(literal string) string {
	for i := len(p) - 1; i >= 0; i-- {
		literal = "{" + QuoteText(p[i].(string)) + ":" + literal + "}"
	}
	return literal
}

// Message is a payload, which is parsed at most once however many properties are in it.
type Message struct {
	Source  string // where it comes from: a topic, an address
	Payload []byte
	parsed  bool
	json    any
	err     error
}

func (m *Message) parse() (any, error) {
	if !m.parsed {
		m.parsed = true
		d := json.NewDecoder(bytes.NewReader(m.Payload))
		d.UseNumber() // a number keeps its digits
		if err := d.Decode(&m.json); err != nil {
			m.err = mappers.Refuse(mappers.Invalid, "the payload of %s is not JSON: %q", m.Source, clipText(string(m.Payload)))
		}
	}
	return m.json, m.err
}

// Find returns the value at p as text. quoted says that it is a string in JSON. ok is false if there is nothing at p; null is how a
// device says that it has no value.
func (m *Message) Find(p Path) (value string, quoted, ok bool, err error) {
	if p == nil {
		return string(m.Payload), false, len(m.Payload) > 0, nil
	}
	at, err := m.parse()
	if err != nil {
		return "", false, false, err
	}
	there := false
	for _, step := range p {
		switch step := step.(type) {
		case string:
			object, _ := at.(map[string]any)
			at, there = object[step]
		case int:
			list, _ := at.([]any)
			if at, there = nil, step < len(list); there {
				at = list[step]
			}
		}
	}
	switch v := at.(type) {
	case nil:
		if there {
			err = mappers.Refuse(mappers.Unknown, "the device says null on %s", m.Source)
		}
		return "", false, false, err
	case string:
		return v, true, true, nil
	default:
		out, err := json.Marshal(v)
		return string(out), false, true, err
	}
}

// QuoteText is a text as JSON has it.
func QuoteText(text string) string {
	literal, _ := json.Marshal(text) // a text can be written
	return string(literal)
}

// clipText shortens a text for an error.
func clipText(text string) string { return text[:min(len(text), 80)] }
