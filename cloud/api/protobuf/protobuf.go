// SPDX-License-Identifier: Apache-2.0

// Package protobuf reads what clients send in Kubernetes' protobuf: the kinds whose Go types kubectl and client-go are compiled with.
//
// It never checks what an object says: it makes JSON of it, which is read as any other body.
package protobuf

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"google.golang.org/protobuf/encoding/protowire"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/edgebus/edgebus/topics/resource"
)

// MediaType is the media type in which clients send kinds whose Go types they are compiled with: kubectl create secret, and
// whatever is made with client-go.
const MediaType = "application/vnd.kubernetes.protobuf"

// envelopePrefix begins a body in protobuf; a runtime.Unknown follows.
var envelopePrefix = []byte("k8s\x00")

var errNotProtobuf = errors.New("the body is not the protobuf that it says it is")

// messageFields is the fields of a message by their protobuf numbers, as k8s.io/api documents them. Linking the types of k8s.io/api
// would make the hub one and a half megabytes larger.
type messageFields map[protowire.Number]messageField

type messageField struct {
	name string
	kind fieldKind
	of   messageFields // of a kindNested
}

type fieldKind int

const (
	kindString fieldKind = iota
	kindBool
	kindInt
	kindTime
	kindMicroTime
	kindStringMap
	kindBytesMap
	kindNested
)

// objectFields are the messages by apiVersion and kind; their field 1 is the metadata.
var objectFields = map[string]messageFields{
	"v1/Secret": {
		2: {name: "data", kind: kindBytesMap}, 3: {name: "type"}, 4: {name: "stringData", kind: kindStringMap},
		5: {name: "immutable", kind: kindBool},
	},
	"v1/ConfigMap": {
		2: {name: "data", kind: kindStringMap}, 3: {name: "binaryData", kind: kindBytesMap}, 4: {name: "immutable", kind: kindBool},
	},
	"v1/Event": {
		2: {name: "involvedObject", kind: kindNested, of: objectReference}, 3: {name: "reason"}, 4: {name: "message"},
		5: {name: "source", kind: kindNested, of: eventSource}, 6: {name: "firstTimestamp", kind: kindTime},
		7: {name: "lastTimestamp", kind: kindTime}, 8: {name: "count", kind: kindInt}, 9: {name: "type"},
		10: {name: "eventTime", kind: kindMicroTime}, 11: {name: "series", kind: kindNested, of: eventSeries}, 12: {name: "action"},
		13: {name: "related", kind: kindNested, of: objectReference}, 14: {name: "reportingComponent"}, 15: {name: "reportingInstance"},
	},
	"events.k8s.io/v1/Event": {
		2: {name: "eventTime", kind: kindMicroTime}, 3: {name: "series", kind: kindNested, of: eventSeries},
		4: {name: "reportingController"}, 5: {name: "reportingInstance"}, 6: {name: "action"}, 7: {name: "reason"},
		8: {name: "regarding", kind: kindNested, of: objectReference}, 9: {name: "related", kind: kindNested, of: objectReference},
		10: {name: "note"}, 11: {name: "type"}, 12: {name: "deprecatedSource", kind: kindNested, of: eventSource},
		13: {name: "deprecatedFirstTimestamp", kind: kindTime}, 14: {name: "deprecatedLastTimestamp", kind: kindTime},
		15: {name: "deprecatedCount", kind: kindInt},
	},
	"coordination.k8s.io/v1/Lease": {
		2: {name: "spec", kind: kindNested, of: messageFields{
			1: {name: "holderIdentity"}, 2: {name: "leaseDurationSeconds", kind: kindInt}, 3: {name: "acquireTime", kind: kindMicroTime},
			4: {name: "renewTime", kind: kindMicroTime}, 5: {name: "leaseTransitions", kind: kindInt}, 6: {name: "strategy"}, 7: {name: "preferredHolder"},
		}},
	},
}

var (
	objectReference = messageFields{
		1: {name: "kind"}, 2: {name: "namespace"}, 3: {name: "name"}, 4: {name: "uid"}, 5: {name: "apiVersion"},
		6: {name: "resourceVersion"}, 7: {name: "fieldPath"},
	}
	eventSource = messageFields{1: {name: "component"}, 2: {name: "host"}}
	eventSeries = messageFields{1: {name: "count", kind: kindInt}, 2: {name: "lastObservedTime", kind: kindMicroTime}}
)

// IsKnown reports whether objects of a kind are read.
func IsKnown(apiVersion, kind string) bool { return objectFields[apiVersion+"/"+kind] != nil }

// Object turns an object of a known kind into JSON.
func Object(raw []byte, apiVersion, kind string) ([]byte, error) {
	fields := objectFields[apiVersion+"/"+kind]
	wrapped, err := readEnvelope(raw)
	if err != nil {
		return nil, err
	}
	o := map[string]any{"apiVersion": wrapped.APIVersion, "kind": wrapped.Kind}
	err = eachField(wrapped.Raw, func(n protowire.Number, value []byte, varint uint64) error {
		if n == 1 {
			var meta metav1.ObjectMeta
			o["metadata"] = &meta
			return meta.Unmarshal(value)
		}
		return fields.set(o, n, value, varint)
	})
	if err != nil {
		return nil, fmt.Errorf("%w: %w", errNotProtobuf, err)
	}
	return json.Marshal(o)
}

// DeleteOptions turns DeleteOptions in protobuf into JSON.
func DeleteOptions(raw []byte) ([]byte, error) {
	wrapped, err := readEnvelope(raw)
	if err != nil {
		return nil, err
	}
	var opts metav1.DeleteOptions
	if err := opts.Unmarshal(wrapped.Raw); err != nil {
		return nil, fmt.Errorf("%w: %w", errNotProtobuf, err)
	}
	opts.Kind, opts.APIVersion = wrapped.Kind, wrapped.APIVersion
	return json.Marshal(opts)
}

