package api

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strconv"

	"github.com/edgebus/edgebus/cloud/store"
	"github.com/edgebus/edgebus/topics/resource"
)

// Lists and watches write stored objects without decoding them: the store has JSON that was written here, and finding
// its parts costs a third of decoding and encoding it (BenchmarkReads). The scanner trusts that JSON is valid; what it
// does not recognize is decoded, which finds the error.

// skipValue returns the end of the JSON value that begins at i, or -1.
func skipValue(raw []byte, i int) int {
	for depth := 0; i < len(raw); {
		switch raw[i] {
		case '"':
			if i = skipString(raw, i); i < 0 {
				return -1
			}
		case '{', '[':
			depth++
			i++
			continue
		case '}', ']':
			depth--
			i++
		case ',', ':', ' ', '\t', '\n', '\r':
			i++
			continue
		default: // a number, true, false or null
			for i < len(raw) && !endsValue(raw[i]) {
				i++
			}
		}
		if depth == 0 {
			return i
		}
	}
	return -1
}

func endsValue(c byte) bool {
	switch c {
	case ',', '}', ']', ' ', '\t', '\n', '\r':
		return true
	}
	return false
}

// skipString returns the end of the string that begins at i, or -1.
func skipString(raw []byte, i int) int {
	for i++; i < len(raw); i++ {
		switch raw[i] {
		case '"':
			return i + 1
		case '\\':
			i++
		}
	}
	return -1
}

// skipSpace returns the end of the white space that begins at i.
func skipSpace(raw []byte, i int) int {
	for i < len(raw) && (raw[i] == ' ' || raw[i] == '\t' || raw[i] == '\n' || raw[i] == '\r') {
		i++
	}
	return i
}

// fieldScanner visits the fields of a JSON object:
//
//	for f := fieldsOf(raw); f.next(); {
//
// A name is the text between its quotes, escapes included. Invalid JSON ends the scan.
type fieldScanner struct {
	name, value []byte
	raw         []byte
	i           int // where the next field begins
}

func fieldsOf(raw []byte) fieldScanner {
	i := skipSpace(raw, 0)
	if i == len(raw) || raw[i] != '{' {
		return fieldScanner{}
	}
	return fieldScanner{raw: raw, i: skipSpace(raw, i+1)}
}

func (f *fieldScanner) next() bool {
	if f.i == len(f.raw) || f.raw[f.i] != '"' {
		return false
	}
	end := skipString(f.raw, f.i)
	if end < 0 {
		return false
	}
	f.name = f.raw[f.i+1 : end-1]
	colon := skipSpace(f.raw, end)
	if colon == len(f.raw) || f.raw[colon] != ':' {
		return false
	}
	begin := skipSpace(f.raw, colon+1)
	if end = skipValue(f.raw, begin); end < 0 {
		return false
	}
	f.value = f.raw[begin:end]
	if f.i = skipSpace(f.raw, end); f.i < len(f.raw) && f.raw[f.i] == ',' {
		f.i = skipSpace(f.raw, f.i+1)
	}
	return true
}

// fieldOf is the value of a field of an object, or nil.
func fieldOf(raw []byte, name string) []byte {
	for f := fieldsOf(raw); f.next(); {
		if string(f.name) == name {
			return f.value
		}
	}
	return nil
}

// parts are the fields of an object's record; the store has the status elsewhere.
type parts struct{ metadata, spec, status, desiredMeta, sealed []byte }

func partsOf(data []byte) (p parts, ok bool) {
	for f := fieldsOf(data); f.next(); {
		switch string(f.name) {
		case "metadata":
			p.metadata = f.value
		case "spec":
			p.spec = f.value
		case "status":
			p.status = f.value
		case "desiredMeta":
			p.desiredMeta = f.value
		case "sealed":
			p.sealed = f.value
		}
	}
	return p, len(p.metadata) > 0 && p.metadata[0] == '{'
}

