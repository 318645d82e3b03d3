// SPDX-License-Identifier: Apache-2.0

package dialect

import (
	"cmp"
	"fmt"
	"regexp"
	"slices"
	"strings"

	"github.com/edgebus/edgebus/topics/resource"
)

// fieldName is the name that a field of the canonical kind has in an object of a form; the same if it has no other.
type fieldName func(form jsonObject, field string) string

// OfForm is an error about a canonical object as it is said to whoever has written raw in this form.
func (k Kind) OfForm(raw []byte, e *resource.Error) *resource.Error {
	form, err := parseObject(raw)
	if k.fieldName == nil || err != nil {
		return e
	}
	out := *e
	out.Field, out.Causes = k.fieldName(form, e.Field), slices.Clone(e.Causes)
	for i, c := range e.Causes {
		out.Causes[i].Field = k.fieldName(form, c.Field)
		if len(e.Causes) > 1 { // then the message names the fields
			out.Message = strings.Replace(out.Message, c.Field+": ", out.Causes[i].Field+": ", 1)
		}
	}
	return &out
}

// OfFormTexts are texts that begin with a field of a canonical object, such as warnings, as they are said to whoever has written raw in this form.
func (k Kind) OfFormTexts(raw []byte, texts []string) []string {
	form, err := parseObject(raw)
	if k.fieldName == nil || err != nil {
		return texts
	}
	out := slices.Clone(texts)
	for i, text := range texts {
		if field, rest, ok := strings.Cut(text, ": "); ok && strings.HasPrefix(field, "spec.") {
			out[i] = k.fieldName(form, field) + ": " + rest
		}
	}
	return out
}

// replaceFields names fields that have the same place in the form.
func replaceFields(names ...string) fieldName {
	r := strings.NewReplacer(names...)
	return func(_ jsonObject, field string) string { return r.Replace(field) }
}

// listedField is a field of an entry of a list or map of the spec: its name, the entry, and what follows.
var listedField = regexp.MustCompile(`^spec\.(\w+)\[(.*?)\](.*)$`)

// listFields names the fields of entries of the spec's lists and maps. name gets the parts of listedField, and returns "" for the same name.
func listFields(name func(form jsonObject, list, entry, rest string) string) fieldName {
	return func(form jsonObject, field string) string {
		m := listedField.FindStringSubmatch(field)
		if m == nil { // of no list
			if key, ok := strings.CutPrefix(field, "spec.protocol.config."); ok {
				return protocolConfigAt(form, key) + "." + key
			}
			return field
		}
		if to := name(form, m[1], m[2], m[3]); to != "" {
			return to
		}
		return field
	}
}

// protocolConfigAt names what is spec.protocol.config in the canonical form: versions of KubeEdge have other places for it, v1alpha2 several.
func protocolConfigAt(form jsonObject, key string) string {
	spec, _ := form["spec"].(jsonObject)
	protocol, _ := spec["protocol"].(jsonObject)
	common, _ := protocol["common"].(jsonObject)
	for _, line := range []string{"tcp", "com"} {
		if o, _ := common[line].(jsonObject); o[key] != nil {
			return "spec.protocol.common." + line
		}
	}
	if protocol["configData"] != nil {
		return "spec.protocol.configData"
	}
	return "spec.protocol" + cmp.Or(sectionAt(protocol), ".config")
}

// sectionAt names the configuration in an object of v1alpha2 that has one section for its protocol.
func sectionAt(o jsonObject) string {
	switch {
	case o[sectionModbus] != nil:
		return "." + sectionModbus
	case o[sectionOPCUA] != nil:
		return "." + sectionOPCUA
	case o[sectionBluetooth] != nil:
		return "." + sectionBluetooth
	case o["customizedProtocol"] != nil:
		return ".customizedProtocol.configData"
	}
	return ""
}

// entries are the objects of a list below two names.
func entries(form jsonObject, part, list string) (out []jsonObject) {
	p, _ := form[part].(jsonObject)
	all, _ := p[list].([]any)
	for _, e := range all {
		o, _ := e.(jsonObject)
		out = append(out, o)
	}
	return out
}

// entryAt names the nth entry of a list that is one of those counted.
func entryAt(form jsonObject, part, list, n string, counts func(jsonObject) bool) string {
	k := 0
	for i, e := range entries(form, part, list) {
		if !counts(e) {
			continue
		}
		if fmt.Sprint(k) == n {
			return fmt.Sprintf("%s.%s[%d]", part, list, i)
		}
		k++
	}
	return ""
}

// entryOf names the entry of a list in which a field has a value.
func entryOf(form jsonObject, part, list, field, value string) string {
	return entryAt(form, part, list, "0", func(e jsonObject) bool { return e[field] == value })
}

// appendField appends to the name of an entry, if there is one.
func appendField(entry, rest string) string {
	if entry == "" {
		return ""
	}
	return entry + rest
}

