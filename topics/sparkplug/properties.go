// SPDX-License-Identifier: Apache-2.0

package sparkplug

import (
	"encoding/binary"
	"fmt"
	"math"
)

// MaxProperties bounds the properties of a metric.
const MaxProperties = 64

// Property says something of a metric besides its value, such as its unit.
type Property struct {
	Key  string
	Type DataType
	Null bool

	field  uint64 // which member has the value, by its number in the message; 0: none
	number uint64
	bytes  []byte
}

// The keys of properties that hosts know: Quality is the specification's, the others are those of widespread hosts.
const (
	KeyQuality     = "Quality"
	KeyUnit        = "engUnit"
	KeyLow         = "engLow"
	KeyHigh        = "engHigh"
	KeyDescription = "documentation"
)

// The values of the property Quality. A metric without it is good.
const (
	QualityBad   = 0
	QualityGood  = 192
	QualityStale = 500
)

const fieldProperties = 9 // of a metric

// The members of a property that have its value.
const (
	propertyInt     = 3
	propertyLong    = 4
	propertyFloat   = 5
	propertyDouble  = 6
	propertyBoolean = 7
	propertyString  = 8
)

// QualityProperty is the property of a metric that says whether its value can be relied on.
func QualityProperty(code int32) Property {
	return Property{Key: KeyQuality, Type: TypeInt32, field: propertyInt, number: uint64(uint32(code))}
}

// TextProperty is a property that is a text.
func TextProperty(key, text string) Property {
	return Property{Key: key, Type: TypeString, field: propertyString, bytes: []byte(text)}
}

// NumberProperty is a property that is a number.
func NumberProperty(key string, number float64) Property {
	return Property{Key: key, Type: TypeDouble, field: propertyDouble, number: math.Float64bits(number)}
}

// Text is the property's value as text, as Metric.Text is.
func (p Property) Text() (string, error) {
	m := Metric{Type: p.Type, number: p.number, bytes: p.bytes}
	if p.field >= propertyInt && p.field <= propertyString {
		m.field = p.field - propertyInt + fieldInt // the same members in the same order
	}
	return m.Text(TypeUnspecified)
}

// SetProperties replaces the metric's properties.
func (m *Metric) SetProperties(list []Property) { m.properties = appendProperties(nil, list) }

// Properties are what the metric says besides its value.
func (m Metric) Properties() ([]Property, error) { return parseProperties(m.properties) }

// Quality is what the metric says of its value; good unless it says otherwise.
func (m Metric) Quality() int32 {
	list, _ := m.Properties() // what can't be read says nothing
	for _, p := range list {
		if p.Key == KeyQuality && p.field == propertyInt {
			return int32(p.number)
		}
	}
	return QualityGood
}

// parseProperties reads a set of properties: its keys, and as many values.
func parseProperties(b []byte) (list []Property, err error) {
	keys := 0
	at := func(i int) (*Property, error) {
		if i == MaxProperties {
			return nil, fmt.Errorf("more than %d properties of a metric", MaxProperties)
		}
		if i == len(list) {
			list = append(list, Property{})
		}
		return &list[i], nil
	}
	values := 0
	err = eachField(b, func(field, _ uint64, bytes []byte) error {
		switch field {
		case 1:
			p, err := at(keys)
			if err == nil {
				p.Key = string(bytes)
			}
			keys++
			return err
		case 2:
			p, err := at(values)
			if err == nil {
				err = p.parse(bytes)
			}
			values++
			return err
		}
		return nil
	})
	if err == nil && keys != values {
		err = fmt.Errorf("%d keys of properties, and %d values", keys, values)
	}
	return list, err
}

func (p *Property) parse(b []byte) error {
	return eachField(b, func(field, number uint64, bytes []byte) error {
		switch {
		case field == 1:
			p.Type = DataType(number)
		case field == 2:
			p.Null = number != 0
		case field >= propertyInt && field <= propertyString:
			p.field, p.number, p.bytes = field, number, bytes
		}
		return nil
	})
}

func appendProperties(b []byte, list []Property) []byte {
	for _, p := range list {
		b = appendBytes(b, 1, []byte(p.Key))
	}
	for _, p := range list {
		b = appendBytes(b, 2, p.append(nil))
	}
	return b
}

func (p Property) append(b []byte) []byte {
	b = appendNumber(b, 1, uint64(p.Type))
	if p.Null {
		b = appendNumber(b, 2, 1)
	}
	switch p.field {
	case propertyInt, propertyLong, propertyBoolean:
		b = appendNumber(b, p.field, p.number)
	case propertyFloat:
		b = binary.AppendUvarint(b, p.field<<3|wireFixed32)
		b = binary.LittleEndian.AppendUint32(b, uint32(p.number))
	case propertyDouble:
		b = binary.AppendUvarint(b, p.field<<3|wireFixed64)
		b = binary.LittleEndian.AppendUint64(b, p.number)
	case propertyString:
		b = appendBytes(b, p.field, p.bytes)
	}
	return b
}
