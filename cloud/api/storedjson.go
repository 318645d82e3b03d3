// SPDX-License-Identifier: Apache-2.0

package api

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strconv"

	"k8s.io/apimachinery/pkg/labels"

	"github.com/edgebus/edgebus/cloud/objects"
	"github.com/edgebus/edgebus/cloud/objects/rawjson"
	"github.com/edgebus/edgebus/cloud/store"
	"github.com/edgebus/edgebus/topics/resource"
)

// Lists and watches write stored objects without decoding them: the store has JSON that was written here, and finding
// its parts costs a third of decoding and encoding it (BenchmarkReads). The scanner trusts that JSON is valid; what it
// does not recognize is decoded, which finds the error.

// storedLabels are the labels of a stored object, in JSON: a selector with few terms finds them there, without their being decoded.
type storedLabels []byte

// maxScanned is how many terms of a selector are looked for in the JSON; for more of them the labels are decoded.
const maxScanned = 4

// selectedBy reports whether the labels of a stored object match a selector; ok is false if they can't be read.
func selectedBy(selector labels.Selector, terms int, data []byte) (matches, ok bool) {
	metadata := rawjson.Field(data, "metadata")
	if len(metadata) == 0 || metadata[0] != '{' {
		return false, false
	}
	raw := rawjson.Field(metadata, "labels")
	if terms <= maxScanned && bytes.IndexByte(raw, '\\') < 0 {
		return selector.Matches(storedLabels(raw)), true
	}
	var set labels.Set
	if raw != nil && json.Unmarshal(raw, &set) != nil {
		return false, false
	}
	return selector.Matches(set), true
}

// Lookup implements labels.Labels.
func (l storedLabels) Lookup(key string) (value string, exists bool) {
	text := rawjson.Field(l, key)
	if len(text) < len(`""`) {
		return "", false
	}
	return string(text[1 : len(text)-1]), true
}

// Has implements labels.Labels.
func (l storedLabels) Has(key string) bool {
	_, has := l.Lookup(key)
	return has
}

// Get implements labels.Labels.
func (l storedLabels) Get(key string) string {
	value, _ := l.Lookup(key)
	return value
}

// appendMetadata writes an object's metadata with its revision, in the order of resource.Meta.
func appendMetadata(out, metadata []byte, rev uint64) []byte {
	out = append(out, '{')
	written := rev == 0 // not stored: no revision
	revision := func() {
		if !written {
			out = append(strconv.AppendUint(append(out, `"resourceVersion":"`...), rev, 10), `",`...)
			written = true
		}
	}
	for f := rawjson.Fields(metadata); f.Next(); {
		switch string(f.Name) {
		case "name", "generateName", "namespace", "uid":
		case "resourceVersion":
			continue
		default:
			revision()
		}
		out = append(rawjson.AppendField(out, f.Name, f.Value), ',')
	}
	revision()
	return append(bytes.TrimSuffix(out, []byte(",")), '}')
}

// appendStored writes a stored object as clients of the canonical kind see it.
func (k *Kind) appendStored(out []byte, o store.Object) ([]byte, bool) {
	if k.Sealed {
		return out, false
	}
	p, ok := objects.PartsOf(o.Data)
	if !ok {
		return out, false
	}
	out = objects.AppendTypeMeta(out, resource.TypeMeta{APIVersion: k.APIVersion(), Kind: k.Name})
	out = append(out, `"metadata":`...)
	out = appendMetadata(out, p.Metadata, o.Rev)
	if k.NoSpec {
		return append(rawjson.AppendContent(out, p.Spec), '}'), true
	}
	out = rawjson.AppendPart(out, "spec", p.Spec)
	out = rawjson.AppendPart(out, "status", o.Status)
	return append(out, '}'), true
}

// appendForm writes a stored object as clients of the kind see it.
func (e *encoder) appendForm(out []byte, k *Kind, o store.Object) ([]byte, error) {
	switch {
	case len(k.FieldNames) > 0:
	case k.dialect == nil:
		if raw, ok := k.appendStored(out, o); ok {
			return raw, nil
		}
	default:
		if raw, ok := k.dialect.of.appendStored(nil, o); ok {
			form, err := k.dialect.Show(raw)
			return append(out, form...), err
		}
	}
	obj, err := e.objects.Decode(o)
	if err != nil {
		return out, err
	}
	form, err := k.form(obj)
	return append(out, form...), err
}

// omittedFields is a tree of fields that are left out of an object: a field without a subtree is left out as a whole. "*" stands
// for all other fields.
type omittedFields map[string]omittedFields

// appendField writes a field without what is omitted.
func (t omittedFields) appendField(out, name, value []byte) []byte {
	below, some := t[string(name)]
	if !some {
		below, some = t["*"]
	}
	if len(value) == 0 || some && below == nil {
		return out
	}
	if out[len(out)-1] != '{' {
		out = append(out, ',')
	}
	if !some || value[0] != '{' {
		return rawjson.AppendField(out, name, value)
	}
	out = append(append(append(out, '"'), name...), `":{`...)
	for f := rawjson.Fields(value); f.Next(); {
		out = below.appendField(out, f.Name, f.Value)
	}
	return append(out, '}')
}

// appendForTable writes what columns and selectors need of a stored object.
func (k *Kind) appendForTable(out []byte, o store.Object) ([]byte, bool) {
	if k.TableOmits == nil {
		return k.appendStored(out, o)
	}
	p, ok := objects.PartsOf(o.Data)
	if !ok {
		return out, false
	}
	out = append(out, '{')
	out = k.TableOmits.appendField(out, []byte("metadata"), p.Metadata)
	out = k.TableOmits.appendField(out, []byte("spec"), p.Spec)
	out = k.TableOmits.appendField(out, []byte("status"), o.Status)
	return append(out, '}'), true
}

// decodeForTable decodes what columns and selectors need of a stored object.
func (e *encoder) decodeForTable(k *Kind, o store.Object) (any, error) {
	raw, ok := k.appendForTable(nil, o)
	if !ok {
		obj, err := e.objects.Decode(o)
		if err != nil {
			return nil, err
		}
		return k.Typed(obj)
	}
	v := k.New()
	return v, json.Unmarshal(raw, v)
}

func errUnreadable(key store.Key) error {
	return fmt.Errorf("the stored %s can't be read", key)
}
