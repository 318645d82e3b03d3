package api

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strconv"

	"github.com/edgebus/edgebus/cloud/store"
	"github.com/edgebus/edgebus/topics/resource"
)

// What the store holds is JSON that was written here, and most of it goes out as it is. This file
// finds the parts of it without decoding them, which would cost ten times as much. Where the text is not
// of the form that we write there is no result, and the caller decodes: that says what is wrong.

// skip returns where the JSON value that begins at i ends, or -1. It trusts that the text is valid.
func skip(raw []byte, i int) int {
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
		default: // a number or a word
			for i < len(raw) && !ends(raw[i]) {
				i++
			}
		}
		if depth == 0 {
			return i
		}
	}
	return -1
}

func ends(c byte) bool {
	switch c {
	case ',', '}', ']', ' ', '\t', '\n', '\r':
		return true
	}
	return false
}

// skipString returns where the string that begins at i ends, or -1.
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

// blank returns where the white space that begins at i ends.
func blank(raw []byte, i int) int {
	for i < len(raw) && (raw[i] == ' ' || raw[i] == '\t' || raw[i] == '\n' || raw[i] == '\r') {
		i++
	}
	return i
}

// walk goes through the fields of a JSON object, or the items of a list, one after the other:
//
//	for w := fieldsIn(raw); w.next(); {
//
// A name is as it stands between its quotes. What is not valid ends it.
type walk struct {
	name, value []byte
	raw         []byte
	i           int // where the next one begins
	named       bool
}

func fieldsIn(raw []byte) walk { return walkIn(raw, '{') }
func itemsIn(raw []byte) walk  { return walkIn(raw, '[') }

func walkIn(raw []byte, open byte) walk {
	i := blank(raw, 0)
	if i == len(raw) || raw[i] != open {
		return walk{}
	}
	return walk{raw: raw, i: blank(raw, i+1), named: open == '{'}
}

func (w *walk) next() bool {
	if w.i == len(w.raw) || w.raw[w.i] == ']' || w.named && !w.readName() {
		return false
	}
	end := skip(w.raw, w.i)
	if end < 0 {
		return false
	}
	w.value = w.raw[w.i:end]
	if w.i = blank(w.raw, end); w.i < len(w.raw) && w.raw[w.i] == ',' {
		w.i = blank(w.raw, w.i+1)
	}
	return true
}

// readName reads the name that stands at i, and goes on to its value.
func (w *walk) readName() bool {
	if w.raw[w.i] != '"' {
		return false
	}
	end := skipString(w.raw, w.i)
	if end < 0 {
		return false
	}
	w.name = w.raw[w.i+1 : end-1]
	colon := blank(w.raw, end)
	if colon == len(w.raw) || w.raw[colon] != ':' {
		return false
	}
	w.i = blank(w.raw, colon+1)
	return w.i < len(w.raw)
}

// member is what an object has under a name, or nil.
func member(raw []byte, name string) []byte {
	for w := fieldsIn(raw); w.next(); {
		if string(w.name) == name {
			return w.value
		}
	}
	return nil
}

// parts are the main record of an object, as the store has it.
type parts struct{ metadata, spec, desiredMeta, sealed []byte }

// partsOf finds the parts of a record.
func partsOf(data []byte) (p parts, ok bool) {
	for w := fieldsIn(data); w.next(); {
		switch string(w.name) {
		case "metadata":
			p.metadata = w.value
		case "spec":
			p.spec = w.value
		case "desiredMeta":
			p.desiredMeta = w.value
		case "sealed":
			p.sealed = w.value
		}
	}
	return p, len(p.metadata) > 0 && p.metadata[0] == '{'
}

// appendMeta writes an object's metadata with its revision, in the order of resource.Meta.
func appendMeta(out, metadata []byte, rev uint64) []byte {
	out = append(out, '{')
	placed := rev == 0 // of what is not stored
	place := func() {
		if !placed {
			out = append(strconv.AppendUint(append(out, `"resourceVersion":"`...), rev, 10), `",`...)
			placed = true
		}
	}
	for w := fieldsIn(metadata); w.next(); {
		switch string(w.name) {
		case "name", "generateName", "namespace", "uid":
		case "resourceVersion":
			continue
		default:
			place()
		}
		out = appendMember(out, w.name, w.value)
		out = append(out, ',')
	}
	place()
	if last := len(out) - 1; out[last] == ',' {
		out = out[:last]
	}
	return append(out, '}')
}

