// SPDX-License-Identifier: Apache-2.0

package index

import (
	"bytes"
	"cmp"
	"encoding/json"
	"slices"
	"strings"

	"github.com/edgebus/edgebus/cloud/objects/rawjson"
	"github.com/edgebus/edgebus/cloud/store"
	"github.com/edgebus/edgebus/topics/resource"
)

// field is a field by which objects are counted, selected and sorted.
type field struct {
	name string
	of   func(o store.Object) string
}

// indexedFields are those of each kind, without labels and the name.
var indexedFields = map[string][]field{
	resource.KindDevice: {
		{"spec.nodeName", data("spec", "nodeName")},
		{"spec.deviceModelRef.name", data("spec", "deviceModelRef", "name")},
		{"spec.protocol.type", data("spec", "protocol", "type")},
		{"status.state", State},
		{"status.inSync", InSync},
		{"status.alarm", AlarmRaised},
		{"status.inSyncReason", func(o store.Object) string { return condition(o, resource.ConditionInSync, "reason", "") }},
	},
	resource.KindNode: {
		{"metadata.owner", data("metadata", "owner")},
		{"status.state", State},
		{"status.version", func(o store.Object) string { return jsonText(rawjson.Field(o.Status, "version")) }},
	},
}

// FieldNames are the names of a kind's fields.
func FieldNames(kind string) (names []string) {
	for _, f := range indexedFields[kind] {
		names = append(names, f.name)
	}
	return names
}

// State is the field status.state, which is unknown of what has never reported it.
func State(o store.Object) string {
	return cmp.Or(jsonText(rawjson.Field(o.Status, "state")), resource.Unknown)
}

// InSync is the field status.inSync: the status of the condition InSync.
func InSync(o store.Object) string {
	return condition(o, resource.ConditionInSync, "status", "Unknown")
}

// AlarmRaised is the field status.alarm: True while an alarm is raised.
func AlarmRaised(o store.Object) string {
	return condition(o, resource.ConditionAlarm, "status", "False")
}

// data is a field of an object's data.
func data(path ...string) func(store.Object) string {
	return func(o store.Object) string {
		at := o.Data
		for _, name := range path {
			at = rawjson.Field(at, name)
		}
		return jsonText(at)
	}
}

// condition is a part of a condition.
func condition(o store.Object, kind, part, other string) string {
	if !bytes.Contains(o.Status, []byte(`"`+kind+`"`)) {
		return other
	}
	var list []struct{ Type, Status, Reason string }
	if json.Unmarshal(rawjson.Field(o.Status, "conditions"), &list) != nil {
		return other
	}
	for _, c := range list {
		if c.Type == kind {
			if part == "reason" {
				return c.Reason
			}
			return c.Status
		}
	}
	return other
}

// jsonText is a string in JSON.
func jsonText(raw []byte) (s string) {
	if len(raw) >= len(`""`) && raw[0] == '"' && bytes.IndexByte(raw, '\\') < 0 {
		return string(raw[1 : len(raw)-1])
	}
	_ = json.Unmarshal(raw, &s) // what is no text is none here
	return s
}

// entry is what is kept of an object.
func (k *kindIndex) entry(o store.Object) *Entry {
	e := &Entry{Key: o.Key, values: make([]string, len(k.fields))}
	for i, f := range k.fields {
		e.values[i] = k.intern(f.of(o))
	}
	if e.Node = o.Name; k.kind == resource.KindDevice {
		e.Node = e.values[0]
	}
	for f := rawjson.Fields(rawjson.Field(rawjson.Field(o.Data, "metadata"), "labels")); f.Next(); {
		e.labels = append(e.labels, k.intern(string(f.Name)), k.intern(jsonText(f.Value)))
	}
	e.labels = sortPairs(e.labels)
	title := jsonText(rawjson.Field(rawjson.Field(o.Data, "spec"), "title"))
	parts := []string{title, o.Name}
	if e.Node != o.Name {
		parts = append(parts, e.Node)
	}
	for i := 0; i < len(e.labels); i += 2 {
		parts = append(parts, e.labels[i]+"="+e.labels[i+1])
	}
	e.text = strings.ToLower(strings.Join(parts, "\n"))
	return e
}

// sortPairs sorts names and values in turn by the names.
func sortPairs(pairs []string) []string {
	type pair struct{ name, value string }
	var list []pair
	for i := 0; i < len(pairs); i += 2 {
		list = append(list, pair{pairs[i], pairs[i+1]})
	}
	slices.SortFunc(list, func(a, b pair) int { return strings.Compare(a.name, b.name) })
	pairs = pairs[:0]
	for _, p := range list {
		pairs = append(pairs, p.name, p.value)
	}
	return pairs
}
