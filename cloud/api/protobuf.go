package api

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"

	"google.golang.org/protobuf/encoding/protowire"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/edgebus/edgebus/topics/resource"
)

// protobufType is what clients such as kubectl create send where they know a kind since they were compiled.
const protobufType = "application/vnd.kubernetes.protobuf"

// protobufMagic begins a body in that form; a runtime.Unknown follows.
var protobufMagic = []byte("k8s\x00")

// packed is a field of a kind in protobuf, as k8s.io/api documents it. Linking its types for these
// two kinds would make the hub one and a half megabytes larger.
type packed struct {
	name  string
	kind  protowire.Type
	entry func([]byte) any // of a map, the value
}

func asText(raw []byte) any  { return string(raw) }
func asBytes(raw []byte) any { return append([]byte{}, raw...) } // JSON has it in base64

var packedFields = map[string]map[protowire.Number]packed{
	resource.KindSecret: {
		2: {name: "data", entry: asBytes}, 3: {name: "type", kind: protowire.BytesType},
		4: {name: "stringData", entry: asText}, 5: {name: "immutable", kind: protowire.VarintType},
	},
	resource.KindConfigMap: {
		2: {name: "data", entry: asText}, 3: {name: "binaryData", entry: asBytes}, 4: {name: "immutable", kind: protowire.VarintType},
	},
}

var errProtobuf = errors.New("the body is not the protobuf that it says it is")

// fromProtobuf makes JSON of a Secret or ConfigMap in protobuf.
func fromProtobuf(raw []byte, kind string) ([]byte, error) {
	fields, known := packedFields[kind]
	if !known {
		return nil, refuse(http.StatusUnsupportedMediaType, "UnsupportedMediaType",
			"of what kubectl sends in protobuf the hub reads Secrets and ConfigMaps: send application/json or application/yaml, as kubectl apply -f does")
	}
	inner, ok := bytes.CutPrefix(raw, protobufMagic)
	if !ok {
		return nil, badRequest("", "%v", errProtobuf)
	}
	var wrapped runtime.Unknown
	if err := wrapped.Unmarshal(inner); err != nil {
		return nil, badRequest("", "%v: %v", errProtobuf, err)
	}
	if wrapped.ContentEncoding != "" {
		return nil, badRequest("", "%v: encoded as %.40q", errProtobuf, wrapped.ContentEncoding)
	}
	o := map[string]any{"apiVersion": wrapped.APIVersion, "kind": wrapped.Kind}
	if err := unpack(wrapped.Raw, fields, o); err != nil {
		return nil, badRequest("", "%v", err)
	}
	return json.Marshal(o)
}

// unpack reads an object's fields. Those that nobody knows are left out, as protobuf wants it.
func unpack(raw []byte, fields map[protowire.Number]packed, o map[string]any) error {
	for len(raw) > 0 {
		number, kind, n := protowire.ConsumeTag(raw)
		if n < 0 {
			return errProtobuf
		}
		raw = raw[n:]
		if n = protowire.ConsumeFieldValue(number, kind, raw); n < 0 {
			return errProtobuf
		}
		if err := unpackField(number, kind, raw[:n], fields[number], o); err != nil {
			return err
		}
		raw = raw[n:]
	}
	return nil
}

func unpackField(number protowire.Number, kind protowire.Type, raw []byte, f packed, o map[string]any) error {
	want := f.kind
	if number == 1 || f.entry != nil {
		want = protowire.BytesType
	}
	switch {
	case number != 1 && f.name == "":
		return nil
	case kind != want:
		return fmt.Errorf("%w: field %d", errProtobuf, number)
	case kind == protowire.VarintType:
		v, _ := protowire.ConsumeVarint(raw)
		o[f.name] = v != 0
		return nil
	}
	value, _ := protowire.ConsumeBytes(raw)
	switch {
	case number == 1:
		var meta metav1.ObjectMeta
		if err := meta.Unmarshal(value); err != nil {
			return fmt.Errorf("%w: metadata: %w", errProtobuf, err)
		}
		o["metadata"] = meta
	case f.entry == nil:
		o[f.name] = string(value)
	default:
		return unpackEntry(value, f, o)
	}
	return nil
}

// unpackEntry reads one entry of a map: field 1 is its key, field 2 its value.
func unpackEntry(raw []byte, f packed, o map[string]any) error {
	var part [3][]byte
	for len(raw) > 0 {
		number, kind, n := protowire.ConsumeTag(raw)
		if n < 0 || kind != protowire.BytesType || number > 2 {
			return fmt.Errorf("%w: an entry of %s", errProtobuf, f.name)
		}
		value, m := protowire.ConsumeBytes(raw[n:])
		if m < 0 {
			return fmt.Errorf("%w: an entry of %s", errProtobuf, f.name)
		}
		part[number], raw = value, raw[n+m:]
	}
	entries, _ := o[f.name].(map[string]any)
	if entries == nil {
		entries = make(map[string]any)
		o[f.name] = entries
	}
	entries[string(part[1])] = f.entry(part[2])
	return nil
}
