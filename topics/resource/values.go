package resource

import (
	"fmt"
	"maps"
	"strings"
)

// Secret holds values that nobody reads by chance: passwords, keys. The hub's store has
// them encrypted.
type Secret struct {
	TypeMeta
	Metadata Meta `json:"metadata"`
	// Data are the values, in base64.
	Data map[string][]byte `json:"data,omitempty"`
	// StringData are values as text. They are written into data, and never shown.
	StringData map[string]string `json:"stringData,omitempty"`
	// Type says for whom the values are: Opaque when empty. It is immutable.
	// +default=Opaque
	Type string `json:"type,omitempty"`
	// Immutable ends all changes of the values, for good.
	Immutable *bool `json:"immutable,omitempty"`
}

// ConfigMap holds values that others refer to.
type ConfigMap struct {
	TypeMeta
	Metadata Meta `json:"metadata"`
	// Data are the values as text.
	Data map[string]string `json:"data,omitempty"`
	// BinaryData are values that are no text, in base64. A key is in one of the two.
	BinaryData map[string][]byte `json:"binaryData,omitempty"`
	// Immutable ends all changes of the values, for good.
	Immutable *bool `json:"immutable,omitempty"`
}

// Values are those of Data and BinaryData.
func (c ConfigMap) Values() map[string][]byte {
	values := make(map[string][]byte, len(c.Data)+len(c.BinaryData))
	for key, text := range c.Data {
		values[key] = []byte(text)
	}
	maps.Copy(values, c.BinaryData)
	return values
}

// maxValues is how many bytes the values of a Secret or ConfigMap may have, as in Kubernetes.
const maxValues = 1 << 20

// Complete gives a Secret the form that is kept: what was written as text is in data.
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

// Version is another one after each change of the values, and for a Secret that was made anew under the same name. Changes of labels
// and of the key with which the store encrypts don't change it, and it reveals nothing of the values.
func (s Secret) Version() string {
	uid, _, _ := strings.Cut(s.Metadata.UID, "-")
	return fmt.Sprintf("%s-%d", uid, s.Metadata.Generation)
}

// Validate checks a Secret. The error never quotes a value.
func (s Secret) Validate() error {
	var p problems
	s.Metadata.check(&p)
	checkSize(&p, checkKeys(&p, "data", s.Data)+checkKeys(&p, "stringData", s.StringData))
	return p.err()
}

// CheckUpdate reports whether a Secret may follow prev.
func (s Secret) CheckUpdate(prev Secret) error {
	var p problems
	s.Complete()
	prev.Complete()
	unchanged(&p, "type", prev.Type, s.Type)
	if isSet(prev.Immutable) {
		unchanged(&p, "data", prev.Data, s.Data)
		unchanged(&p, "immutable", true, isSet(s.Immutable))
	}
	return p.err()
}

// Validate checks a ConfigMap.
func (c ConfigMap) Validate() error {
	var p problems
	c.Metadata.check(&p)
	checkSize(&p, checkKeys(&p, "data", c.Data)+checkKeys(&p, "binaryData", c.BinaryData))
	for key := range c.BinaryData {
		if _, twice := c.Data[key]; twice {
			p.add("binaryData["+key+"]", "stands in data, too")
		}
	}
	return p.err()
}

// CheckUpdate reports whether a ConfigMap may follow prev.
func (c ConfigMap) CheckUpdate(prev ConfigMap) error {
	var p problems
	if isSet(prev.Immutable) {
		unchanged(&p, "data", prev.Data, c.Data)
		unchanged(&p, "binaryData", prev.BinaryData, c.BinaryData)
		unchanged(&p, "immutable", true, isSet(c.Immutable))
	}
	return p.err()
}

func isSet(b *bool) bool { return b != nil && *b }

func checkSize(p *problems, size int) {
	if size > maxValues {
		p.add("data", "%d bytes of values; at most %d are kept", size, maxValues)
	}
}

// checkKeys checks the keys of values, which may become names of files, and returns how many bytes the values have.
func checkKeys[V string | []byte](p *problems, field string, values map[string]V) (size int) {
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