// labelsOf are the labels of a stored object.
func labelsOf(data []byte) (labels map[string]string, ok bool) {
	p, ok := partsOf(data)
	if !ok {
		return nil, false
	}
	raw := fieldOf(p.metadata, "labels")
	return labels, raw == nil || json.Unmarshal(raw, &labels) == nil
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
	for f := fieldsOf(metadata); f.next(); {
		switch string(f.name) {
		case "name", "generateName", "namespace", "uid":
		case "resourceVersion":
			continue
		default:
			revision()
		}
		out = append(appendField(out, f.name, f.value), ',')
	}
	revision()
	return append(bytes.TrimSuffix(out, []byte(",")), '}')
}

func appendField(out, name, value []byte) []byte {
	out = append(append(append(out, '"'), name...), '"', ':')
	return append(out, value...)
}

// appendPart writes another field of an object, if it has a value.
func appendPart(out []byte, name string, value []byte) []byte {
	if len(value) == 0 {
		return out
	}
	return appendField(append(out, ','), []byte(name), value)
}

// appendContent writes the fields of an object behind those that are there already.
func appendContent(out, object []byte) []byte {
	if object = bytes.TrimSpace(object); len(object) <= len("{}") || object[0] != '{' {
		return out
	}
	return append(append(out, ','), object[1:len(object)-1]...)
}

// appendTypeMeta begins an object. Nothing in it needs escaping.
func appendTypeMeta(out []byte, t resource.TypeMeta) []byte {
	out = append(out, '{')
	if t.APIVersion != "" {
		out = append(append(append(out, `"apiVersion":"`...), t.APIVersion...), `",`...)
	}
	if t.Kind != "" {
		out = append(append(append(out, `"kind":"`...), t.Kind...), `",`...)
	}
	return out
}

// appendStored writes a stored object as clients of the canonical kind see it.
func (k *Kind) appendStored(out []byte, o store.Object) ([]byte, bool) {
	if k.Sealed {
		return out, false
	}
	p, ok := partsOf(o.Data)
	if !ok {
		return out, false
	}
	out = appendTypeMeta(out, resource.TypeMeta{APIVersion: k.apiVersion(), Kind: k.Name})
	out = append(out, `"metadata":`...)
	out = appendMetadata(out, p.metadata, o.Rev)
	if k.NoSpec {
		return append(appendContent(out, p.spec), '}'), true
	}
	out = appendPart(out, "spec", p.spec)
	out = appendPart(out, "status", o.Status)
	return append(out, '}'), true
}

// appendForm writes a stored object as clients of the kind see it.
func (s *server) appendForm(out []byte, k *Kind, o store.Object) ([]byte, error) {
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
	obj, err := s.fromStore(o)
	if err != nil {
		return out, err
	}
	form, err := k.form(obj)
	return append(out, form...), err
}

// omit is a tree of fields that are left out of an object: a field without a subtree is left out as a whole. "*" stands
// for all other fields.
type omit map[string]omit

// appendField writes a field without what is omitted.
func (t omit) appendField(out, name, value []byte) []byte {
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
		return appendField(out, name, value)
	}
	out = append(append(append(out, '"'), name...), `":{`...)
	for f := fieldsOf(value); f.next(); {
		out = below.appendField(out, f.name, f.value)
	}
	return append(out, '}')
}

// appendForTable writes what columns and selectors need of a stored object.
func (k *Kind) appendForTable(out []byte, o store.Object) ([]byte, bool) {
	if k.TableOmits == nil {
		return k.appendStored(out, o)
	}
	p, ok := partsOf(o.Data)
	if !ok {
		return out, false
	}
	out = append(out, '{')
	out = k.TableOmits.appendField(out, []byte("metadata"), p.metadata)
	out = k.TableOmits.appendField(out, []byte("spec"), p.spec)
	out = k.TableOmits.appendField(out, []byte("status"), o.Status)
	return append(out, '}'), true
}

// decodeForTable decodes what columns and selectors need of a stored object.
func (s *server) decodeForTable(k *Kind, o store.Object) (any, error) {
	raw, ok := k.appendForTable(nil, o)
	if !ok {
		obj, err := s.fromStore(o)
		if err != nil {
			return nil, err
		}
		return k.typed(obj)
	}
	v := k.New()
	return v, json.Unmarshal(raw, v)
}

func errUnreadable(key store.Key) error {
	return fmt.Errorf("the stored %s can't be read", key)
}
