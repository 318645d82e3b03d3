// SPDX-License-Identifier: Apache-2.0

// Package sparkplug reads and writes payloads of Sparkplug B, which are protocol buffers (org.eclipse.tahu.protobuf.Payload), as far as
// a host and an edge node need them: metrics with their names, aliases, types, properties and values as text. It knows no broker and keeps
// nothing.
//
// Data sets, templates and metadata of metrics are skipped, as are properties that are sets of properties themselves.
package sparkplug

import (
	"encoding/binary"
	"errors"
	"fmt"
	"strings"
)

// MaxMetrics bounds the metrics of a payload.
const MaxMetrics = 10_000

// CheckID returns what is wrong with the ID of a group, an edge node, a device or a host; empty: nothing.
func CheckID(id string) string {
	switch {
	case id == "":
		return "must not be empty"
	case strings.ContainsAny(id, "+/#\x00"):
		return "can't contain +, / and #"
	}
	return ""
}

// Payload is what a message of an edge node or to one has.
type Payload struct {
	Timestamp uint64 // milliseconds since 1970; 0: it has none
	Seq       int    // 0 to 255; -1: it has none, as deaths and commands
	Metrics   []Metric
}

// Metric is a value in a Payload. In a birth it has a name, perhaps an alias, and a type; after that, a name or an alias is enough.
type Metric struct {
	Name       string
	Alias      uint64
	HasAlias   bool
	Timestamp  uint64
	Type       DataType // TypeUnspecified: as the birth has it
	Historical bool     // it is not the value of now
	Null       bool     // there is no value

	field  uint64 // which member has the value, by its number in the message; 0: none
	number uint64 // the bits of a number
	bytes  []byte // a text, or bytes

	properties []byte // the set as it is on the wire: most readers don't want it
}

// The kinds of fields on the wire.
const (
	wireVarint  = 0
	wireFixed64 = 1
	wireBytes   = 2
	wireFixed32 = 5
)

var errTruncated = errors.New("the payload is truncated")

// Parse reads a payload.
func Parse(b []byte) (p Payload, err error) {
	p.Seq = -1
	err = eachField(b, func(field, number uint64, bytes []byte) error {
		switch {
		case field == 1:
			p.Timestamp = number
		case field == 3:
			p.Seq = int(number & 0xff)
		case field == 2 && bytes != nil:
			if len(p.Metrics) == MaxMetrics {
				return fmt.Errorf("more than %d metrics", MaxMetrics)
			}
			m, err := parseMetric(bytes)
			p.Metrics = append(p.Metrics, m)
			return err
		}
		return nil
	})
	return p, err
}

func parseMetric(b []byte) (m Metric, err error) {
	err = eachField(b, func(field, number uint64, bytes []byte) error {
		switch field {
		case 1:
			m.Name = string(bytes)
		case 2:
			m.Alias, m.HasAlias = number, true
		case 3:
			m.Timestamp = number
		case 4:
			m.Type = DataType(number)
		case 5:
			m.Historical = number != 0
		case 7:
			m.Null = number != 0
		case fieldProperties:
			m.properties = bytes
		case fieldInt, fieldLong, fieldFloat, fieldDouble, fieldBoolean, fieldString, fieldBytes, fieldDataSet, fieldTemplate:
			m.field, m.number, m.bytes = field, number, bytes
		}
		return nil
	})
	return m, err
}

// eachField calls take for each field of a message. bytes is nil for a number.
func eachField(b []byte, take func(field, number uint64, bytes []byte) error) error {
	for len(b) > 0 {
		tag, n := binary.Uvarint(b)
		if n <= 0 || tag>>3 == 0 {
			return errTruncated
		}
		b = b[n:]
		var number uint64
		var bytes []byte
		switch tag & 7 {
		case wireVarint:
			if number, n = binary.Uvarint(b); n <= 0 {
				return errTruncated
			}
		case wireFixed64:
			if n = 8; len(b) < n {
				return errTruncated
			}
			number = binary.LittleEndian.Uint64(b)
		case wireFixed32:
			if n = 4; len(b) < n {
				return errTruncated
			}
			number = uint64(binary.LittleEndian.Uint32(b))
		case wireBytes:
			size, head := binary.Uvarint(b)
			if head <= 0 || size > uint64(len(b)-head) {
				return errTruncated
			}
			n = head + int(size)
			bytes = b[head:n:n]
		default:
			return fmt.Errorf("a field of the unknown kind %d", tag&7)
		}
		b = b[n:]
		if err := take(tag>>3, number, bytes); err != nil {
			return err
		}
	}
	return nil
}

// Append writes the payload after b.
func (p Payload) Append(b []byte) []byte {
	if p.Timestamp != 0 {
		b = appendNumber(b, 1, p.Timestamp)
	}
	for _, m := range p.Metrics {
		b = appendBytes(b, 2, m.append(nil))
	}
	if p.Seq >= 0 {
		b = appendNumber(b, 3, uint64(p.Seq))
	}
	return b
}

func (m Metric) append(b []byte) []byte {
	if m.Name != "" {
		b = appendBytes(b, 1, []byte(m.Name))
	}
	if m.HasAlias {
		b = appendNumber(b, 2, m.Alias)
	}
	if m.Timestamp != 0 {
		b = appendNumber(b, 3, m.Timestamp)
	}
	if m.Type != TypeUnspecified {
		b = appendNumber(b, 4, uint64(m.Type))
	}
	if m.Historical {
		b = appendNumber(b, 5, 1)
	}
	if m.Null {
		b = appendNumber(b, 7, 1)
	}
	if len(m.properties) > 0 {
		b = appendBytes(b, fieldProperties, m.properties)
	}
	switch m.field {
	case fieldInt, fieldLong, fieldBoolean:
		b = appendNumber(b, m.field, m.number)
	case fieldFloat:
		b = binary.AppendUvarint(b, m.field<<3|wireFixed32)
		b = binary.LittleEndian.AppendUint32(b, uint32(m.number))
	case fieldDouble:
		b = binary.AppendUvarint(b, m.field<<3|wireFixed64)
		b = binary.LittleEndian.AppendUint64(b, m.number)
	case fieldString, fieldBytes:
		b = appendBytes(b, m.field, m.bytes)
	}
	return b
}

func appendNumber(b []byte, field, number uint64) []byte {
	return binary.AppendUvarint(binary.AppendUvarint(b, field<<3|wireVarint), number)
}

func appendBytes(b []byte, field uint64, bytes []byte) []byte {
	b = binary.AppendUvarint(b, field<<3|wireBytes)
	return append(binary.AppendUvarint(b, uint64(len(bytes))), bytes...)
}
