package api

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"time"

	"google.golang.org/protobuf/encoding/protowire"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/edgebus/edgebus/topics/resource"
)

// protobufType is the media type in which clients send kinds whose Go types they are compiled with: kubectl create secret, and
// whatever is made with client-go.
const protobufType = "application/vnd.kubernetes.protobuf"

// protobufMagic begins a body in protobuf; a runtime.Unknown follows.
var protobufMagic = []byte("k8s\x00")

var errProtobuf = errors.New("the body is not the protobuf that it says it is")

// protobufMessage is the fields of a message by their protobuf numbers, as k8s.io/api documents them. Linking the types of k8s.io/api
// would make the hub one and a half megabytes larger.
type protobufMessage map[protowire.Number]protobufField

type protobufField struct {
	name string
	kind protobufKind
	of   protobufMessage // of a protobufNested
}

type protobufKind int

const (
	protobufString protobufKind = iota
	protobufBool
	protobufInt
	protobufTime
	protobufMicroTime
	protobufStringMap
	protobufBytesMap
	protobufNested
)

// protobufFields are the messages by apiVersion and kind; their field 1 is the metadata.
var protobufFields = map[string]protobufMessage{
	"v1/Secret": {
		2: {name: "data", kind: protobufBytesMap}, 3: {name: "type"}, 4: {name: "stringData", kind: protobufStringMap},
		5: {name: "immutable", kind: protobufBool},
	},
	"v1/ConfigMap": {
		2: {name: "data", kind: protobufStringMap}, 3: {name: "binaryData", kind: protobufBytesMap}, 4: {name: "immutable", kind: protobufBool},
	},
	"v1/Event": {
		2: {name: "involvedObject", kind: protobufNested, of: protobufReference}, 3: {name: "reason"}, 4: {name: "message"},
		5: {name: "source", kind: protobufNested, of: protobufSource}, 6: {name: "firstTimestamp", kind: protobufTime},
		7: {name: "lastTimestamp", kind: protobufTime}, 8: {name: "count", kind: protobufInt}, 9: {name: "type"},
		10: {name: "eventTime", kind: protobufMicroTime}, 11: {name: "series", kind: protobufNested, of: protobufSeries}, 12: {name: "action"},
		13: {name: "related", kind: protobufNested, of: protobufReference}, 14: {name: "reportingComponent"}, 15: {name: "reportingInstance"},
	},
	"events.k8s.io/v1/Event": {
		2: {name: "eventTime", kind: protobufMicroTime}, 3: {name: "series", kind: protobufNested, of: protobufSeries},
		4: {name: "reportingController"}, 5: {name: "reportingInstance"}, 6: {name: "action"}, 7: {name: "reason"},
		8: {name: "regarding", kind: protobufNested, of: protobufReference}, 9: {name: "related", kind: protobufNested, of: protobufReference},
		10: {name: "note"}, 11: {name: "type"}, 12: {name: "deprecatedSource", kind: protobufNested, of: protobufSource},
		13: {name: "deprecatedFirstTimestamp", kind: protobufTime}, 14: {name: "deprecatedLastTimestamp", kind: protobufTime},
		15: {name: "deprecatedCount", kind: protobufInt},
	},
	"coordination.k8s.io/v1/Lease": {
		2: {name: "spec", kind: protobufNested, of: protobufMessage{
			1: {name: "holderIdentity"}, 2: {name: "leaseDurationSeconds", kind: protobufInt}, 3: {name: "acquireTime", kind: protobufMicroTime},
			4: {name: "renewTime", kind: protobufMicroTime}, 5: {name: "leaseTransitions", kind: protobufInt}, 6: {name: "strategy"}, 7: {name: "preferredHolder"},
		}},
	},
}

var (
	protobufReference = protobufMessage{
		1: {name: "kind"}, 2: {name: "namespace"}, 3: {name: "name"}, 4: {name: "uid"}, 5: {name: "apiVersion"},
		6: {name: "resourceVersion"}, 7: {name: "fieldPath"},
	}
	protobufSource = protobufMessage{1: {name: "component"}, 2: {name: "host"}}
	protobufSeries = protobufMessage{1: {name: "count", kind: protobufInt}, 2: {name: "lastObservedTime", kind: protobufMicroTime}}
)

