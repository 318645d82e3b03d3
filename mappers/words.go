// SPDX-License-Identifier: Apache-2.0

package mappers

import (
	"math"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// untranslated is the device as its driver sees it: a property with words has the device's own texts.
func (d Device) untranslated() Device {
	d.Properties, d.Events, d.Commands = untranslatedProperties(d.Properties), untranslatedProperties(d.Events), untranslatedProperties(d.Commands)
	return d
}

func untranslatedProperties(list []Property) []Property {
	if !slices.ContainsFunc(list, func(p Property) bool { return len(p.Words) > 0 }) {
		return list
	}
	list = slices.Clone(list)
	for i := range list {
		if p := &list[i]; len(p.Words) > 0 {
			p.Type, p.Minimum, p.Maximum, p.Enum = String, nil, nil, nil
		}
	}
	return list
}

var parameterPattern = regexp.MustCompile(`\{[A-Za-z][A-Za-z0-9_]*\}`)

// expandWords replaces {key} in words by the Device's setting of that name, so that one model is for devices with different words. A setting
// that nothing else refers to is then no driver's any more.
func (d *Device) expandWords() {
	used := map[string]bool{}
	expand := func(text string) string {
		return parameterPattern.ReplaceAllStringFunc(text, func(found string) string {
			value, ok := d.Config[strings.Trim(found, "{}")]
			if !ok {
				return found
			}
			used[strings.Trim(found, "{}")] = true
			return value
		})
	}
	refers := func(config map[string]string, key string) bool {
		for _, text := range config {
			if strings.Contains(text, "{"+key+"}") {
				return true
			}
		}
		return false
	}
	all := slices.Concat(d.Properties, d.Events, d.Commands)
	for _, p := range all {
		for i := range p.Words {
			w := &p.Words[i]
			for j := range w.Read {
				w.Read[j] = expand(w.Read[j])
			}
			w.Write = expand(w.Write)
		}
	}
	for key := range used {
		if !refers(d.Config, key) && !slices.ContainsFunc(all, func(p Property) bool { return refers(p.Config, key) }) {
			delete(d.Config, key)
		}
	}
}

// translate makes the property's value of what a driver has read. What the device has no value for, and a text that is none of its words,
// is Unknown.
func (p Property) translate(r Reading) Reading {
	said := r.Raw
	if len(said) == 0 && r.Err == nil {
		said = []string{r.Value}
	}
	for _, text := range said {
		if slices.ContainsFunc(p.NotAvailable, func(none string) bool { return sameText(none, text) }) {
			return Reading{Err: Refuse(Unknown, "the device says %s: it has no value (notAvailable)", clipText(text))}
		}
	}
	if r.Err != nil || len(p.Words) == 0 {
		return r
	}
	w := p.word(said...)
	if w == nil {
		return Reading{Err: Refuse(Unknown, "the device says %q, which is none of the words of %s", clipText(r.Value), p.Name)}
	}
	return Reading{Value: w.Value}
}

// word finds the word of which the device says or takes one of the texts; nil: none.
func (p Property) word(said ...string) *Word {
	for _, text := range said {
		for i := range p.Words {
			w := &p.Words[i]
			if slices.ContainsFunc(w.Read, func(read string) bool { return sameText(read, text) }) {
				return w
			}
		}
	}
	for i := range p.Words {
		if slices.Contains(said, p.Words[i].Write) {
			return &p.Words[i]
		}
	}
	return nil
}

// written is what is written to the device for a value.
func (p Property) written(value string) (string, error) {
	if len(p.Words) == 0 {
		return value, nil
	}
	spec := p.spec()
	for _, w := range p.Words {
		if spec.Canonical([]byte(w.Value)) == spec.Canonical([]byte(value)) {
			return w.Write, nil
		}
	}
	return "", Refuse(OutOfRange, "%q is none of the values that the visitor has words for", clipText(value))
}

// sameText reports whether two texts of a device are the same: 0xFFFF and 65535 are, and nan and NaN.
func sameText(a, b string) bool {
	if a == b {
		return true
	}
	if x, ok := wholeNumber(a); ok {
		if y, ok := wholeNumber(b); ok {
			return x == y
		}
	}
	x, errX := strconv.ParseFloat(a, 64)
	y, errY := strconv.ParseFloat(b, 64)
	return errX == nil && errY == nil && (x == y || math.IsNaN(x) && math.IsNaN(y))
}

// wholeNumber reads a decimal number or one like 0xFFFF, as its bits.
func wholeNumber(text string) (uint64, bool) {
	if hex, ok := strings.CutPrefix(strings.ToLower(text), "0x"); ok {
		n, err := strconv.ParseUint(hex, 16, 64)
		return n, err == nil
	}
	if i, err := strconv.ParseInt(text, 10, 64); err == nil {
		return uint64(i), i >= 0
	}
	n, err := strconv.ParseUint(text, 10, 64)
	return n, err == nil
}

// isUnknown reports whether an error of a read says that the property has no value that can be understood.
func isUnknown(err error) bool {
	r, ok := asRefusal(err)
	return ok && slices.Contains([]string{Unknown, Invalid, OutOfRange}, r.Code)
}

// clipText shortens a text for an error.
func clipText(text string) string {
	const most = 80
	if len(text) > most {
		return strings.ToValidUTF8(text[:most], "") + "…"
	}
	return text
}