func readEnvelope(raw []byte) (wrapped runtime.Unknown, err error) {
	inner, ok := bytes.CutPrefix(raw, envelopePrefix)
	if !ok {
		return wrapped, errNotProtobuf
	}
	if err := wrapped.Unmarshal(inner); err != nil {
		return wrapped, fmt.Errorf("%w: %w", errNotProtobuf, err)
	}
	if wrapped.ContentEncoding != "" {
		return wrapped, fmt.Errorf("%w: encoded as %.40q", errNotProtobuf, wrapped.ContentEncoding)
	}
	return wrapped, nil
}

// set sets the field of an object that has a number to what a message has for it; value is nil for a number. Unknown fields are left out, as
// protobuf wants it.
func (m messageFields) set(o map[string]any, n protowire.Number, value []byte, varint uint64) error {
	f, known := m[n]
	if !known {
		return nil
	}
	if (f.kind == kindBool || f.kind == kindInt) != (value == nil) {
		return fmt.Errorf("%s has the wrong type", f.name)
	}
	switch f.kind {
	case kindBool:
		o[f.name] = varint != 0
	case kindInt:
		o[f.name] = int32(varint)
	case kindString:
		o[f.name] = string(value)
	case kindTime, kindMicroTime:
		return f.setTime(o, value)
	case kindNested:
		inner := map[string]any{}
		o[f.name] = inner
		return eachField(value, func(n protowire.Number, value []byte, varint uint64) error { return f.of.set(inner, n, value, varint) })
	case kindStringMap, kindBytesMap:
		return f.setEntry(o, value)
	}
	return nil
}

// setTime sets a time; one without seconds is none.
func (f messageField) setTime(o map[string]any, value []byte) error {
	var at [3]int64 // 1: seconds, 2: nanoseconds
	err := eachField(value, func(n protowire.Number, _ []byte, varint uint64) error {
		if int(n) < len(at) {
			at[n] = int64(varint)
		}
		return nil
	})
	if err != nil || len(value) == 0 {
		return err
	}
	t := time.Unix(at[1], at[2]).UTC()
	if y := t.Year(); y < 0 || y > 9999 {
		return fmt.Errorf("%s has a year that can't be written", f.name)
	}
	if f.kind == kindTime {
		o[f.name] = t.Truncate(time.Second)
		return nil
	}
	o[f.name] = resource.MicroTime{Time: t}
	return nil
}

// setEntry adds an entry to a map.
func (f messageField) setEntry(o map[string]any, value []byte) error {
	entry, err := bytesFields(value) // field 1 is the key, field 2 the value
	if err != nil {
		return fmt.Errorf("an entry of %s: %w", f.name, err)
	}
	entries, _ := o[f.name].(map[string]any)
	if entries == nil {
		entries = map[string]any{}
		o[f.name] = entries
	}
	if f.kind == kindStringMap {
		entries[string(entry[1])] = string(entry[2])
	} else {
		entries[string(entry[1])] = append([]byte{}, entry[2]...) // base64 in JSON
	}
	return nil
}

// bytesFields are the fields of a message that are strings or messages themselves, the last of each number.
func bytesFields(raw []byte) (map[protowire.Number][]byte, error) {
	fields := make(map[protowire.Number][]byte)
	return fields, eachField(raw, func(n protowire.Number, value []byte, _ uint64) error {
		if value != nil {
			fields[n] = value
		}
		return nil
	})
}

// eachField visits the fields of a message. Only a string or a message has a value that is not nil.
func eachField(raw []byte, visit func(n protowire.Number, value []byte, varint uint64) error) error {
	for len(raw) > 0 {
		number, kind, n := protowire.ConsumeTag(raw)
		if n < 0 {
			return protowire.ParseError(n)
		}
		raw = raw[n:]
		size := protowire.ConsumeFieldValue(number, kind, raw)
		if size < 0 {
			return protowire.ParseError(size)
		}
		var value []byte
		var varint uint64
		switch kind {
		case protowire.BytesType:
			value, _ = protowire.ConsumeBytes(raw)
			value = append([]byte{}, value...)
		case protowire.VarintType:
			varint, _ = protowire.ConsumeVarint(raw)
		}
		if err := visit(number, value, varint); err != nil {
			return err
		}
		raw = raw[size:]
	}
	return nil
}

// ReviewSpec turns the spec of a SelfSubjectAccessReview into JSON. In an envelope field 2 is the object, whose field 2 is the spec,
// whose fields 1 and 2 are what is asked.
func ReviewSpec(raw []byte) ([]byte, error) {
	raw, ok := bytes.CutPrefix(raw, envelopePrefix)
	if !ok {
		return nil, errNotProtobuf
	}
	var fields map[protowire.Number][]byte
	for range 3 {
		var err error
		if fields, err = bytesFields(raw); err != nil {
			return nil, err
		}
		raw = fields[2]
	}
	attributes := map[string]map[string]string{}
	for n, names := range [][]string{
		{"resourceAttributes", "namespace", "verb", "group", "version", "resource", "subresource", "name"}, {"nonResourceAttributes", "path", "verb"},
	} {
		asked, err := bytesFields(fields[protowire.Number(n+1)])
		if err != nil {
			return nil, err
		}
		if len(asked) == 0 {
			continue
		}
		values := map[string]string{}
		for n, name := range names[1:] {
			values[name] = string(asked[protowire.Number(n+1)])
		}
		attributes[names[0]] = values
	}
	return json.Marshal(attributes)
}