func appendMember(out, name, value []byte) []byte {
	out = append(append(append(out, '"'), name...), '"', ':')
	return append(out, value...)
}

// appendStored writes a stored object in our own form: with its revision, and without what only the store knows.
func (k *Kind) appendStored(out []byte, o store.Object) ([]byte, bool) {
	if k.Sealed {
		return out, false
	}
	p, ok := partsOf(o.Data)
	if !ok {
		return out, false
	}
	out = appendHead(out, resource.TypeMeta{APIVersion: k.apiVersion(), Kind: k.Name})
	out = append(out, `"metadata":`...)
	out = appendMeta(out, p.metadata, o.Rev)
	if k.Flat {
		return append(appendInside(out, p.spec), '}'), true
	}
	out = appendPart(out, "spec", p.spec)
	out = appendPart(out, "status", o.Status)
	return append(out, '}'), true
}

// appendHead begins an object. Nothing in it needs escaping.
func appendHead(out []byte, t resource.TypeMeta) []byte {
	out = append(out, '{')
	if t.APIVersion != "" {
		out = append(append(append(out, `"apiVersion":"`...), t.APIVersion...), `",`...)
	}
	if t.Kind != "" {
		out = append(append(append(out, `"kind":"`...), t.Kind...), `",`...)
	}
	return out
}

// appendInside writes what is in an object after what is there already.
func appendInside(out, raw []byte) []byte {
	if raw = bytes.TrimSpace(raw); len(raw) <= len("{}") || raw[0] != '{' {
		return out
	}
	return append(append(out, ','), raw[1:len(raw)-1]...)
}

func appendPart(out []byte, name string, value []byte) []byte {
	if len(value) == 0 {
		return out
	}
	return appendMember(append(out, ','), []byte(name), value)
}

// labelsOf are a stored object's labels.
func labelsOf(data []byte) (labels map[string]string, ok bool) {
	p, ok := partsOf(data)
	if !ok {
		return nil, false
	}
	raw := member(p.metadata, "labels")
	return labels, raw == nil || json.Unmarshal(raw, &labels) == nil
}

// glance is as much of a stored object as its columns and field selectors look at.
func (k *Kind) glance(out []byte, o store.Object) ([]byte, bool) {
	if k.Bulk == nil {
		return k.appendStored(out, o)
	}
	p, ok := partsOf(o.Data)
	if !ok {
		return out, false
	}
	out = append(out, '{')
	out = k.Bulk.appendField(out, []byte("metadata"), p.metadata)
	out = k.Bulk.appendField(out, []byte("spec"), p.spec)
	out = k.Bulk.appendField(out, []byte("status"), o.Status)
	return append(out, '}'), true
}

// bulk is what is left out of an object: a field that has nothing below it altogether. "*" stands for all others.
type bulk map[string]bulk

// appendField writes a field of an object without what is left out of it.
func (b bulk) appendField(out, name, value []byte) []byte {
	below, some := b[string(name)]
	if !some {
		below, some = b["*"]
	}
	if len(value) == 0 || some && below == nil {
		return out
	}
	if out[len(out)-1] != '{' {
		out = append(out, ',')
	}
	if !some || value[0] != '{' {
		return appendMember(out, name, value)
	}
	out = append(append(append(out, '"'), name...), `":{`...)
	for w := fieldsIn(value); w.next(); {
		out = below.appendField(out, w.name, w.value)
	}
	return append(out, '}')
}

func unreadable(key store.Key) error {
	return fmt.Errorf("the stored %s can't be read", key)
}

// look decodes what columns and field selectors need of a stored object.
func (s *server) look(k *Kind, o store.Object) (any, error) {
	raw, ok := k.glance(nil, o)
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

// appendForm writes a stored object as a client of the kind sees it.
func (s *server) appendForm(out []byte, k *Kind, o store.Object) ([]byte, error) {
	if k.foreign == nil && len(k.Names) == 0 {
		if raw, ok := k.appendStored(out, o); ok {
			return raw, nil
		}
	}
	if k.foreign != nil {
		if raw, ok := k.foreign.of.appendStored(nil, o); ok {
			form, err := k.foreign.Show(raw)
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