// deviceFieldV1beta1: what the canonical form has in lists of their own stands in the properties.
func deviceFieldV1beta1(form jsonObject, list, entry, rest string) string {
	property := func(counts func(jsonObject) bool) string { return entryAt(form, "spec", "properties", entry, counts) }
	switch list {
	case "desired":
		return appendField(entryOf(form, "spec", "properties", "name", entry), ".desired.value")
	case "propertyVisitors":
		rest = strings.NewReplacer(".propertyName", ".name", ".config", ".visitors.configData").Replace(rest)
		return appendField(property(func(e jsonObject) bool { return e["visitors"] != nil }), rest)
	case "push":
		rest = strings.NewReplacer(".propertyName", ".name", ".http.url", ".pushMethod.http", ".mqtt", ".pushMethod.mqtt").Replace(rest)
		return appendField(property(func(e jsonObject) bool {
			m, _ := e["pushMethod"].(jsonObject)
			return m["mqtt"] != nil || m["http"] != nil
		}), rest)
	case "local":
		return appendField(property(func(e jsonObject) bool { return e["reportToCloud"] == false }), ".name")
	case "commands":
		return "spec.methods[" + entry + "]" + strings.Replace(rest, ".properties", ".propertyNames", 1)
	}
	return ""
}

// modelFieldV1beta1: a visitor stands in its property, and the canonical form has a list of them for each protocol, in the order in which they come first.
func modelFieldV1beta1(form jsonObject, list, entry, rest string) string {
	if list != "propertyVisitors" {
		return ""
	}
	if strings.HasPrefix(rest, ".config") {
		return "spec.protocolConfigData" + strings.TrimPrefix(rest, ".config")
	}
	protocolOf := func(e jsonObject) (protocol string, is bool) {
		v, _ := e["visitors"].(jsonObject)
		protocol, _ = v["protocolName"].(string)
		return strings.ToLower(protocol), v != nil
	}
	if m := visitorOfModel.FindStringSubmatch(rest); m != nil {
		var protocols []string
		for _, e := range entries(form, "spec", "properties") {
			if p, is := protocolOf(e); is && !slices.Contains(protocols, p) {
				protocols = append(protocols, p)
			}
		}
		at := entryAt(form, "spec", "properties", m[1], func(e jsonObject) bool {
			p, is := protocolOf(e)
			return is && fmt.Sprint(slices.Index(protocols, p)) == entry
		})
		return appendField(at, strings.Replace(m[2], ".config", ".visitors.configData", 1))
	}
	if rest != ".protocol" {
		return ""
	}
	return appendField(entryAt(form, "spec", "properties", "0", func(e jsonObject) bool {
		p, is := protocolOf(e)
		return is && p == ""
	}), ".visitors.protocolName")
}

// visitorOfModel is a visitor of a protocol's, and what follows.
var visitorOfModel = regexp.MustCompile(`^\.visitors\[(\d+)\](.*)$`)

// deviceFieldV1alpha2: desired values stand in the status, and configurations in the section of their protocol.
func deviceFieldV1alpha2(form jsonObject, list, entry, rest string) string {
	if list == "propertyVisitors" && strings.HasPrefix(rest, ".config") {
		for i, e := range entries(form, "spec", list) {
			if at := sectionAt(e); fmt.Sprint(i) == entry && at != "" {
				return "spec.propertyVisitors[" + entry + "]" + strings.Replace(rest, ".config", at, 1)
			}
		}
	}
	if list != "desired" {
		return ""
	}
	return appendField(entryOf(form, "status", "twins", "propertyName", entry), ".desired.value")
}

// modelFieldV1alpha2: what is said of a type stands below its name.
func modelFieldV1alpha2(form jsonObject, list, entry, rest string) string {
	if list != "properties" || !slices.Contains([]string{".accessMode", ".minimum", ".maximum", ".unit"}, rest) {
		return ""
	}
	for i, e := range entries(form, "spec", "properties") {
		types, _ := e["type"].(jsonObject)
		for name := range types {
			if fmt.Sprint(i) == entry {
				return "spec.properties[" + entry + "].type." + name + rest
			}
		}
	}
	return ""
}

// deviceFieldV1alpha1: desired values stand in the status.
func deviceFieldV1alpha1(form jsonObject, list, entry, _ string) string {
	if list != "desired" {
		return ""
	}
	return appendField(entryOf(form, "status", "twins", "name", entry), ".expected.value")
}

// modelFieldV1alpha1: what a property is stands in its configuration.
func modelFieldV1alpha1(_ jsonObject, list, entry, rest string) string {
	key := map[string]string{".type": keyType, ".accessMode": keyAccess, ".minimum": keyMin, ".maximum": keyMax}[rest]
	if list != "properties" || key == "" {
		return ""
	}
	return "spec.properties[" + entry + "].config." + key
}
