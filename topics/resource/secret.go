// SPDX-License-Identifier: Apache-2.0

package resource

import (
	"fmt"
	"maps"
	"strings"
)

// Secret holds confidential values, such as passwords and keys. The hub stores them encrypted.
type Secret struct {
	TypeMeta
	Metadata Meta `json:"metadata"`
	// Data has the values by key, in base64. The values of a Secret have at most 1 MiB altogether.
	Data map[string][]byte `json:"data,omitempty"`
	// StringData has values as text. A write moves them into data; reads never return the field.
	StringData map[string]string `json:"stringData,omitempty"`
	// Type says what the values are for; Opaque when empty. It is immutable.
	// +default=Opaque
	Type string `json:"type,omitempty"`
	// Immutable forbids all further changes of the values. It can't be unset.
	Immutable *bool `json:"immutable,omitempty"`
}

// ConfigMap holds values to which other objects refer.
type ConfigMap struct {
	TypeMeta
	Metadata Meta `json:"metadata"`
	// Data has values as text, by key. The values of a ConfigMap have at most 1 MiB altogether.
	Data map[string]string `json:"data,omitempty"`
	// BinaryData has values that are not text, in base64, by key. A key is either in data or in binaryData.
	BinaryData map[string][]byte `json:"binaryData,omitempty"`
	// Immutable forbids all further changes of the values. It can't be unset.
	Immutable *bool `json:"immutable,omitempty"`
}

// Values returns the values of Data and BinaryData.
func (c ConfigMap) Values() map[string][]byte {
	values := make(map[string][]byte, len(c.Data)+len(c.BinaryData))
	for key, text := range c.Data {
		values[key] = []byte(text)
	}
	maps.Copy(values, c.BinaryData)
	return values
}

// maxValues bounds the values of a Secret or ConfigMap, in bytes, as in Kubernetes.
const maxValues = 1 << 20

// Complete converts a Secret to the form that is stored: StringData is moved into Data, and Type has its default.
func (s *Secret) Complete() {
	if s.Type == "" {
		s.Type = "Opaque"
	}
	for key, text := range s.StringData {
		if s.Data == nil {
			s.Data = make(map[string][]byte)
		}
		s.Data[key] = []byte(text)
	}
	s.StringData = nil
}

// Version differs after each change of the values, and for a Secret that was deleted and created again. It does not change
// when labels or the store's encryption key change, and it reveals nothing about the values.
func (s Secret) Version() string {
	uid, _, _ := strings.Cut(s.Metadata.UID, "-")
	return fmt.Sprintf("%s-%d", uid, s.Metadata.Generation)
}

// Validate checks a Secret. The error never quotes a value.
func (s Secret) Validate() error {
	var p causeList
	s.Metadata.check(&p)
	checkSize(&p, checkKeys(&p, "data", s.Data)+checkKeys(&p, "stringData", s.StringData))
	return p.err()
}

// CheckUpdate reports whether a Secret may replace prev.
func (s Secret) CheckUpdate(prev Secret) error {
	var p causeList
	s.Complete()
	prev.Complete()
	checkUnchanged(&p, "type", prev.Type, s.Type)
	if isSet(prev.Immutable) {
		checkUnchanged(&p, "data", prev.Data, s.Data)
		checkUnchanged(&p, "immutable", true, isSet(s.Immutable))
	}
	return p.err()
}

// Validate checks a ConfigMap.
func (c ConfigMap) Validate() error {
	var p causeList
	c.Metadata.check(&p)
	checkSize(&p, checkKeys(&p, "data", c.Data)+checkKeys(&p, "binaryData", c.BinaryData))
	for key := range c.BinaryData {
		if _, twice := c.Data[key]; twice {
			p.add("binaryData["+key+"]", "stands in data, too")
		}
	}
	return p.err()
}

// CheckUpdate reports whether a ConfigMap may replace prev.
func (c ConfigMap) CheckUpdate(prev ConfigMap) error {
	var p causeList
	if isSet(prev.Immutable) {
		checkUnchanged(&p, "data", prev.Data, c.Data)
		checkUnchanged(&p, "binaryData", prev.BinaryData, c.BinaryData)
		checkUnchanged(&p, "immutable", true, isSet(c.Immutable))
	}
	return p.err()
}

func isSet(b *bool) bool { return b != nil && *b }

func checkSize(p *causeList, size int) {
	if size > maxValues {
		p.add("data", "%d bytes of values; at most %d are kept", size, maxValues)
	}
}

// checkKeys checks the keys of values, which may become file names, and returns the size of the values in bytes.
func checkKeys[V string | []byte](p *causeList, field string, values map[string]V) (size int) {
	for key, value := range values {
		bad := strings.ContainsFunc(key, func(c rune) bool { return !isKeyLetter(c) })
		if bad || key == "" || len(key) > 253 || key == "." || strings.HasPrefix(key, "..") {
			p.add(fmt.Sprintf("%s[%.80s]", field, key), "a key is 1–253 letters, digits, '-', '_' and '.', and doesn't begin with '..'")
		}
		size += len(value)
	}
	return size
}

func isKeyLetter(c rune) bool {
	return c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' || c == '-' || c == '_' || c == '.'
}