// fromProtobuf turns an object in protobuf into JSON.
func fromProtobuf(raw []byte, k *Kind) ([]byte, error) {
	fields, known := protobufFields[k.APIVersion()+"/"+k.Name]
	if !known {
		return nil, statusErrorf(http.StatusUnsupportedMediaType, "UnsupportedMediaType",
			"of what clients send in protobuf the hub reads Secrets, ConfigMaps, Events, Leases and the options of a deletion: "+
				"send application/json or application/yaml, as kubectl apply -f does")
	}
	wrapped, err := unwrapProtobuf(raw)
	if err != nil {
		return nil, err
	}
	o := dict{"apiVersion": wrapped.APIVersion, "kind": wrapped.Kind}
	err = eachProtobufField(wrapped.Raw, func(n protowire.Number, value []byte, varint uint64) error {
		if n == 1 {
			var meta metav1.ObjectMeta
			o["metadata"] = &meta
			return meta.Unmarshal(value)
		}
		return fields.set(o, n, value, varint)
	})
	if err != nil {
		return nil, badRequest("", "%v: %v", errProtobuf, err)
	}
	return json.Marshal(o)
}

// deleteOptionsFromProtobuf turns DeleteOptions in protobuf into JSON.
func deleteOptionsFromProtobuf(raw []byte) ([]byte, error) {
	wrapped, err := unwrapProtobuf(raw)
	if err != nil {
		return nil, err
	}
	var opts metav1.DeleteOptions
	if err := opts.Unmarshal(wrapped.Raw); err != nil {
		return nil, badRequest("", "%v: %v", errProtobuf, err)
	}
	opts.Kind, opts.APIVersion = wrapped.Kind, wrapped.APIVersion
	return json.Marshal(opts)
}

func unwrapProtobuf(raw []byte) (wrapped runtime.Unknown, err error) {
	inner, ok := bytes.CutPrefix(raw, protobufMagic)
	if !ok {
		return wrapped, badRequest("", "%v", errProtobuf)
	}
	if err := wrapped.Unmarshal(inner); err != nil {
		return wrapped, badRequest("", "%v: %v", errProtobuf, err)
	}
	if wrapped.ContentEncoding != "" {
		return wrapped, badRequest("", "%v: encoded as %.40q", errProtobuf, wrapped.ContentEncoding)
	}
	return wrapped, nil
}

// set sets the field of an object that has a number to what a message has for it; value is nil for a number. Unknown fields are left out, as
// protobuf wants it.
func (m protobufMessage) set(o dict, n protowire.Number, value []byte, varint uint64) error {
	f, known := m[n]
	if !known {
		return nil
	}
	if (f.kind == protobufBool || f.kind == protobufInt) != (value == nil) {
		return fmt.Errorf("%s has the wrong type", f.name)
	}
	switch f.kind {
	case protobufBool:
		o[f.name] = varint != 0
	case protobufInt:
		o[f.name] = int32(varint)
	case protobufString:
		o[f.name] = string(value)
	case protobufTime, protobufMicroTime:
		return f.setTime(o, value)
	case protobufNested:
		inner := dict{}
		o[f.name] = inner
		return eachProtobufField(value, func(n protowire.Number, value []byte, varint uint64) error { return f.of.set(inner, n, value, varint) })
	case protobufStringMap, protobufBytesMap:
		return f.setEntry(o, value)
	}
	return nil
}

// setTime sets a time; one without seconds is none.
func (f protobufField) setTime(o dict, value []byte) error {
	var at [3]int64 // 1: seconds, 2: nanoseconds
	err := eachProtobufField(value, func(n protowire.Number, _ []byte, varint uint64) error {
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
	if f.kind == protobufTime {
		o[f.name] = t.Truncate(time.Second)
		return nil
	}
	o[f.name] = resource.MicroTime{Time: t}
	return nil
}

// setEntry adds an entry to a map.
func (f protobufField) setEntry(o dict, value []byte) error {
	entry, err := protobufStrings(value) // field 1 is the key, field 2 the value
	if err != nil {
		return fmt.Errorf("an entry of %s: %w", f.name, err)
	}
	entries, _ := o[f.name].(dict)
	if entries == nil {
		entries = dict{}
		o[f.name] = entries
	}
	if f.kind == protobufStringMap {
		entries[string(entry[1])] = string(entry[2])
	} else {
		entries[string(entry[1])] = append([]byte{}, entry[2]...) // base64 in JSON
	}
	return nil
}

// protobufStrings are the fields of a message that are strings or messages themselves, the last of each number.
func protobufStrings(raw []byte) (map[protowire.Number][]byte, error) {
	fields := make(map[protowire.Number][]byte)
	return fields, eachProtobufField(raw, func(n protowire.Number, value []byte, _ uint64) error {
		if value != nil {
			fields[n] = value
		}
		return nil
	})
}

// eachProtobufField visits the fields of a message. Only a string or a message has a value that is not nil.
func eachProtobufField(raw []byte, visit func(n protowire.Number, value []byte, varint uint64) error) error {
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
